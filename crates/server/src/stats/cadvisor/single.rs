//! Families with one number per cgroup.

use ports::{CgroupDetail, CgroupUsage, ProcessFigures, PsiData, PsiStats};

use super::LabeledCgroup;
use crate::stats::family::Family;

type Value = fn(&CgroupUsage) -> Option<f64>;
type Row = (&'static str, &'static str, &'static str, Value);

const CPU: [Row; 10] = [
    ("container_cpu_user_seconds_total", "counter", "CPU time used in user space, in seconds.", |u| {
        seconds(d(u)?.cpu_user_nanos)
    }),
    ("container_cpu_system_seconds_total", "counter", "CPU time used in the kernel, in seconds.", |u| {
        seconds(d(u)?.cpu_system_nanos)
    }),
    ("container_cpu_cfs_periods_total", "counter", "CFS periods with a CPU limit that have elapsed.", |u| {
        count(capped(u)?.cfs_periods)
    }),
    (
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "CFS periods in which the cgroup was throttled.",
        |u| count(capped(u)?.cfs_throttled_periods),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Time for which the cgroup was throttled, in seconds.",
        |u| seconds(capped(u)?.cfs_throttled_nanos),
    ),
    (
        "container_cpu_cfs_burst_periods_total",
        "counter",
        "CFS periods in which the cgroup used more than its quota.",
        |u| count(capped(u)?.burst_periods),
    ),
    ("container_cpu_cfs_burst_seconds_total", "counter", "CPU time used above the quota, in seconds.", |u| {
        seconds(capped(u)?.burst_nanos)
    }),
    ("container_spec_cpu_period", "gauge", "CFS period of the CPU limit in microseconds.", |u| {
        count(d(u)?.cpu_period)
    }),
    ("container_spec_cpu_quota", "gauge", "CFS quota of the CPU limit per period, in microseconds.", |u| {
        count(d(u)?.cpu_quota)
    }),
    ("container_spec_cpu_shares", "gauge", "CPU shares.", |u| count(d(u)?.cpu_shares)),
];

const MEMORY: [Row; 16] = [
    ("container_memory_usage_bytes", "gauge", "Memory in use including caches, in bytes.", |u| {
        count(u.memory_bytes)
    }),
    ("container_memory_working_set_bytes", "gauge", "Working set in bytes.", |u| count(u.working_set_bytes)),
    ("container_memory_rss", "gauge", "Anonymous memory in bytes.", |u| count(u.rss_bytes)),
    ("container_memory_cache", "gauge", "Page cache in bytes.", |u| count(d(u)?.cache_bytes)),
    ("container_memory_mapped_file", "gauge", "Memory-mapped files in bytes.", |u| count(d(u)?.mapped_bytes)),
    ("container_memory_kernel_usage", "gauge", "Kernel memory in bytes.", |u| count(d(u)?.kernel_bytes)),
    ("container_memory_max_usage_bytes", "gauge", "Maximum memory usage so far, in bytes.", |u| {
        count(d(u)?.max_usage_bytes)
    }),
    ("container_memory_swap", "gauge", "Swap in use, in bytes.", |u| count(u.swap_bytes)),
    ("container_memory_failcnt", "counter", "How often memory usage reached the limit.", |u| {
        count(d(u)?.memory_failcnt)
    }),
    ("container_memory_total_active_file_bytes", "gauge", "Active page cache in bytes.", |u| {
        count(d(u)?.active_file_bytes)
    }),
    ("container_memory_total_inactive_file_bytes", "gauge", "Inactive page cache in bytes.", |u| {
        count(d(u)?.inactive_file_bytes)
    }),
    ("container_oom_events_total", "counter", "Processes that were killed by the OOM killer.", |u| {
        count(d(u)?.oom_kills)
    }),
    ("container_spec_memory_limit_bytes", "gauge", "Memory limit in bytes; 0: unlimited.", |u| {
        limit(u.memory_limit_bytes)
    }),
    (
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Memory reservation in bytes; 0: none.",
        |u| limit(d(u)?.memory_reservation_bytes),
    ),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Swap limit in bytes; 0: unlimited.", |u| {
        limit(d(u)?.memory_swap_limit_raw_bytes)
    }),
    (
        "container_last_seen",
        "gauge",
        "When the usage of the cgroup was last read, in seconds since the Unix epoch.",
        |u| Some((u.at.0 / 1_000_000_000) as f64),
    ),
];

const PROCESSES: [Row; 5] = [
    ("container_processes", "gauge", "Number of processes.", |u| Some(p(u)?.processes as f64)),
    ("container_file_descriptors", "gauge", "Number of open file descriptors.", |u| count(p(u)?.open_files)),
    ("container_sockets", "gauge", "Number of open sockets.", |u| count(p(u)?.sockets)),
    ("container_threads", "gauge", "Number of threads.", |u| count(u.tasks)),
    ("container_threads_max", "gauge", "Limit of the number of threads; 0: unlimited.", |u| {
        limit(d(u)?.task_limit)
    }),
];

const PRESSURE: [Row; 6] = [
    (
        "container_pressure_cpu_waiting_seconds_total",
        "counter",
        "Time in which at least one task waited for CPU, in seconds.",
        |u| some(&u.pressure.cpu),
    ),
    (
        "container_pressure_cpu_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for CPU, in seconds.",
        |u| full(&u.pressure.cpu),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "counter",
        "Time in which at least one task waited for memory, in seconds.",
        |u| some(&u.pressure.memory),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for memory, in seconds.",
        |u| full(&u.pressure.memory),
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "counter",
        "Time in which at least one task waited for I/O, in seconds.",
        |u| some(&u.pressure.io),
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for I/O, in seconds.",
        |u| full(&u.pressure.io),
    ),
];

fn d(usage: &CgroupUsage) -> Option<&CgroupDetail> {
    usage.detail.as_deref()
}

/// A cgroup without a cap has no periods to tell of.
fn capped(usage: &CgroupUsage) -> Option<&CgroupDetail> {
    d(usage).filter(|detail| detail.cpu_quota.is_some())
}

fn p(usage: &CgroupUsage) -> Option<ProcessFigures> {
    d(usage)?.processes
}

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / 1e9)
}

fn count(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

fn limit(bytes: Option<u64>) -> Option<f64> {
    Some(bytes.unwrap_or(0) as f64)
}

fn stalled(stall: PsiData) -> Option<f64> {
    Some(stall.total_micros as f64 / 1e6)
}

fn some(pressure: &Option<PsiStats>) -> Option<f64> {
    stalled(pressure.as_ref()?.some)
}

fn full(pressure: &Option<PsiStats>) -> Option<f64> {
    stalled(pressure.as_ref()?.full)
}

pub(super) fn families(owned: &[LabeledCgroup<'_>]) -> Vec<Family> {
    let rows = CPU.iter().chain(&MEMORY).chain(&PROCESSES).chain(&PRESSURE);
    let mut families: Vec<Family> = rows.map(|row| family(row, owned)).collect();
    let mut starts = Family::new(
        "container_start_time_seconds",
        "gauge",
        "When the container was started, in seconds since the Unix epoch.",
    );
    for one in owned {
        let started = one.started.map(|at| (at.0 / 1_000_000_000) as f64);
        starts.add(one.labels.text(), started, Some(one.usage.at));
    }
    families.push(starts);
    families
}

fn family((name, kind, about, value): &Row, owned: &[LabeledCgroup<'_>]) -> Family {
    let mut family = Family::new(*name, kind, *about);
    for one in owned {
        family.add(one.labels.text(), value(one.usage), Some(one.usage.at));
    }
    family
}
