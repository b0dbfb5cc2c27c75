//! The invariants. Each hook is told of one thing right when it happens and says which promise it breaks, if any; the
//! first broken one ends the run. What is needed to judge is kept here, apart from the state that is judged.

mod calls;
mod settled;
mod state;
mod volumes;
mod world;

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
    /// Every pod that was ever wanted, as it was last.
    specs: BTreeMap<PodUid, Arc<Pod>>,
    origins: BTreeMap<PodUid, Source>,
    /// When a pod was last taken out of its source.
    removed_at: BTreeMap<PodUid, Nanos>,
    /// Pods that a source did not have when it last spoke to this agent, or before.
    missing_in_source: BTreeSet<PodUid>,
    /// Pods of which this agent was told that they are to end (K3).
    told_to_end: BTreeSet<PodUid>,
    /// The last starts of each container (K10).
    starts: BTreeMap<(PodUid, String), Vec<Nanos>>,
    /// Pods that a stranger took a container from.
    lost_container_to_others: BTreeSet<PodUid>,
    /// Terminal phases that were published (K2).
    ended: BTreeMap<PodUid, String>,
    /// Restart counts that were published.
    published_restarts: BTreeMap<(PodUid, String), i32>,
    /// Restart counts that containers were made with.
    made_restarts: BTreeMap<(PodUid, String), u32>,
    /// Begin and grace of each termination (K4).
    terminations: BTreeMap<PodUid, (Mono, i64)>,
    /// When a stop that was asked for would kill.
    kill_times: BTreeMap<ContainerId, Nanos>,
    /// Init containers that succeeded and sidecars that started, in each sandbox (K5).
    completed_inits: BTreeMap<SandboxId, BTreeSet<String>>,
    /// Containers that failed a probe on which their life depends, or their hook.
    may_be_stopped: BTreeSet<ContainerId>,
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

    /// Every UID that was ever put in.
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

    /// The agent is about to hear this.
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
            // Of a static pod without a mirror nobody remembers it once the agent is gone.
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

    /// The next life knows nothing of this one's terminations, nor whether a pod was taken out meanwhile.
    pub fn agent_killed(&mut self, api: Option<&BTreeMap<String, Arc<Pod>>>) {
        self.told_to_end.clear();
        self.starts.clear();
        self.terminations.clear();
        self.kill_times.clear();
        self.missing_in_source.clear();
        let absent = &self.removed_at;
        // What the API server was told of an end is known to the next life as well; of a static pod the runtime tells.
        let known: BTreeSet<PodUid> = api
            .into_iter()
            .flat_map(|set| set.values())
            .filter(|pod| {
                pod.status
                    .as_ref()
                    .is_some_and(|s| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed")))
            })
            .map(|pod| PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default()))
            .collect();
        // When a static pod began is not on record anywhere, so its deadline begins anew.
        let timed = |uid: &PodUid| {
            let spec = self.specs.get(uid).and_then(|pod| pod.spec.as_ref());
            spec.is_some_and(|spec| spec.active_deadline_seconds.is_some())
        };
        let (origins, robbed) = (&self.origins, &self.lost_container_to_others);
        let kept = |uid: &PodUid| match origins.get(uid) {
            Some(source) if source.is_static() => {
                !absent.contains_key(uid) && !robbed.contains(uid) && !timed(uid)
            }
            _ => known.contains(uid),
        };
        self.ended.retain(|uid, _| kept(uid));
        // A start that was shown before it was made is not known to the next life either.
        self.published_restarts.clear();
    }

    pub fn excuse_stop_of(&mut self, id: &ContainerId) {
        self.may_be_stopped.insert(id.clone());
    }

    /// Somebody else took a container of it away: how that ended is known to this agent alone.
    pub fn lost_container_to_others(&mut self, uid: &PodUid) {
        self.lost_container_to_others.insert(uid.clone());
    }

    pub fn logs_gone(&mut self, uid: &PodUid) {
        self.made_restarts.retain(|(of, _), _| of != uid);
    }
}
