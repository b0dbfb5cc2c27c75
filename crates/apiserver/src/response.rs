//! Sends a call, with its deadline, and says what its response means.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ports::ApiError;

use crate::connection::{Connection, Sent};
use crate::request::Call;
use crate::status;
use crate::transport::transport_failure;

/// More than any object or list of one node has.
const MAX_ANSWER_BYTES: usize = 256 << 20;

impl Call {
    /// Returns the whole response of a success, or the failure by its kind.
    pub async fn run(self, connection: &Connection, within: Duration) -> Result<Bytes, ApiError> {
        // The deadline is the server's: a queue of our own calls is none of its business.
        if !self.unlimited {
            connection.wait_for_turn().await;
        }
        let whole = async {
            let sent = connection.send(&self).await?;
            let (parts, body) = sent.answer.into_parts();
            let body = read(body, &self).await?;
            if parts.status.is_success() {
                Ok(body)
            } else {
                Err(self.refused(parts.status, &parts.headers, &body))
            }
        };
        match tokio::time::timeout(within, whole).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::TimedOut { call: self.name(), after: within }),
        }
    }

    /// Returns the response when its head has arrived within the deadline. The caller reads the body, for as long as it
    /// lasts.
    pub async fn open(&self, connection: &Connection, within: Duration) -> Result<Sent, ApiError> {
        if !self.unlimited {
            connection.wait_for_turn().await;
        }
        let head = async {
            let sent = connection.send_watch(self).await?;
            if sent.answer.status().is_success() {
                return Ok(sent);
            }
            let (parts, body) = sent.answer.into_parts();
            let body = read(body, self).await?;
            Err(self.refused(parts.status, &parts.headers, &body))
        };
        match tokio::time::timeout(within, head).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::TimedOut { call: self.name(), after: within }),
        }
    }

    fn refused(&self, code: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
        let wait = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| value.parse().ok()).map(Duration::from_secs);
        status::failure(self.name(), code.as_u16(), wait, body)
    }
}

async fn read(mut body: Incoming, call: &Call) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| transport_failure(&call.name(), &error))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > MAX_ANSWER_BYTES {
            let message = format!("it is larger than {MAX_ANSWER_BYTES} bytes");
            return Err(ApiError::Decode { call: call.name(), message });
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
