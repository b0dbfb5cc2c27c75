//! The nouns of Rubelet: identities, time, views over the Kubernetes types, what was observed in the
//! runtime, the values sent to it, reasons, and the node's facts and configuration.
//!
//! Nothing here decides and nothing here does I/O. Every other crate speaks in these words.

pub mod allocatable;
pub mod api_event;
pub mod cgroup;
pub mod cluster;
pub mod codec;
pub mod credentials;
pub mod cri;
pub mod csi;
mod device_paths;
pub mod disk_usage;
pub mod eviction;
pub mod files;
pub mod grpc;
pub mod hash;
pub mod hook;
pub mod ids;
pub mod image_garbage;
pub mod local;
pub mod log_rotation;
pub mod node;
pub mod node_object_config;
pub mod observed;
pub mod oom_kill;
pub mod panic_record;
pub mod pod;
pub mod pod_certificate;
pub mod probe;
pub mod quantity;
pub mod reason;
pub mod report;
pub mod runtime_class;
pub mod storage;
pub mod sysctl;
pub mod text_limits;
pub mod time;
pub mod user_namespace;
pub mod volume;
pub mod volume_source;
pub mod why;

pub use api_event::{ApiEvent, EventSubject, EventType};
pub use grpc::GrpcCode;
pub use ids::{ContainerId, FullName, PodUid, SandboxId};
pub use reason::{PodPhase, PodReason, Reason};
pub use time::{Mono, Now, Wall};

/// The Kubernetes API types that the rooms share, under one name.
pub mod k8s {
    pub use k8s_openapi::List;
    pub use k8s_openapi::api::certificates::v1beta1::{
        ClusterTrustBundle, PodCertificateRequest, PodCertificateRequestSpec, PodCertificateRequestStatus,
    };
    pub use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
    pub use k8s_openapi::api::core::v1::*;
    pub use k8s_openapi::api::node::v1::RuntimeClass;
    pub use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
    pub use k8s_openapi::api::storage::v1::{
        CSIDriverSpec, CSINode, CSINodeDriver, CSINodeSpec, TokenRequest as CsiTokenRequest,
        VolumeNodeResources,
    };
    pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
        Condition, LabelSelector, MicroTime, ObjectMeta, OwnerReference, Time,
    };
    pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    pub type PodList = List<Pod>;
}
