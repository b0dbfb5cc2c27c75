//! Resource usage of the machine and its cgroups: batches of plain reads of cgroup v1, v2 and /proc.

mod cgroup_mounts;
mod files;
mod machine;
mod memory_notices;
mod node_signals;
mod path_queries;
mod pressure;
mod processes;
mod v1;
mod v2;
mod walk;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use model::Wall;
use ports::{
    CgroupDetailLevel, CgroupUsage, FilesystemFigures, InterfaceFigures, MachineFacts, MachineUsage,
    NamedUsage, PodCgroupUsage, PodCgroups, TreeFigures, TreeSource, UsageReader, WallClock,
};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use crate::cgroup::CgroupLayout;
use crate::quota::ProjectQuotas;
use cgroup_mounts::CgroupMounts;
use files::KernelFileReader;
pub(crate) use machine::interfaces;
pub use node_signals::HostNodeSignals;
use path_queries::PathQueries;
pub(crate) use walk::count;

/// A rate over a shorter time is too inaccurate.
const SHORTEST_RATE: Duration = Duration::from_secs(1);
/// The last sample of a cgroup that was not read for this long is dropped.
const FORGET: Duration = Duration::from_secs(600);

/// The earlier sample from which a rate is computed.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    cpu_nanos: u64,
    rate: Option<u64>,
}

pub struct HostUsage {
    roots: Arc<UsageRoots>,
    wall: Arc<dyn WallClock>,
    samples: Mutex<BTreeMap<String, Sample>>,
    facts: OnceCell<MachineFacts>,
    statvfs_queries: PathQueries,
    /// Tree walks take long and may hang, so each tree has its own thread.
    tree_queries: PathQueries,
    quotas: ProjectQuotas,
}

/// Where to read.
struct UsageRoots {
    cgroups: CgroupMounts,
    proc: PathBuf,
    sys: PathBuf,
}

impl HostUsage {
    pub fn new(layout: CgroupLayout, wall: Arc<dyn WallClock>) -> Self {
        let place =
            UsageRoots { cgroups: CgroupMounts::new(&layout), proc: "/proc".into(), sys: "/sys".into() };
        let (samples, facts) = (Mutex::new(BTreeMap::new()), OnceCell::new());
        let (questions, walks) = (PathQueries::default(), PathQueries::default());
        Self {
            roots: Arc::new(place),
            wall,
            samples,
            facts,
            statvfs_queries: questions,
            tree_queries: walks,
            quotas: ProjectQuotas::default(),
        }
    }

    pub fn with_quotas(self, quotas: ProjectQuotas) -> Self {
        Self { quotas, ..self }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&UsageRoots) -> T + Send + 'static,
    ) -> io::Result<T> {
        let place = self.roots.clone();
        tokio::task::spawn_blocking(move || read(&place)).await.map_err(io::Error::other)
    }

    /// Sets the time of each reading and its CPU rate since the previous sample.
    async fn set_time_and_rate(&self, at: Wall, found: Vec<(&str, &mut CgroupUsage)>) {
        let now = Instant::now();
        let mut samples = self.samples.lock().await;
        samples.retain(|_, sample| now.duration_since(sample.at) < FORGET);
        for (path, usage) in found {
            usage.at = at;
            usage.cpu_nano_cores = usage.cpu_nanos.and_then(|cpu| rate(&mut samples, path, now, cpu));
        }
    }
}

/// CPU cores in use since the last sample that is old enough.
fn rate(samples: &mut BTreeMap<String, Sample>, path: &str, now: Instant, cpu_nanos: u64) -> Option<u64> {
    let rate = match samples.get(path) {
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

/// Reads cgroups one after the other.
struct Reader<'a> {
    roots: &'a UsageRoots,
    depth: CgroupDetailLevel,
    files: KernelFileReader,
    devices: BTreeMap<(u32, u32), String>,
}

impl<'a> Reader<'a> {
    fn new(place: &'a UsageRoots, depth: CgroupDetailLevel) -> Self {
        let devices = match depth {
            CgroupDetailLevel::Basic => BTreeMap::new(),
            CgroupDetailLevel::Full => machine::device_names(&place.proc),
        };
        Self { roots: place, depth, files: KernelFileReader::default(), devices }
    }

    fn cgroup(&mut self, path: &str) -> Option<CgroupUsage> {
        let mut usage = match &self.roots.cgroups {
            CgroupMounts::V1(trees) => v1::read(trees, &mut self.files, path, self.depth)?,
            CgroupMounts::V2(root) => {
                v2::read(&cgroup_mounts::below(root, path), &mut self.files, self.depth)?
            }
        };
        if let Some(detail) = &mut usage.detail {
            for disk in &mut detail.disks {
                let name = self.devices.get(&(disk.major, disk.minor)).cloned();
                disk.device = name.unwrap_or_else(|| format!("{}:{}", disk.major, disk.minor));
            }
        }
        Some(usage)
    }

    /// A cgroup that holds processes, with the files that they have open.
    fn container_cgroup(&mut self, pod: &str, id: &str) -> Option<NamedUsage> {
        let path = self.roots.cgroups.child(pod, id)?;
        let mut usage = self.cgroup(&path)?;
        if let Some(detail) = &mut usage.detail {
            let processes = self.roots.cgroups.processes(&mut self.files, &path);
            detail.processes = Some(processes::read(&self.roots.proc, &mut self.files, &processes));
        }
        Some(NamedUsage { path, usage })
    }

    fn pod(&mut self, query: &PodCgroups) -> PodCgroupUsage {
        let whole = self.cgroup(&query.cgroup);
        let sandbox = self.container_cgroup(&query.cgroup, &query.sandbox);
        let containers = query.containers.iter().map(|id| self.container_cgroup(&query.cgroup, id)).collect();
        let interfaces = match (&sandbox, query.own_network) {
            (Some(sandbox), true) => self.interfaces(&sandbox.path),
            _ => Vec::new(),
        };
        PodCgroupUsage { whole, sandbox, containers, interfaces }
    }

    /// The interfaces in the network namespace of the cgroup's processes.
    fn interfaces(&mut self, cgroup: &str) -> Vec<InterfaceFigures> {
        let processes = self.roots.cgroups.processes(&mut self.files, cgroup);
        let Some(process) = processes.first() else { return Vec::new() };
        let dir = self.roots.proc.join(process.to_string());
        self.files.text(&dir, "net/dev").map(machine::interfaces).unwrap_or_default()
    }
}

/// Stops a walk or a reading when its caller is gone.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl UsageReader for HostUsage {
    async fn machine(&self, depth: CgroupDetailLevel) -> io::Result<MachineUsage> {
        let now = self.wall.wall();
        let read = move |place: &UsageRoots| {
            let root = Reader::new(place, depth).cgroup("/").unwrap_or_default();
            machine::read(&place.proc, root, now, depth)
        };
        let mut machine = self.blocking(read).await??;
        self.set_time_and_rate(now, vec![("/", &mut machine.root)]).await;
        let facts = async || self.blocking(|place| machine::facts(&place.proc, &place.sys)).await;
        machine.facts = self.facts.get_or_try_init(facts).await?.clone();
        Ok(machine)
    }

    async fn cgroups(
        &self,
        paths: Vec<String>,
        depth: CgroupDetailLevel,
    ) -> io::Result<Vec<Option<CgroupUsage>>> {
        let now = self.wall.wall();
        let read = move |place: &UsageRoots| {
            let mut reader = Reader::new(place, depth);
            let found: Vec<_> = paths.iter().map(|path| reader.cgroup(path)).collect();
            (paths, found)
        };
        let (paths, mut found) = self.blocking(read).await?;
        let known = paths.iter().zip(&mut found);
        let known = known.filter_map(|(path, usage)| Some((path.as_str(), usage.as_mut()?))).collect();
        self.set_time_and_rate(now, known).await;
        Ok(found)
    }

    async fn pods(
        &self,
        wanted: Vec<PodCgroups>,
        depth: CgroupDetailLevel,
    ) -> io::Result<Vec<PodCgroupUsage>> {
        let now = self.wall.wall();
        let stop = Arc::new(AtomicBool::new(false));
        let _stop_when_gone = StopOnDrop(stop.clone());
        let read = move |place: &UsageRoots| {
            let mut reader = Reader::new(place, depth);
            // If the caller is gone, the rest need not be read.
            let still = wanted.iter().take_while(|_| !stop.load(Ordering::Relaxed));
            let found: Vec<_> = still.map(|query| reader.pod(query)).collect();
            (wanted, found)
        };
        let (wanted, mut found) = self.blocking(read).await?;
        let mut known: Vec<(&str, &mut CgroupUsage)> = Vec::new();
        for (query, pod) in wanted.iter().zip(&mut found) {
            known.extend(pod.whole.as_mut().map(|usage| (query.cgroup.as_str(), usage)));
            for leaf in pod.containers.iter_mut().flatten().chain(&mut pod.sandbox) {
                known.push((&leaf.path, &mut leaf.usage));
            }
        }
        self.set_time_and_rate(now, known).await;
        Ok(found)
    }

    async fn cgroup_start(&self, path: &str) -> Option<Wall> {
        let path = path.to_owned();
        let read = move |place: &UsageRoots| {
            let made = fs::metadata(place.cgroups.cgroup_dir(&path)?).ok()?.modified().ok()?;
            let since = made.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(Wall(i64::try_from(since.as_nanos()).ok()?))
        };
        self.blocking(read).await.ok()?
    }

    async fn own_cgroup(&self) -> Option<String> {
        let read = |place: &UsageRoots| {
            let text = fs::read_to_string(place.proc.join("self/cgroup")).ok()?;
            parse_own_cgroup(&text, matches!(place.cgroups, CgroupMounts::V2(_)))
        };
        self.blocking(read).await.ok()?
    }

    async fn directories(&self, paths: Vec<String>) -> io::Result<Vec<Option<TreeFigures>>> {
        self.blocking(move |_| paths.iter().map(|path| directory(Path::new(path))).collect()).await
    }

    async fn filesystem(&self, path: &str) -> io::Result<FilesystemFigures> {
        self.statvfs_queries.ask(PathBuf::from(path), machine::filesystem).await
    }

    async fn tree(&self, path: &str) -> io::Result<(TreeFigures, TreeSource)> {
        let (path, stop) = (PathBuf::from(path), Arc::new(AtomicBool::new(false)));
        let _stop_when_gone = StopOnDrop(stop.clone());
        let quotas = self.quotas.clone();
        let measure = move |path: &Path| match quotas.usage(path) {
            Some(figures) => Ok((figures, TreeSource::ProjectQuota)),
            None => Ok((walk::measure(path, &stop)?, TreeSource::Walk)),
        };
        self.tree_queries.ask(path, measure).await
    }
}

/// Parses lines of `number:controllers:path`: the one with memory, or the only one of version 2.
fn parse_own_cgroup(text: &str, unified: bool) -> Option<String> {
    let line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours =
            if unified { controllers.is_empty() } else { controllers.split(',').any(|c| c == "memory") };
        (ours && path != "/").then(|| path.to_owned())
    };
    text.lines().find_map(line)
}

/// The usage of the regular files directly in a directory, or of a single file.
fn directory(path: &Path) -> Option<TreeFigures> {
    let found = fs::symlink_metadata(path).ok()?;
    if found.is_file() {
        return Some(TreeFigures { bytes: found.len(), inodes: 1 });
    }
    let files = fs::read_dir(path).ok()?.flatten().filter_map(|entry| entry.metadata().ok());
    let files = files.filter(|file| file.is_file());
    Some(files.fold(TreeFigures::default(), |sum, file| TreeFigures {
        bytes: sum.bytes.saturating_add(file.len()),
        inodes: sum.inodes + 1,
    }))
}

#[cfg(test)]
mod tests;
