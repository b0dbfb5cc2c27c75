//! What the machine and its cgroups use: plain reads of cgroup v1, v2 and /proc.

mod cgroup;
pub(crate) mod proc;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ports::{CgroupUsage, FilesystemFigures, InterfaceFigures, MachineUsage, UsageReader, WallClock};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::cgroup::Layout;

/// A rate over less than this says little.
const SHORTEST_RATE: Duration = Duration::from_secs(1);
/// A cgroup that was not asked for this long is forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// The last reading that rates are made from.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    cpu_nanos: u64,
    rate: Option<u64>,
}

pub struct HostUsage {
    layout: Layout,
    proc: PathBuf,
    wall: Arc<dyn WallClock>,
    samples: Mutex<BTreeMap<String, Sample>>,
}

impl HostUsage {
    pub fn new(layout: Layout, wall: Arc<dyn WallClock>) -> Self {
        Self { layout, proc: "/proc".into(), wall, samples: Mutex::new(BTreeMap::new()) }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Layout, &Path) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (layout, proc) = (self.layout.clone(), self.proc.clone());
        tokio::task::spawn_blocking(move || read(&layout, &proc)).await.map_err(io::Error::other)
    }

    /// Cores in use since the last sample that is old enough.
    async fn rate(&self, path: &str, cpu_nanos: u64) -> Option<u64> {
        let now = Instant::now();
        let mut samples = self.samples.lock().await;
        samples.retain(|_, sample| now.duration_since(sample.at) < FORGET);
        let last = samples.get(path).copied();
        let rate = match last {
            Some(last) if now.duration_since(last.at) < SHORTEST_RATE => return last.rate,
            Some(last) => {
                let passed = now.duration_since(last.at).as_secs_f64();
                Some((cpu_nanos.saturating_sub(last.cpu_nanos) as f64 / passed) as u64)
            }
            None => None,
        };
        samples.insert(path.to_owned(), Sample { at: now, cpu_nanos, rate });
        rate
    }
}

#[async_trait]
impl UsageReader for HostUsage {
    async fn machine(&self) -> io::Result<MachineUsage> {
        let now = self.wall.wall();
        let mut machine = self.blocking(move |layout, proc| proc::machine(layout, proc, now)).await??;
        machine.root.at = now;
        if let Some(cpu) = machine.root.cpu_nanos {
            machine.root.cpu_nano_cores = self.rate("/", cpu).await;
        }
        Ok(machine)
    }

    async fn cgroup(&self, path: &str) -> Option<CgroupUsage> {
        let (now, asked) = (self.wall.wall(), path.to_owned());
        let found = self.blocking(move |layout, _| cgroup::read(layout, &asked)).await.ok()??;
        let rate = match found.cpu_nanos {
            Some(cpu) => self.rate(path, cpu).await,
            None => None,
        };
        Some(CgroupUsage { at: now, cpu_nano_cores: rate, ..found })
    }

    async fn container_cgroup(&self, pod: &str, id: &str) -> Option<String> {
        let (pod, id) = (pod.to_owned(), id.to_owned());
        self.blocking(move |layout, _| cgroup::child(layout, &pod, &id)).await.ok()?
    }

    async fn interfaces(&self, path: &str) -> Vec<InterfaceFigures> {
        let path = path.to_owned();
        let read = move |layout: &Layout, proc: &Path| {
            let process = cgroup::any_process(layout, &path)?;
            let text = fs::read_to_string(proc.join(process.to_string()).join("net/dev")).ok()?;
            Some(proc::interfaces(&text))
        };
        self.blocking(read).await.ok().flatten().unwrap_or_default()
    }

    async fn directory(&self, path: &str) -> Option<(u64, u64)> {
        let path = path.to_owned();
        let read = move |_: &Layout, _: &Path| {
            let files = fs::read_dir(path).ok()?.flatten().filter_map(|entry| entry.metadata().ok());
            let files = files.filter(|file| file.is_file());
            Some(files.fold((0, 0), |(bytes, count), file| (bytes + file.len(), count + 1)))
        };
        self.blocking(read).await.ok()?
    }

    async fn filesystem(&self, path: &str) -> io::Result<FilesystemFigures> {
        let path = path.to_owned();
        let stat = self.blocking(move |_, _| rustix::fs::statvfs(path)).await??;
        Ok(FilesystemFigures {
            available_bytes: stat.f_bavail * stat.f_frsize,
            capacity_bytes: stat.f_blocks * stat.f_frsize,
            used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
        })
    }
}

#[cfg(test)]
mod tests;
