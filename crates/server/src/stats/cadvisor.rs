//! The text of `/metrics/cadvisor`: the families that dashboards use, for the machine, the cgroups above pods, each pod,
//! its sandbox and each of its containers.

mod disks;
mod machine;
mod single;

use model::Wall;
use ports::{CgroupUsage, InterfaceFigures, MachineUsage, TrafficFigures};

use super::StatsReading;
use super::family::{Family, Labels};
use super::runtime_metrics::RuntimeMetrics;

/// Whose numbers these are. Empty where cAdvisor leaves them empty.
#[derive(Clone, Copy, Default)]
struct CadvisorLabels<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

/// A cgroup with the labels that all of its samples carry.
struct LabeledCgroup<'a> {
    labels: Labels,
    usage: &'a CgroupUsage,
    started: Option<Wall>,
    interfaces: &'a [InterfaceFigures],
}

impl<'a> LabeledCgroup<'a> {
    fn new(owner: &CadvisorLabels<'_>, usage: &'a CgroupUsage, started: Option<Wall>) -> Self {
        let labels = Labels::new(&[
            ("container", owner.container),
            ("id", owner.id),
            ("image", owner.image),
            ("name", owner.name),
            ("namespace", owner.namespace),
            ("pod", owner.pod),
        ]);
        Self { labels, usage, started, interfaces: &[] }
    }
}

/// Without a reading, only that there was none.
pub(super) fn text(reading: Option<&StatsReading>) -> String {
    let mut families = reading.map(families).unwrap_or_default();
    families.extend(errors(reading.is_none(), reading.is_none()));
    Family::all_text(&families)
}

/// Usage of the machine, and the runtime's metrics of pods and containers.
pub(super) fn text_of_runtime(machine: Option<&MachineUsage>, told: Option<&RuntimeMetrics>) -> String {
    let mut families = machine.map(machine::families).unwrap_or_default();
    families.extend(errors(told.is_none(), machine.is_none()));
    let taken = families.iter().map(|family| family.name().to_owned()).collect();
    families.extend(told.map(|told| told.families(&taken)).unwrap_or_default());
    Family::all_text(&families)
}

fn errors(of_containers: bool, of_machine: bool) -> [Family; 2] {
    let named = [("container_scrape_error", of_containers), ("machine_scrape_error", of_machine)];
    named.map(|(name, failed)| {
        let mut error = Family::new(name, "gauge", "1 if the usage could not be read.");
        error.add("", Some(if failed { 1.0 } else { 0.0 }), None);
        error
    })
}

fn families(reading: &StatsReading) -> Vec<Family> {
    let owned = labeled_cgroups(reading);
    let mut families = single::families(&owned);
    families.push(cpu(&owned));
    families.push(faults(&owned));
    families.push(states(&owned));
    families.push(ulimits(&owned));
    families.extend(disks::families(&owned, reading));
    families.extend(network(&owned));
    families.extend(machine::families(&reading.machine));
    families
}

fn labeled_cgroups(reading: &StatsReading) -> Vec<LabeledCgroup<'_>> {
    let machine = &reading.machine;
    let of_id = |id| CadvisorLabels { id, ..Default::default() };
    let mut owned = vec![LabeledCgroup {
        interfaces: &machine.interfaces,
        ..LabeledCgroup::new(&of_id("/"), &machine.root, Some(machine.boot))
    }];
    for (index, one) in reading.system.iter().enumerate() {
        // Two parts of the system may share a cgroup.
        if !reading.system[..index].iter().any(|other| other.cgroup == one.cgroup) {
            owned.push(LabeledCgroup::new(&of_id(&one.cgroup), &one.usage, one.started));
        }
    }
    owned.extend(reading.qos_cgroups.iter().map(|(id, usage)| LabeledCgroup::new(&of_id(id), usage, None)));
    for pod in &reading.pods {
        let whole = CadvisorLabels { namespace: &pod.namespace, pod: &pod.name, ..of_id(&pod.cgroup) };
        owned.extend(pod.usage.as_ref().map(|usage| LabeledCgroup::new(&whole, usage, Some(pod.started))));
        // A pod's network belongs to its sandbox.
        owned.extend(pod.sandbox.as_ref().map(|sandbox| {
            let owner = CadvisorLabels { id: &sandbox.path, name: &pod.sandbox_id, ..whole };
            LabeledCgroup {
                interfaces: &pod.interfaces,
                ..LabeledCgroup::new(&owner, &sandbox.usage, Some(pod.started))
            }
        }));
        for one in &pod.containers {
            let (id, name) = (one.cgroup.as_str(), one.id.as_str());
            let owner = CadvisorLabels { container: &one.name, id, image: &one.image, name, ..whole };
            owned.push(LabeledCgroup::new(&owner, &one.usage, Some(one.started)));
        }
    }
    owned
}

fn cpu(owned: &[LabeledCgroup<'_>]) -> Family {
    let mut family =
        Family::new("container_cpu_usage_seconds_total", "counter", "CPU time used, in seconds.");
    for one in owned {
        let value = one.usage.cpu_nanos.map(|nanos| nanos as f64 / 1e9);
        family.add(&one.labels.with(&[("cpu", "total")]), value, Some(one.usage.at));
    }
    family
}

fn faults(owned: &[LabeledCgroup<'_>]) -> Family {
    let mut family = Family::new("container_memory_failures_total", "counter", "Page faults.");
    for one in owned {
        let (usage, detail) = (one.usage, one.usage.detail.as_deref());
        let values = [
            ("container", "pgfault", detail.and_then(|d| d.own_page_faults)),
            ("container", "pgmajfault", detail.and_then(|d| d.own_major_page_faults)),
            ("hierarchy", "pgfault", usage.page_faults),
            ("hierarchy", "pgmajfault", usage.major_page_faults),
        ];
        for (scope, kind, value) in values {
            let labels = one.labels.with(&[("failure_type", kind), ("scope", scope)]);
            family.add(&labels, value.map(|value| value as f64), Some(usage.at));
        }
    }
    family
}

fn states(owned: &[LabeledCgroup<'_>]) -> Family {
    let mut family = Family::new("container_tasks_state", "gauge", "Number of tasks in this state.");
    for one in owned {
        let Some(processes) = one.usage.detail.as_ref().and_then(|detail| detail.processes) else { continue };
        let states = [
            ("running", processes.running),
            ("sleeping", processes.sleeping),
            ("stopped", processes.stopped),
            ("uninterruptible", processes.uninterruptible),
        ];
        for (state, count) in states {
            family.add(&one.labels.with(&[("state", state)]), Some(count as f64), Some(one.usage.at));
        }
    }
    family
}

fn ulimits(owned: &[LabeledCgroup<'_>]) -> Family {
    let mut family = Family::new(
        "container_ulimits_soft",
        "gauge",
        "Soft resource limit of the first process; -1: unlimited.",
    );
    for one in owned {
        let Some(processes) = one.usage.detail.as_ref().and_then(|detail| detail.processes) else { continue };
        if processes.processes == 0 {
            continue;
        }
        let value = processes.open_files_limit.map_or(-1.0, |files| files as f64);
        family.add(&one.labels.with(&[("ulimit", "max_open_files")]), Some(value), Some(one.usage.at));
    }
    family
}

type Traffic = fn(&InterfaceFigures) -> &TrafficFigures;
type Count = fn(&TrafficFigures) -> u64;

const NETWORK: [(&str, &str, Traffic, Count); 8] = [
    ("container_network_receive_bytes_total", "Bytes received on the interface.", |i| &i.rx, |t| t.bytes),
    ("container_network_receive_errors_total", "Receive errors on the interface.", |i| &i.rx, |t| t.errors),
    (
        "container_network_receive_packets_dropped_total",
        "Received packets that were dropped.",
        |i| &i.rx,
        |t| t.dropped,
    ),
    (
        "container_network_receive_packets_total",
        "Packets received on the interface.",
        |i| &i.rx,
        |t| t.packets,
    ),
    ("container_network_transmit_bytes_total", "Bytes sent on the interface.", |i| &i.tx, |t| t.bytes),
    ("container_network_transmit_errors_total", "Send errors on the interface.", |i| &i.tx, |t| t.errors),
    (
        "container_network_transmit_packets_dropped_total",
        "Packets that were dropped before they were sent.",
        |i| &i.tx,
        |t| t.dropped,
    ),
    ("container_network_transmit_packets_total", "Packets sent on the interface.", |i| &i.tx, |t| t.packets),
];

fn network(owned: &[LabeledCgroup<'_>]) -> Vec<Family> {
    let mut families = NETWORK.map(|(name, about, ..)| Family::new(name, "counter", about));
    for one in owned {
        for interface in one.interfaces {
            let labels = one.labels.with(&[("interface", &interface.name)]);
            for (family, (.., traffic, count)) in families.iter_mut().zip(NETWORK) {
                family.add(&labels, Some(count(traffic(interface)) as f64), Some(one.usage.at));
            }
        }
    }
    families.into()
}
