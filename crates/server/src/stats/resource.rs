//! The text of `/metrics/resource`: samples carry the time of their reading.

use std::collections::BTreeMap;

use model::Wall;
use ports::CgroupUsage;

use super::family::{Family, Labels};
use super::{PodFigures, StatsReading};

const SECOND: f64 = 1e9;

/// Without a reading, only that there was none.
pub(super) fn text(reading: Option<&StatsReading>) -> String {
    let mut families = reading.map(families).unwrap_or_default();
    let mut error = Family::new("resource_scrape_error", "gauge", "1 if the usage could not be read.");
    error.add("", Some(if reading.is_some() { 0.0 } else { 1.0 }), None);
    families.push(error);
    Family::all_text(&families)
}

fn families(reading: &StatsReading) -> Vec<Family> {
    let cpu = |usage: &CgroupUsage| usage.cpu_nanos.map(|nanos| nanos as f64 / SECOND);
    let memory = |usage: &CgroupUsage| usage.working_set_bytes.map(|bytes| bytes as f64);
    let swap = |usage: &CgroupUsage| usage.swap_bytes.map(|bytes| bytes as f64);
    let family = Family::new;
    let mut all = [
        family("container_cpu_usage_seconds_total", "counter", "CPU time used by the container, in seconds."),
        family("container_memory_working_set_bytes", "gauge", "Working set of the container in bytes."),
        family(
            "container_start_time_seconds",
            "gauge",
            "When the container was started, in seconds since the Unix epoch.",
        ),
        family("container_swap_limit_bytes", "gauge", "Swap limit of the container in bytes."),
        family("container_swap_usage_bytes", "gauge", "Swap used by the container, in bytes."),
        family("node_cpu_usage_seconds_total", "counter", "CPU time used by the node, in seconds."),
        family("node_memory_working_set_bytes", "gauge", "Working set of the node in bytes."),
        family("node_swap_usage_bytes", "gauge", "Swap used by the node, in bytes."),
        family("pod_cpu_usage_seconds_total", "counter", "CPU time used by the pod, in seconds."),
        family("pod_memory_working_set_bytes", "gauge", "Working set of the pod in bytes."),
        family("pod_swap_usage_bytes", "gauge", "Swap used by the pod, in bytes."),
    ];
    // Samples are told apart by name alone: of a pod that was replaced under its name, the newer one counts.
    let mut newest: BTreeMap<(&str, &str), Wall> = BTreeMap::new();
    for pod in &reading.pods {
        let seen = newest.entry((&pod.namespace, &pod.name)).or_insert(pod.started);
        *seen = (*seen).max(pod.started);
    }
    let is_newest =
        |pod: &&PodFigures| newest.get(&(pod.namespace.as_str(), pod.name.as_str())) == Some(&pod.started);
    for pod in reading.pods.iter().filter(is_newest) {
        for container in &pod.containers {
            let usage = &container.usage;
            let at = Some(usage.at);
            let labels = Labels::new(&[
                ("container", &container.name),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
            ]);
            let labels = labels.text();
            all[0].add(labels, cpu(usage), at);
            all[1].add(labels, memory(usage), at);
            all[2].add(labels, Some(container.started.0 as f64 / SECOND), None);
            all[3].add(labels, usage.swap_limit_bytes.map(|bytes| bytes as f64), at);
            all[4].add(labels, swap(usage), at);
        }
        if let Some(usage) = &pod.usage {
            let labels = Labels::new(&[("namespace", &pod.namespace), ("pod", &pod.name)]);
            let labels = labels.text();
            all[8].add(labels, cpu(usage), Some(usage.at));
            all[9].add(labels, memory(usage), Some(usage.at));
            all[10].add(labels, swap(usage), Some(usage.at));
        }
    }
    let root = &reading.machine.root;
    all[5].add("", cpu(root), Some(root.at));
    all[6].add("", memory(root), Some(root.at));
    all[7].add("", swap(root), Some(root.at));
    all.into()
}
