//! What the node has left of memory, disk and processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use model::eviction::{DiskFigures, MemoryFigures, MemoryNoticeLevels};
use ports::NodeSignals;

use super::cgroup_mounts::{CgroupMounts, below};
use super::files::KernelFileReader;
use super::memory_notices::{self, Notices};
use super::path_queries::PathQueries;
use super::{UsageRoots, machine};
use crate::cgroup::CgroupLayout;

pub struct HostNodeSignals {
    roots: Arc<UsageRoots>,
    queries: PathQueries,
}

impl HostNodeSignals {
    pub fn new(layout: &CgroupLayout) -> Self {
        let roots =
            UsageRoots { cgroups: CgroupMounts::new(layout), proc: "/proc".into(), sys: "/sys".into() };
        Self { roots: Arc::new(roots), queries: PathQueries::default() }
    }
}

/// A working set, and the limit if there is one.
struct CgroupMemory {
    usage_bytes: u64,
    working_set_bytes: u64,
    limit_bytes: Option<u64>,
}

/// `None`: there is no such cgroup, or no account of memory.
fn cgroup_memory(mounts: &CgroupMounts, files: &mut KernelFileReader, path: &str) -> Option<CgroupMemory> {
    let (mut idle, mut anonymous, mut file) = (None, 0, 0);
    let (usage, limit_bytes) = match mounts {
        CgroupMounts::V1(mounts) => {
            let dir = below(mounts.memory.as_ref()?, path);
            files.table(&dir, "memory.stat", |word, number| match word {
                "total_inactive_file" => idle = Some(number),
                "inactive_file" => idle = idle.or(Some(number)),
                _ => {}
            })?;
            let usage = files.number(&dir, "memory.usage_in_bytes");
            (usage, files.limit(&dir, "memory.limit_in_bytes"))
        }
        CgroupMounts::V2(root) => {
            let dir = below(root, path);
            files.table(&dir, "memory.stat", |word, number| match word {
                "inactive_file" => idle = Some(number),
                "anon" => anonymous = number,
                "file" => file = number,
                _ => {}
            })?;
            // The root has no account of its own.
            let usage = files.number(&dir, "memory.current");
            (usage.or(Some(u64::saturating_add(anonymous, file))), files.limit(&dir, "memory.max"))
        }
    };
    let usage_bytes = usage?;
    let working_set_bytes = usage_bytes.saturating_sub(idle.unwrap_or(0));
    Some(CgroupMemory { usage_bytes, working_set_bytes, limit_bytes })
}

fn memory(roots: &UsageRoots, pods: Option<&str>) -> io::Result<(MemoryFigures, Option<MemoryFigures>)> {
    let mut files = KernelFileReader::default();
    let text = fs::read_to_string(roots.proc.join("meminfo"))?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let total = bytes("MemTotal").ok_or_else(|| io::Error::other("no MemTotal in meminfo"))?;
    let node = match cgroup_memory(&roots.cgroups, &mut files, "/") {
        Some(found) => MemoryFigures {
            limit_bytes: total,
            usage_bytes: found.usage_bytes,
            working_set_bytes: found.working_set_bytes,
        },
        None => {
            let available =
                bytes("MemAvailable").ok_or_else(|| io::Error::other("no MemAvailable in meminfo"))?;
            let used = total.saturating_sub(available);
            MemoryFigures { limit_bytes: total, usage_bytes: used, working_set_bytes: used }
        }
    };
    let of_pods = pods.and_then(|path| cgroup_memory(&roots.cgroups, &mut files, path)).and_then(|found| {
        Some(MemoryFigures {
            limit_bytes: found.limit_bytes?,
            usage_bytes: found.usage_bytes,
            working_set_bytes: found.working_set_bytes,
        })
    });
    Ok((node, of_pods))
}

fn disk(path: &Path) -> io::Result<DiskFigures> {
    let device = rustix::fs::stat(path)?.st_dev;
    let stat = rustix::fs::statvfs(path)?;
    Ok(DiskFigures {
        device,
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        inodes_free: stat.f_ffree,
        inodes: stat.f_files,
    })
}

fn processes(proc: &Path) -> io::Result<(u64, u64)> {
    let number =
        |name: &str| fs::read_to_string(proc.join(name)).ok().and_then(|text| text.trim().parse().ok());
    let limits = [number("sys/kernel/pid_max"), number("sys/kernel/threads-max")];
    let most: u64 =
        limits.into_iter().flatten().min().ok_or_else(|| io::Error::other("no limit of processes"))?;
    let running = machine::processes(&fs::read_to_string(proc.join("loadavg"))?);
    Ok((most, running.ok_or_else(|| io::Error::other("loadavg is not understood"))?))
}

#[async_trait]
impl NodeSignals for HostNodeSignals {
    async fn memory(&self, pods: Option<&str>) -> io::Result<(MemoryFigures, Option<MemoryFigures>)> {
        let (roots, pods) = (self.roots.clone(), pods.map(str::to_owned));
        let read = move || memory(&roots, pods.as_deref());
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    async fn disk(&self, path: &str) -> io::Result<DiskFigures> {
        self.queries.ask(PathBuf::from(path), disk).await
    }

    async fn processes(&self) -> io::Result<(u64, u64)> {
        processes(&self.roots.proc)
    }

    async fn memory_runs_short(&self, pods: Option<&str>, levels: &MemoryNoticeLevels) -> io::Result<()> {
        let mut notices = Notices::default();
        notices.add(memory_notices::stalls(&self.roots.proc.join("pressure/memory")));
        match &self.roots.cgroups {
            CgroupMounts::V1(mounts) => {
                let Some(mount) = &mounts.memory else { return notices.first().await };
                if let Some(level) = levels.node_usage_bytes {
                    notices.add(memory_notices::usage_level(mount, level));
                }
                if let (Some(path), Some(level)) = (pods, levels.pods_usage_bytes) {
                    notices.add(memory_notices::usage_level(&below(mount, path), level));
                }
            }
            CgroupMounts::V2(root) => {
                if let Some(path) = pods {
                    notices.add(memory_notices::stalls(&below(root, path).join("memory.pressure")));
                }
            }
        }
        notices.first().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::cgroup_mounts::V1Mounts;

    fn files(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    fn roots(dir: &Path, v2: bool) -> UsageRoots {
        let cgroups = match v2 {
            true => CgroupMounts::V2(dir.join("cgroup")),
            false => CgroupMounts::V1(V1Mounts { memory: Some(dir.join("cgroup")), ..V1Mounts::default() }),
        };
        UsageRoots { cgroups, proc: dir.join("proc"), sys: dir.join("sys") }
    }

    #[test]
    fn a_working_set_is_what_the_kernel_can_not_take_back() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        files(&dir.join("proc"), &[("meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")]);
        let stat = "cache 5\ninactive_file 1\ntotal_inactive_file 102400\n";
        files(&dir.join("cgroup"), &[("memory.stat", stat), ("memory.usage_in_bytes", "512000\n")]);
        let (node, pods) = memory(&roots(dir, false), Some("/kubepods")).unwrap();
        assert_eq!((node.limit_bytes, node.working_set_bytes), (1_024_000, 409_600));
        assert_eq!(pods, None, "no such cgroup");

        let limited =
            [("memory.stat", "inactive_file 10\n"), ("memory.current", "50\n"), ("memory.max", "100\n")];
        files(&dir.join("cgroup/kubepods"), &limited);
        let stat = "anon 300\nfile 200\ninactive_file 150\n";
        files(&dir.join("cgroup"), &[("memory.stat", stat)]);
        let (node, pods) = memory(&roots(dir, true), Some("/kubepods")).unwrap();
        assert_eq!((node.usage_bytes, node.working_set_bytes), (500, 350));
        let pods = pods.unwrap();
        assert_eq!((pods.limit_bytes, pods.working_set_bytes), (100, 40));

        fs::write(dir.join("cgroup/kubepods/memory.max"), "max\n").unwrap();
        assert_eq!(memory(&roots(dir, true), Some("/kubepods")).unwrap().1, None, "not limited");
        fs::remove_file(dir.join("cgroup/memory.stat")).unwrap();
        assert_eq!(memory(&roots(dir, true), None).unwrap().0.working_set_bytes, 600 << 10);
        fs::write(dir.join("proc/meminfo"), "garbage\n").unwrap();
        assert!(memory(&roots(dir, true), None).is_err());
    }

    #[tokio::test]
    async fn this_machine_has_figures() {
        let layout = crate::cgroup::detect(Path::new("/sys/fs/cgroup")).unwrap();
        let signals = HostNodeSignals::new(&layout);
        let (node, _) = signals.memory(None).await.unwrap();
        assert!(node.limit_bytes > node.working_set_bytes && node.working_set_bytes > 0, "{node:?}");
        let (most, running) = signals.processes().await.unwrap();
        assert!(most > running && running > 0);
        let temp = tempfile::tempdir().unwrap();
        let disk = signals.disk(temp.path().to_str().unwrap()).await.unwrap();
        assert!(disk.capacity_bytes >= disk.available_bytes && disk.device != 0, "{disk:?}");
        assert!(signals.disk("/no/such/place").await.is_err());
    }
}
