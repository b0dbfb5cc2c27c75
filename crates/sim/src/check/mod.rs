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
pub struct Checker {
    pub violation: Option<Violation>,
    /// Every pod that was ever wanted, as it was last.
    specs: BTreeMap<PodUid, Arc<Pod>>,
    origins: BTreeMap<PodUid, Source>,
    /// When a pod was last taken out of its source.
    absent: BTreeMap<PodUid, Nanos>,
    /// Pods that a source did not have when it last spoke to this agent, or before.
    lacked: BTreeSet<PodUid>,
    /// Pods of which this agent was told that they are to end (K3).
    ending: BTreeSet<PodUid>,
    /// The last starts of each container (K10).
    starts: BTreeMap<(PodUid, String), Vec<Nanos>>,
    /// Pods that a stranger took a container from.
    robbed: BTreeSet<PodUid>,
    /// Terminal phases that were published (K2).
    ended: BTreeMap<PodUid, String>,
    /// Restart counts that were published.
    published_restarts: BTreeMap<(PodUid, String), i32>,
    /// Restart counts that containers were made with.
    made_restarts: BTreeMap<(PodUid, String), u32>,
    /// Begin and grace of each termination (K4).
    terminations: BTreeMap<PodUid, (Mono, i64)>,
    /// When a stop that was asked for would kill.
    kills: BTreeMap<ContainerId, Nanos>,
    /// Init containers that succeeded and sidecars that started, in each sandbox (K5).
    passed: BTreeMap<SandboxId, BTreeSet<String>>,
    /// Containers that failed a probe on which their life depends, or their hook.
    suspects: BTreeSet<ContainerId>,
}

impl Checker {
    pub fn violate(&mut self, invariant: &'static str, message: String) {
        self.violation.get_or_insert(Violation { invariant, message });
    }

    pub fn note(&mut self, found: Option<Violation>) {
        if let Some(violation) = found {
            self.violation.get_or_insert(violation);
        }
    }

    /// Every UID that was ever put in.
    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.specs.keys()
    }

    pub fn wanted(&mut self, now: Nanos, source: Source, pod: &Arc<Pod>, old: Option<&Pod>) {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        let old_uid = old.and_then(|o| o.metadata.uid.as_deref());
        match old_uid {
            Some(same) if same == uid.as_str() => {}
            Some(other) => {
                self.unwanted(now, &other.into());
                self.begin_again(&uid);
            }
            None => self.begin_again(&uid),
        }
        self.origins.insert(uid.clone(), source);
        self.specs.insert(uid, pod.clone());
    }

    /// The agent is about to hear this.
    pub fn told(&mut self, event: &Event) {
        match event {
            Event::Pods { source, pods } => {
                let there: BTreeSet<_> = pods.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
                let of_source = self.origins.iter().filter(|(_, s)| *s == source).map(|(uid, _)| uid);
                let missing: Vec<_> =
                    of_source.filter(|uid| !there.contains(uid.as_str())).cloned().collect();
                self.lacked.extend(missing.iter().cloned());
                self.ending.extend(missing);
                pods.iter().for_each(|pod| self.told_of(pod));
            }
            Event::PodChanged { pod, .. } => self.told_of(pod),
            Event::PodGone { uid, .. } => {
                self.lacked.insert(uid.clone());
                self.ending.insert(uid.clone());
            }
            // Of a static pod without a mirror nobody remembers it once the agent is gone.
            Event::Evict { uid, .. } => self.robbed(uid),
            _ => {}
        }
    }

    fn told_of(&mut self, pod: &Pod) {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            self.ending.insert(uid);
        } else {
            self.ending.remove(&uid);
        }
    }

    pub fn unwanted(&mut self, now: Nanos, uid: &PodUid) {
        self.absent.insert(uid.clone(), now);
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
        self.ending.clear();
        self.starts.clear();
        self.terminations.clear();
        self.kills.clear();
        self.lacked.clear();
        let absent = &self.absent;
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
        let (origins, robbed) = (&self.origins, &self.robbed);
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

    pub fn suspect(&mut self, id: &ContainerId) {
        self.suspects.insert(id.clone());
    }

    /// Somebody else took a container of it away: how that ended is known to this agent alone.
    pub fn robbed(&mut self, uid: &PodUid) {
        self.robbed.insert(uid.clone());
    }

    pub fn logs_gone(&mut self, uid: &PodUid) {
        self.made_restarts.retain(|(of, _), _| of != uid);
    }
}
