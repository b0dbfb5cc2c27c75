//! The agent's own HTTP: the health port, the read-only port, metrics, and the control socket of the commands.
//!
//! ```text
//!   healthz port  ──┐
//!   read-only port ─┼─> Endpoints ──> AgentView (the engine answers between two events)
//!   control socket ─┘        └──────> AgentMetrics <── MeteredRuntime, MeteredImages, MeteredEvents
//!   Pods API ───────> PodsService ──> PodWatches (the engine, too)
//! ```
//!
//! Everything here only reads. Nothing decides, and an agent that does not answer is told to the caller within
//! [`PATIENCE`] instead of leaving the request hanging.

mod access;
mod api;
mod control;
mod endpoints;
#[doc(hidden)]
pub mod fuzzing;
mod gzip;
mod health;
mod inflight;
mod listen;
mod log_rate_limit;
mod metered;
mod metered_plugins;
mod metrics;
mod pod_list;
mod pods_api;
mod process;
mod secure;
mod stats;
#[cfg(test)]
mod testing;
mod tls;
mod unauthenticated_connections;
mod upgrade_request;

use std::time::Duration;

pub use access::{Access, AccessError, Authentication, Authorization};
pub use api::{ApiSettings, SecureApi, SetVerbosity, StreamingTls};
pub use endpoints::Endpoints;
pub use health::{CheckFailure, CheckResult, HealthCheck, HealthChecks};
pub use listen::{ServeError, ServerHandle, serve_tcp, serve_unix};
pub use metered::{
    MeteredCgroups, MeteredEvents, MeteredHttpHooks, MeteredImages, MeteredNodeApi, MeteredRuntime,
};
pub use metered_plugins::{MeteredCsiDrivers, MeteredPluginSockets, MeteredRegistryCredentials};
pub use metrics::{AgentMetrics, BuildInfo, CertificateFigures};
/// The other side of the Pods API, for tests.
#[cfg(feature = "pods-client")]
pub use pods_api::client as pods_client;
pub use pods_api::serve_pods_api;
pub use secure::{Tls, serve_tls};
pub use stats::{NodeStats, StatsPorts, StatsSettings};
pub use tls::{ClientAuthority, ServingCertificate, TlsError, TlsSettings, server_config};

/// How long the agent may take to answer a question. It answers in milliseconds; this long means that it hangs.
pub const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
