//! What the agent tells about itself to people and to its own HTTP endpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api_event::ApiEvent;
use crate::time::Wall;
use crate::why::Cause;

/// One line of `get pods`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub source: String,
    /// `sync`, `terminating` or `terminated`.
    #[serde(default)]
    pub lifecycle: String,
    /// The phase, or what stands in its way: the word that people look for.
    pub status: String,
    pub ready: usize,
    pub containers: Vec<ContainerView>,
    pub restarts: i32,
    pub ip: String,
    pub since: Option<Wall>,
    pub log_dir: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    pub name: String,
    pub ready: bool,
    pub restarts: i32,
    /// Path of the newest instance's log.
    pub log_path: Option<String>,
    pub previous_log_path: Option<String>,
    pub running: bool,
    /// An init container (or sidecar): not counted among the pod's containers.
    #[serde(default)]
    pub init: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyReport {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub phase: String,
    pub reasons: Vec<WhyLine>,
    pub events: Vec<RecentEvent>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyLine {
    pub container: Option<String>,
    pub cause: Cause,
    pub since: Wall,
    /// Seconds from now until the next attempt.
    pub next_attempt_secs: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentEvent {
    pub at: Wall,
    pub event: ApiEvent,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub name: String,
    pub runtime: String,
    pub runtime_ready: bool,
    pub network_ready: bool,
    /// Why it is not ready; empty when it is.
    pub message: String,
    pub sources_ready: bool,
    pub pods: usize,
    pub running_pods: usize,
    pub containers: BTreeMap<String, usize>,
    /// In the API.
    #[serde(default)]
    pub mirror_pods: usize,
    /// Pods in the runtime that nobody wants, on their way out.
    #[serde(default)]
    pub orphans: usize,
    #[serde(default)]
    pub ephemeral_containers: usize,
    #[serde(default)]
    pub counts: AgentCounters,
    #[serde(default)]
    pub volumes: Vec<VolumeCount>,
    /// Empty where SELinux is off.
    #[serde(default)]
    pub selinux_volumes: Vec<SelinuxCount>,
    #[serde(default)]
    pub pod_certificates: Vec<CertificateCount>,
    /// `None`: the gate MemoryQoS is off.
    #[serde(default)]
    pub protected_memory: Option<ProtectedMemoryReport>,
    /// How far the node is from the thresholds of eviction.
    #[serde(default)]
    pub signals: Vec<SignalReport>,
    /// Of the API server's objects. Empty without a cluster.
    #[serde(default)]
    pub watches: Vec<WatchReport>,
}

/// How much memory the kernel does not take from pods, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectedMemoryReport {
    /// What guaranteed pods request.
    pub min_bytes: u64,
    /// What burstable pods request.
    pub low_bytes: u64,
}

/// How far the node is from one threshold of eviction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalReport {
    /// Such as `memory.available`.
    pub signal: String,
    pub available: i64,
    /// The node is short when less than this is available.
    pub threshold: i64,
    /// How long it must be short before a pod goes. Zero: not at all.
    pub grace_secs: u64,
    pub read_secs_ago: f64,
}

/// How many certificates of pods, of one signer, are in one state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateCount {
    pub signer_name: String,
    /// `not_yet_issued`, `fresh`, `overdue_for_refresh`, `expired`, `denied` or `failed`.
    pub state: String,
    pub count: usize,
}

/// How one watch of the API server's objects is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    /// Such as `services`.
    pub resource: String,
    /// `namespace/name`, where it is a watch of one object.
    #[serde(default)]
    pub object: String,
    /// How long ago the API server last sent a list, an event or a bookmark, or ended a watch in order.
    pub last_word_secs: f64,
    /// Bookmarks came in the present watch, so others have to follow.
    #[serde(default)]
    pub has_bookmarks: bool,
    /// What holds it; empty when nothing does.
    #[serde(default)]
    pub problem: String,
    /// Objects that can't be decoded, each with the field that is wrong. The others are not held up by them.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

/// Once the API server has sent a bookmark in a watch, others follow once a minute. If two of them are missing, something
/// between the server and the agent holds the watch up.
const QUIET_AFTER_BOOKMARK_SECS: f64 = 150.0;
/// Without a new version in the cluster's storage there are no bookmarks, and how often the API server hears of new
/// versions of other resources depends on settings of etcd. But it ends every watch after ten minutes at the latest.
const QUIET_SECS: f64 = 720.0;

impl WatchReport {
    pub fn is_held(&self) -> bool {
        let longest = if self.has_bookmarks { QUIET_AFTER_BOOKMARK_SECS } else { QUIET_SECS };
        !self.problem.is_empty() || self.last_word_secs > longest
    }

    /// `secret default/web`, as people would say it.
    pub fn name(&self) -> String {
        format!("{} {}", self.resource, self.object).trim_end().to_owned()
    }
}

/// What happened since the agent came up. Nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCounters {
    /// Pods of the runtime that nobody wanted.
    pub orphans: u64,
    /// Pods that were removed and wanted again under their UID: static ones, and those of the API.
    #[serde(rename = "static_pods_back")]
    pub static_pods_recreated: u64,
    #[serde(rename = "api_pods_back")]
    pub api_pods_recreated: u64,
    /// Pods that were evicted, by the kubelet's word for the limit.
    pub evictions: BTreeMap<String, u64>,
    /// Pods that were preempted, by the resource that a critical pod lacked first.
    #[serde(default)]
    pub preemptions: BTreeMap<String, u64>,
    /// Images that were removed because nothing used them, by the kubelet's word for the reason.
    #[serde(default)]
    pub images_collected: BTreeMap<String, u64>,
    /// Images that containers and volumes asked for.
    #[serde(default)]
    pub image_requests: Vec<ImageRequests>,
    /// Whether a pod may use an image that is there, by the kubelet's word for the result.
    #[serde(default)]
    pub access_checks: BTreeMap<String, u64>,
}

/// How often it came to this with an image that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRequests {
    /// The pull policy, in lower case.
    pub policy: String,
    /// `None`: that was not found out.
    pub present: Option<bool>,
    pub pull_required: Option<bool>,
    pub count: u64,
}

impl AgentCounters {
    pub fn image_requested(&mut self, policy: &str, present: Option<bool>, pull_required: Option<bool>) {
        let key = |one: &ImageRequests| (one.present, one.pull_required) == (present, pull_required);
        match self.image_requests.iter_mut().find(|one| one.policy == policy && key(one)) {
            Some(known) => known.count += 1,
            None => {
                let policy = policy.to_owned();
                self.image_requests.push(ImageRequests { policy, present, pull_required, count: 1 });
            }
        }
    }
}

/// What the SELinux labels of the containers that mount a volume lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SelinuxOutcome {
    /// The volume has one label.
    Admitted,
    /// Containers of one pod have different labels, and the pod can't start.
    PodMismatchError,
    /// The same, and the volume is not mounted with a label.
    PodMismatchWarning,
    /// The pod wants another label than a pod that uses the volume, and can't start beside it.
    VolumeMismatchError,
    /// The same, and the volume is not mounted with a label.
    VolumeMismatchWarning,
}

/// How many volumes of pods have one outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelinuxCount {
    pub outcome: SelinuxOutcome,
    /// With the driver's name, such as `kubernetes.io/csi/disk.example`. Empty for mismatches within a pod.
    pub plugin: String,
    /// `RWX`, `ROX`, `RWO`, `RWOP`, or `inline` without a claim.
    pub access_mode: String,
    pub count: usize,
}

/// How many volumes of one kind there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCount {
    /// Such as `kubernetes.io/empty-dir`.
    pub plugin: String,
    /// That pods are to have.
    pub wanted: usize,
    /// That were set up, and not torn down since.
    pub set_up: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_holds_a_watch_sooner_after_a_bookmark() {
        let check = |last_word_secs: f64, has_bookmarks: bool, problem: &str, expect: bool| {
            let watch = WatchReport {
                last_word_secs,
                has_bookmarks,
                problem: problem.into(),
                ..WatchReport::default()
            };
            assert_eq!(watch.is_held(), expect, "{watch:?}");
        };
        check(100.0, true, "", false);
        check(151.0, true, "", true);
        check(151.0, false, "", false);
        check(721.0, false, "", true);
        check(0.0, false, "refused", true);
    }
}
