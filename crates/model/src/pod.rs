//! Views over the Kubernetes Pod: one place that knows where its optional parts are.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{FullName, PodUid};
use crate::k8s;

pub const ANNOTATION_SOURCE: &str = "kubernetes.io/config.source";
pub const ANNOTATION_SEEN: &str = "kubernetes.io/config.seen";
pub const ANNOTATION_HASH: &str = "kubernetes.io/config.hash";
pub const ANNOTATION_MIRROR: &str = "kubernetes.io/config.mirror";

pub const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
pub const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
pub const LABEL_CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const ANNOTATION_CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const ANNOTATION_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const ANNOTATION_TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const ANNOTATION_TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const ANNOTATION_POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const ANNOTATION_POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const ANNOTATION_PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const ANNOTATION_PORTS: &str = "io.kubernetes.container.ports";

/// Where a pod came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    File,
    Http,
    Api,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Http => "http",
            Source::Api => "api",
        }
    }
    pub fn is_static(self) -> bool {
        self != Source::Api
    }
}

/// A pod whose object can't be decoded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnreadablePod {
    pub uid: PodUid,
    pub full_name: FullName,
    /// The field, and what is wrong with it.
    pub problem: String,
}

/// The list of the pod spec that a container stands in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

impl ContainerKind {
    pub fn spec_list(self) -> &'static str {
        match self {
            ContainerKind::Init => "spec.initContainers",
            ContainerKind::Regular => "spec.containers",
            ContainerKind::Ephemeral => "spec.ephemeralContainers",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// An unknown word means Always, as in the reference.
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some("Never") => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        }
    }
}

/// A pod as a source delivered it, defaulted and with its identity. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    pub uid: PodUid,
    pub full_name: FullName,
    pub source: Source,
    pub pod: Arc<k8s::Pod>,
    /// The pod's ephemeral containers, with the fields that they share with all others.
    ephemeral: Arc<[k8s::Container]>,
}

impl PodView {
    /// The pod must have a name, namespace and UID (sources give them); missing ones become empty.
    pub fn new(pod: Arc<k8s::Pod>, source: Source) -> Self {
        let meta = &pod.metadata;
        Self {
            uid: PodUid::new(meta.uid.as_deref().unwrap_or_default()),
            full_name: FullName::new(
                meta.name.as_deref().unwrap_or_default(),
                meta.namespace.as_deref().unwrap_or_default(),
            ),
            source,
            ephemeral: pod
                .spec
                .iter()
                .flat_map(|s| &s.ephemeral_containers)
                .flatten()
                .map(as_container)
                .collect(),
            pod,
        }
    }
    pub fn name(&self) -> &str {
        &self.full_name.name
    }
    pub fn namespace(&self) -> &str {
        &self.full_name.namespace
    }
    pub fn spec(&self) -> &k8s::PodSpec {
        static EMPTY: std::sync::OnceLock<k8s::PodSpec> = std::sync::OnceLock::new();
        self.pod.spec.as_ref().unwrap_or_else(|| EMPTY.get_or_init(Default::default))
    }
    /// `<name>_<namespace>(<uid>)`, as messages show a pod.
    pub fn display_name(&self) -> String {
        format!("{}({})", self.full_name, self.uid)
    }
    pub fn host_network(&self) -> bool {
        self.spec().host_network.unwrap_or(false)
    }
    pub fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy::parse(self.spec().restart_policy.as_deref())
    }
    /// Regular containers in spec order.
    pub fn containers(&self) -> &[k8s::Container] {
        &self.spec().containers
    }
    pub fn init_containers(&self) -> &[k8s::Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }
    pub fn ephemeral_containers(&self) -> &[k8s::Container] {
        &self.ephemeral
    }
    /// Whose processes an ephemeral container sees.
    pub fn target_of(&self, ephemeral: &str) -> Option<&str> {
        let mut list = self.spec().ephemeral_containers.iter().flatten();
        let target = list.find(|c| c.name == ephemeral)?.target_container_name.as_deref();
        target.filter(|name| !name.is_empty())
    }
    /// Of every kind: init, regular, ephemeral.
    pub fn all_containers(&self) -> impl Iterator<Item = (ContainerKind, &k8s::Container)> {
        let init = self.init_containers().iter().map(|c| (ContainerKind::Init, c));
        let regular = self.containers().iter().map(|c| (ContainerKind::Regular, c));
        let ephemeral = self.ephemeral.iter().map(|c| (ContainerKind::Ephemeral, c));
        init.chain(regular).chain(ephemeral)
    }
    /// Finds a container of any kind by its name. Names are unique in a pod.
    pub fn container(&self, name: &str) -> Option<(ContainerKind, &k8s::Container)> {
        self.all_containers().find(|(_, c)| c.name == name)
    }
    /// The same pod with another object behind it.
    pub fn with_pod(&self, pod: Arc<k8s::Pod>) -> Self {
        Self::new(pod, self.source)
    }
    pub fn is_deleting(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }
    /// The grace that the spec asks for, in seconds.
    pub fn spec_grace(&self) -> i64 {
        self.spec().termination_grace_period_seconds.unwrap_or(30)
    }
    pub fn generation(&self) -> Option<i64> {
        self.pod.metadata.generation
    }
}

/// A restartable init container.
pub fn is_sidecar(container: &k8s::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// An ephemeral container has the fields of any other, and a target.
fn as_container(ephemeral: &k8s::EphemeralContainer) -> k8s::Container {
    let c = ephemeral.clone();
    k8s::Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}
/// Annotations without those that only this node writes.
pub fn meaningful_annotations(pod: &k8s::Pod) -> BTreeMap<&String, &String> {
    let local = [ANNOTATION_SOURCE, ANNOTATION_SEEN, ANNOTATION_MIRROR];
    pod.metadata.annotations.iter().flatten().filter(|(key, _)| !local.contains(&key.as_str())).collect()
}
