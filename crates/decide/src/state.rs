//! Everything the node agent knows, in one owned value.
//!
//! One dispatcher owns it; nothing else may look at it while a step runs. Maps are ordered, so that the same history
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
    /// The node's own object in the cluster, once it was seen there.
    pub node: Option<Arc<Node>>,
    /// Wall time at which this agent came up.
    pub started: Wall,
    pub runtime: RuntimeHealth,
    /// The last set of each source, by UID.
    pub sources: BTreeMap<Source, SourceSet>,
    pub pods: BTreeMap<PodUid, PodEntry>,
    /// What they ask for in all.
    pub node_requests: NodeRequests,
    /// Pods of one full name in the order of their arrival; the first that is not finished may run.
    pub name_queues: BTreeMap<FullName, VecDeque<PodUid>>,
    /// Runtime pods that no source has claimed, until all sources have spoken.
    pub unclaimed: BTreeMap<PodUid, Arc<ObservedPod>>,
    /// Those of them of which the last reading lacked something: it has to be confirmed.
    pub unclaimed_guards: BTreeMap<PodUid, ObservationGuard>,
    /// Pods whose last reading has to be confirmed by another one, and when that may begin.
    pub confirmations: BTreeMap<PodUid, Mono>,
    /// When a pod was last forgotten: what a reading that began before shows of it is gone.
    pub forgotten_at: BTreeMap<PodUid, Mono>,
    /// Container and sandbox ids to their pods, for hints.
    pub pod_by_runtime_id: BTreeMap<String, PodUid>,
    /// Ids hinted at before any reading showed them.
    pub unknown_hinted_ids: BTreeMap<String, Mono>,
    /// Mirrors of static pods in the cluster, by the pod's name.
    pub mirrors: BTreeMap<FullName, Mirror>,
    /// The API server did not answer when it was last asked.
    pub api_unreachable: bool,
    pub images: ImagePulls,
    /// What pods name: of the cluster, or of files beside the pods.
    pub objects: Option<ObjectCache>,
    /// Which operations on volumes of storage drivers are wanted and at work.
    pub csi_volumes: CsiVolumes,
    /// What an earlier agent knew of probes, of pods that were not seen yet.
    pub probe_records: BTreeMap<PodUid, ProbeRecord>,
    /// Of each source that knows of classes.
    pub runtime_classes: BTreeMap<Source, RuntimeClasses>,
    /// Ids of the host that belong to pods: reserved, in use, or of a directory that is not gone yet.
    /// `None`: the pod's record can't be read, so nobody can tell which are its own.
    pub user_ids: BTreeMap<PodUid, Option<IdMapping>>,
    /// The directories of pods could not be listed at the start: any id may be in use.
    pub user_id_listing_failed: bool,
    pub full_observation: FullObservation,
    pub pods_being_swept: BTreeSet<PodUid>,
    pub sweep_running: bool,
    pub swept_once: bool,
    pub next_epoch: u64,
    pub written_burstable_milli_cpu: Option<u64>,
    /// Pods that are set aside when they come, by what earlier agents left on record.
    pub set_aside: BTreeMap<PodUid, SetAside>,
    /// The pod that the step at hand is about, for whoever has to say over which pod it panicked.
    pub pod_in_step: Option<PodUid>,
    /// To be told, never to be decided by.
    pub counters: AgentCounters,
}

#[derive(Clone, Debug, Default)]
pub struct SourceSet {
    pub delivered_once: bool,
    pub pods: BTreeMap<PodUid, PodView>,
    /// Who has which name in it.
    pub(crate) names: BTreeMap<FullName, PodUid>,
    /// The objects of the last complete set, as they came: what comes again unchanged needs no second look.
    pub(crate) last_delivery: Vec<Arc<Pod>>,
    /// Every object of that set counts: no two share a name.
    pub(crate) names_are_distinct: bool,
    /// Whose objects are there and can't be decoded.
    pub(crate) unreadable: BTreeMap<PodUid, UnreadablePod>,
    /// Told before the set that they belong to.
    pub(crate) unreadable_in_next_set: Vec<UnreadablePod>,
}

#[derive(Clone, Debug, Default)]
pub struct FullObservation {
    /// Time of the last complete reading.
    pub last: Option<Mono>,
    pub in_flight: bool,
    /// Somebody wants one that began at or after this.
    pub wanted: Option<Mono>,
    /// Why the last one failed, if it did.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeHealth {
    pub name: String,
    pub ready: bool,
    /// It was ready at least once: what never changes about it is known.
    pub ever_ready: bool,
    pub network_ready: bool,
    pub message: String,
    pub network_message: String,
    pub checking: bool,
    pub failures: u32,
    pub last_ok: Option<Mono>,
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
    /// What each of its handlers can do, by name. Older runtimes tell of none.
    pub handlers: BTreeMap<String, RuntimeHandler>,
}

impl RuntimeHealth {
    /// It has not yet told its name. What it lists may be there before that.
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

/// One pod, for as long as anything of it is known, wanted or left.
#[derive(Clone, Debug)]
pub struct PodEntry {
    pub view: PodView,
    /// Found in the runtime only: the spec is not known.
    pub orphan: bool,
    pub qos: QosClass,
    /// What the definition asks for in all.
    pub requests: Arc<resources::Amounts>,
    /// The same, as the status shows it.
    pub resources: Arc<PodResources>,
    /// Its spec asks for other resources than it has.
    pub pending_resize: Option<PendingResize>,
    /// No source wants it any more.
    pub removed: bool,
    /// Wanted again under the same UID while it was still going: comes back when it has ended.
    pub recreate_as: Option<PodView>,
    pub lifecycle: Lifecycle,
    pub rejection: Option<(String, String)>,
    /// Reason and message that it fails with because the node could not keep it.
    pub eviction: Option<(String, String)>,
    /// Nothing is done for it: steps about it panicked.
    pub set_aside: Option<SetAside>,
    /// Its local storage is measured from time to time.
    pub disk_usage_watched: bool,
    pub observed: Option<PodObservation>,
    pub observation_request: ObservationRequest,
    /// Statuses that the runtime did not give.
    pub status_retry: Option<MissingStatusRetry>,
    /// What a reading has to show in order to be believed at once.
    pub observation_guard: ObservationGuard,
    pub ledger: Ledger,
    pub plan: Option<RunningPlan>,
    /// When an action that changed the runtime last ended: older readings are stale.
    pub last_mutation: Mono,
    /// Nothing was read since then. Where the clock stands still, times alone can't tell.
    pub unread_since_mutation: bool,
    pub status: Option<Arc<PodStatus>>,
    pub why: Vec<WhySince>,
    pub timer: Option<Mono>,
    pub probes: PodProbes,
    /// What the API server is told of it.
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
    /// A reading that began at or after this is wanted.
    pub wanted: Option<Mono>,
}

/// The runtime lists something of a pod, and does not give its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingStatusRetry {
    /// When the reading began that this follows from.
    pub read_at: Mono,
    /// What the runtime was asked for.
    pub ids: BTreeSet<String>,
    /// How many times in a row.
    pub tries: u32,
    /// Not asked again before this, unless the list shows a change.
    pub at: Mono,
}

/// What was read of a pod before, for the next reading: a status is asked for only where it may be new.
#[derive(Clone, Debug)]
pub struct PreviousObservation {
    pub pod: Arc<ObservedPod>,
    /// It is time to ask again for statuses that the runtime did not give.
    pub retry_missing_status: bool,
}

#[derive(Clone, Debug)]
pub struct RunningPlan {
    pub epoch: Epoch,
    pub stages: Arc<Vec<Stage>>,
    pub cancelled: bool,
    /// An action that changes the runtime was begun.
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

    /// What a reading that begins now need not ask for again.
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

    /// Every configured source has delivered once: what nobody wants may go.
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

    /// With nothing that is computed from the definition.
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

    /// The reading, when nothing of ours changed the runtime since it began.
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
