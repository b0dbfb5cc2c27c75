//! From the name of a collector to a channel. As the reference, without TLS: a collector is on the node or beside it.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Why a collector can't be called.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    #[error("{0:?} is no host with port and no unix socket")]
    Name(String),
}

#[derive(Debug, PartialEq, Eq)]
enum CollectorAddress {
    /// `http://host:port`
    Host(String),
    Socket(PathBuf),
}

impl CollectorAddress {
    /// Names as gRPC has them: `host:port`, `dns:host:port`, `dns://server/host:port`, `unix:path`, `unix:///path`.
    fn parse(name: &str) -> Result<Self, EndpointError> {
        let bad = || EndpointError::Name(name.to_owned());
        if let Some(path) = name.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Socket(path.into())) };
        }
        let host = match name.strip_prefix("dns:") {
            // Which server resolves it is up to this machine's resolver.
            Some(rest) => match rest.strip_prefix("//") {
                Some(rest) => rest.split_once('/').map(|(_, host)| host).ok_or_else(bad)?,
                None => rest,
            },
            None => name,
        };
        let uri: Uri = format!("http://{host}").parse().map_err(|_| bad())?;
        let fits =
            uri.host().is_some_and(|host| !host.is_empty()) && uri.path() == "/" && !host.contains('/');
        if fits { Ok(Self::Host(uri.to_string())) } else { Err(bad()) }
    }
}

/// Connects with the first call, and again when that is needed. Needs a tokio runtime around it.
pub(crate) fn channel(name: &str) -> Result<Channel, EndpointError> {
    match CollectorAddress::parse(name)? {
        CollectorAddress::Host(uri) => {
            let endpoint = Endpoint::from_shared(uri).map_err(|_| EndpointError::Name(name.to_owned()))?;
            Ok(endpoint.connect_lazy())
        }
        CollectorAddress::Socket(path) => {
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            // The authority is never resolved, but servers want a valid one.
            Ok(Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_collectors() {
        let host = |uri: &str| Ok(CollectorAddress::Host(uri.into()));
        let socket = |path: &str| Ok(CollectorAddress::Socket(path.into()));
        let bad = |name: &str| Err(EndpointError::Name(name.into()));
        for (name, expect) in [
            ("localhost:4317", host("http://localhost:4317/")),
            ("10.0.0.1:4317", host("http://10.0.0.1:4317/")),
            ("[::1]:4317", host("http://[::1]:4317/")),
            ("dns:collector:4317", host("http://collector:4317/")),
            ("dns:///collector:4317", host("http://collector:4317/")),
            ("dns://1.1.1.1/collector:4317", host("http://collector:4317/")),
            ("unix:///run/otel.sock", socket("/run/otel.sock")),
            ("unix:/run/otel.sock", socket("/run/otel.sock")),
            ("unix:", bad("unix:")),
            ("http://collector:4317", bad("http://collector:4317")),
            ("a/b", bad("a/b")),
            ("", bad("")),
        ] {
            assert_eq!(CollectorAddress::parse(name), expect, "{name}");
        }
    }
}
