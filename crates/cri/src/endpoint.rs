//! From the name of an endpoint to a channel over its unix socket.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::stream_refusal::StreamRefusal;

/// The largest message that we take, as the reference does: lists of a full node go beyond gRPC's own 4 MiB.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// A list of a full node is some hundred KiB: it should not have to wait for window updates.
const WINDOW: u32 = 1024 * 1024;

#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    #[error("endpoint {endpoint:?}: protocol {protocol:?} is not supported, only unix sockets are")]
    Protocol { endpoint: String, protocol: String },
    #[error("endpoint {endpoint:?} names no socket")]
    NoPath { endpoint: String },
}

/// A unix socket that a gRPC server may or may not listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket(PathBuf);

/// Why a connection could not be made; the deepest cause is what calls report.
#[derive(thiserror::Error, Debug)]
#[error("cannot connect to {}", path.display())]
struct ConnectError {
    path: PathBuf,
    source: std::io::Error,
}

impl Socket {
    /// Reads `unix:///path`, `unix:/path` or a bare path.
    pub(crate) fn parse(endpoint: &str) -> Result<Self, EndpointError> {
        let path = match endpoint.split_once("://") {
            Some(("unix", path)) => path,
            Some((protocol, _)) => {
                return Err(EndpointError::Protocol { endpoint: endpoint.into(), protocol: protocol.into() });
            }
            None => endpoint.strip_prefix("unix:").unwrap_or(endpoint),
        };
        if path.is_empty() {
            return Err(EndpointError::NoPath { endpoint: endpoint.into() });
        }
        Ok(Self(path.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A channel that connects at its first call, and again at the next call after its connection ended. What was
    /// refused on a connection is forgotten with it. Needs a tokio runtime around it.
    pub(crate) fn channel(&self, refusals: Vec<StreamRefusal>) -> Channel {
        let path = self.0.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (path, refusals) = (path.clone(), refusals.clone());
            async move {
                match UnixStream::connect(&path).await {
                    Ok(stream) => {
                        refusals.iter().for_each(StreamRefusal::forget);
                        Ok(TokioIo::new(stream))
                    }
                    Err(source) => Err(ConnectError { path, source }),
                }
            }
        });
        // The authority is never resolved, but servers want a valid one.
        Endpoint::from_static("http://localhost")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .connect_with_connector_lazy(connector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_unix_sockets_only() {
        let check = |endpoint: &str, expect: Option<&str>| {
            let got = Socket::parse(endpoint).ok().map(|s| s.path().display().to_string());
            assert_eq!(got.as_deref(), expect, "{endpoint:?}");
        };
        check("unix:///run/containerd/containerd.sock", Some("/run/containerd/containerd.sock"));
        check("unix:/run/crio.sock", Some("/run/crio.sock"));
        check("/run/crio.sock", Some("/run/crio.sock"));
        check("tcp://127.0.0.1:1234", None);
        check("npipe:////./pipe/containerd", None);
        check("unix://", None);
        check("unix:", None);
        check("", None);
    }
}
