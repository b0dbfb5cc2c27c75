//! The client of the Kubernetes API: the connection and its identity, the calls that a kubelet makes, and the node's
//! certificates.
//!
//! - [`kubeconfig`]: the resolved file; every error names its position.
//! - [`Connection`]: one server with our current identity, which may change at run time.
//! - [`Api`]: typed calls, each with a deadline and without retries.
//! - [`Watch`]: a stream of changes.
//! - [`certificates`]: the node's own certificates, from the bootstrap to each rotation.

mod atomic_file;
mod call_rate;
mod calls;
mod certificate_chain;
pub mod certificates;
mod connection;
mod credential;
mod file_watch;
#[doc(hidden)]
pub mod fuzzing;
mod json;
pub mod kubeconfig;
mod object_list;
mod request;
mod response;
mod roles;
mod status;
mod transport;
mod watch;
mod watch_event;
mod watch_progress;

pub use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
pub use k8s_openapi::api::authorization::v1::SubjectAccessReview;
pub use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
pub use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
pub use k8s_openapi::api::coordination::v1::Lease;
pub use k8s_openapi::api::node::v1::RuntimeClass;
pub use k8s_openapi::api::storage::v1::CSIDriver as CsiDriver;
pub use ports::{ApiError, TlsFault};

pub use calls::{Api, DEADLINE, DeletePodOptions, Freshness};
pub use connection::{ConnectError, Connection};
pub use object_list::ObjectList;
pub use roles::{ApiPodFeed, PolledObjects, cluster_ports};
pub use watch::{Watch, WatchStart};
pub use watch_event::{ObjectIdentity, UnreadableObject, WatchEvent};
