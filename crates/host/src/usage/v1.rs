//! The files of one cgroup of version 1.

use std::path::PathBuf;

use ports::{CgroupDetail, CgroupDetailLevel, CgroupUsage, DiskTraffic};

use super::cgroup_mounts::{V1Mounts, below};
use super::files::KernelFileReader;

/// Times in `cpuacct.stat`, for user space on the architectures that we run on.
const TICK_NANOS: u64 = 10_000_000;

/// `None` if the cgroup does not exist.
pub(super) fn read(
    trees: &V1Mounts,
    files: &mut KernelFileReader,
    path: &str,
    depth: CgroupDetailLevel,
) -> Option<CgroupUsage> {
    let at = |tree: &Option<PathBuf>| tree.as_ref().map(|tree| below(tree, path));
    let mut usage = CgroupUsage::default();
    let mut detail = CgroupDetail::default();
    if let Some(dir) = at(&trees.cpuacct) {
        usage.cpu_nanos = files.number(&dir, "cpuacct.usage");
    }
    let found = memory(trees, files, path, (&mut usage, &mut detail));
    if !found && usage.cpu_nanos.is_none() {
        return None;
    }
    usage.tasks = at(&trees.pids).and_then(|dir| files.number(&dir, "pids.current"));
    if depth == CgroupDetailLevel::Full {
        cpu(trees, files, path, &mut detail);
        more_memory(trees, files, path, &mut detail);
        detail.task_limit = at(&trees.pids).and_then(|dir| files.number(&dir, "pids.max"));
        detail.disks = at(&trees.blkio).map(|dir| disks(files, &dir)).unwrap_or_default();
        usage.detail = Some(Box::new(detail));
    }
    Some(usage)
}

fn memory(
    trees: &V1Mounts,
    files: &mut KernelFileReader,
    path: &str,
    (usage, detail): (&mut CgroupUsage, &mut CgroupDetail),
) -> bool {
    let Some(dir) = trees.memory.as_ref().map(|tree| below(tree, path)) else { return false };
    let mut cgroups_below = false;
    let found = files.table(&dir, "memory.stat", |word, number| {
        let (word, total) = match word.strip_prefix("total_") {
            Some(word) => (word, true),
            None => (word, false),
        };
        match (word, total) {
            ("pgfault", false) => detail.own_page_faults = Some(number),
            ("pgmajfault", false) => detail.own_major_page_faults = Some(number),
            _ => {}
        }
        // Without the cgroups below until those with them come, which is always if the hierarchy is in use.
        cgroups_below |= total;
        if total != cgroups_below {
            return;
        }
        match word {
            "rss" => usage.rss_bytes = Some(number),
            "pgfault" => usage.page_faults = Some(number),
            "pgmajfault" => usage.major_page_faults = Some(number),
            "swap" => usage.swap_bytes = Some(number),
            "cache" => detail.cache_bytes = Some(number),
            "mapped_file" => detail.mapped_bytes = Some(number),
            "active_file" => detail.active_file_bytes = Some(number),
            "inactive_file" => detail.inactive_file_bytes = Some(number),
            _ => {}
        }
    });
    if found.is_none() {
        return false;
    }
    usage.memory_bytes = files.number(&dir, "memory.usage_in_bytes");
    let idle = detail.inactive_file_bytes.unwrap_or(0);
    usage.working_set_bytes = usage.memory_bytes.map(|bytes| bytes.saturating_sub(idle));
    usage.memory_limit_bytes = files.limit(&dir, "memory.limit_in_bytes");
    detail.memory_swap_limit_raw_bytes = files.limit(&dir, "memory.memsw.limit_in_bytes");
    usage.swap_limit_bytes = detail
        .memory_swap_limit_raw_bytes
        .map(|both| both.saturating_sub(usage.memory_limit_bytes.unwrap_or(0)));
    true
}

fn more_memory(trees: &V1Mounts, files: &mut KernelFileReader, path: &str, detail: &mut CgroupDetail) {
    let Some(dir) = trees.memory.as_ref().map(|tree| below(tree, path)) else { return };
    detail.kernel_bytes = files.number(&dir, "memory.kmem.usage_in_bytes");
    detail.max_usage_bytes = files.number(&dir, "memory.max_usage_in_bytes");
    detail.memory_failcnt = files.number(&dir, "memory.failcnt");
    detail.memory_reservation_bytes = files.limit(&dir, "memory.soft_limit_in_bytes");
    files.table(&dir, "memory.oom_control", |word, number| {
        if word == "oom_kill" {
            detail.oom_kills = Some(number);
        }
    });
}

fn cpu(trees: &V1Mounts, files: &mut KernelFileReader, path: &str, detail: &mut CgroupDetail) {
    if let Some(dir) = trees.cpuacct.as_ref().map(|tree| below(tree, path)) {
        files.table(&dir, "cpuacct.stat", |word, ticks| match word {
            "user" => detail.cpu_user_nanos = Some(ticks * TICK_NANOS),
            "system" => detail.cpu_system_nanos = Some(ticks * TICK_NANOS),
            _ => {}
        });
    }
    let Some(dir) = trees.cpu.as_ref().map(|tree| below(tree, path)) else { return };
    files.table(&dir, "cpu.stat", |word, number| match word {
        "nr_periods" => detail.cfs_periods = Some(number),
        "nr_throttled" => detail.cfs_throttled_periods = Some(number),
        "throttled_time" => detail.cfs_throttled_nanos = Some(number),
        "nr_bursts" => detail.burst_periods = Some(number),
        "burst_time" => detail.burst_nanos = Some(number),
        _ => {}
    });
    detail.cpu_shares = files.number(&dir, "cpu.shares");
    // -1 means no quota.
    detail.cpu_quota = files.number(&dir, "cpu.cfs_quota_us");
    detail.cpu_period = files.number(&dir, "cpu.cfs_period_us");
}

/// Lines of `major:minor operation number`, and a total.
fn disks(files: &mut KernelFileReader, dir: &std::path::Path) -> Vec<DiskTraffic> {
    let mut disks: Vec<DiskTraffic> = Vec::new();
    for (name, bytes) in [("blkio.throttle.io_service_bytes", true), ("blkio.throttle.io_serviced", false)] {
        for line in files.text(dir, name).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let (Some(device), Some(operation), Some(number)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let (Some((major, minor)), Ok(number)) = (device.split_once(':'), number.parse::<u64>()) else {
                continue;
            };
            let (Ok(major), Ok(minor)) = (major.parse(), minor.parse()) else { continue };
            let known = disks.iter().position(|disk| (disk.major, disk.minor) == (major, minor));
            let index = known.unwrap_or_else(|| {
                disks.push(DiskTraffic { major, minor, ..Default::default() });
                disks.len() - 1
            });
            match (operation, bytes) {
                ("Read", true) => disks[index].read_bytes = number,
                ("Write", true) => disks[index].written_bytes = number,
                ("Read", false) => disks[index].reads = number,
                ("Write", false) => disks[index].writes = number,
                _ => {}
            }
        }
    }
    disks
}
