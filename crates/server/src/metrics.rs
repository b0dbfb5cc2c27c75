//! Metrics under the kubelet's names where the kubelet has them, and under `rubelet_` where only we do.
//!
//! Counters and histograms are fed as things happen; a family that was never fed does not show. Gauges about
//! pods and the runtime are made anew for each scrape, from what the agent answers: when it does not, they are
//! left out, because an old value would be a lie.

use std::sync::Arc;

use model::pod::ContainerKind;
use model::report::{NodeReport, PodReport};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};

use crate::process;

mod probes;

pub(crate) use probes::ProbeMetrics;

/// What is served under which name.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The kubelet that we stand in for, such as `v1.36.4`.
    pub kubernetes: String,
    /// Our own version.
    pub rubelet: String,
}

pub struct AgentMetrics {
    registry: Registry,
    build: BuildInfo,
    cgroup_version: IntGaugeVec,
    started_pods: IntCounter,
    started_pods_errors: IntCounter,
    started_containers: IntCounterVec,
    started_containers_errors: IntCounterVec,
    runtime_operations: IntCounterVec,
    runtime_operations_errors: IntCounterVec,
    runtime_operations_duration: HistogramVec,
    run_podsandbox_duration: HistogramVec,
    run_podsandbox_errors: IntCounterVec,
    relist_duration: HistogramVec,
    http_requests: IntCounterVec,
    http_requests_duration: HistogramVec,
    http_inflight: IntGaugeVec,
    step_duration: HistogramVec,
    events: IntCounterVec,
    plans: IntCounterVec,
    /// Told at a place of their own: there are many of them, and not everybody wants them.
    pub(crate) probes: ProbeMetrics,
}

const REQUEST_LABELS: [&str; 4] = ["long_running", "method", "path", "server_type"];
/// No label: for a family that shows only when it was fed.
const PLAIN: [&str; 0] = [];

impl AgentMetrics {
    pub fn new(build: BuildInfo) -> Arc<Self> {
        let registry = Registry::new();
        let add = Registrar(&registry);
        // A call to the runtime takes milliseconds or, for a pull, minutes.
        let call_buckets = exponential_buckets(0.005, 2.5, 14).unwrap_or_default();
        let step_buckets = exponential_buckets(0.000_01, 4.0, 10).unwrap_or_default();
        let default_buckets = prometheus::DEFAULT_BUCKETS.to_vec();
        Arc::new(Self {
            build,
            cgroup_version: add.gauges(
                "kubelet_cgroup_version",
                "Version of the cgroup hierarchy in use.",
                &PLAIN,
            ),
            started_pods: add.counter("kubelet_started_pods_total", "Pod sandboxes that were asked for."),
            started_pods_errors: add.counter(
                "kubelet_started_pods_errors_total",
                "Pod sandboxes that were asked for and not made.",
            ),
            started_containers: add.counters(
                "kubelet_started_containers_total",
                "Containers that were started, by kind.",
                &["container_type"],
            ),
            started_containers_errors: add.counters(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by kind and reason.",
                &["code", "container_type"],
            ),
            runtime_operations: add.counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime.",
                &["operation_type"],
            ),
            runtime_operations_errors: add.counters(
                "kubelet_runtime_operations_errors_total",
                "Calls to the container runtime that failed or were given up.",
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
                "How long the runtime took to make a pod sandbox.",
                &["runtime_handler"],
                default_buckets.clone(),
            ),
            run_podsandbox_errors: add.counters(
                "kubelet_run_podsandbox_errors_total",
                "Pod sandboxes that the runtime failed to make.",
                &["runtime_handler"],
            ),
            relist_duration: add.histograms(
                "kubelet_pleg_relist_duration_seconds",
                "How long a full look at the runtime took.",
                &PLAIN,
                default_buckets.clone(),
            ),
            http_requests: add.counters(
                "kubelet_http_requests_total",
                "Requests that were answered.",
                &REQUEST_LABELS,
            ),
            http_requests_duration: add.histograms(
                "kubelet_http_requests_duration_seconds",
                "How long it took to answer requests.",
                &REQUEST_LABELS,
                default_buckets,
            ),
            http_inflight: add.gauges(
                "kubelet_http_inflight_requests",
                "Requests in progress.",
                &REQUEST_LABELS,
            ),
            step_duration: add.histograms(
                "rubelet_step_duration_seconds",
                "How long the decision core took for one event.",
                &PLAIN,
                step_buckets,
            ),
            events: add.counters(
                "rubelet_events_total",
                "Events that reached the decision core.",
                &["event"],
            ),
            plans: add.counters("rubelet_plans_total", "Plans that were handed to an executor.", &PLAIN),
            probes: ProbeMetrics::new(),
            registry,
        })
    }

    pub(crate) fn kubernetes_version(&self) -> &str {
        &self.build.kubernetes
    }

    /// 1 or 2.
    pub fn set_cgroup_version(&self, version: u8) {
        self.cgroup_version.with_label_values(&PLAIN).set(version.into());
    }

    /// A call to the runtime ended: `operation` is the kubelet's word for it.
    pub fn observe_runtime_call(&self, operation: &str, seconds: f64, ok: bool) {
        self.runtime_operations.with_label_values(&[operation]).inc();
        self.runtime_operations_duration.with_label_values(&[operation]).observe(seconds);
        if !ok {
            self.runtime_operations_errors.with_label_values(&[operation]).inc();
        }
    }

    /// A sandbox was asked for, and the runtime answered or was given up.
    pub fn observe_sandbox(&self, handler: &str, seconds: f64, ok: bool) {
        self.started_pods.inc();
        self.run_podsandbox_duration.with_label_values(&[handler]).observe(seconds);
        if !ok {
            self.started_pods_errors.inc();
            self.run_podsandbox_errors.with_label_values(&[handler]).inc();
        }
    }

    pub fn container_started(&self, kind: ContainerKind) {
        self.started_containers.with_label_values(&[container_type(kind)]).inc();
    }

    /// `code` is the reason that the container's status shows.
    pub fn container_start_failed(&self, kind: ContainerKind, code: &str) {
        self.started_containers_errors.with_label_values(&[code, container_type(kind)]).inc();
    }

    /// A look at everything in the runtime.
    pub fn observe_relist(&self, seconds: f64) {
        self.relist_duration.with_label_values(&PLAIN).observe(seconds);
    }

    /// The decision core took one event.
    pub fn observe_step(&self, event: &'static str, seconds: f64) {
        self.events.with_label_values(&[event]).inc();
        self.step_duration.with_label_values(&PLAIN).observe(seconds);
    }

    pub fn plan_started(&self) {
        self.plans.with_label_values(&PLAIN).inc();
    }

    /// Counts a request from its begin; the guard counts its end.
    pub(crate) fn request(&self, method: &str, path: &str, server_type: &str) -> Request<'_> {
        let long = matches!(path, "exec" | "attach" | "portForward" | "debug");
        let labels = [if long { "true" } else { "false" }, method, path, server_type].map(str::to_owned);
        self.http_inflight.with_label_values(&labels).inc();
        Request { metrics: self, labels, begun: tokio::time::Instant::now() }
    }

    /// The text of a scrape. `figures` is what the agent answered, if it did.
    pub(crate) fn text(&self, figures: Option<&AgentFigures>) -> Result<String, prometheus::Error> {
        let momentary = Registry::new();
        self.add_build(&momentary);
        if let Some(figures) = figures {
            add_agent(&momentary, figures);
        }
        if let Some(figures) = process::figures() {
            add_process(&momentary, &figures);
        }
        let mut families: Vec<MetricFamily> = self.registry.gather();
        families.extend(momentary.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families)
    }

    fn add_build(&self, registry: &Registry) {
        let add = Registrar(registry);
        let version = self.build.kubernetes.as_str();
        let mut parts = version.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let platform = format!("{}/{}", std::env::consts::OS, go_architecture());
        let labels: [(&str, &str); 9] = [
            ("build_date", ""),
            ("compiler", "rustc"),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("git_version", version),
            ("go_version", ""),
            ("major", major),
            ("minor", minor),
            ("platform", &platform),
        ];
        let about = "The kubelet that this agent stands in for.";
        add.gauges("kubernetes_build_info", about, &labels.map(|(name, _)| name))
            .with_label_values(&labels.map(|(_, value)| value))
            .set(1);
        add.gauges("rubelet_build_info", "The version of this agent.", &["version"])
            .with_label_values(&[&self.build.rubelet])
            .set(1);
    }
}

/// A request in progress.
pub(crate) struct Request<'a> {
    metrics: &'a AgentMetrics,
    labels: [String; 4],
    begun: tokio::time::Instant,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let labels = &self.labels;
        self.metrics.http_inflight.with_label_values(labels).dec();
        self.metrics.http_requests.with_label_values(labels).inc();
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.http_requests_duration.with_label_values(labels).observe(seconds);
    }
}

/// What the agent says at the time of a scrape.
#[derive(Clone, Debug)]
pub(crate) struct AgentFigures {
    node: NodeReport,
    static_pods: usize,
    api_pods: usize,
}

impl AgentFigures {
    pub fn new(node: NodeReport, pods: &[PodReport]) -> Self {
        let wanted = pods.iter().filter(|pod| pod.status != "Terminating");
        let (api, local): (Vec<_>, Vec<_>) = wanted.partition(|pod| pod.source == "api");
        Self { node, static_pods: local.len(), api_pods: api.len() }
    }
}

fn add_agent(registry: &Registry, figures: &AgentFigures) {
    let add = Registrar(registry);
    let node = &figures.node;
    add.gauges("kubelet_node_name", "The name of this node; the value is always 1.", &["node"])
        .with_label_values(&[&node.name])
        .set(1);
    let desired = add.gauges("kubelet_desired_pods", "Pods that should be here.", &["static"]);
    desired.with_label_values(&["true"]).set(whole(figures.static_pods));
    desired.with_label_values(&[""]).set(whole(figures.api_pods));
    add.gauge("kubelet_running_pods", "Pods with something running.", whole(node.running_pods) as f64);
    let containers = add.gauges(
        "kubelet_running_containers",
        "Containers in the runtime, by state.",
        &["container_state"],
    );
    for (state, count) in &node.containers {
        containers.with_label_values(&[state]).set(whole(*count));
    }
    let flag = |name, about, set: bool| add.gauge(name, about, f64::from(u8::from(set)));
    flag("rubelet_runtime_ready", "Whether the container runtime says that it is ready.", node.runtime_ready);
    flag("rubelet_network_ready", "Whether the runtime says that its network is ready.", node.network_ready);
    flag("rubelet_sources_ready", "Whether every source of pods was read.", node.sources_ready);
}

fn add_process(registry: &Registry, figures: &process::ProcessFigures) {
    let add = Registrar(registry);
    let cpu = add.float_counter("process_cpu_seconds_total", "CPU time of this process.");
    cpu.inc_by(figures.cpu_seconds);
    for (name, about, value) in [
        ("process_start_time_seconds", "When this process was started.", figures.start_seconds),
        ("process_resident_memory_bytes", "Resident memory of this process.", figures.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory of this process.", figures.virtual_bytes),
        ("process_open_fds", "Open file descriptors of this process.", figures.open_fds),
        ("process_max_fds", "File descriptors that this process may open.", figures.max_fds),
    ] {
        add.gauge(name, about, value);
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

/// The word for this machine in Kubernetes.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Makes a family and registers it. Names are constants of this file, and a test registers them all.
struct Registrar<'a>(&'a Registry);

impl Registrar<'_> {
    fn keep<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect("a well-formed name");
        self.0.register(Box::new(made.clone())).expect("a name that is used once");
        made
    }
    fn counter(&self, name: &str, about: &str) -> IntCounter {
        self.keep(IntCounter::new(name, about))
    }
    fn float_counter(&self, name: &str, about: &str) -> prometheus::Counter {
        self.keep(prometheus::Counter::new(name, about))
    }
    fn counters(&self, name: &str, about: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, about), labels))
    }
    fn gauge(&self, name: &str, about: &str, value: f64) {
        self.keep(Gauge::new(name, about)).set(value);
    }
    fn gauges(&self, name: &str, about: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(Opts::new(name, about), labels))
    }
    fn histograms(&self, name: &str, about: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
        self.keep(HistogramVec::new(HistogramOpts::new(name, about).buckets(buckets), labels))
    }
}

#[cfg(test)]
mod tests;
