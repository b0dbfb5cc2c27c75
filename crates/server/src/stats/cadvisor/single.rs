//! Families with one number per cgroup.

use ports::{CgroupDetail, CgroupUsage, Pressure, ProcessFigures, Stall};

use super::Owned;
use crate::stats::family::Family;

type Value = fn(&CgroupUsage) -> Option<f64>;
type Row = (&'static str, &'static str, &'static str, Value);

const CPU: [Row; 10] = [
    ("container_cpu_user_seconds_total", "counter", "CPU time in user space.", |u| {
        seconds(d(u)?.cpu_user_nanos)
    }),
    ("container_cpu_system_seconds_total", "counter", "CPU time in the kernel.", |u| {
        seconds(d(u)?.cpu_system_nanos)
    }),
    ("container_cpu_cfs_periods_total", "counter", "Periods of the CPU cap.", |u| {
        count(capped(u)?.cap_periods)
    }),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Periods with throttling.", |u| {
        count(capped(u)?.capped_periods)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Time of throttling.", |u| {
        seconds(capped(u)?.capped_nanos)
    }),
    ("container_cpu_cfs_burst_periods_total", "counter", "Periods with a burst above the cap.", |u| {
        count(capped(u)?.burst_periods)
    }),
    ("container_cpu_cfs_burst_seconds_total", "counter", "Time above the cap.", |u| {
        seconds(capped(u)?.burst_nanos)
    }),
    ("container_spec_cpu_period", "gauge", "Period of the CPU cap in microseconds.", |u| {
        count(d(u)?.cpu_period)
    }),
    ("container_spec_cpu_quota", "gauge", "CPU time per period in microseconds.", |u| count(d(u)?.cpu_quota)),
    ("container_spec_cpu_shares", "gauge", "Weight among others.", |u| count(d(u)?.cpu_shares)),
];

const MEMORY: [Row; 16] = [
    ("container_memory_usage_bytes", "gauge", "Memory in use, caches included.", |u| count(u.memory_bytes)),
    ("container_memory_working_set_bytes", "gauge", "Working set.", |u| count(u.working_set_bytes)),
    ("container_memory_rss", "gauge", "Anonymous memory.", |u| count(u.rss_bytes)),
    ("container_memory_cache", "gauge", "Pages of files.", |u| count(d(u)?.cache_bytes)),
    ("container_memory_mapped_file", "gauge", "Pages of mapped files.", |u| count(d(u)?.mapped_bytes)),
    ("container_memory_kernel_usage", "gauge", "Memory of the kernel for it.", |u| count(d(u)?.kernel_bytes)),
    ("container_memory_max_usage_bytes", "gauge", "The most memory so far.", |u| count(d(u)?.most_bytes)),
    ("container_memory_swap", "gauge", "Swap in use.", |u| count(u.swap_bytes)),
    ("container_memory_failcnt", "counter", "How often the limit was met.", |u| count(d(u)?.limit_hits)),
    ("container_memory_total_active_file_bytes", "gauge", "Pages of files in use.", |u| {
        count(d(u)?.active_file_bytes)
    }),
    ("container_memory_total_inactive_file_bytes", "gauge", "Pages of files not in use.", |u| {
        count(d(u)?.inactive_file_bytes)
    }),
    ("container_oom_events_total", "counter", "Processes that were killed for memory.", |u| {
        count(d(u)?.oom_kills)
    }),
    ("container_spec_memory_limit_bytes", "gauge", "Limit of memory; 0 is none.", |u| {
        limit(u.memory_limit_bytes)
    }),
    ("container_spec_memory_reservation_limit_bytes", "gauge", "Memory that is kept; 0 is none.", |u| {
        limit(d(u)?.memory_reservation_bytes)
    }),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Limit of swap; 0 is none.", |u| {
        limit(d(u)?.swap_setting_bytes)
    }),
    ("container_last_seen", "gauge", "When these numbers were read.", |u| {
        Some((u.at.0 / 1_000_000_000) as f64)
    }),
];

const PROCESSES: [Row; 5] = [
    ("container_processes", "gauge", "Processes.", |u| Some(p(u)?.processes as f64)),
    ("container_file_descriptors", "gauge", "Open files.", |u| count(p(u)?.open_files)),
    ("container_sockets", "gauge", "Open sockets.", |u| count(p(u)?.sockets)),
    ("container_threads", "gauge", "Threads.", |u| count(u.tasks)),
    ("container_threads_max", "gauge", "Threads that may be; 0 is no limit.", |u| limit(d(u)?.most_tasks)),
];

const PRESSURE: [Row; 6] = [
    ("container_pressure_cpu_waiting_seconds_total", "counter", "Somebody waited for CPU.", |u| {
        some(&u.pressure.cpu)
    }),
    ("container_pressure_cpu_stalled_seconds_total", "counter", "All waited for CPU.", |u| {
        full(&u.pressure.cpu)
    }),
    ("container_pressure_memory_waiting_seconds_total", "counter", "Somebody waited for memory.", |u| {
        some(&u.pressure.memory)
    }),
    ("container_pressure_memory_stalled_seconds_total", "counter", "All waited for memory.", |u| {
        full(&u.pressure.memory)
    }),
    ("container_pressure_io_waiting_seconds_total", "counter", "Somebody waited for disks.", |u| {
        some(&u.pressure.io)
    }),
    ("container_pressure_io_stalled_seconds_total", "counter", "All waited for disks.", |u| {
        full(&u.pressure.io)
    }),
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

fn stalled(stall: Stall) -> Option<f64> {
    Some(stall.total_micros as f64 / 1e6)
}

fn some(pressure: &Option<Pressure>) -> Option<f64> {
    stalled(pressure.as_ref()?.some)
}

fn full(pressure: &Option<Pressure>) -> Option<f64> {
    stalled(pressure.as_ref()?.full)
}

pub(super) fn families(owned: &[Owned<'_>]) -> Vec<Family> {
    let rows = CPU.iter().chain(&MEMORY).chain(&PROCESSES).chain(&PRESSURE);
    let mut families: Vec<Family> = rows.map(|row| family(row, owned)).collect();
    let mut starts = Family::new("container_start_time_seconds", "gauge", "When it was started.");
    for one in owned {
        let started = one.started.map(|at| (at.0 / 1_000_000_000) as f64);
        starts.add(one.labels.text(), started, Some(one.usage.at));
    }
    families.push(starts);
    families
}

fn family((name, kind, about, value): &Row, owned: &[Owned<'_>]) -> Family {
    let mut family = Family::new(*name, kind, *about);
    for one in owned {
        family.add(one.labels.text(), value(one.usage), Some(one.usage.at));
    }
    family
}
