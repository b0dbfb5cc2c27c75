//! Everything the node agent knows, in one owned value.
//!
//! One dispatcher owns it, and nothing else may read it while a step runs. Maps are ordered, so that the same history
//! gives the same effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::cri::{IdMapping, RuntimeHandler};
use model::k8s::{Node, Pod, PodStatus};
use model::node::{HostFacts, NodeConfig};
use model::observed::{ObservedPod, Scope};
use model::pod::{PodView, QosClass, Source, UnreadablePod};
use model::probe::ProbeRecord;
use model::report::AgentCounters;
use model::runtime_class::RuntimeClasses;
use model::why::Why;
use model::{FullName, Mono, PodUid, Wall};

use crate::allocation::PendingResize;
use crate::csi::CsiVolumes;
use crate::effect::{Epoch, Stage};
use crate::images::ImagePulls;
use crate::ledger::Ledger;
use crate::lifecycle::Lifecycle;
use crate::mirror::Mirror;
use crate::node_requests::NodeRequests;
use crate::objects::ObjectCache;
use crate::observation_guard::ObservationGuard;
use crate::probes::PodProbes;
use crate::publish::StatusPublication;
use crate::resources;
use crate::set_aside::SetAside;
use crate::status::{IpFamily, PodResources};

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
    /// The last set of each source, by UID.
    pub sources: BTreeMap<Source, SourceSet>,
    pub pods: BTreeMap<PodUid, PodEntry>,
    /// The sums of the pods' requests.
    pub node_requests: NodeRequests,
    /// Pods of one full name in the order of their arrival; the first that is not finished may run.
    pub name_queues: BTreeMap<FullName, VecDeque<PodUid>>,
    /// Runtime pods that no source has claimed, until all sources have delivered once.
    pub unclaimed: BTreeMap<PodUid, Arc<ObservedPod>>,
    /// Unclaimed pods whose last observation missed a container. It must be confirmed before the container is taken as
    /// gone.
    pub unclaimed_guards: BTreeMap<PodUid, ObservationGuard>,
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
    /// The pod directories could not be listed at the start, so any id may be in use.
    pub user_id_listing_failed: bool,
    pub full_observation: FullObservation,
    pub pods_being_swept: BTreeSet<PodUid>,
    pub sweep_running: bool,
    pub swept_once: bool,
    pub next_epoch: u64,
    pub written_burstable_milli_cpu: Option<u64>,
    /// Pods that are set aside as soon as a source delivers them, according to the records of earlier agents.
    pub set_aside: BTreeMap<PodUid, SetAside>,
    /// The pod that the current step is about, so that a panic record can name it.
    pub pod_in_step: Option<PodUid>,
    /// Counters for metrics. No decision reads them.
    pub counters: AgentCounters,
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

#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeHealth {
    pub name: String,
    pub ready: bool,
    /// The runtime was ready at least once, so its constant properties are known.
    pub ever_ready: bool,
    pub network_ready: bool,
    pub message: String,
    pub network_message: String,
    pub checking: bool,
    pub failures: u32,
    pub last_ok: Option<Mono>,
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
    /// Features of each runtime handler, by name. Older runtimes report none.
    pub handlers: BTreeMap<String, RuntimeHandler>,
}

impl RuntimeHealth {
    /// The runtime has not answered a status check yet. Observations may arrive before that.
    pub fn runtime_name_is_unknown(&self) -> bool {
        self.last_ok.is_none()
    }
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            name: String::new(),
            ready: false,
            ever_ready: false,
            network_ready: false,
            message: "container runtime status check may not have completed yet".into(),
            network_message: "network state unknown".into(),
            checking: false,
            failures: 0,
            last_ok: None,
            supplemental_groups_policy: false,
            user_namespaces_host_network: false,
            handlers: BTreeMap::new(),
        }
    }
}

/// One pod, as long as a source wants it or anything of it is left.
#[derive(Clone, Debug)]
pub struct PodEntry {
    pub view: PodView,
    /// Found in the runtime only: the spec is not known.
    pub orphan: bool,
    pub qos: QosClass,
    /// The pod's requests, computed from its definition.
    pub requests: Arc<resources::Amounts>,
    /// Requests and limits of the pod, as the status shows them.
    pub resources: Arc<PodResources>,
    /// The spec requests other resources than were allocated.
    pub pending_resize: Option<PendingResize>,
    /// No source wants it any more.
    pub removed: bool,
    /// The pod was added again under the same UID while it was terminating. It is created again when it has finished.
    pub recreate_as: Option<PodView>,
    pub lifecycle: Lifecycle,
    pub rejection: Option<(String, String)>,
    /// Reason and message of the eviction, if the pod is evicted.
    pub eviction: Option<(String, String)>,
    /// Steps about the pod panicked, so nothing is done for it.
    pub set_aside: Option<SetAside>,
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
}

#[derive(Clone, Debug)]
pub struct PodObservation {
    pub at: Mono,
    pub pod: Arc<ObservedPod>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ObservationRequest {
    pub in_flight: bool,
    /// An observation that begins at or after this is wanted.
    pub wanted: Option<Mono>,
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
            sources,
            pods: BTreeMap::new(),
            node_requests: NodeRequests::default(),
            name_queues: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            unclaimed_guards: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            forgotten_at: BTreeMap::new(),
            pod_by_runtime_id: BTreeMap::new(),
            unknown_hinted_ids: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            api_unreachable: false,
            images: ImagePulls::default(),
            objects: Some(objects),
            csi_volumes: CsiVolumes::default(),
            probe_records: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
            user_ids: BTreeMap::new(),
            user_id_listing_failed: false,
            full_observation: FullObservation::default(),
            pods_being_swept: BTreeSet::new(),
            sweep_running: false,
            swept_once: false,
            next_epoch: 1,
            written_burstable_milli_cpu: None,
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
        let known = |(uid, entry): (&PodUid, &PodEntry)| {
            let pod = entry.observed.as_ref()?.pod.clone();
            let ask_again = entry.status_retry.as_ref().is_none_or(|retry| retry.at <= now);
            Some((uid.clone(), PreviousObservation { pod, retry_missing_status: ask_again }))
        };
        match scope {
            Scope::All => self.pods.iter().filter_map(known).collect(),
            Scope::Pod(uid) => self.pods.get_key_value(uid).and_then(known).into_iter().collect(),
        }
    }

    /// Every configured source has delivered once, so pods that no source wants may be terminated.
    pub fn sources_ready(&self) -> bool {
        self.sources.values().all(|s| s.delivered_once)
    }
}

impl PodEntry {
    pub fn new(view: PodView) -> Self {
        let requests = resources::pod_requests(&view, resources::Overhead::Included);
        Self {
            qos: resources::qos_class(&view),
            requests: Arc::new(requests),
            resources: Arc::new(pod_resources(&view)),
            ..Self::without_amounts(view)
        }
    }

    /// An entry without the amounts that are computed from the definition.
    pub(crate) fn without_amounts(view: PodView) -> Self {
        Self {
            qos: QosClass::BestEffort,
            requests: Arc::default(),
            resources: Arc::default(),
            pending_resize: None,
            view,
            orphan: false,
            removed: false,
            recreate_as: None,
            lifecycle: Lifecycle::Syncing,
            rejection: None,
            eviction: None,
            set_aside: None,
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
        }
    }

    /// The last observation, unless an action of ours changed the runtime since it began.
    pub fn fresh_observation(&self) -> Option<&Arc<ObservedPod>> {
        self.observed
            .as_ref()
            .filter(|r| !self.unread_since_mutation && r.at >= self.last_mutation)
            .map(|r| &r.pod)
    }
}

/// Totals over the pod's containers, for its status.
pub(crate) fn pod_resources(view: &PodView) -> PodResources {
    let list =
        |amounts: resources::Amounts| amounts.iter().map(|(name, q)| (name.to_owned(), q.to_api())).collect();
    let declared = resources::limits_declared(view);
    PodResources {
        requests: list(resources::pod_requests(view, resources::Overhead::Included)),
        limits: list(resources::pod_limits(view, resources::Overhead::Included)),
        cpu_limited: declared.cpu,
        memory_limited: declared.memory,
        pod_level: view.spec().resources.clone().unwrap_or_default(),
    }
}
