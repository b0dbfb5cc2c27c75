//! The text of `/metrics/cadvisor`: the families that dashboards use, for the machine, each pod and each container.

use model::Wall;
use ports::CgroupUsage;

use super::family::{Family, labels};
use super::{PodFigures, Reading};

const SECOND: f64 = 1e9;

/// Whose numbers these are. Empty where cAdvisor leaves them empty.
#[derive(Clone, Copy, Default)]
struct Owner<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

impl Owner<'_> {
    fn labels(&self, more: &[(&str, &str)]) -> String {
        let own = [
            ("container", self.container),
            ("id", self.id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ];
        let mut all: Vec<(&str, &str)> = own.iter().chain(more).copied().collect();
        all.sort();
        labels(&all)
    }
}

type Value = fn(&CgroupUsage) -> Option<f64>;

/// Families with one number per cgroup.
const SINGLE: [(&str, &str, &str, Value); 14] = [
    ("container_cpu_user_seconds_total", "counter", "CPU time in user space.", |u| seconds(u.cpu_user_nanos)),
    ("container_cpu_system_seconds_total", "counter", "CPU time in the kernel.", |u| {
        seconds(u.cpu_system_nanos)
    }),
    ("container_cpu_cfs_periods_total", "counter", "Periods of the CPU cap.", |u| count(u.cap_periods)),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Periods with throttling.", |u| {
        count(u.capped_periods)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Time of throttling.", |u| {
        seconds(u.capped_nanos)
    }),
    ("container_memory_usage_bytes", "gauge", "Memory in use, caches included.", |u| count(u.memory_bytes)),
    ("container_memory_working_set_bytes", "gauge", "Working set.", |u| count(u.working_set_bytes)),
    ("container_memory_rss", "gauge", "Anonymous memory.", |u| count(u.rss_bytes)),
    ("container_memory_cache", "gauge", "Pages of files.", |u| count(u.cache_bytes)),
    ("container_memory_swap", "gauge", "Swap in use.", |u| count(u.swap_bytes)),
    ("container_processes", "gauge", "Processes.", |u| count(u.processes)),
    ("container_last_seen", "gauge", "When these numbers were read.", |u| Some(whole_seconds(u.at))),
    ("container_spec_memory_limit_bytes", "gauge", "Limit of memory; 0 is none.", |u| {
        Some(u.memory_limit_bytes.unwrap_or(0) as f64)
    }),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Limit of swap; 0 is none.", |u| {
        Some(u.swap_limit_bytes.unwrap_or(0) as f64)
    }),
];

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / SECOND)
}

fn count(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

fn whole_seconds(at: Wall) -> f64 {
    (at.0 / 1_000_000_000) as f64
}

/// Without a reading, only that there was none.
pub(super) fn text(reading: Option<&Reading>) -> String {
    let mut families = reading.map(families).unwrap_or_default();
    let failed = if reading.is_some() { 0.0 } else { 1.0 };
    for name in ["container_scrape_error", "machine_scrape_error"] {
        let mut error = Family::new(name, "gauge", "1 if the figures could not be read.");
        error.add("", Some(failed), None);
        families.push(error);
    }
    families.iter().map(Family::text).collect()
}

fn families(reading: &Reading) -> Vec<Family> {
    let owners = owners(reading);
    let mut families = vec![cpu(&owners), faults(&owners), starts(reading)];
    for (name, kind, about, value) in SINGLE {
        let mut family = Family::new(name, kind, about);
        for (owner, usage) in &owners {
            family.add(&owner.labels(&[]), value(usage), Some(usage.at));
        }
        families.push(family);
    }
    families.extend(network(reading));
    families.extend(machine(reading));
    families
}

fn owners(reading: &Reading) -> Vec<(Owner<'_>, &CgroupUsage)> {
    let mut owners = vec![(Owner { id: "/", ..Default::default() }, &reading.machine.root)];
    for pod in &reading.pods {
        let whole =
            Owner { id: &pod.cgroup, namespace: &pod.namespace, pod: &pod.name, ..Default::default() };
        owners.extend(pod.usage.as_ref().map(|usage| (whole, usage)));
        for one in &pod.containers {
            let owner = Owner {
                container: &one.name,
                id: &one.cgroup,
                image: &one.image,
                name: one.id.as_str(),
                ..whole
            };
            owners.push((owner, &one.usage));
        }
    }
    owners
}

fn cpu(owners: &[(Owner<'_>, &CgroupUsage)]) -> Family {
    let mut family = Family::new("container_cpu_usage_seconds_total", "counter", "CPU time.");
    for (owner, usage) in owners {
        family.add(&owner.labels(&[("cpu", "total")]), seconds(usage.cpu_nanos), Some(usage.at));
    }
    family
}

fn faults(owners: &[(Owner<'_>, &CgroupUsage)]) -> Family {
    let mut family = Family::new("container_memory_failures_total", "counter", "Page faults.");
    for (owner, usage) in owners {
        for (kind, value) in [("pgfault", usage.page_faults), ("pgmajfault", usage.major_page_faults)] {
            let labels = owner.labels(&[("failure_type", kind), ("scope", "hierarchy")]);
            family.add(&labels, count(value), Some(usage.at));
        }
    }
    family
}

fn starts(reading: &Reading) -> Family {
    let mut family = Family::new("container_start_time_seconds", "gauge", "When it was started.");
    for pod in &reading.pods {
        for one in &pod.containers {
            let owner = Owner {
                container: &one.name,
                id: &one.cgroup,
                image: &one.image,
                name: one.id.as_str(),
                namespace: &pod.namespace,
                pod: &pod.name,
            };
            family.add(&owner.labels(&[]), Some(whole_seconds(one.started)), Some(one.usage.at));
        }
    }
    family
}

/// A pod's network belongs to its sandbox.
fn network(reading: &Reading) -> Vec<Family> {
    let mut families = [
        Family::new("container_network_receive_bytes_total", "counter", "Bytes received."),
        Family::new("container_network_receive_errors_total", "counter", "Errors while receiving."),
        Family::new("container_network_transmit_bytes_total", "counter", "Bytes sent."),
        Family::new("container_network_transmit_errors_total", "counter", "Errors while sending."),
    ];
    let mut add = |owner: Owner<'_>, interfaces: &[ports::InterfaceFigures], at: Wall| {
        for one in interfaces {
            let labels = owner.labels(&[("interface", &one.name)]);
            let values = [one.rx_bytes, one.rx_errors, one.tx_bytes, one.tx_errors];
            for (family, value) in families.iter_mut().zip(values) {
                family.add(&labels, Some(value as f64), Some(at));
            }
        }
    };
    let at = reading.machine.root.at;
    add(Owner { id: "/", ..Default::default() }, &reading.machine.interfaces, at);
    for pod in &reading.pods {
        let id = sandbox_id(pod);
        let owner = Owner {
            id: &id,
            name: &pod.sandbox,
            namespace: &pod.namespace,
            pod: &pod.name,
            ..Default::default()
        };
        add(owner, &pod.interfaces, at);
    }
    families.into()
}

fn sandbox_id(pod: &PodFigures) -> String {
    format!("{}/{}", pod.cgroup, pod.sandbox)
}

fn machine(reading: &Reading) -> Vec<Family> {
    let machine = &reading.machine;
    let labels =
        labels(&[("boot_id", &machine.boot_id), ("machine_id", &machine.machine_id), ("system_uuid", "")]);
    let one = |name, about, value: u64| {
        let mut family = Family::new(name, "gauge", about);
        family.add(&labels, Some(value as f64), None);
        family
    };
    vec![
        one("machine_cpu_cores", "Logical CPUs.", machine.cores),
        one("machine_memory_bytes", "Memory of the machine.", machine.memory_capacity_bytes),
        one("machine_swap_bytes", "Swap of the machine.", machine.swap_capacity_bytes),
    ]
}
