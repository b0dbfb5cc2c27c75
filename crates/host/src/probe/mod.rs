//! HTTP, TCP and gRPC probes with the same protocol behaviour and failure messages as upstream.
//!
//! Every attempt has its own connection, takes at most its timeout, and is just a future: dropping it closes the
//! connection.
//!
//! Deliberately absent: `SO_LINGER`, which upstream sets. With it, closing a socket blocks its thread until the peer
//! has acknowledged, even on a non-blocking socket; one dead peer would delay all other probes.

mod dial;
mod grpc;
mod http;
mod records;
#[cfg(test)]
mod tests;
mod tls;
pub(crate) mod url;

use std::time::Duration;

use async_trait::async_trait;
use model::probe::{NetworkCheck, ProbeOutcome};
use ports::Prober;
use tokio::time::{Instant, timeout_at};

pub use records::PodProbeRecords;

const USER_AGENT: &str = "kube-probe/1.36";

/// [`Prober`] on the real network. Cheap: it only holds the TLS configuration.
pub struct NetworkProber {
    tls: tls::Connector,
}

impl Default for NetworkProber {
    fn default() -> Self {
        Self { tls: tls::unverified() }
    }
}

#[async_trait]
impl Prober for NetworkProber {
    async fn probe(&self, check: &NetworkCheck, timeout: Duration) -> ProbeOutcome {
        let deadline = Instant::now() + timeout;
        match check {
            NetworkCheck::Http(check) => http::check(&self.tls, check, deadline).await,
            NetworkCheck::Tcp { host, port } => tcp(host, *port, deadline).await,
            NetworkCheck::Grpc { host, port, service } => {
                grpc::check(host, *port, service, timeout, deadline).await
            }
        }
    }
}

async fn tcp(host: &str, port: u16, deadline: Instant) -> ProbeOutcome {
    match timeout_at(deadline, dial::dial(host, port)).await {
        Ok(Ok(_stream)) => ProbeOutcome::Success,
        Ok(Err(words)) => ProbeOutcome::failure(words),
        Err(_) => ProbeOutcome::failure(format!("dial tcp {}: i/o timeout", dial::address(host, port))),
    }
}

/// `1s`, `1m30s`: whole seconds as upstream prints them.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}
