//! TLS for probes: without certificate verification, and with upstream's failure messages.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{Error, InvalidMessage};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub type Connector = tokio_rustls::TlsConnector;

pub fn unverified() -> Connector {
    let mut config = tls::trusting_everybody().with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // No sessions are resumed: each attempt is independent.
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config).into()
}

/// The error is the complete message.
pub async fn connect(
    connector: &Connector,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned())
        // A host that is not a DNS name is sent without SNI, as an IP address is.
        .unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
    connector.connect(name, stream).await.map_err(|error| error_text(&error))
}

fn error_text(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".into();
    }
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "http: server gave HTTP response to HTTPS client".into()
        }
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {}", spaced(&format!("{alert:?}"))),
        Some(other) => format!("tls: {other}"),
        None => super::dial::os_error_text(error),
    }
}

/// Converts `HandshakeFailure` to `handshake failure`.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            out.push(' ');
        }
        out.extend(letter.to_lowercase());
    }
    out
}
