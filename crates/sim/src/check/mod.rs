//! The invariants. Each hook is called right when something happens and records the invariant that is broken, if any;
//! the first violation ends the run. The data for the checks is kept here, apart from the state that is checked.

mod admission;
mod calls;
mod cgroups;
mod images;
mod settled;
mod state;
mod volumes;
mod world;

use model::PodPhase;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use decide::Event;
use model::k8s::Pod;
use model::pod::Source;
use model::{ContainerId, Mono, PodUid, SandboxId};

pub use settled::{nothing_left, unsettled};

use crate::time::Nanos;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub message: String,
}

#[derive(Default)]
pub struct InvariantChecker {
    pub violation: Option<Violation>,
    /// The last version of every pod that was ever in a source.
    specs: BTreeMap<PodUid, Arc<Pod>>,
    origins: BTreeMap<PodUid, Source>,
    /// When a pod was last removed from its source.
    removed_at: BTreeMap<PodUid, Nanos>,
    /// Pods that were missing in the last complete set, or in an earlier one, that a source delivered to this agent.
    missing_in_source: BTreeSet<PodUid>,
    /// Pods whose end was requested from this agent (K3).
    told_to_end: BTreeSet<PodUid>,
    /// The last starts of each container (K10).
    starts: BTreeMap<(PodUid, String), Vec<Nanos>>,
    /// Pods of which something outside removed a container.
    lost_container_to_others: BTreeSet<PodUid>,
    /// Pods of which the runtime lost the record of a container for a while.
    lost_by_runtime: BTreeSet<PodUid>,
    /// Terminal phases that were published (K2).
    ended: BTreeMap<PodUid, String>,
    /// Restart counts that were published.
    published_restarts: BTreeMap<(PodUid, String), i32>,
    /// Restart counts that containers were created with.
    made_restarts: BTreeMap<(PodUid, String), u32>,
    /// Start and grace period of each termination (K4).
    terminations: BTreeMap<PodUid, (Mono, i64)>,
    /// When a requested stop would kill.
    kill_times: BTreeMap<ContainerId, Nanos>,
    /// Init containers that succeeded and sidecars that started, in each sandbox (K5).
    completed_inits: BTreeMap<SandboxId, BTreeSet<String>>,
    /// Pods that may run, as of the last step of this agent.
    admitted: BTreeSet<PodUid>,
    /// The Node object has shown an allocatable amount of CPU that this agent did not compute.
    allocatable_is_foreign: bool,
    /// Pods that this agent preempted.
    preempted: BTreeSet<PodUid>,
    /// The same of earlier agents. The API server may not know of it, and a late patch may undo it; the next agent then
    /// keeps such a pod.
    forgotten_victims: BTreeSet<PodUid>,
    /// Containers whose liveness or startup probe, or hook, has failed.
    may_be_stopped: BTreeSet<ContainerId>,
    /// Ids of images that this agent removed, and that were not pulled since.
    removed_images: BTreeSet<String>,
    /// Containers that were created after the agent had given up the call, or was killed.
    made_late: BTreeSet<ContainerId>,
}

impl InvariantChecker {
    pub fn violate(&mut self, invariant: &'static str, message: String) {
        self.violation.get_or_insert(Violation { invariant, message });
    }

    pub fn add_violation(&mut self, found: Option<Violation>) {
        if let Some(violation) = found {
            self.violation.get_or_insert(violation);
        }
    }

    /// Every UID that was ever in a source.
    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.specs.keys()
    }

    pub fn pod_added(&mut self, now: Nanos, source: Source, pod: &Arc<Pod>, old: Option<&Pod>) {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        let old_uid = old.and_then(|o| o.metadata.uid.as_deref());
        match old_uid {
            Some(same) if same == uid.as_str() => {}
            Some(other) => {
                self.pod_removed(now, &other.into());
                self.begin_again(&uid);
            }
            None => self.begin_again(&uid),
        }
        self.origins.insert(uid.clone(), source);
        self.specs.insert(uid, pod.clone());
    }

    /// The agent is about to receive this event.
    pub fn event_delivered(&mut self, event: &Event) {
        match event {
            Event::PodSetDelivered { source, pods } => {
                let there: BTreeSet<_> = pods.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
                let of_source = self.origins.iter().filter(|(_, s)| *s == source).map(|(uid, _)| uid);
                let missing: Vec<_> =
                    of_source.filter(|uid| !there.contains(uid.as_str())).cloned().collect();
                self.missing_in_source.extend(missing.iter().cloned());
                self.told_to_end.extend(missing);
                pods.iter().for_each(|pod| self.pod_delivered(pod));
            }
            Event::PodChanged { pod, .. } => self.pod_delivered(pod),
            Event::PodRemoved { uid, .. } => {
                self.missing_in_source.insert(uid.clone());
                self.told_to_end.insert(uid.clone());
            }
            // If a static pod has no mirror, its eviction is not stored anywhere and a restarted agent does not know of
            // it.
            Event::Evict { uid, .. } => self.lost_container_to_others(uid),
            _ => {}
        }
    }

    fn pod_delivered(&mut self, pod: &Pod) {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            self.told_to_end.insert(uid);
        } else {
            self.told_to_end.remove(&uid);
        }
    }

    pub fn pod_removed(&mut self, now: Nanos, uid: &PodUid) {
        self.removed_at.insert(uid.clone(), now);
        self.made_restarts.retain(|(of, _), _| of != uid);
    }

    fn begin_again(&mut self, uid: &PodUid) {
        self.ended.remove(uid);
        self.made_restarts.retain(|(of, _), _| of != uid);
        self.published_restarts.retain(|(of, _), _| of != uid);
    }

    pub fn pod_forgotten(&mut self, uid: &PodUid) {
        self.begin_again(uid);
        self.terminations.remove(uid);
    }

    /// The next agent knows nothing of this one's terminations, nor whether a pod was removed from its source
    /// meanwhile.
    pub fn agent_killed(&mut self, api: Option<&BTreeMap<String, Arc<Pod>>>) {
        self.told_to_end.clear();
        self.starts.clear();
        self.terminations.clear();
        self.kill_times.clear();
        self.removed_images.clear();
        self.missing_in_source.clear();
        let absent = &self.removed_at;
        // The next agent learns of an end from the status in the API server, and for a static pod from the runtime.
        let known: BTreeSet<PodUid> = api
            .into_iter()
            .flat_map(|set| set.values())
            .filter(|pod| pod.status.as_ref().and_then(PodPhase::of).is_some_and(PodPhase::is_terminal))
            .map(|pod| PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default()))
            .collect();
        // The start time of a static pod is not stored anywhere, so its deadline starts again.
        let timed = |uid: &PodUid| {
            let spec = self.specs.get(uid).and_then(|pod| pod.spec.as_ref());
            spec.is_some_and(|spec| spec.active_deadline_seconds.is_some())
        };
        let (origins, robbed) = (&self.origins, &self.lost_container_to_others);
        let lost = &self.lost_by_runtime;
        let kept = |uid: &PodUid| match origins.get(uid) {
            Some(source) if source.is_static() => {
                !absent.contains_key(uid) && !robbed.contains(uid) && !lost.contains(uid) && !timed(uid)
            }
            _ => known.contains(uid),
        };
        self.ended.retain(|uid, _| kept(uid));
        self.admitted.clear();
        let preempted = std::mem::take(&mut self.preempted);
        self.forgotten_victims.extend(preempted);
        self.ended.retain(|uid, _| !self.forgotten_victims.contains(uid));
        // A restart count that was published before its container was created is not known to the next agent either.
        self.published_restarts.clear();
    }

    pub fn excuse_stop_of(&mut self, id: &ContainerId) {
        self.may_be_stopped.insert(id.clone());
    }

    /// Something outside removed a container of this pod. Its exit code is known only to the present agent.
    /// The runtime shows the container as unknown for a while, and later as it is. What an agent concludes from that, the
    /// next one does not see.
    pub fn container_lost_by_runtime(&mut self, uid: &PodUid) {
        self.lost_by_runtime.insert(uid.clone());
    }

    pub fn lost_container_to_others(&mut self, uid: &PodUid) {
        self.lost_container_to_others.insert(uid.clone());
    }

    pub fn logs_gone(&mut self, uid: &PodUid) {
        self.made_restarts.retain(|(of, _), _| of != uid);
    }
}
