//! Asking the agent over its socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use model::report::{NodeReport, PodReport, WhyReport};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// A little more than the agent itself gives a question.
const AGENT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(thiserror::Error, Debug)]
pub enum ClientError {
    #[error(
        "no agent answers on {}: is rubelet running on this node, with this root directory? \
         (--root-dir names another one)",
        socket.display()
    )]
    NoAgent { socket: PathBuf },
    #[error("not allowed to open {}: the agent answers to root only, try again as root", socket.display())]
    Denied { socket: PathBuf },
    #[error("cannot open {}", socket.display())]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the connection to the agent on {} was closed", socket.display())]
    ConnectionLost {
        socket: PathBuf,
        #[source]
        source: hyper::Error,
    },
    #[error("the agent on {} did not answer within {AGENT_TIMEOUT:?}", socket.display())]
    TimedOut { socket: PathBuf },
    #[error("the agent refused to answer: {message}")]
    Refused { message: String },
    #[error("the agent's response cannot be read: the agent may be another version")]
    Unreadable(#[source] serde_json::Error),
}

/// One agent, by its socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub async fn pods(&self) -> Result<Vec<PodReport>, ClientError> {
        self.ask("/v1/pods").await
    }

    pub async fn node(&self) -> Result<NodeReport, ClientError> {
        self.ask("/v1/node").await
    }

    pub async fn why(&self, namespace: &str, name: &str) -> Result<Vec<WhyReport>, ClientError> {
        self.ask(&format!("/v1/why?namespace={}&name={}", escape(namespace), escape(name))).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = tokio::time::timeout(AGENT_TIMEOUT, self.exchange(path)).await;
        let silent = |_| ClientError::TimedOut { socket: self.socket.clone() };
        let (status, body) = answer.map_err(silent)??;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(ClientError::Unreadable),
            _ => Err(ClientError::Refused { message: refusal(status, &body) }),
        }
    }

    async fn exchange(&self, path: &str) -> Result<(StatusCode, Bytes), ClientError> {
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| cannot_connect(&self.socket, error))?;
        let broken = |source| ClientError::ConnectionLost { socket: self.socket.clone(), source };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Its end shows in the answer.
        tokio::spawn(connection);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = path.parse().unwrap_or_default();
        request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("rubelet"));
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        Ok((status, body))
    }
}

fn cannot_connect(socket: &Path, source: io::Error) -> ClientError {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoAgent { socket },
        io::ErrorKind::PermissionDenied => ClientError::Denied { socket },
        _ => ClientError::Connect { socket, source },
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: String,
    }
    serde_json::from_slice(body).map_or_else(|_| status.to_string(), |Body { error }| error)
}

/// For the query of a URL.
fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        for (text, expect) in [("web-vm.1", "web-vm.1"), ("a b&c=d", "a%20b%26c%3Dd"), ("ü", "%C3%BC")] {
            assert_eq!(escape(text), expect);
        }
    }

    #[test]
    fn a_failed_connection_says_what_to_do() {
        let check = |kind: io::ErrorKind, expect: &str| {
            let error = cannot_connect(Path::new("/x/rubelet.sock"), kind.into());
            assert!(error.to_string().contains(expect), "{error}");
        };
        check(io::ErrorKind::NotFound, "no agent answers on /x/rubelet.sock: is rubelet running");
        check(io::ErrorKind::ConnectionRefused, "no agent answers on /x/rubelet.sock: is rubelet running");
        check(io::ErrorKind::PermissionDenied, "try again as root");
        check(io::ErrorKind::InvalidInput, "cannot open /x/rubelet.sock");
    }

    #[test]
    fn refusals_are_told_in_the_agents_words() {
        assert_eq!(
            refusal(StatusCode::SERVICE_UNAVAILABLE, br#"{"error":"the agent is shutting down"}"#),
            "the agent is shutting down"
        );
        assert_eq!(refusal(StatusCode::NOT_FOUND, b"no JSON"), "404 Not Found");
    }
}
