//! Queries to the running engine. The dispatcher answers them between two events, so no lock guards the state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use decide::NodeState;
use decide::lifecycle::Lifecycle;
use decide::state::PodEntry;
use decide::volumes::VolumeInputs;
use decide::volumes::csi::SelinuxCounts;
use model::k8s::{Pod, PodList};
use model::pod::{Source, UnreadablePod};
use model::report::{
    CertificateCount, ContainerView, NodeReport, PodReport, ProtectedMemoryReport, RecentEvent, SelinuxCount,
    VolumeCount, WatchReport, WhyLine, WhyReport,
};
use model::why::Cause;
use model::{ApiEvent, ContainerId, Now, PodUid, Wall};
use ports::{AgentView, PodDetails, PodSnapshot, PodWatch, PodWatches};
use tokio::sync::{mpsc, oneshot};

use crate::exit_waiters::ExitWaiters;
use crate::pod_watchers::{self, PodWatchers};

/// Events kept per pod for the debugging API.
const EVENTS_KEPT: usize = 24;

pub(crate) enum Query {
    Pods(oneshot::Sender<Vec<Pod>>),
    Running(oneshot::Sender<Vec<Pod>>),
    Reports(oneshot::Sender<Vec<PodReport>>),
    Why { namespace: Option<String>, name: String, answer: oneshot::Sender<Vec<WhyReport>> },
    Find { namespace: String, name: String, answer: oneshot::Sender<Option<PodDetails>> },
    WaitForExit { pod: PodUid, container: ContainerId, told: oneshot::Sender<()> },
    AllPodDetails(oneshot::Sender<Vec<PodDetails>>),
    Node(oneshot::Sender<NodeReport>),
    Snapshots(oneshot::Sender<Vec<PodSnapshot>>),
    Snapshot { uid: PodUid, answer: oneshot::Sender<Option<PodSnapshot>> },
    WatchPods(oneshot::Sender<PodWatch>),
}

/// Sends queries to the engine. Every answer is `None` when the engine has ended.
#[derive(Clone)]
pub struct EngineHandle {
    queries: mpsc::Sender<Query>,
}

impl EngineHandle {
    pub(crate) fn new(queries: mpsc::Sender<Query>) -> Self {
        Self { queries }
    }

    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Option<T> {
        let (answer, reply) = oneshot::channel();
        self.queries.send(query(answer)).await.ok()?;
        reply.await.ok()
    }
}

#[async_trait]
impl AgentView for EngineHandle {
    async fn pods(&self) -> Option<PodList> {
        Some(PodList { items: self.ask(Query::Pods).await?, ..Default::default() })
    }

    async fn running_pods(&self) -> Option<PodList> {
        Some(PodList { items: self.ask(Query::Running).await?, ..Default::default() })
    }

    async fn pod_reports(&self) -> Option<Vec<PodReport>> {
        self.ask(Query::Reports).await
    }

    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>> {
        self.ask(|answer| Query::Why { namespace, name, answer }).await
    }

    async fn find_pod(&self, namespace: String, name: String) -> Option<Option<PodDetails>> {
        self.ask(|answer| Query::Find { namespace, name, answer }).await
    }

    async fn container_ended(&self, pod: PodUid, container: ContainerId) -> Option<()> {
        self.ask(|told| Query::WaitForExit { pod, container, told }).await
    }

    async fn all_pod_details(&self) -> Option<Vec<PodDetails>> {
        self.ask(Query::AllPodDetails).await
    }

    async fn node_report(&self) -> Option<NodeReport> {
        self.ask(Query::Node).await
    }
}

#[async_trait]
impl PodWatches for EngineHandle {
    async fn list_pods(&self) -> Option<Vec<PodSnapshot>> {
        self.ask(Query::Snapshots).await
    }

    async fn get_pod(&self, uid: PodUid) -> Option<Option<PodSnapshot>> {
        self.ask(|answer| Query::Snapshot { uid, answer }).await
    }

    async fn watch_pods(&self) -> Option<PodWatch> {
        self.ask(Query::WatchPods).await
    }
}

/// What queries may add themselves to.
#[derive(Default)]
pub(crate) struct Waiting {
    pub exits: ExitWaiters,
    pub pods: PodWatchers,
}

impl Query {
    pub fn answer(
        self,
        state: &NodeState,
        events: &RecentPodEvents,
        waiting: &mut Waiting,
        now: Now,
        watches: impl FnOnce() -> Vec<WatchReport>,
    ) {
        let wanted = || state.pods.values().filter(|e| !e.standing().is_orphan());
        // The receiver of the answer may have been dropped.
        match self {
            Query::Pods(to) => {
                drop(to.send(wanted().filter(|e| !e.standing().is_removed()).map(with_status).collect()))
            }
            Query::Running(to) => {
                drop(to.send(state.pods.values().filter_map(pod_of_running_containers).collect()))
            }
            Query::Reports(to) => {
                let known = wanted().map(|e| report(state, e));
                drop(to.send(known.chain(unreadable_unknown_pods(state).map(unreadable_report)).collect()));
            }
            Query::Why { namespace, name, answer } => {
                let same = |e: &&PodEntry| {
                    (e.view().name() == name || e.view().uid.as_str() == name)
                        && namespace.as_deref().is_none_or(|ns| ns == e.view().namespace())
                };
                let known = state.pods.values().filter(same).map(|e| why(state, e, events, now));
                let asked = |pod: &&UnreadablePod| {
                    (*pod.full_name.name == *name || pod.uid.as_str() == name)
                        && namespace.as_deref().is_none_or(|ns| &*pod.full_name.namespace == ns)
                };
                let strangers =
                    unreadable_unknown_pods(state).filter(asked).map(|pod| why_unreadable(pod, events, now));
                drop(answer.send(known.chain(strangers).collect()));
            }
            Query::Find { namespace, name, answer } => {
                let same = |e: &&PodEntry| e.view().name() == name && e.view().namespace() == namespace;
                let stays = wanted().filter(same).min_by_key(|e| e.standing().is_removed());
                drop(answer.send(stays.map(|e| pod_details(state, e, now))));
            }
            Query::WaitForExit { pod, container, told } => waiting.exits.add(state, pod, container, told),
            Query::AllPodDetails(to) => drop(to.send(wanted().map(|e| pod_details(state, e, now)).collect())),
            Query::Node(to) => {
                let report = NodeReport { watches: watches(), ..node(state, now) };
                drop(to.send(report));
            }
            Query::Snapshots(to) => drop(to.send(pod_watchers::list(state))),
            Query::Snapshot { uid, answer } => drop(answer.send(pod_watchers::get(state, &uid))),
            Query::WatchPods(to) => drop(to.send(waiting.pods.add(state))),
        }
    }
}

/// Pods that can't be read and of which no older version is known.
fn unreadable_unknown_pods(state: &NodeState) -> impl Iterator<Item = &UnreadablePod> {
    state.unreadable().filter(|pod| !state.pods.contains_key(&pod.uid))
}

fn unreadable_report(pod: &UnreadablePod) -> PodReport {
    PodReport {
        namespace: pod.full_name.namespace.to_string(),
        name: pod.full_name.name.to_string(),
        uid: pod.uid.to_string(),
        source: Source::Api.as_str().to_owned(),
        lifecycle: String::new(),
        status: "Unreadable".to_owned(),
        ready: 0,
        containers: Vec::new(),
        restarts: 0,
        ip: String::new(),
        since: None,
        log_dir: String::new(),
    }
}

fn unreadable_line(pod: &UnreadablePod, now: Now) -> WhyLine {
    let cause = Cause::Unreadable { problem: pod.problem.clone() };
    WhyLine { container: None, cause, since: now.wall, next_attempt_secs: None }
}

fn why_unreadable(pod: &UnreadablePod, events: &RecentPodEvents, now: Now) -> WhyReport {
    WhyReport {
        namespace: pod.full_name.namespace.to_string(),
        name: pod.full_name.name.to_string(),
        uid: pod.uid.to_string(),
        phase: String::new(),
        reasons: vec![unreadable_line(pod, now)],
        events: events.of(&pod.uid),
    }
}

fn with_status(entry: &PodEntry) -> Pod {
    let mut pod = Pod::clone(&entry.view().pod);
    if let Some(status) = &entry.status {
        pod.status = Some((**status).clone());
    }
    pod
}

fn volume_inputs<'a>(state: &'a NodeState, entry: &'a PodEntry, now: Now) -> VolumeInputs<'a> {
    VolumeInputs {
        config: &state.config,
        facts: &state.facts,
        pod: entry.view(),
        cluster: state.objects.as_ref(),
        node: state.node.as_deref(),
        now: now.wall,
    }
}

fn pod_details(state: &NodeState, entry: &PodEntry, now: Now) -> PodDetails {
    let cgroup = decide::cgroups::pod_cgroup(&state.config, entry.view());
    let mut volumes = decide::volumes::measured(&volume_inputs(state, entry, now));
    // A driver knows nothing of a volume before it was published.
    volumes.retain(|volume| volume.of_driver.is_none() || entry.ledger.volumes_set_up.contains(&volume.name));
    PodDetails {
        cgroup: cgroup.map(|name| name.to_path(state.config.cgroup_driver)),
        uid: entry.view().uid.clone(),
        pod: entry.view().pod.clone(),
        status: entry.status.clone(),
        observed: entry.observed.as_ref().map(|reading| reading.pod.clone()),
        volumes,
    }
}

fn pod_of_running_containers(entry: &PodEntry) -> Option<Pod> {
    use model::observed::ContainerState::Running;
    let observed = &entry.observed.as_ref()?.pod;
    let containers: Vec<_> = observed
        .containers
        .iter()
        .filter(|c| c.state == Running)
        .map(|c| model::k8s::Container {
            name: c.name.clone(),
            image: Some(c.image.clone()),
            ..Default::default()
        })
        .collect();
    if containers.is_empty() && !observed.sandboxes.iter().any(|s| s.ready) {
        return None;
    }
    let mut pod = Pod::default();
    pod.metadata.name = Some(entry.view().name().to_owned());
    pod.metadata.namespace = Some(entry.view().namespace().to_owned());
    pod.metadata.uid = Some(entry.view().uid.to_string());
    pod.spec = Some(model::k8s::PodSpec { containers, ..Default::default() });
    Some(pod)
}

fn report(state: &NodeState, entry: &PodEntry) -> PodReport {
    let status = entry.status.as_deref();
    let containers = status.and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let views: Vec<_> = entry
        .view()
        .containers()
        .iter()
        .chain(entry.view().init_containers())
        .map(|spec| container_view(entry, spec, status))
        .collect();
    let log_dir = state.config.pod_log_dir(&entry.view().full_name, &entry.view().uid);
    PodReport {
        namespace: entry.view().namespace().to_owned(),
        name: entry.view().name().to_owned(),
        uid: entry.view().uid.to_string(),
        source: entry.view().source.as_str().to_owned(),
        lifecycle: match entry.lifecycle() {
            Lifecycle::Syncing => "sync",
            Lifecycle::Terminating(_) => "terminating",
            Lifecycle::Terminated | Lifecycle::Finished => "terminated",
        }
        .to_owned(),
        status: kubectl_status(entry),
        ready: containers.iter().filter(|c| c.ready).count(),
        restarts: sum_restarts(containers),
        containers: views,
        ip: status.and_then(|s| s.pod_ip.clone()).unwrap_or_default(),
        since: status.and_then(|s| s.start_time.as_ref()).map(|t| Wall::from_timestamp(t.0)),
        log_dir,
    }
}

/// Whoever may write the pod's status may write any counts.
fn sum_restarts(containers: &[model::k8s::ContainerStatus]) -> i32 {
    containers.iter().map(|container| container.restart_count).fold(0, i32::saturating_add)
}

fn container_view(
    entry: &PodEntry,
    spec: &model::k8s::Container,
    status: Option<&model::k8s::PodStatus>,
) -> ContainerView {
    let lists = status.map(|s| [&s.container_statuses, &s.init_container_statuses]);
    let status = lists.into_iter().flatten().flatten().flatten().find(|s| s.name == spec.name);
    let logs = || {
        let containers = entry.observed.iter().flat_map(|r| &r.pod.containers);
        containers.filter(|c| c.name == spec.name && !c.log_path.is_empty())
    };
    let newest = logs().next();
    // While a container waits for its restart, its last instance is the newest one.
    let last = status.and_then(|s| s.last_state.as_ref()?.terminated.as_ref()?.container_id.as_deref());
    let previous = last.and_then(|last| logs().find(|c| last.ends_with(c.id.as_str())));
    ContainerView {
        name: spec.name.clone(),
        ready: status.is_some_and(|s| s.ready),
        restarts: status.map_or(0, |s| s.restart_count),
        init: entry.view().init_containers().iter().any(|c| c.name == spec.name),
        running: newest.is_some_and(|c| c.state == model::observed::ContainerState::Running),
        log_path: newest.map(|c| c.log_path.clone()),
        previous_log_path: previous.map(|c| c.log_path.clone()),
    }
}

/// Terminating, a waiting or ended container's reason, or the phase: the same word kubectl would print.
fn kubectl_status(entry: &PodEntry) -> String {
    if entry.standing().is_removed()
        || matches!(entry.lifecycle(), Lifecycle::Terminating(_)) && entry.view().is_deleting()
    {
        return "Terminating".into();
    }
    let Some(status) = entry.status.as_deref() else { return "Pending".into() };
    if let Some(reason) = status.reason.as_ref().filter(|r| !r.is_empty()) {
        return reason.clone();
    }
    let phase = status.phase.clone().unwrap_or_default();
    let states = status.container_statuses.iter().flatten().filter_map(|s| s.state.as_ref());
    let mut reasons = states.filter_map(|s| {
        let waiting = s.waiting.as_ref().and_then(|w| w.reason.clone());
        waiting.or_else(|| s.terminated.as_ref().and_then(|t| t.reason.clone()))
    });
    match phase.as_str() {
        "Running" | "Pending" | "Succeeded" | "Failed" => {
            reasons.next().filter(|r| !r.is_empty()).unwrap_or(phase)
        }
        _ => phase,
    }
}

fn why(state: &NodeState, entry: &PodEntry, events: &RecentPodEvents, now: Now) -> WhyReport {
    let unreadable = state.unreadable().find(|pod| pod.uid == entry.view().uid);
    let line = |w: &decide::state::WhySince| WhyLine {
        container: w.why.container.clone(),
        cause: w.why.cause.clone(),
        since: w.since,
        next_attempt_secs: w.why.next_attempt.map(|at| at.since(now.mono).as_secs_f64()),
    };
    WhyReport {
        namespace: entry.view().namespace().to_owned(),
        name: entry.view().name().to_owned(),
        uid: entry.view().uid.to_string(),
        phase: entry.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default(),
        reasons: unreadable
            .map(|pod| unreadable_line(pod, now))
            .into_iter()
            .chain(entry.why.iter().map(line))
            .collect(),
        events: events.of(&entry.view().uid),
    }
}

fn volume_counts(state: &NodeState, now: Now) -> Vec<VolumeCount> {
    let mut counted = BTreeMap::new();
    for entry in state.pods.values().filter(|entry| !entry.standing().is_orphan()) {
        let (inputs, wanted) = (volume_inputs(state, entry, now), entry.lifecycle().may_start());
        decide::volumes::count_volumes(&mut counted, &inputs, wanted, &entry.ledger.volumes_set_up);
    }
    counted.into_iter().map(|(plugin, count)| VolumeCount { plugin: plugin.to_owned(), ..count }).collect()
}

fn selinux_counts(state: &NodeState, now: Now) -> Vec<SelinuxCount> {
    let mut counts = SelinuxCounts::default();
    // Labels are not looked at before it is known that the host has them.
    if state.facts.selinux_enabled {
        for entry in state.pods.values().filter(|entry| entry.lifecycle().may_start()) {
            counts.add_pod(&volume_inputs(state, entry, now));
        }
    }
    counts.into_counts()
}

fn protected_memory(state: &NodeState) -> Option<ProtectedMemoryReport> {
    let requests = state.pods.requests().of_classes();
    let protected = decide::node_cgroups::protected_memory(&state.config, &state.facts, &requests)?;
    Some(ProtectedMemoryReport { min_bytes: protected.guaranteed, low_bytes: protected.burstable_low })
}

fn certificate_counts(state: &NodeState, now: Now) -> Vec<CertificateCount> {
    let states = state.objects.as_ref().map(|desk| desk.certificates.states(now.wall)).unwrap_or_default();
    let count = |((signer_name, state), count): ((String, &str), usize)| CertificateCount {
        signer_name,
        state: state.to_owned(),
        count,
    };
    states.into_iter().map(count).collect()
}

fn node(state: &NodeState, now: Now) -> NodeReport {
    let mut containers: BTreeMap<String, usize> = BTreeMap::new();
    let mut running_pods = 0;
    for pod in state.pods.values().filter_map(|e| e.observed.as_ref()).map(|r| &r.pod) {
        running_pods += usize::from(pod.anything_running());
        for container in &pod.containers {
            *containers.entry(format!("{:?}", container.state).to_lowercase()).or_default() += 1;
        }
    }
    let health = &state.runtime;
    let message = [&health.message, &health.network_message].into_iter().find(|m| !m.is_empty());
    NodeReport {
        name: state.config.node_name.clone(),
        runtime: health.name.clone(),
        runtime_ready: health.ready,
        network_ready: health.network_ready,
        message: message.cloned().unwrap_or_default(),
        sources_ready: state.sources_ready(),
        pods: state.pods.values().filter(|e| !e.standing().is_orphan()).count(),
        running_pods,
        containers,
        mirror_pods: state.mirrors.values().filter(|mirror| mirror.seen.is_some()).count(),
        orphans: state.pods.values().filter(|e| e.standing().is_orphan()).count(),
        ephemeral_containers: state.pods.values().map(|e| e.view().ephemeral_containers().len()).sum(),
        counts: state.counters.clone(),
        volumes: volume_counts(state, now),
        selinux_volumes: selinux_counts(state, now),
        pod_certificates: certificate_counts(state, now),
        protected_memory: protected_memory(state),
        signals: state.eviction.report(&state.config.eviction, now.mono),
        watches: Vec::new(),
    }
}

/// The last Events of each pod.
#[derive(Default)]
pub(crate) struct RecentPodEvents {
    pods: BTreeMap<PodUid, VecDeque<Arc<RecentEvent>>>,
}

impl RecentPodEvents {
    pub fn add(&mut self, uid: &PodUid, at: Wall, event: ApiEvent) {
        let log = self.pods.entry(uid.clone()).or_default();
        if log.len() == EVENTS_KEPT {
            log.pop_front();
        }
        log.push_back(Arc::new(RecentEvent { at, event }));
    }

    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    fn of(&self, uid: &PodUid) -> Vec<RecentEvent> {
        self.pods.get(uid).into_iter().flatten().map(|e| (**e).clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_summed_whatever_the_status_says() {
        let sum = |counts: &[i32]| {
            let status =
                |count: &i32| model::k8s::ContainerStatus { restart_count: *count, ..Default::default() };
            sum_restarts(&counts.iter().map(status).collect::<Vec<_>>())
        };
        assert_eq!([sum(&[]), sum(&[1, 2]), sum(&[i32::MAX, 1])], [0, 3, i32::MAX]);
    }
}
