//! The files of one cgroup.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ports::CgroupUsage;

use crate::cgroup::Layout;

/// What v1 says instead of "no limit" is a number this large.
const NO_LIMIT: u64 = 1 << 62;
/// Times in `cpuacct.stat`, for user space on the architectures that we run on.
const TICK_NANOS: u64 = 10_000_000;
/// How deep processes of a pod are looked for.
const DEPTH: usize = 4;

/// `None` when there is no such cgroup.
pub(super) fn read(layout: &Layout, path: &str) -> Option<CgroupUsage> {
    match layout {
        Layout::V1(_) => read_v1(layout, path),
        Layout::V2 { root } => read_v2(&root.join(path.trim_start_matches('/'))),
    }
}

/// The directory of a cgroup in the hierarchy of a controller.
fn place(layout: &Layout, controller: &str, path: &str) -> Option<PathBuf> {
    let below = path.trim_start_matches('/');
    match layout {
        Layout::V1(hierarchies) => {
            let found = hierarchies.iter().find(|h| h.controllers.iter().any(|have| have == controller))?;
            Some(found.mount.join(below))
        }
        Layout::V2 { root } => Some(root.join(below)),
    }
}

fn read_v1(layout: &Layout, path: &str) -> Option<CgroupUsage> {
    let at = |controller| place(layout, controller, path);
    let memory = at("memory").filter(|dir| dir.is_dir());
    let cpu = at("cpuacct").filter(|dir| dir.is_dir());
    if memory.is_none() && cpu.is_none() {
        return None;
    }
    let mut usage = CgroupUsage {
        cpu_nanos: cpu.and_then(|dir| number(&dir.join("cpuacct.usage"))),
        processes: at("pids").and_then(|dir| number(&dir.join("pids.current"))),
        ..Default::default()
    };
    let ticks = at("cpuacct").map(|dir| table(&dir.join("cpuacct.stat"))).unwrap_or_default();
    usage.cpu_user_nanos = ticks.get("user").map(|ticks| ticks * TICK_NANOS);
    usage.cpu_system_nanos = ticks.get("system").map(|ticks| ticks * TICK_NANOS);
    let cap = at("cpu").map(|dir| table(&dir.join("cpu.stat"))).unwrap_or_default();
    usage.cap_periods = cap.get("nr_periods").copied();
    usage.capped_periods = cap.get("nr_throttled").copied();
    usage.capped_nanos = cap.get("throttled_time").copied();
    if let Some(dir) = memory {
        let stat = table(&dir.join("memory.stat"));
        let total = |name: &str| stat.get(&format!("total_{name}")).or(stat.get(name)).copied();
        usage.memory_bytes = number(&dir.join("memory.usage_in_bytes"));
        usage.working_set_bytes = working_set(usage.memory_bytes, total("inactive_file"));
        usage.rss_bytes = total("rss");
        usage.cache_bytes = total("cache");
        usage.page_faults = total("pgfault");
        usage.major_page_faults = total("pgmajfault");
        usage.memory_limit_bytes = limit(&dir.join("memory.limit_in_bytes"));
        usage.swap_bytes = total("swap");
        let both = limit(&dir.join("memory.memsw.limit_in_bytes"));
        usage.swap_limit_bytes = both.map(|both| both.saturating_sub(usage.memory_limit_bytes.unwrap_or(0)));
    }
    Some(usage)
}

fn read_v2(dir: &Path) -> Option<CgroupUsage> {
    if !dir.is_dir() {
        return None;
    }
    let stat = table(&dir.join("memory.stat"));
    let cpu = table(&dir.join("cpu.stat"));
    let micros = |name: &str| cpu.get(name).map(|micros| micros * 1000);
    let memory_bytes = number(&dir.join("memory.current"));
    Some(CgroupUsage {
        cpu_nanos: micros("usage_usec"),
        memory_bytes,
        working_set_bytes: working_set(memory_bytes, stat.get("inactive_file").copied()),
        rss_bytes: stat.get("anon").copied(),
        page_faults: stat.get("pgfault").copied(),
        major_page_faults: stat.get("pgmajfault").copied(),
        memory_limit_bytes: limit(&dir.join("memory.max")),
        swap_bytes: number(&dir.join("memory.swap.current")),
        swap_limit_bytes: limit(&dir.join("memory.swap.max")),
        processes: number(&dir.join("pids.current")),
        cpu_user_nanos: micros("user_usec"),
        cpu_system_nanos: micros("system_usec"),
        cap_periods: cpu.get("nr_periods").copied(),
        capped_periods: cpu.get("nr_throttled").copied(),
        capped_nanos: micros("throttled_usec"),
        cache_bytes: stat.get("file").copied(),
        ..Default::default()
    })
}

fn working_set(usage: Option<u64>, inactive: Option<u64>) -> Option<u64> {
    usage.map(|usage| usage.saturating_sub(inactive.unwrap_or(0)))
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// `None` for no limit, in words or by size.
fn limit(file: &Path) -> Option<u64> {
    number(file).filter(|limit| *limit < NO_LIMIT)
}

pub(super) fn table(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The cgroup below `pod` whose name holds the id: `<id>`, or `cri-containerd-<id>.scope`.
pub(super) fn child(layout: &Layout, pod: &str, id: &str) -> Option<String> {
    let dir = place(layout, "memory", pod)?;
    let names =
        fs::read_dir(dir).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let found = names.into_iter().find(|name| !id.is_empty() && name.contains(id))?;
    Some(format!("{}/{found}", pod.trim_end_matches('/')))
}

/// The first process in a cgroup or below it.
pub(super) fn any_process(layout: &Layout, path: &str) -> Option<u32> {
    fn search(dir: &Path, depth: usize) -> Option<u32> {
        let own = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        if let Some(process) = own.lines().find_map(|line| line.trim().parse().ok().filter(|pid| *pid != 0)) {
            return Some(process);
        }
        if depth == 0 {
            return None;
        }
        let below =
            fs::read_dir(dir).ok()?.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
        below.into_iter().find_map(|entry| search(&entry.path(), depth - 1))
    }
    search(&place(layout, "memory", path)?, DEPTH)
}
