//! Metrics of pods, derived from their statuses and plans.
//!
//! ```text
//!   first status ── plan ── … ── Running ── ended containers ── forgotten
//!        │           │             │
//!        └ worker start            └ start durations, for a pod whose whole start was seen here
//! ```

use model::PodPhase;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::k8s::{ContainerState, ContainerStatus, PodStatus};
use model::pod::{ContainerKind, PodView};
use model::{PodUid, Reason, Wall};
use ports::PodStatusUpdate;
use prometheus::{Gauge, HistogramVec, IntCounterVec, Registry, exponential_buckets};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{NO_LABELS, Registrar, container_type};

/// What is remembered of a pod until it is forgotten.
struct PodStartRecord {
    seen: Instant,
    planned: bool,
    /// In its first status nothing was started yet, so the duration of its start can be measured.
    start_observed: bool,
    rejected: bool,
    pulling_since: Option<Instant>,
    pulling: Duration,
    /// Ids of ended containers that were counted.
    ended: BTreeSet<String>,
    /// The last waiting reason of each container.
    waiting: BTreeMap<String, String>,
}

pub(crate) struct PodMetrics {
    rejections: IntCounterVec,
    containers_per_pod: HistogramVec,
    terminated: IntCounterVec,
    start_errors: IntCounterVec,
    start: HistogramVec,
    start_sli: HistogramVec,
    start_total: HistogramVec,
    first_network_start: watch::Sender<Option<f64>>,
    worker_start: HistogramVec,
    worker: HistogramVec,
    known: watch::Sender<BTreeMap<PodUid, PodStartRecord>>,
}

impl PodMetrics {
    pub fn new(registry: &Registry) -> Self {
        let add = Registrar(registry);
        let default = || prometheus::DEFAULT_BUCKETS.to_vec();
        let start = || {
            let mut buckets = vec![0.5];
            buckets.extend((1..=6).map(f64::from));
            buckets.extend([8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0]);
            buckets.extend([360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0]);
            buckets
        };
        Self {
            rejections: add.counters(
                "kubelet_admission_rejections_total",
                "Pods that were rejected at admission, by reason.",
                &["reason"],
            ),
            containers_per_pod: add.histograms(
                "kubelet_containers_per_pod_count",
                "Number of containers of a pod that was assigned to this node.",
                &NO_LABELS,
                exponential_buckets(1.0, 2.0, 5).unwrap_or_default(),
            ),
            terminated: add.counters(
                "kubelet_terminated_containers_total",
                "Containers that terminated, by kind, exit code and reason.",
                &["container_type", "exit_code", "reason"],
            ),
            start_errors: add.counters(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by kind and reason.",
                &["code", "container_type"],
            ),
            start: add.histograms(
                "kubelet_pod_start_duration_seconds",
                "Time from when the agent first saw a pod until it was running.",
                &NO_LABELS,
                start(),
            ),
            start_sli: add.histograms(
                "kubelet_pod_start_sli_duration_seconds",
                "Time from the creation of a pod until it was running, without image pulls. Pods with init containers are not counted.",
                &NO_LABELS,
                start(),
            ),
            start_total: add.histograms(
                "kubelet_pod_start_total_duration_seconds",
                "Time from the creation of a pod until it was running.",
                &NO_LABELS,
                start(),
            ),
            first_network_start: watch::Sender::new(None),
            worker_start: add.histograms(
                "kubelet_pod_worker_start_duration_seconds",
                "Time from when the agent first saw a pod until it began its first plan.",
                &NO_LABELS,
                default(),
            ),
            worker: add.histograms(
                "kubelet_pod_worker_duration_seconds",
                "How long one plan of a pod took: its first one (create), a later one (sync), or one to stop the pod (kill).",
                &["operation_type"],
                default(),
            ),
            known: watch::Sender::new(BTreeMap::new()),
        }
    }

    pub fn status(&self, seen: &PodStatusUpdate<'_>, now: Wall) {
        self.known.send_modify(|known| {
            let uid = seen.pod.uid.clone();
            let is_new = !known.contains_key(&uid);
            let pod = known.entry(uid).or_insert_with(|| self.start_tracking(seen));
            // Ids that the status no longer has are dropped, so that a crash loop does not grow this set.
            pod.ended.retain(|id| containers(seen.status).any(|(_, status)| mentions_container(status, id)));
            for (kind, status) in containers(seen.status) {
                self.count_terminations(pod, kind, status, is_new);
                self.count_start_errors(pod, kind, status);
            }
            if let (Some(reason), false) = (seen.rejected, pod.rejected) {
                pod.rejected = true;
                self.rejections.with_label_values(&[reason]).inc();
            }
            if pod.start_observed && PodPhase::of(seen.status) == Some(PodPhase::Running) {
                pod.start_observed = false;
                self.observe_start(pod, seen.pod, now);
            }
        });
    }

    fn start_tracking(&self, seen: &PodStatusUpdate<'_>) -> PodStartRecord {
        self.containers_per_pod.with_label_values(&NO_LABELS).observe(seen.pod.containers().len() as f64);
        let nothing_started = containers(seen.status).all(|(_, status)| status.container_id.is_none());
        PodStartRecord {
            seen: Instant::now(),
            planned: false,
            start_observed: PodPhase::of(seen.status) == Some(PodPhase::Pending) && nothing_started,
            rejected: false,
            pulling_since: None,
            pulling: Duration::ZERO,
            ended: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// A container that had ended before this agent saw the pod is not counted: an earlier agent may have counted it.
    fn count_terminations(
        &self,
        pod: &mut PodStartRecord,
        kind: ContainerKind,
        status: &ContainerStatus,
        is_new: bool,
    ) {
        let ended = |state: &Option<ContainerState>| state.as_ref()?.terminated.clone();
        for end in [ended(&status.last_state), ended(&status.state)].into_iter().flatten() {
            let Some(id) = end.container_id.filter(|id| !id.is_empty()) else { continue };
            if pod.ended.insert(id) && !is_new {
                let (code, reason) = (end.exit_code.to_string(), end.reason.unwrap_or_default());
                self.terminated.with_label_values(&[container_type(kind), &code, &reason]).inc();
            }
        }
    }

    /// A reason is counted when it becomes the container's waiting reason.
    fn count_start_errors(&self, pod: &mut PodStartRecord, kind: ContainerKind, status: &ContainerStatus) {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.clone()).unwrap_or_default();
        let before = pod.waiting.insert(status.name.clone(), reason.clone());
        if before.as_deref() != Some(&reason) && Reason::parse(&reason).is_some_and(Reason::is_start_error) {
            self.start_errors.with_label_values(&[reason.as_str(), container_type(kind)]).inc();
        }
    }

    fn observe_start(&self, tracked: &PodStartRecord, pod: &PodView, now: Wall) {
        let since_seen = tracked.seen.elapsed().as_secs_f64();
        let made = pod.pod.metadata.creation_timestamp.as_ref().map(|at| Wall::from_timestamp(at.0));
        // The creation time has whole seconds and is from another clock: at least the time since the first sight.
        let total = made.map_or(since_seen, |made| made.seconds_until(now).max(since_seen));
        self.start.with_label_values(&NO_LABELS).observe(since_seen);
        self.start_total.with_label_values(&NO_LABELS).observe(total);
        if pod.init_containers().is_empty() {
            let without_pulls = (total - tracked.pulling.as_secs_f64()).max(0.0);
            self.start_sli.with_label_values(&NO_LABELS).observe(without_pulls);
            if !pod.host_network() {
                self.first_network_start
                    .send_if_modified(|first| first.is_none() && first.replace(without_pulls).is_none());
            }
        }
    }

    /// An Event of the pod says that a pull begins or has ended.
    pub fn track_image_pull(&self, uid: &PodUid, begins: bool) {
        self.known.send_modify(|known| {
            let Some(pod) = known.get_mut(uid) else { return };
            match begins {
                true => pod.pulling_since = pod.pulling_since.or(Some(Instant::now())),
                false => {
                    pod.pulling += pod.pulling_since.take().map(|since| since.elapsed()).unwrap_or_default()
                }
            }
        });
    }

    pub fn plan_started(&self, uid: &PodUid) {
        let seen =
            self.known.borrow().get(uid).filter(|pod| !pod.planned && pod.start_observed).map(|pod| pod.seen);
        if let Some(seen) = seen {
            self.worker_start.with_label_values(&NO_LABELS).observe(seen.elapsed().as_secs_f64());
        }
    }

    pub fn plan_ended(&self, uid: &PodUid, ending: bool, took: Duration) {
        let mut first = false;
        self.known.send_modify(|known| {
            if let Some(pod) = known.get_mut(uid) {
                first = !std::mem::replace(&mut pod.planned, true);
            }
        });
        let operation = match (ending, first) {
            (true, _) => "kill",
            (false, true) => "create",
            (false, false) => "sync",
        };
        self.worker.with_label_values(&[operation]).observe(took.as_secs_f64());
    }

    pub fn forget(&self, uid: &PodUid) {
        self.known.send_modify(|known| drop(known.remove(uid)));
    }

    /// What is known once, if at all.
    pub fn add_per_scrape(&self, registry: &Registry) {
        if let Some(seconds) = *self.first_network_start.borrow() {
            let about =
                "How long the first pod with a network of its own took to start, without pulls of images.";
            let made = Gauge::new("kubelet_first_network_pod_start_sli_duration_seconds", about);
            Registrar(registry).register(made).set(seconds);
        }
    }
}

fn mentions_container(status: &ContainerStatus, id: &str) -> bool {
    let states = [&status.last_state, &status.state].into_iter().flatten();
    states.filter_map(|state| state.terminated.as_ref()).any(|end| end.container_id.as_deref() == Some(id))
}

fn containers(status: &PodStatus) -> impl Iterator<Item = (ContainerKind, &ContainerStatus)> {
    let lists = [
        (ContainerKind::Init, status.init_container_statuses.as_deref()),
        (ContainerKind::Regular, status.container_statuses.as_deref()),
        (ContainerKind::Ephemeral, status.ephemeral_container_statuses.as_deref()),
    ];
    lists.into_iter().flat_map(|(kind, list)| list.unwrap_or_default().iter().map(move |one| (kind, one)))
}

#[cfg(test)]
mod tests;
