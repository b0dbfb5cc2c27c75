//! What is made anew for each scrape: an old value would be a lie.

use std::collections::BTreeMap;

use model::Wall;
use model::report::{CertificateCount, Counts, NodeReport, PodReport, VolumeCount, WatchReport};
use prometheus::Registry;

use super::BuildInfo;
use super::registrar::Registrar;
use crate::process;
use crate::stats::VolumeFigures;

pub(super) fn add_build(registry: &Registry, build: &BuildInfo) {
    let add = Registrar(registry);
    let version = build.kubernetes.as_str();
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
        .with_label_values(&[&build.rubelet])
        .set(1);
}

/// What the agent says at the time of a scrape.
#[derive(Clone, Debug)]
pub(crate) struct AgentFigures {
    pub node: NodeReport,
    /// By the label `static`.
    pub desired: BTreeMap<&'static str, usize>,
    pub active: BTreeMap<&'static str, usize>,
    /// By lifecycle and the label `static`.
    pub working: BTreeMap<(String, &'static str), usize>,
}

/// Both values of the label are always told.
const STATIC: [&str; 2] = ["", "true"];

impl AgentFigures {
    pub fn new(node: NodeReport, pods: &[PodReport]) -> Self {
        let none = || STATIC.map(|label| (label, 0)).into();
        let (mut desired, mut active, mut working) = (none(), none(), BTreeMap::new());
        let count = |of: &mut BTreeMap<&'static str, usize>, label| *of.entry(label).or_default() += 1;
        for pod in pods {
            let label = STATIC[usize::from(pod.source != "api")];
            if pod.status != "Terminating" {
                count(&mut desired, label);
            }
            if pod.lifecycle != "terminated" {
                count(&mut active, label);
            }
            *working.entry((pod.lifecycle.clone(), label)).or_default() += 1;
        }
        Self { node, desired, active, working }
    }
}

/// Everything that is asked for a scrape. What did not answer is left out.
#[derive(Default)]
pub(crate) struct Scrape {
    pub now: Wall,
    pub figures: Option<AgentFigures>,
    /// Bytes of logs; by UID, namespace, pod and container.
    pub logs: Vec<([String; 4], u64)>,
    /// By namespace and claim.
    pub claims: Vec<([String; 2], VolumeFigures)>,
    /// Files on record about pulled images, and about pulls.
    pub pull_records: Option<[u64; 2]>,
}

pub(super) fn add_disks(registry: &Registry, scrape: &Scrape) {
    let add = Registrar(registry);
    if !scrape.logs.is_empty() {
        let name = "kubelet_container_log_filesystem_used_bytes";
        let logs =
            add.gauges(name, "Bytes of a container's logs.", &["uid", "namespace", "pod", "container"]);
        for (owner, bytes) in &scrape.logs {
            logs.with_label_values(owner).set(i64::try_from(*bytes).unwrap_or(i64::MAX));
        }
    }
    if let Some([pulled, intents]) = scrape.pull_records {
        let records = "Records of pulled images on disk.";
        add.gauge("kubelet_imagemanager_ondisk_pulledrecords", records, pulled as f64);
        add.gauge("kubelet_imagemanager_ondisk_pullintents", "Records of pulls that began.", intents as f64);
    }
    add_claims(&add, &scrape.claims);
}

fn add_claims(add: &Registrar<'_>, claims: &[([String; 2], VolumeFigures)]) {
    if claims.is_empty() {
        return;
    }
    type Value = fn(&VolumeFigures) -> u64;
    let families: [(&str, &str, Value); 6] = [
        ("kubelet_volume_stats_capacity_bytes", "Size of the volume.", |v| v.filesystem.capacity_bytes),
        ("kubelet_volume_stats_available_bytes", "Bytes that are free.", |v| v.filesystem.available_bytes),
        ("kubelet_volume_stats_used_bytes", "Bytes in use.", |v| v.used.bytes),
        ("kubelet_volume_stats_inodes", "Inodes of the volume.", |v| v.filesystem.inodes),
        ("kubelet_volume_stats_inodes_free", "Inodes that are free.", |v| v.filesystem.inodes_free),
        ("kubelet_volume_stats_inodes_used", "Inodes in use.", |v| v.used.inodes),
    ];
    for (name, about, value) in families {
        let gauges = add.gauges(name, about, &["namespace", "persistentvolumeclaim"]);
        for (owner, figures) in claims {
            gauges.with_label_values(owner).set(i64::try_from(value(figures)).unwrap_or(i64::MAX));
        }
    }
    let mut health = claims.iter().filter_map(|(owner, figures)| Some((owner, figures.abnormal?))).peekable();
    if health.peek().is_some() {
        let about = "1: the volume is not well, as its driver says. 0: it is.";
        let name = "kubelet_volume_stats_health_status_abnormal";
        let gauges = add.gauges(name, about, &["namespace", "persistentvolumeclaim"]);
        health.for_each(|(owner, abnormal)| gauges.with_label_values(owner).set(i64::from(abnormal)));
    }
}

pub(super) fn add_agent(registry: &Registry, figures: &AgentFigures) {
    let add = Registrar(registry);
    let node = &figures.node;
    add.gauges("kubelet_node_name", "The name of this node; the value is always 1.", &["node"])
        .with_label_values(&[&node.name])
        .set(1);
    let counted = [
        ("kubelet_desired_pods", "Pods that should be here.", &figures.desired),
        ("kubelet_active_pods", "Pods that have not ended.", &figures.active),
    ];
    for (name, about, counts) in counted {
        let gauges = add.gauges(name, about, &["static"]);
        for (label, count) in counts {
            gauges.with_label_values(&[*label]).set(whole(*count));
        }
    }
    add_working(&add, figures);
    add.gauge("kubelet_mirror_pods", "Mirrors of static pods in the API.", whole(node.mirror_pods) as f64);
    let ephemeral = "Ephemeral containers of the pods that are here.";
    add.gauge("kubelet_managed_ephemeral_containers", ephemeral, whole(node.ephemeral_containers) as f64);
    add.gauge("kubelet_running_pods", "Pods with something running.", whole(node.running_pods) as f64);
    let containers = add.gauges(
        "kubelet_running_containers",
        "Containers in the runtime, by state.",
        &["container_state"],
    );
    for (state, count) in &node.containers {
        containers.with_label_values(&[state]).set(whole(*count));
    }
    add_counts(&add, &node.counts);
    add_volumes(&add, &node.volumes);
    add_certificates(&add, &node.pod_certificates);
    add_watches(&add, &node.watches);
    let flag = |name, about, set: bool| add.gauge(name, about, f64::from(u8::from(set)));
    flag("rubelet_runtime_ready", "Whether the container runtime says that it is ready.", node.runtime_ready);
    flag("rubelet_network_ready", "Whether the runtime says that its network is ready.", node.network_ready);
    flag("rubelet_sources_ready", "Whether every source of pods was read.", node.sources_ready);
}

fn add_counts(add: &Registrar<'_>, counts: &Counts) {
    let orphans = "Pods of the runtime that nobody wanted.";
    add.counter("kubelet_orphaned_runtime_pods_total", orphans).inc_by(counts.orphans);
    let about = "Pods that were removed and wanted again under their UID.";
    let back = add.counters("kubelet_restarted_pods_total", about, &["static"]);
    for (label, count) in [("", counts.api_pods_back), ("true", counts.static_pods_back)] {
        back.with_label_values(&[label]).inc_by(count);
    }
    let about = "Images that were asked for, by pull policy and by what was found.";
    let labels = ["present_locally", "pull_policy", "pull_required"];
    let requests = add.counters("kubelet_image_manager_ensure_image_requests_total", about, &labels);
    let word = |known: Option<bool>| known.map_or("unknown", |is| if is { "true" } else { "false" });
    for one in &counts.image_requests {
        let values = [word(one.present), &one.policy, word(one.pull_required)];
        requests.with_label_values(&values).inc_by(one.count);
    }
    let about = "Checks whether a pod may use an image that is there, by result.";
    let checks = add.counters("kubelet_imagemanager_image_mustpull_checks_total", about, &["result"]);
    for (result, count) in &counts.access_checks {
        checks.with_label_values(&[result]).inc_by(*count);
    }
    if !counts.evictions.is_empty() {
        let about = "Pods that were evicted, by the limit that they had outgrown.";
        let evictions = add.counters("kubelet_evictions", about, &["eviction_signal"]);
        for (signal, count) in &counts.evictions {
            evictions.with_label_values(&[signal]).inc_by(*count);
        }
    }
}

fn add_volumes(add: &Registrar<'_>, volumes: &[VolumeCount]) {
    if volumes.is_empty() {
        return;
    }
    let about = "Volumes that pods are to have, and those that were set up.";
    let gauges = add.gauges("volume_manager_total_volumes", about, &["plugin_name", "state"]);
    for count in volumes {
        let of = |state| gauges.with_label_values(&[count.plugin.as_str(), state]);
        of("desired_state_of_world").set(whole(count.wanted));
        of("actual_state_of_world").set(whole(count.set_up));
    }
}

fn add_certificates(add: &Registrar<'_>, certificates: &[CertificateCount]) {
    if certificates.is_empty() {
        return;
    }
    let about = "Sources of projected volumes that are certificates of pods, by signer and state.";
    let gauges = add.gauges("kubelet_podcertificate_states", about, &["signer_name", "state"]);
    for CertificateCount { signer_name, state, count } in certificates {
        gauges.with_label_values(&[signer_name, state]).set(whole(*count));
    }
}

/// By resource, and not by object: a node may watch hundreds of secrets.
fn add_watches(add: &Registrar<'_>, watches: &[WatchReport]) {
    if watches.is_empty() {
        return;
    }
    let about = "Seconds since the API server last said something in the quietest watch of a resource.";
    let ages = add.gauges("rubelet_watch_last_word_age_seconds", about, &["resource"]);
    let about = "Watches of a resource that something holds: the API server's refusal, a broken connection, the agent itself.";
    let held = add.gauges("rubelet_watches_held", about, &["resource"]);
    let about = "Objects of a resource that can't be decoded.";
    let unreadable = add.gauges("rubelet_unreadable_objects", about, &["resource"]);
    for watch in watches {
        let label = [watch.resource.as_str()];
        let age = ages.with_label_values(&label);
        age.set(age.get().max(watch.last_word_secs as i64));
        held.with_label_values(&label).add(i64::from(!watch.problem.is_empty()));
        unreadable.with_label_values(&label).add(whole(watch.unreadable.len()));
    }
}

fn add_working(add: &Registrar<'_>, figures: &AgentFigures) {
    let about = "Pods that are worked on, by what is done and whether they are wanted.";
    let working = add.gauges("kubelet_working_pods", about, &["config", "lifecycle", "static"]);
    for ((lifecycle, label), count) in &figures.working {
        working.with_label_values(&["desired", lifecycle, label]).set(whole(*count));
    }
    // Their definition is not known, nor whether it came from the API.
    working.with_label_values(&["runtime_only", "terminating", "unknown"]).set(whole(figures.node.orphans));
}

pub(super) fn add_process(registry: &Registry, figures: &process::ProcessFigures) {
    let add = Registrar(registry);
    let cpu = add.float_counter("process_cpu_seconds_total", "CPU time of this process.");
    cpu.inc_by(figures.cpu_seconds);
    for (name, about, bytes) in [
        (
            "process_network_receive_bytes_total",
            "Bytes that this host received by IP.",
            figures.received_bytes,
        ),
        ("process_network_transmit_bytes_total", "Bytes that this host sent by IP.", figures.sent_bytes),
    ] {
        add.float_counter(name, about).inc_by(bytes);
    }
    for (name, about, value) in [
        ("process_start_time_seconds", "When this process was started.", figures.start_seconds),
        ("process_resident_memory_bytes", "Resident memory of this process.", figures.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory of this process.", figures.virtual_bytes),
        (
            "process_virtual_memory_max_bytes",
            "Virtual memory that this process may have.",
            figures.most_virtual_bytes,
        ),
        ("process_open_fds", "Open file descriptors of this process.", figures.open_fds),
        ("process_max_fds", "File descriptors that this process may open.", figures.max_fds),
    ] {
        add.gauge(name, about, value);
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The word for this machine in Kubernetes.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
