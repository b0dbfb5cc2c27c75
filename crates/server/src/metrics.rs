//! Metrics under the kubelet's names where the kubelet has them, and under `rubelet_` where only we do.
//!
//! Counters and histograms are updated as things happen; a family without samples is not shown. Gauges about pods and
//! the runtime are computed for each scrape. If the agent does not answer they are left out, because old values would
//! mislead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use model::Wall;
use model::pod::ContainerKind;
use ports::WallClock;
use prometheus::proto::MetricFamily;
use prometheus::{
    HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
    exponential_buckets,
};
use tokio::time::Instant;

use crate::process;

mod cluster;
mod per_scrape;
mod plugins;
mod pods;
mod probes;
mod registrar;

pub use cluster::CertificateFigures;
pub(crate) use cluster::ClusterMetrics;
pub(crate) use per_scrape::{AgentSnapshot, ScrapeInputs};
pub(crate) use plugins::{PluginMetrics, SocketState};
pub(crate) use pods::PodMetrics;
pub(crate) use probes::ProbeMetrics;
use registrar::Registrar;

/// What is served under which name.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The version of the kubelet that this agent replaces, such as `v1.36.4`.
    pub kubernetes: String,
    /// The version of this agent.
    pub rubelet: String,
}

pub struct AgentMetrics {
    registry: Registry,
    build: BuildInfo,
    wall: Arc<dyn WallClock>,
    cgroup_version: IntGaugeVec,
    /// Usage of pods and containers comes from the runtime.
    of_runtime: AtomicBool,
    started_pods: IntCounter,
    started_pods_errors: IntCounter,
    started_containers: IntCounterVec,
    started_user_namespaced_pods: IntCounter,
    started_user_namespaced_pods_errors: IntCounter,
    runtime_operations: IntCounterVec,
    runtime_operations_errors: IntCounterVec,
    runtime_operations_duration: HistogramVec,
    run_podsandbox_duration: HistogramVec,
    run_podsandbox_errors: IntCounterVec,
    relist_duration: HistogramVec,
    relist_interval: HistogramVec,
    pod_relist_duration: HistogramVec,
    eviction_figures_age: HistogramVec,
    last_relist: ArcSwapOption<Instant>,
    cgroup_duration: HistogramVec,
    hook_fallbacks: IntCounter,
    sleeps_cut_short: IntCounter,
    pod_watch_events_dropped: IntCounter,
    image_volumes: ImageVolumes,
    cleaned_volumes: [IntGauge; 2],
    certificate_life: HistogramVec,
    volume_duration: HistogramVec,
    storage_duration: HistogramVec,
    image_pull_duration: HistogramVec,
    features: IntGaugeVec,
    pub(crate) health: HealthMetrics,
    pub(crate) pods: PodMetrics,
    pub(crate) cluster: ClusterMetrics,
    pub(crate) plugins: PluginMetrics,
    websocket_streams: IntCounterVec,
    http_requests: IntCounterVec,
    http_requests_duration: HistogramVec,
    http_inflight: IntGaugeVec,
    step_duration: HistogramVec,
    events: IntCounterVec,
    plans: IntCounterVec,
    volume_sizes: HistogramVec,
    /// Served at `/metrics/probes`, because there are many series.
    pub(crate) probes: ProbeMetrics,
}

const VOLUME_BUCKETS: [f64; 14] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0, 1200.0];
const PULL_BUCKETS: [f64; 13] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0];
const REQUEST_LABELS: [&str; 4] = ["long_running", "method", "path", "server_type"];
/// No label: for a family that shows only when it was fed.
const NO_LABELS: [&str; 0] = [];

impl AgentMetrics {
    pub fn new(build: BuildInfo, wall: Arc<dyn WallClock>) -> Arc<Self> {
        let registry = Registry::new();
        let add = Registrar(&registry);
        // A call to the runtime takes milliseconds or, for a pull, minutes.
        let call_buckets = exponential_buckets(0.005, 2.5, 14).unwrap_or_default();
        let step_buckets = exponential_buckets(0.000_01, 4.0, 10).unwrap_or_default();
        let default_buckets = prometheus::DEFAULT_BUCKETS.to_vec();
        Arc::new(Self {
            build,
            wall,
            of_runtime: AtomicBool::new(false),
            cgroup_version: add.gauges(
                "kubelet_cgroup_version",
                "Version of the cgroup hierarchy in use.",
                &NO_LABELS,
            ),
            started_pods: add.counter(
                "kubelet_started_pods_total",
                "Pod sandboxes that were requested of the container runtime.",
            ),
            started_pods_errors: add
                .counter("kubelet_started_pods_errors_total", "Pod sandboxes that could not be created."),
            started_containers: add.counters(
                "kubelet_started_containers_total",
                "Containers that were started, by kind.",
                &["container_type"],
            ),
            started_user_namespaced_pods: add.counter(
                "kubelet_started_user_namespaced_pods_total",
                "Sandboxes with a user namespace that were requested of the container runtime.",
            ),
            started_user_namespaced_pods_errors: add.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Sandboxes with a user namespace that could not be created.",
            ),
            runtime_operations: add.counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime.",
                &["operation_type"],
            ),
            runtime_operations_errors: add.counters(
                "kubelet_runtime_operations_errors_total",
                "Calls to the container runtime that failed or timed out.",
                &["operation_type"],
            ),
            runtime_operations_duration: add.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "How long calls to the container runtime took.",
                &["operation_type"],
                call_buckets,
            ),
            run_podsandbox_duration: add.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "How long the container runtime took to create a pod sandbox.",
                &["runtime_handler"],
                default_buckets.clone(),
            ),
            run_podsandbox_errors: add.counters(
                "kubelet_run_podsandbox_errors_total",
                "Pod sandboxes that the container runtime failed to create.",
                &["runtime_handler"],
            ),
            relist_duration: add.histograms(
                "kubelet_pleg_relist_duration_seconds",
                "How long it took to list all pods and containers of the container runtime.",
                &NO_LABELS,
                default_buckets.clone(),
            ),
            relist_interval: add.histograms(
                "kubelet_pleg_relist_interval_seconds",
                "Time between two lists of all pods and containers of the container runtime.",
                &NO_LABELS,
                default_buckets.clone(),
            ),
            pod_relist_duration: add.histograms(
                "kubelet_pleg_pod_relist_duration_seconds",
                "How long it took to read one pod from the container runtime.",
                &NO_LABELS,
                default_buckets.clone(),
            ),
            eviction_figures_age: add.histograms(
                "kubelet_eviction_stats_age_seconds",
                "How old the figures were on which a pod was to be evicted.",
                &["eviction_signal"],
                default_buckets.clone(),
            ),
            last_relist: ArcSwapOption::empty(),
            cgroup_duration: add.histograms(
                "kubelet_cgroup_manager_duration_seconds",
                "How long it took to create, update and destroy cgroups.",
                &["operation_type"],
                default_buckets.clone(),
            ),
            hook_fallbacks: add.counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "HTTPS lifecycle hooks that fell back to plain HTTP.",
            ),
            sleeps_cut_short: add.counter(
                "kubelet_sleep_action_terminated_early_total",
                "Sleep hooks that were ended before their time.",
            ),
            pod_watch_events_dropped: add.counter(
                "kubelet_pod_watch_events_dropped_total",
                "Watches of pods that ended because their watcher did not keep up.",
            ),
            image_volumes: ImageVolumes::new(&add),
            cleaned_volumes: [
                (
                    "kubelet_orphan_pod_cleaned_volumes",
                    "Orphaned pods whose volumes were cleaned up in the last sweep.",
                ),
                (
                    "kubelet_orphan_pod_cleaned_volumes_errors",
                    "Orphaned pods whose volumes could not be cleaned up in the last sweep.",
                ),
            ]
            .map(|(name, about)| add.register(IntGauge::new(name, about))),
            certificate_life: certificate_life(&add),
            volume_duration: add.histograms(
                "volume_operation_total_seconds",
                "How long it took to set up a volume.",
                &["operation_name", "plugin_name"],
                VOLUME_BUCKETS.to_vec(),
            ),
            storage_duration: add.histograms(
                "storage_operation_duration_seconds",
                "How long it took to set up a volume, by outcome.",
                &["migrated", "operation_name", "status", "volume_plugin"],
                VOLUME_BUCKETS.to_vec(),
            ),
            image_pull_duration: add.histograms(
                "kubelet_image_pull_duration_seconds",
                "How long it took to pull an image, by the size of the image.",
                &["image_size_in_bytes"],
                PULL_BUCKETS.to_vec(),
            ),
            features: add.gauges(
                "kubernetes_feature_enabled",
                "Whether a feature gate is enabled: 1, or 0. All gates of this Kubernetes version, also those without effect here.",
                &["name", "stage"],
            ),
            health: HealthMetrics::new(),
            pods: PodMetrics::new(&registry),
            cluster: ClusterMetrics::new(&registry),
            plugins: PluginMetrics::new(&add),
            websocket_streams: add.counters(
                "kubelet_websocket_streaming_requests_total",
                "Requests to stream over WebSocket that this node translates for the container runtime.",
                &["subresource"],
            ),
            http_requests: add.counters(
                "kubelet_http_requests_total",
                "HTTP requests that were answered.",
                &REQUEST_LABELS,
            ),
            http_requests_duration: add.histograms(
                "kubelet_http_requests_duration_seconds",
                "How long it took to answer an HTTP request.",
                &REQUEST_LABELS,
                default_buckets,
            ),
            http_inflight: add.gauges(
                "kubelet_http_inflight_requests",
                "HTTP requests in progress.",
                &REQUEST_LABELS,
            ),
            step_duration: add.histograms(
                "rubelet_step_duration_seconds",
                "How long the decision core took to handle one event.",
                &NO_LABELS,
                step_buckets,
            ),
            events: add.counters(
                "rubelet_events_total",
                "Events that the decision core has handled.",
                &["event"],
            ),
            plans: add.counters("rubelet_plans_total", "Plans that were given to the executor.", &NO_LABELS),
            volume_sizes: add.histograms(
                "kubelet_volume_metric_collection_duration_seconds",
                "How long it took to measure a volume.",
                &["metric_source"],
                prometheus::DEFAULT_BUCKETS.to_vec(),
            ),
            probes: ProbeMetrics::new(),
            registry,
        })
    }

    pub(crate) fn now(&self) -> Wall {
        self.wall.wall()
    }

    pub(crate) fn kubernetes_version(&self) -> &str {
        &self.build.kubernetes
    }

    /// Until this is called, usage of pods and containers comes from cgroups.
    pub(crate) fn figures_come_from_the_runtime(&self) {
        self.of_runtime.store(true, Ordering::Relaxed);
    }

    /// 1 or 2.
    pub fn set_cgroup_version(&self, version: u8) {
        self.cgroup_version.with_label_values(&NO_LABELS).set(version.into());
    }

    /// A call to the runtime ended: `operation` is the kubelet's word for it.
    pub fn observe_runtime_call(&self, operation: &str, seconds: f64, ok: bool) {
        self.runtime_operations.with_label_values(&[operation]).inc();
        self.runtime_operations_duration.with_label_values(&[operation]).observe(seconds);
        if !ok {
            self.runtime_operations_errors.with_label_values(&[operation]).inc();
        }
    }

    /// A call to create a sandbox has ended, by an answer of the runtime or by its deadline.
    pub fn observe_sandbox(&self, handler: &str, user_namespaced: bool, seconds: f64, ok: bool) {
        self.started_pods.inc();
        self.started_user_namespaced_pods.inc_by(user_namespaced.into());
        self.run_podsandbox_duration.with_label_values(&[handler]).observe(seconds);
        if !ok {
            self.started_pods_errors.inc();
            self.started_user_namespaced_pods_errors.inc_by(user_namespaced.into());
            self.run_podsandbox_errors.with_label_values(&[handler]).inc();
        }
    }

    pub fn container_started(&self, kind: ContainerKind) {
        self.started_containers.with_label_values(&[container_type(kind)]).inc();
    }

    /// A full observation of the runtime has ended.
    pub fn observe_relist(&self, seconds: f64) {
        self.relist_duration.with_label_values(&NO_LABELS).observe(seconds);
        let now = Arc::new(Instant::now());
        if let Some(last) = self.last_relist.swap(Some(now)) {
            self.relist_interval.with_label_values(&NO_LABELS).observe(last.elapsed().as_secs_f64());
        }
    }

    /// An observation of one pod has ended.
    pub fn observe_pod_relist(&self, seconds: f64) {
        self.pod_relist_duration.with_label_values(&NO_LABELS).observe(seconds);
    }

    pub(crate) fn observe_eviction_figures_age(&self, signal: &str, seconds: f64) {
        self.eviction_figures_age.with_label_values(&[signal]).observe(seconds);
    }

    pub(crate) fn observe_cgroup(&self, operation: &str, seconds: f64) {
        self.cgroup_duration.with_label_values(&[operation]).observe(seconds);
    }

    /// A volume was set up, or could not be.
    pub(crate) fn observe_volume(&self, plugin: &str, ok: bool, seconds: f64) {
        let status = if ok { "success" } else { "fail-unknown" };
        let labels = ["false", "volume_mount", status, plugin];
        self.storage_duration.with_label_values(&labels).observe(seconds);
        if ok {
            self.volume_duration.with_label_values(&["volume_mount", plugin]).observe(seconds);
        }
    }

    pub(crate) fn observe_pull(&self, bytes: u64, seconds: f64) {
        self.image_pull_duration.with_label_values(&[size_class(bytes)]).observe(seconds);
    }

    /// A hook with the scheme HTTPS was answered in plain HTTP.
    pub(crate) fn count_hook_fallback(&self) {
        self.hook_fallbacks.inc();
    }

    /// A client opened a stream by a WebSocket protocol that is translated here.
    pub(crate) fn websocket_stream(&self, subresource: &str) {
        self.websocket_streams.with_label_values(&[subresource]).inc();
    }

    pub(crate) fn sleep_cut_short(&self) {
        self.sleeps_cut_short.inc();
    }

    pub(crate) fn pod_watch_event_dropped(&self) {
        self.pod_watch_events_dropped.inc();
    }

    /// At the last time that leftovers were looked for.
    pub(crate) fn set_cleaned_volumes(&self, pods: usize, failed: usize) {
        for (gauge, count) in self.cleaned_volumes.iter().zip([pods, failed]) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A container with so many images for volumes was to be made. `mounted`: whether they were, where that is known.
    pub(crate) fn observe_image_volumes(&self, count: u64, mounted: Option<bool>) {
        self.image_volumes.requested.inc_by(count);
        match mounted {
            Some(true) => self.image_volumes.mounted.inc_by(count),
            Some(false) => self.image_volumes.failed.inc_by(count),
            None => {}
        }
    }

    /// A request was made with a client certificate that expires then.
    pub(crate) fn observe_certificate(&self, expires: Wall) {
        let seconds = self.now().seconds_until(expires);
        self.certificate_life.with_label_values(&NO_LABELS).observe(seconds);
    }

    /// `stage` is upstream's word: `ALPHA`, `BETA`, `DEPRECATED`, or nothing.
    pub fn set_feature(&self, name: &str, stage: &str, enabled: bool) {
        self.features.with_label_values(&[name, stage]).set(enabled.into());
    }

    /// How the certificate towards the cluster (`client`) or of our own port (`server`) is found at each scrape.
    pub fn register_certificate(&self, kind: &'static str, figures: CertificateFigures) {
        self.cluster.register_certificate(kind, figures);
    }

    /// The cluster's serving certificate was replaced at this age.
    pub fn server_certificate_replaced(&self, age: Duration) {
        self.cluster.server_certificate_replaced(age);
    }

    /// The decision core took one event.
    pub fn observe_step(&self, event: &'static str, seconds: f64) {
        self.events.with_label_values(&[event]).inc();
        self.step_duration.with_label_values(&NO_LABELS).observe(seconds);
    }

    pub fn count_plan(&self) {
        self.plans.with_label_values(&NO_LABELS).inc();
    }

    /// The size of a volume of this plugin was found.
    pub(crate) fn observe_volume_size(&self, source: &str, seconds: f64) {
        self.volume_sizes.with_label_values(&[source]).observe(seconds);
    }

    /// Counts a request from its begin; the guard counts its end.
    pub(crate) fn request(self: Arc<Self>, method: &str, path: &str, server_type: &str) -> InflightRequest {
        let long = matches!(path, "exec" | "attach" | "portForward" | "debug");
        let labels = [if long { "true" } else { "false" }, method, path, server_type].map(str::to_owned);
        self.http_inflight.with_label_values(&labels).inc();
        InflightRequest { metrics: self, labels, begun: tokio::time::Instant::now() }
    }

    /// The text of a scrape.
    pub(crate) fn text(&self, scrape: &ScrapeInputs) -> Result<String, prometheus::Error> {
        let registry = Registry::new();
        per_scrape::add_build(&registry, &self.build);
        if let Some(figures) = &scrape.figures {
            per_scrape::add_agent(&registry, figures);
        }
        let process = process::figures();
        if let Some(figures) = &process {
            per_scrape::add_process(&registry, figures);
        }
        per_scrape::add_disks(&registry, scrape);
        self.pods.add_per_scrape(&registry);
        self.cluster.add_per_scrape(&registry, scrape.now, process::start(), process::boot());
        self.add_relist(&registry, scrape.now);
        let mut families: Vec<MetricFamily> = self.registry.gather();
        families.extend(registry.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families)
    }

    fn add_relist(&self, registry: &Registry, now: Wall) {
        let add = Registrar(registry);
        if let Some(last) = self.last_relist.load_full() {
            let seconds = now.0 as f64 / 1e9 - last.elapsed().as_secs_f64();
            add.gauge(
                "kubelet_pleg_last_seen_seconds",
                "When all pods and containers of the container runtime were last listed, in seconds since the Unix epoch.",
                seconds,
            );
        }
        // There is no queue that could be full.
        add.counter("kubelet_pleg_discard_events", "Container runtime events that were discarded. Always 0.");
        let provider = "Source of the usage metrics of pods; the value is always 1.";
        let name = if self.of_runtime.load(Ordering::Relaxed) { "cri" } else { "cgroup" };
        add.gauges("kubelet_metrics_provider", provider, &["provider"]).with_label_values(&[name]).set(1);
    }
}

/// Volumes that are images.
struct ImageVolumes {
    requested: IntCounter,
    mounted: IntCounter,
    failed: IntCounter,
}

impl ImageVolumes {
    fn new(add: &Registrar<'_>) -> Self {
        let one = |name: &str, about: &str| add.counter(&format!("kubelet_image_volume_{name}_total"), about);
        Self {
            requested: one("requested", "Image volumes that were requested."),
            mounted: one("mounted_succeed", "Image volumes that were mounted."),
            failed: one("mounted_errors", "Image volumes that could not be mounted."),
        }
    }
}

/// Of those that callers show. Told from the start, as upstream does.
fn certificate_life(add: &Registrar<'_>) -> HistogramVec {
    const HOUR: f64 = 3600.0;
    const DAY: f64 = 24.0 * HOUR;
    let days = [1.0, 2.0, 4.0, 7.0, 30.0, 90.0, 180.0, 365.0].map(|days| days * DAY);
    let hours = [0.0, 0.5, 1.0, 2.0, 6.0, 12.0].map(|hours| hours * HOUR);
    let made = add.histograms(
        "apiserver_client_certificate_expiration_seconds",
        "Remaining lifetime of the client certificates used for requests, in seconds.",
        &NO_LABELS,
        hours.into_iter().chain(days).collect(),
    );
    made.with_label_values(&NO_LABELS);
    made
}

/// The checks of `/healthz`, as `/metrics/slis` tells them.
pub(crate) struct HealthMetrics {
    registry: Registry,
    now: IntGaugeVec,
    total: IntCounterVec,
}

impl HealthMetrics {
    fn new() -> Self {
        let registry = Registry::new();
        let add = Registrar(&registry);
        let now = add.gauges(
            "kubernetes_healthcheck",
            "1 if the health check passed last, 0 if not.",
            &["name", "type"],
        );
        let labels = ["name", "status", "type"];
        let total =
            add.counters("kubernetes_healthchecks_total", "Results of health checks, by status.", &labels);
        Self { registry, now, total }
    }

    /// Somebody had these checks made.
    pub fn observe(&self, verdicts: &[crate::CheckResult]) {
        for verdict in verdicts {
            let ok = verdict.outcome.is_ok();
            self.now.with_label_values(&[verdict.name, "healthz"]).set(ok.into());
            let status = if ok { "success" } else { "error" };
            self.total.with_label_values(&[verdict.name, status, "healthz"]).inc();
        }
    }

    pub fn text(&self) -> Result<String, prometheus::Error> {
        probes::with_start(self.registry.gather())
    }
}

/// Upper ends in megabytes, and upstream's words for what is below them.
fn size_class(bytes: u64) -> &'static str {
    const CLASSES: [(u64, &str); 11] = [
        (10, "0-10MB"),
        (100, "10MB-100MB"),
        (500, "100MB-500MB"),
        (1 << 10, "500MB-1GB"),
        (5 << 10, "1GB-5GB"),
        (10 << 10, "5GB-10GB"),
        (20 << 10, "10GB-20GB"),
        (30 << 10, "20GB-30GB"),
        (40 << 10, "30GB-40GB"),
        (60 << 10, "40GB-60GB"),
        (100 << 10, "60GB-100GB"),
    ];
    CLASSES.iter().find(|(end, _)| bytes <= end << 20).map_or("GT100GB", |(_, name)| name)
}

/// A request in progress.
pub(crate) struct InflightRequest {
    metrics: Arc<AgentMetrics>,
    labels: [String; 4],
    begun: tokio::time::Instant,
}

impl Drop for InflightRequest {
    fn drop(&mut self) {
        let labels = &self.labels;
        self.metrics.http_inflight.with_label_values(labels).dec();
        self.metrics.http_requests.with_label_values(labels).inc();
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.http_requests_duration.with_label_values(labels).observe(seconds);
    }
}

fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
