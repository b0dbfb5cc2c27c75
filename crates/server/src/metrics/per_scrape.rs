//! Metrics that are computed for each scrape, because old values would mislead.

use std::collections::BTreeMap;

use model::Wall;
use model::report::{
    AgentCounters, CertificateCount, NodeReport, PodReport, SelinuxCount, SelinuxOutcome, VolumeCount,
    WatchReport,
};
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
    let about = "Version of the kubelet that this agent implements; the value is always 1.";
    add.gauges("kubernetes_build_info", about, &labels.map(|(name, _)| name))
        .with_label_values(&labels.map(|(_, value)| value))
        .set(1);
    add.gauges("rubelet_build_info", "Version of this agent; the value is always 1.", &["version"])
        .with_label_values(&[&build.rubelet])
        .set(1);
}

/// The agent's state at the time of a scrape.
#[derive(Clone, Debug)]
pub(crate) struct AgentSnapshot {
    pub node: NodeReport,
    /// By the label `static`.
    pub desired: BTreeMap<&'static str, usize>,
    pub active: BTreeMap<&'static str, usize>,
    /// By lifecycle and the label `static`.
    pub working: BTreeMap<(String, &'static str), usize>,
}

/// Both values of the label are always present.
const STATIC: [&str; 2] = ["", "true"];

impl AgentSnapshot {
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

/// Everything that a scrape reads. What did not answer is left out.
#[derive(Default)]
pub(crate) struct ScrapeInputs {
    pub now: Wall,
    pub figures: Option<AgentSnapshot>,
    /// Bytes of logs; by UID, namespace, pod and container.
    pub logs: Vec<([String; 4], u64)>,
    /// By namespace and claim.
    pub claims: Vec<([String; 2], VolumeFigures)>,
    /// Files on record about pulled images, and about pulls.
    pub pull_records: Option<[u64; 2]>,
}

pub(super) fn add_disks(registry: &Registry, scrape: &ScrapeInputs) {
    let add = Registrar(registry);
    if !scrape.logs.is_empty() {
        let name = "kubelet_container_log_filesystem_used_bytes";
        let logs = add.gauges(
            name,
            "Bytes of the log files of a container.",
            &["uid", "namespace", "pod", "container"],
        );
        for (owner, bytes) in &scrape.logs {
            logs.with_label_values(owner).set(i64::try_from(*bytes).unwrap_or(i64::MAX));
        }
    }
    if let Some([pulled, intents]) = scrape.pull_records {
        let records = "Records of pulled images on disk.";
        add.gauge("kubelet_imagemanager_ondisk_pulledrecords", records, pulled as f64);
        add.gauge(
            "kubelet_imagemanager_ondisk_pullintents",
            "Records on disk of image pulls in progress.",
            intents as f64,
        );
    }
    add_claims(&add, &scrape.claims);
}

fn add_claims(add: &Registrar<'_>, claims: &[([String; 2], VolumeFigures)]) {
    if claims.is_empty() {
        return;
    }
    type Value = fn(&VolumeFigures) -> u64;
    let families: [(&str, &str, Value); 6] = [
        ("kubelet_volume_stats_capacity_bytes", "Capacity of the volume in bytes.", |v| {
            v.filesystem.capacity_bytes
        }),
        ("kubelet_volume_stats_available_bytes", "Free bytes of the volume.", |v| {
            v.filesystem.available_bytes
        }),
        ("kubelet_volume_stats_used_bytes", "Used bytes of the volume.", |v| v.used.bytes),
        ("kubelet_volume_stats_inodes", "Capacity of the volume in inodes.", |v| v.filesystem.inodes),
        ("kubelet_volume_stats_inodes_free", "Free inodes of the volume.", |v| v.filesystem.inodes_free),
        ("kubelet_volume_stats_inodes_used", "Used inodes of the volume.", |v| v.used.inodes),
    ];
    for (name, about, value) in families {
        let gauges = add.gauges(name, about, &["namespace", "persistentvolumeclaim"]);
        for (owner, figures) in claims {
            gauges.with_label_values(owner).set(i64::try_from(value(figures)).unwrap_or(i64::MAX));
        }
    }
    let mut health = claims.iter().filter_map(|(owner, figures)| Some((owner, figures.abnormal?))).peekable();
    if health.peek().is_some() {
        let about = "1 if the CSI driver reports that the volume is abnormal, 0 if not.";
        let name = "kubelet_volume_stats_health_status_abnormal";
        let gauges = add.gauges(name, about, &["namespace", "persistentvolumeclaim"]);
        health.for_each(|(owner, abnormal)| gauges.with_label_values(owner).set(i64::from(abnormal)));
    }
}

pub(super) fn add_agent(registry: &Registry, figures: &AgentSnapshot) {
    let add = Registrar(registry);
    let node = &figures.node;
    add.gauges("kubelet_node_name", "The name of this node; the value is always 1.", &["node"])
        .with_label_values(&[&node.name])
        .set(1);
    let counted = [
        ("kubelet_desired_pods", "Pods that should run on this node.", &figures.desired),
        ("kubelet_active_pods", "Pods that have not terminated.", &figures.active),
    ];
    for (name, about, counts) in counted {
        let gauges = add.gauges(name, about, &["static"]);
        for (label, count) in counts {
            gauges.with_label_values(&[*label]).set(saturating_i64(*count));
        }
    }
    add_working(&add, figures);
    add.gauge(
        "kubelet_mirror_pods",
        "Mirror pods of static pods in the API.",
        saturating_i64(node.mirror_pods) as f64,
    );
    let ephemeral = "Ephemeral containers of the pods on this node.";
    add.gauge(
        "kubelet_managed_ephemeral_containers",
        ephemeral,
        saturating_i64(node.ephemeral_containers) as f64,
    );
    add.gauge(
        "kubelet_running_pods",
        "Pods with at least one running container or sandbox.",
        saturating_i64(node.running_pods) as f64,
    );
    let containers = add.gauges(
        "kubelet_running_containers",
        "Containers in the container runtime, by state.",
        &["container_state"],
    );
    for (state, count) in &node.containers {
        containers.with_label_values(&[state]).set(saturating_i64(*count));
    }
    add_counts(&add, &node.counts);
    add_volumes(&add, &node.volumes);
    add_selinux(&add, &node.selinux_volumes);
    add_certificates(&add, &node.pod_certificates);
    add_watches(&add, &node.watches);
    let flag = |name, about, set: bool| add.gauge(name, about, f64::from(u8::from(set)));
    flag("rubelet_runtime_ready", "1 if the container runtime reports that it is ready.", node.runtime_ready);
    flag(
        "rubelet_network_ready",
        "1 if the container runtime reports that the pod network is ready.",
        node.network_ready,
    );
    flag("rubelet_sources_ready", "1 once every pod source has been read.", node.sources_ready);
}

fn add_counts(add: &Registrar<'_>, counts: &AgentCounters) {
    let orphans = "Pods that ran in the container runtime although no pod source had them.";
    add.counter("kubelet_orphaned_runtime_pods_total", orphans).inc_by(counts.orphans);
    let about = "Pods that were removed and then created again with the same UID.";
    let back = add.counters("kubelet_restarted_pods_total", about, &["static"]);
    for (label, count) in [("", counts.api_pods_recreated), ("true", counts.static_pods_recreated)] {
        back.with_label_values(&[label]).inc_by(count);
    }
    let about = "Images that containers needed, by pull policy, whether the image was present and whether a pull was required.";
    let labels = ["present_locally", "pull_policy", "pull_required"];
    let requests = add.counters("kubelet_image_manager_ensure_image_requests_total", about, &labels);
    let word = |known: Option<bool>| known.map_or("unknown", |is| if is { "true" } else { "false" });
    for one in &counts.image_requests {
        let values = [word(one.present), &one.policy, word(one.pull_required)];
        requests.with_label_values(&values).inc_by(one.count);
    }
    let about = "Checks whether a pod may use an image that is already on the node, by result.";
    let checks = add.counters("kubelet_imagemanager_image_mustpull_checks_total", about, &["result"]);
    for (result, count) in &counts.access_checks {
        checks.with_label_values(&[result]).inc_by(*count);
    }
    if !counts.images_collected.is_empty() {
        let about = "Images that were removed because nothing used them, by reason: age or space.";
        let collected = add.counters("kubelet_image_garbage_collected_total", about, &["reason"]);
        for (reason, count) in &counts.images_collected {
            collected.with_label_values(&[reason]).inc_by(*count);
        }
    }
    if !counts.evictions.is_empty() {
        let about = "Pods that were evicted, by eviction signal.";
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
    let about = "Volumes that pods need and volumes that are set up, by plugin.";
    let gauges = add.gauges("volume_manager_total_volumes", about, &["plugin_name", "state"]);
    for count in volumes {
        let of = |state| gauges.with_label_values(&[count.plugin.as_str(), state]);
        of("desired_state_of_world").set(saturating_i64(count.wanted));
        of("actual_state_of_world").set(saturating_i64(count.set_up));
    }
}

const POD_MISMATCH: &str =
    "Volumes whose containers in one pod have different SELinux labels, by the volume's access mode.";
const VOLUME_MISMATCH: &str =
    "Volumes of pods that another pod uses with another SELinux label, by plugin and access mode.";
const ADMITTED: &str = "Volumes that all containers use with one SELinux label, by plugin and access mode.";

/// How many there are now. The names end in `total` and the type is a gauge because upstream's do.
fn add_selinux(add: &Registrar<'_>, counts: &[SelinuxCount]) {
    use SelinuxOutcome as O;
    for (outcome, name, about) in [
        (O::Admitted, "volumes_admitted_total", ADMITTED),
        (O::PodMismatchError, "pod_context_mismatch_errors_total", POD_MISMATCH),
        (O::PodMismatchWarning, "pod_context_mismatch_warnings_total", POD_MISMATCH),
        (O::VolumeMismatchError, "volume_context_mismatch_errors_total", VOLUME_MISMATCH),
        (O::VolumeMismatchWarning, "volume_context_mismatch_warnings_total", VOLUME_MISMATCH),
    ] {
        let mut counts = counts.iter().filter(|count| count.outcome == outcome).peekable();
        if counts.peek().is_none() {
            continue;
        }
        let by_plugin = !matches!(outcome, O::PodMismatchError | O::PodMismatchWarning);
        let labels: &[&str] = if by_plugin { &["volume_plugin", "access_mode"] } else { &["access_mode"] };
        let gauges = add.gauges(&format!("volume_manager_selinux_{name}"), about, labels);
        for SelinuxCount { plugin, access_mode, count, .. } in counts {
            let both = [plugin.as_str(), access_mode.as_str()];
            let values = if by_plugin { &both[..] } else { &both[1..] };
            gauges.with_label_values(values).set(saturating_i64(*count));
        }
    }
}

fn add_certificates(add: &Registrar<'_>, certificates: &[CertificateCount]) {
    if certificates.is_empty() {
        return;
    }
    let about = "Sources of projected volumes that are certificates of pods, by signer and state.";
    let gauges = add.gauges("kubelet_podcertificate_states", about, &["signer_name", "state"]);
    for CertificateCount { signer_name, state, count } in certificates {
        gauges.with_label_values(&[signer_name, state]).set(saturating_i64(*count));
    }
}

/// By resource, and not by object: a node may watch hundreds of secrets.
fn add_watches(add: &Registrar<'_>, watches: &[WatchReport]) {
    if watches.is_empty() {
        return;
    }
    let about =
        "Seconds since the last event or bookmark, of the watch of this resource that has waited longest.";
    let ages = add.gauges("rubelet_watch_last_word_age_seconds", about, &["resource"]);
    let about = "Watches of this resource that make no progress: refused, disconnected, silent for too long, or not read by the agent.";
    let held = add.gauges("rubelet_watches_held", about, &["resource"]);
    let about = "Objects of this resource that can't be decoded.";
    let unreadable = add.gauges("rubelet_unreadable_objects", about, &["resource"]);
    for watch in watches {
        let label = [watch.resource.as_str()];
        let age = ages.with_label_values(&label);
        age.set(age.get().max(watch.last_word_secs as i64));
        held.with_label_values(&label).add(i64::from(watch.is_held()));
        unreadable.with_label_values(&label).add(saturating_i64(watch.unreadable.len()));
    }
}

fn add_working(add: &Registrar<'_>, figures: &AgentSnapshot) {
    let about = "Pods that the agent manages, by lifecycle phase and by whether a pod source has them.";
    let working = add.gauges("kubelet_working_pods", about, &["config", "lifecycle", "static"]);
    for ((lifecycle, label), count) in &figures.working {
        working.with_label_values(&["desired", lifecycle, label]).set(saturating_i64(*count));
    }
    // Their definition is not known, nor whether it came from the API.
    working
        .with_label_values(&["runtime_only", "terminating", "unknown"])
        .set(saturating_i64(figures.node.orphans));
}

pub(super) fn add_process(registry: &Registry, figures: &process::ProcessFigures) {
    let add = Registrar(registry);
    let cpu = add.float_counter("process_cpu_seconds_total", "CPU time of this process in seconds.");
    cpu.inc_by(figures.cpu_seconds);
    for (name, about, bytes) in [
        (
            "process_network_receive_bytes_total",
            "Bytes that this host received over IP.",
            figures.received_bytes,
        ),
        ("process_network_transmit_bytes_total", "Bytes that this host sent over IP.", figures.sent_bytes),
    ] {
        add.float_counter(name, about).inc_by(bytes);
    }
    for (name, about, value) in [
        (
            "process_start_time_seconds",
            "When this process was started, in seconds since the Unix epoch.",
            figures.start_seconds,
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory of this process in bytes.",
            figures.resident_bytes,
        ),
        ("process_virtual_memory_bytes", "Virtual memory of this process in bytes.", figures.virtual_bytes),
        (
            "process_virtual_memory_max_bytes",
            "Limit of the virtual memory of this process in bytes.",
            figures.max_virtual_bytes,
        ),
        ("process_open_fds", "Open file descriptors of this process.", figures.open_fds),
        ("process_max_fds", "Limit of the open file descriptors of this process.", figures.max_fds),
    ] {
        add.gauge(name, about, value);
    }
}

fn saturating_i64(count: usize) -> i64 {
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
