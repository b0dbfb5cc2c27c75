//! Everything the node agent knows, in one owned value.
//!
//! One dispatcher owns it, and nothing else may read it while a step runs. Maps are ordered, so that the same history
//! gives the same effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::cri::IdMapping;
use model::k8s::{Node, Pod, PodStatus};
use model::node::{HostFacts, NodeConfig};
use model::observed::{ObservedPod, Scope};
use model::pod::{PodView, QosClass, Source, UnreadablePod};
use model::probe::ProbeRecord;
use model::report::AgentCounters;
use model::runtime_class::RuntimeClasses;
use model::why::Why;
use model::{FullName, Mono, PodUid, Wall};

use self::definition::Definition;
use self::shown_pod::ShownPod;
use crate::action::{Epoch, Stage};
use crate::admission::{HostPort, PendingAdmissions};
use crate::allocation::PendingResize;
use crate::eviction::NodeEviction;
use crate::image_garbage::ImageGarbage;
use crate::images::ImagePulls;
use crate::ledger::Ledger;
use crate::lifecycle::Lifecycle;
use crate::log_rotation::ContainerLogs;
use crate::mirror::Mirror;
use crate::node_requests::ClassRequests;
use crate::objects::ObjectCache;
use crate::observation_guard::{ObservationGuard, PodObservation};
use crate::probes::PodProbes;
use crate::publish::StatusPublication;
use crate::resources::Amounts;
use crate::runtime_health::RuntimeHealth;
use crate::set_aside::SetAside;
use crate::status::{IpFamily, PodResources};
use crate::volume_operations::CsiVolumes;

mod definition;
mod panicked_pod;
mod pods;
pub mod shown_pod;
mod standing;

pub use pods::Pods;
pub use standing::{AdmissionWait, EndReason, EndRequest, FailureReason, Standing};

/// The state of the node. Build it with [`NodeState::new`], change it with [`crate::step`] only.
#[derive(Clone, Debug)]
pub struct NodeState {
    pub config: Arc<NodeConfig>,
    pub facts: Arc<HostFacts>,
    /// The Node object of this node, once it was read.
    pub node: Option<Arc<Node>>,
    /// Wall time at which this agent started.
    pub started: Wall,
    pub runtime: RuntimeHealth,
    /// What the node runs short of, and what is done about it.
    pub eviction: NodeEviction,
    /// Logs of running containers, to be rotated.
    pub logs: ContainerLogs,
    /// The last set of each source, by UID.
    pub sources: BTreeMap<Source, SourceSet>,
    pub pods: Pods,
    pub admissions: PendingAdmissions,
    /// Pods of one full name in the order of their arrival; the first that is not finished may run.
    pub name_queues: BTreeMap<FullName, VecDeque<PodUid>>,
    /// Runtime pods that no source has claimed, until all sources have delivered once.
    pub unclaimed: BTreeMap<PodUid, Arc<ObservedPod>>,
    /// Unclaimed pods whose last observation missed a container. It must be confirmed before the container is taken as
    /// gone.
    pub unclaimed_guards: BTreeMap<PodUid, ObservationGuard>,
    /// Unclaimed pods whose status the runtime does not give in part.
    pub unclaimed_status_retries: BTreeMap<PodUid, MissingStatusRetry>,
    /// Pods whose last observation has to be confirmed by another one, and when that may begin.
    pub confirmations: BTreeMap<PodUid, Mono>,
    /// When a pod was last forgotten. What an observation that began before shows of it is gone.
    pub forgotten_at: BTreeMap<PodUid, Mono>,
    /// Container and sandbox ids to their pods, for hints.
    pub pod_by_runtime_id: BTreeMap<String, PodUid>,
    /// Ids in hints that no observation has shown yet.
    pub unknown_hinted_ids: BTreeMap<String, Mono>,
    /// Mirrors of static pods in the cluster, by the pod's name.
    pub mirrors: BTreeMap<FullName, Mirror>,
    /// The API server did not answer the last call.
    pub api_unreachable: bool,
    pub images: ImagePulls,
    /// Images that may be removed.
    pub image_garbage: ImageGarbage,
    /// The objects that pods refer to, from the API server or, in standalone mode, from files.
    pub objects: Option<ObjectCache>,
    /// Operations on CSI volumes that are requested or running.
    pub csi_volumes: CsiVolumes,
    /// Probe records of an earlier agent, of pods that no source has delivered yet.
    pub probe_records: BTreeMap<PodUid, ProbeRecord>,
    /// The RuntimeClasses of each source that has any.
    pub runtime_classes: BTreeMap<Source, RuntimeClasses>,
    /// Host ids of user namespaces that belong to pods: reserved, in use, or of a directory that is not removed yet.
    /// `None`: the pod's record can't be read, so its ids are unknown.
    pub user_ids: BTreeMap<PodUid, Option<IdMapping>>,
    /// The pod directories could not be listed, so any id may be in use.
    pub user_id_listing_failed: bool,
    /// How often the records of ids were not complete in a row.
    pub user_id_readings: u32,
    pub full_observation: FullObservation,
    pub pods_being_swept: BTreeSet<PodUid>,
    /// Those of them whose directory is removed. With it goes the record of the pod's ids.
    pub pod_dirs_being_swept: BTreeSet<PodUid>,
    pub sweep_running: bool,
    pub swept_once: bool,
    pub next_epoch: u64,
    pub node_cgroups: NodeCgroups,
    /// Pods that are set aside as soon as a source delivers them, according to the records of earlier agents.
    pub set_aside: BTreeMap<PodUid, Vec<SetAside>>,
    /// The pod that the current step is about, so that a panic record can name it.
    pub pod_in_step: Option<PodUid>,
    /// Counters for metrics. No decision reads them.
    pub counters: AgentCounters,
}

/// What was written into the cgroups above pods and into those of reservations.
#[derive(Clone, Debug, Default)]
pub struct NodeCgroups {
    /// The sums that were written last. `None`: they have to be written.
    pub written: Option<ClassRequests>,
    /// The limits of all pods were in place once, and the Event about it is recorded.
    pub recorded_success: bool,
    /// What the last Event said about limits that could not be written, and when.
    pub recorded_failure: Option<(Mono, String)>,
    /// The timer for a retry is set.
    pub retry_pending: bool,
    /// A write has ended, whatever its results: the controllers are enabled where the host lets them be.
    pub answered: bool,
    pub reservations: ReservationState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReservationState {
    #[default]
    NotWritten,
    BeingWritten,
    Done,
}

#[derive(Clone, Debug, Default)]
pub struct SourceSet {
    pub delivered_once: bool,
    pub pods: BTreeMap<PodUid, PodView>,
    /// UID of the pod that has each full name in this set.
    pub(crate) names: BTreeMap<FullName, PodUid>,
    /// The objects of the last complete set, as delivered. An object that is delivered again unchanged is not compared
    /// again.
    pub(crate) last_delivery: Vec<Arc<Pod>>,
    /// No two objects of that set share a name or UID.
    pub(crate) names_are_distinct: bool,
    /// Pods whose objects exist but can't be decoded.
    pub(crate) unreadable: BTreeMap<PodUid, UnreadablePod>,
    /// The object that is being merged into the set, so that a panic record can name it.
    pub(crate) in_merge: Option<Arc<Pod>>,
    /// Undecodable pods of the next set. They are reported before the set itself.
    pub(crate) unreadable_in_next_set: Vec<UnreadablePod>,
}

#[derive(Clone, Debug, Default)]
pub struct FullObservation {
    /// Time of the last full relist.
    pub last: Option<Mono>,
    pub in_flight: bool,
    /// A full relist that begins at or after this is wanted.
    pub wanted: Option<Mono>,
    /// Why the last one failed, if it did.
    pub failure: Option<String>,
}

/// One pod, as long as a source wants it or anything of it is left.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// Changes through [`Pods`] only, like the standing: the sums of the node follow from both.
    definition: Definition,
    standing: Standing,
    /// Changes through [`Pods`] as well.
    held: Held,
    /// The pod's local storage is measured from time to time.
    pub disk_usage_watched: bool,
    pub observed: Option<PodObservation>,
    pub observation_request: ObservationRequest,
    /// Set while the runtime lists parts of the pod without giving their status.
    pub status_retry: Option<MissingStatusRetry>,
    /// What an observation has to show in order to be accepted at once.
    pub observation_guard: ObservationGuard,
    pub ledger: Ledger,
    pub plan: Option<RunningPlan>,
    /// When an action that changed the runtime last ended. Older observations are stale.
    pub last_mutation: Mono,
    /// No observation has arrived since the last mutation. Needed because two events can have the same timestamp in the
    /// simulator.
    pub unread_since_mutation: bool,
    pub status: Option<Arc<PodStatus>>,
    pub why: Vec<WhySince>,
    pub timer: Option<Mono>,
    pub probes: PodProbes,
    /// The state of the status reports to the API server.
    pub publication: StatusPublication,
    /// What watchers of the Pods API were told last.
    pub shown: Option<ShownPod>,
}

/// What a pod takes from others of what it requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    Everything,
    /// The pod ends or has ended, and none of its containers runs. A sandbox is ready and may hold ports of the host.
    Ports,
    Nothing,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ObservationRequest {
    pub in_flight: bool,
    /// When the one that is in flight was requested. The answer to an earlier one does not end it.
    pub requested_at: Mono,
    /// An observation that begins at or after this is wanted.
    pub wanted: Option<Mono>,
    /// When the pod is observed once more after a container of it was started.
    pub after_start: Option<Mono>,
}

/// The runtime lists a container or sandbox of a pod, but does not give its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingStatusRetry {
    /// When the observation began that missed the statuses.
    pub read_at: Mono,
    /// The ids whose status is missing.
    pub ids: BTreeSet<String>,
    /// How many attempts failed in a row.
    pub tries: u32,
    /// No retry before this, unless the list shows a change.
    pub at: Mono,
}

/// The previous observation of a pod. The next one asks only for statuses that may have changed.
#[derive(Clone, Debug)]
pub struct PreviousObservation {
    pub pod: Arc<ObservedPod>,
    /// Statuses that the runtime did not give are due to be requested again.
    pub retry_missing_status: bool,
}

#[derive(Clone, Debug)]
pub struct RunningPlan {
    pub epoch: Epoch,
    pub stages: Arc<Vec<Stage>>,
    pub cancelled: bool,
    /// An action that changes the runtime has begun.
    pub mutated: bool,
    pub failed: bool,
    pub skipped: bool,
}

impl RunningPlan {
    pub fn new(epoch: Epoch, stages: Arc<Vec<Stage>>) -> Self {
        Self { epoch, stages, cancelled: false, mutated: false, failed: false, skipped: false }
    }
}

/// One cause together with the time since which it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct WhySince {
    pub why: Why,
    pub since: Wall,
}

impl NodeState {
    pub fn new(config: NodeConfig, facts: HostFacts, started: Wall) -> Self {
        let sources = config.sources.iter().map(|s| (*s, SourceSet::default())).collect();
        let has_cluster = config.sources.contains(&Source::Api);
        let objects = if has_cluster { ObjectCache::default() } else { ObjectCache::standalone() };
        Self {
            config: Arc::new(config),
            facts: Arc::new(facts),
            node: None,
            started,
            runtime: RuntimeHealth::default(),
            eviction: NodeEviction::default(),
            logs: ContainerLogs::default(),
            sources,
            pods: Pods::default(),
            admissions: PendingAdmissions::default(),
            name_queues: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            unclaimed_guards: BTreeMap::new(),
            unclaimed_status_retries: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            forgotten_at: BTreeMap::new(),
            pod_by_runtime_id: BTreeMap::new(),
            unknown_hinted_ids: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            api_unreachable: false,
            images: ImagePulls::default(),
            image_garbage: ImageGarbage::default(),
            objects: Some(objects),
            csi_volumes: CsiVolumes::default(),
            probe_records: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
            user_ids: BTreeMap::new(),
            user_id_listing_failed: false,
            user_id_readings: 0,
            full_observation: FullObservation::default(),
            pods_being_swept: BTreeSet::new(),
            pod_dirs_being_swept: BTreeSet::new(),
            sweep_running: false,
            swept_once: false,
            next_epoch: 1,
            node_cgroups: NodeCgroups::default(),
            set_aside: BTreeMap::new(),
            pod_in_step: None,
            counters: AgentCounters::default(),
        }
    }

    /// The family of the node's first address; IPv4 when it has none.
    pub fn primary_family(&self) -> IpFamily {
        let first = self.facts.node_ips.first().and_then(|ip| ip.parse().ok());
        first.as_ref().map_or(IpFamily::V4, IpFamily::of)
    }

    /// Whether this is a node of a cluster.
    pub fn has_cluster(&self) -> bool {
        self.sources.contains_key(&Source::Api)
    }

    /// Addresses of the node as its object shows them, internal ones first. None without a cluster.
    pub fn host_ips(&self) -> Vec<String> {
        let status = self.node.as_ref().and_then(|node| node.status.as_ref());
        let addresses = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let of = |kind: &'static str| addresses.iter().filter(move |a| a.type_ == kind);
        of("InternalIP").chain(of("ExternalIP")).map(|a| a.address.clone()).collect()
    }

    /// Previous observations for an observation that begins now.
    pub fn previous_observations(&self, scope: &Scope, now: Mono) -> BTreeMap<PodUid, PreviousObservation> {
        let previous = |pod: &Arc<ObservedPod>, retry: Option<&MissingStatusRetry>| {
            let retry_missing_status = retry.is_none_or(|retry| retry.at <= now);
            PreviousObservation { pod: pod.clone(), retry_missing_status }
        };
        let known = |(uid, entry): (&PodUid, &PodEntry)| {
            let pod = &entry.observed.as_ref()?.pod;
            Some((uid.clone(), previous(pod, entry.status_retry.as_ref())))
        };
        let unclaimed = |(uid, pod): (&PodUid, &Arc<ObservedPod>)| {
            (uid.clone(), previous(pod, self.unclaimed_status_retries.get(uid)))
        };
        match scope {
            Scope::All => {
                let claimed = self.pods.iter().filter_map(known);
                claimed.chain(self.unclaimed.iter().map(unclaimed)).collect()
            }
            Scope::Pod(uid) => self.pods.get(uid).and_then(|entry| known((uid, entry))).into_iter().collect(),
        }
    }

    /// Every configured source has delivered once, so pods that no source wants may be terminated.
    pub fn sources_ready(&self) -> bool {
        self.sources.values().all(|s| s.delivered_once)
    }
}

impl PodEntry {
    /// A pod that a source wants.
    pub fn new(view: PodView) -> Self {
        Self::made_of(Definition::new(view, None), Standing::wanted())
    }

    /// A pod that a source wants, with the resources that were allocated to it; the spec may request others. Admission
    /// has to decide whether it may run here.
    pub(crate) fn undecided(view: PodView, pending_resize: Option<PendingResize>) -> Self {
        Self::made_of(Definition::new(view, pending_resize), Standing::undecided())
    }

    /// A pod that the runtime has and no source wants. It ends from the beginning.
    pub(crate) fn orphan(view: PodView, grace_secs: i64, now: Mono) -> Self {
        Self::made_of(Definition::new(view, None), Standing::orphan(grace_secs, now))
    }

    /// A pod that is set aside. Of its definition only its amounts are computed.
    pub(crate) fn set_aside(view: PodView, record: SetAside, orphan: bool) -> Self {
        Self::made_of(Definition::of_set_aside(view), Standing::set_aside(record, orphan))
    }

    fn made_of(definition: Definition, standing: Standing) -> Self {
        Self {
            definition,
            standing,
            held: Held::Everything,
            disk_usage_watched: false,
            observed: None,
            observation_request: ObservationRequest::default(),
            status_retry: None,
            observation_guard: ObservationGuard::default(),
            ledger: Ledger::default(),
            plan: None,
            last_mutation: Mono::ZERO,
            unread_since_mutation: false,
            status: None,
            why: Vec::new(),
            timer: None,
            probes: PodProbes::default(),
            publication: StatusPublication::default(),
            shown: None,
        }
    }

    pub fn view(&self) -> &PodView {
        &self.definition.view
    }

    /// The definition, and what changes according to it.
    pub(crate) fn view_and_ledger(&mut self) -> (&PodView, &mut Ledger) {
        (&self.definition.view, &mut self.ledger)
    }

    /// The definition, and the probes that follow from it.
    pub(crate) fn view_and_probes(&mut self) -> (&PodView, &mut PodProbes) {
        (&self.definition.view, &mut self.probes)
    }

    pub fn qos(&self) -> QosClass {
        self.definition.qos
    }

    /// The pod's ports of the host.
    pub(crate) fn host_ports(&self) -> &BTreeSet<HostPort> {
        &self.definition.host_ports
    }

    /// The pod's requests.
    pub fn requests(&self) -> &Arc<Amounts> {
        &self.definition.requests
    }

    /// Requests and limits of the pod, as its status shows them.
    pub fn resources(&self) -> &PodResources {
        &self.definition.resources
    }

    /// The resources that the spec requests, if others were allocated.
    pub fn pending_resize(&self) -> Option<&PendingResize> {
        self.definition.pending_resize.as_ref()
    }

    /// What the pod is on this node.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    #[cfg(test)]
    pub(crate) fn standing_mut(&mut self) -> &mut Standing {
        &mut self.standing
    }

    pub fn lifecycle(&self) -> &Lifecycle {
        self.standing.lifecycle()
    }

    /// The ids that an observation that began at `at` has to show, each with a word for what it is.
    pub fn expected_ids(&self, at: Mono) -> BTreeMap<&str, &'static str> {
        self.observation_guard.expected(self.observed.as_ref(), self.running_stages(), at)
    }

    /// All contradictions between our records and an observation that began at `at`.
    pub fn contradictions(&self, at: Mono, seen: &ObservedPod) -> Vec<String> {
        self.observation_guard.contradictions(self.observed.as_ref(), self.running_stages(), at, seen)
    }

    fn running_stages(&self) -> &[Stage] {
        self.plan.as_ref().map_or(&[], |plan| plan.stages.as_slice())
    }

    /// The last observation, unless an action of ours changed the runtime since it began.
    pub fn fresh_observation(&self) -> Option<&Arc<ObservedPod>> {
        self.observed
            .as_ref()
            .filter(|r| !self.unread_since_mutation && r.at >= self.last_mutation)
            .map(|r| &r.pod)
    }
}
