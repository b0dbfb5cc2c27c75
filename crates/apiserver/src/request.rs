//! One call: its request, its deadline, and what its response means.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ports::ApiError;

use crate::connection::{Connection, Sent};
use crate::status;
use crate::transport::transport_failure;

pub const JSON: &str = "application/json";
pub const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
/// More than any object or list of one node has.
const MAX_ANSWER_BYTES: usize = 256 << 20;

pub struct Call {
    pub method: Method,
    /// From the root of the API, with its query.
    pub path: String,
    pub body: Option<(&'static str, Bytes)>,
    /// `get pod`
    what: &'static str,
    /// `default/web`; empty for collections.
    object: String,
    /// It does not wait for its turn.
    pub unlimited: bool,
}

impl Call {
    pub fn new(what: &'static str, method: Method, path: String, object: impl Into<String>) -> Call {
        Call { method, path, body: None, what, object: object.into(), unlimited: false }
    }

    pub fn get(what: &'static str, path: String, object: impl Into<String>) -> Call {
        Call::new(what, Method::GET, path, object)
    }

    /// Query parameters; those with an empty value are left out.
    pub fn query(mut self, parameters: &[(&str, &str)]) -> Call {
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            let sign = if self.path.contains('?') { '&' } else { '?' };
            let _ = write!(self.path, "{sign}{name}={}", escaped(value));
        }
        self
    }

    pub fn body(mut self, kind: &'static str, body: Vec<u8>) -> Call {
        self.body = Some((kind, body.into()));
        self
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.what, self.object).trim_end().to_owned()
    }

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

/// Escapes text for a query value or one segment of a path.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Call, escaped};

    #[test]
    fn values_are_escaped() {
        let check = |text, expect| assert_eq!(escaped(text), expect);
        check("web-1.example_~", "web-1.example_~");
        check("spec.nodeName=a b", "spec.nodeName%3Da%20b");
        check("../x?y#z&é", "..%2Fx%3Fy%23z%26%C3%A9");
    }

    #[test]
    fn queries_leave_out_what_is_empty() {
        let call = Call::get("list pods", "/api/v1/pods".into(), "").query(&[
            ("fieldSelector", "a=b"),
            ("resourceVersion", ""),
            ("watch", "1"),
        ]);
        assert_eq!(call.path, "/api/v1/pods?fieldSelector=a%3Db&watch=1");
        assert_eq!(call.name(), "list pods");
        assert_eq!(Call::get("get pod", String::new(), "default/web").name(), "get pod default/web");
    }
}
