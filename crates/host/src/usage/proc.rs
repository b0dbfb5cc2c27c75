//! The machine, from /proc and the root of the cgroups.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use model::Wall;
use ports::{CgroupUsage, InterfaceFigures, MachineUsage};

use super::cgroup;
use crate::cgroup::Layout;

/// Times in /proc/stat, for user space on the architectures that we run on.
const TICK_NANOS: u64 = 10_000_000;

pub(super) fn machine(layout: &Layout, proc: &Path, now: Wall) -> io::Result<MachineUsage> {
    let read = |name: &str| fs::read_to_string(proc.join(name));
    let number = |name: &str| read(name).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let stat = read("stat")?;
    let memory = meminfo(&read("meminfo")?);
    let bytes = |name: &str| memory.get(name).copied().unwrap_or_default();
    let most = [number("sys/kernel/pid_max"), number("sys/kernel/threads-max")].into_iter().flatten().min();
    Ok(MachineUsage {
        root: root(layout, &stat, &memory),
        boot: boot(&stat).unwrap_or(now),
        memory_capacity_bytes: bytes("MemTotal"),
        swap_capacity_bytes: bytes("SwapTotal"),
        interfaces: read("net/dev").map(|text| interfaces(&text)).unwrap_or_default(),
        processes: read("loadavg").ok().and_then(|text| processes(&text)).unwrap_or_default(),
        most_processes: most.unwrap_or_default(),
        cores: stat.lines().filter(|line| is_core(line)).count() as u64,
        boot_id: read("sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
        machine_id: fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned(),
    })
}

/// `cpu0`, not `cpu`.
fn is_core(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The root cgroup where it has numbers, and /proc where it has none (memory, in v2).
fn root(layout: &Layout, stat: &str, memory: &BTreeMap<String, u64>) -> CgroupUsage {
    let mut root = cgroup::read(layout, "/").unwrap_or_default();
    let bytes = |name: &str| memory.get(name).copied().unwrap_or_default();
    if root.cpu_nanos.is_none_or(|nanos| nanos == 0) {
        root.cpu_nanos = busy_nanos(stat);
    }
    if root.memory_bytes.is_none_or(|bytes| bytes == 0) {
        let usage = bytes("MemTotal").saturating_sub(bytes("MemFree"));
        root.memory_bytes = Some(usage);
        root.working_set_bytes = Some(usage.saturating_sub(bytes("Inactive(file)")));
        root.rss_bytes = Some(bytes("AnonPages"));
    }
    root.swap_bytes = Some(bytes("SwapTotal").saturating_sub(bytes("SwapFree")));
    root.memory_limit_bytes = Some(bytes("MemTotal"));
    root
}

/// In bytes.
fn meminfo(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let kilobytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some((name.to_owned(), kilobytes * 1024))
    };
    text.lines().filter_map(line).collect()
}

/// All but idle and waiting for disks.
fn busy_nanos(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    let busy: u64 =
        ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, t)| t).sum();
    Some(busy * TICK_NANOS)
}

fn boot(stat: &str) -> Option<Wall> {
    let seconds: i64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(Wall(seconds * 1_000_000_000))
}

/// The total of the fourth field.
fn processes(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Those that are no loopback.
pub(crate) fn interfaces(text: &str) -> Vec<InterfaceFigures> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| numbers.get(index).copied();
        Some(InterfaceFigures {
            name: name.trim().to_owned(),
            rx_bytes: at(0)?,
            rx_errors: at(2)?,
            tx_bytes: at(8)?,
            tx_errors: at(10)?,
        })
    };
    text.lines().filter_map(line).filter(|found| found.name != "lo").collect()
}
