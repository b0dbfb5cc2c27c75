//! The files of one cgroup of version 2.

use std::path::Path;

use ports::{CgroupDetail, CgroupDetailLevel, CgroupUsage, DiskTraffic, PsiByResource, PsiStats};

use super::files::KernelFileReader;
use super::pressure;

/// `None` if the cgroup does not exist.
pub(super) fn read(
    dir: &Path,
    files: &mut KernelFileReader,
    depth: CgroupDetailLevel,
) -> Option<CgroupUsage> {
    let mut usage = CgroupUsage::default();
    let mut detail = CgroupDetail::default();
    // Every cgroup has this file, whatever controllers it has.
    files.table(dir, "cpu.stat", |word, number| match word {
        "usage_usec" => usage.cpu_nanos = Some(number * 1000),
        "user_usec" => detail.cpu_user_nanos = Some(number * 1000),
        "system_usec" => detail.cpu_system_nanos = Some(number * 1000),
        "nr_periods" => detail.cfs_periods = Some(number),
        "nr_throttled" => detail.cfs_throttled_periods = Some(number),
        "throttled_usec" => detail.cfs_throttled_nanos = Some(number * 1000),
        "nr_bursts" => detail.burst_periods = Some(number),
        "burst_usec" => detail.burst_nanos = Some(number * 1000),
        _ => {}
    })?;
    memory(dir, files, &mut usage, &mut detail);
    usage.tasks = files.number(dir, "pids.current");
    usage.pressure = pressures(dir, files);
    if depth == CgroupDetailLevel::Full {
        more_memory(dir, files, &mut detail);
        cap(dir, files, &mut detail);
        detail.task_limit = files.number(dir, "pids.max");
        detail.disks = disks(dir, files);
        usage.detail = Some(Box::new(detail));
    }
    Some(usage)
}

fn memory(dir: &Path, files: &mut KernelFileReader, usage: &mut CgroupUsage, detail: &mut CgroupDetail) {
    files.table(dir, "memory.stat", |word, number| match word {
        "anon" => usage.rss_bytes = Some(number),
        "file" => detail.cache_bytes = Some(number),
        "kernel" => detail.kernel_bytes = Some(number),
        "file_mapped" => detail.mapped_bytes = Some(number),
        "active_file" => detail.active_file_bytes = Some(number),
        "inactive_file" => detail.inactive_file_bytes = Some(number),
        "pgfault" => usage.page_faults = Some(number),
        "pgmajfault" => usage.major_page_faults = Some(number),
        _ => {}
    });
    // There is no number without child cgroups; cAdvisor, too, reports the same value for both.
    detail.own_page_faults = usage.page_faults;
    detail.own_major_page_faults = usage.major_page_faults;
    usage.memory_bytes = files.number(dir, "memory.current");
    let idle = detail.inactive_file_bytes.unwrap_or(0);
    usage.working_set_bytes = usage.memory_bytes.map(|bytes| bytes.saturating_sub(idle));
    usage.memory_limit_bytes = files.limit(dir, "memory.max");
    usage.swap_bytes = files.number(dir, "memory.swap.current");
    usage.swap_limit_bytes = files.limit(dir, "memory.swap.max");
    detail.memory_swap_limit_raw_bytes = usage.swap_limit_bytes;
}

fn more_memory(dir: &Path, files: &mut KernelFileReader, detail: &mut CgroupDetail) {
    detail.max_usage_bytes = files.number(dir, "memory.peak");
    detail.memory_reservation_bytes = files.limit(dir, "memory.min").filter(|bytes| *bytes > 0);
    files.table(dir, "memory.events", |word, number| match word {
        "max" => detail.memory_failcnt = Some(number),
        "oom_kill" => detail.oom_kills = Some(number),
        _ => {}
    });
}

fn cap(dir: &Path, files: &mut KernelFileReader, detail: &mut CgroupDetail) {
    // The inverse of the runtimes' conversion from shares to weight.
    detail.cpu_shares =
        files.number(dir, "cpu.weight").map(|weight| 2 + (weight.max(1) - 1) * 262_142 / 9_999);
    let mut words = files.text(dir, "cpu.max").unwrap_or_default().split_whitespace();
    detail.cpu_quota = words.next().and_then(|quota| quota.parse().ok());
    detail.cpu_period = words.next().and_then(|period| period.parse().ok());
}

fn pressures(dir: &Path, files: &mut KernelFileReader) -> PsiByResource {
    let mut read = |name: &str| -> Option<PsiStats> { pressure::parse(files.text(dir, name)?) };
    PsiByResource { cpu: read("cpu.pressure"), memory: read("memory.pressure"), io: read("io.pressure") }
}

/// Lines of `major:minor rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn disks(dir: &Path, files: &mut KernelFileReader) -> Vec<DiskTraffic> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = words.next()?.split_once(':')?;
        let mut disk =
            DiskTraffic { major: major.parse().ok()?, minor: minor.parse().ok()?, ..Default::default() };
        for (name, number) in words.filter_map(|word| word.split_once('=')) {
            let number = number.parse().unwrap_or(0);
            match name {
                "rbytes" => disk.read_bytes = number,
                "wbytes" => disk.written_bytes = number,
                "rios" => disk.reads = number,
                "wios" => disk.writes = number,
                _ => {}
            }
        }
        Some(disk)
    };
    files.text(dir, "io.stat").unwrap_or_default().lines().filter_map(line).collect()
}
