//! The ports of disk, cgroups and the small things around them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::cgroup::{CgroupDriver, CgroupName, CgroupSpec};
use model::credentials::{CredentialPlugin, DockerConfigFile};
use model::cri::IdMapping;
use model::eviction::{DiskFigures, MemoryFigures, MemoryNoticeLevels};
use model::files::{ContainerFiles, EnvFile, TerminationMessageRequest};
use model::hook::HttpHook;
use model::panic_record::PanicRecord;
use model::probe::{NetworkCheck, ProbeOutcome, ProbeRecord};
use model::user_namespace::UserNamespaceScan;
use model::volume::{VolumeNotice, VolumeSetup};
use model::{ApiEvent, EventSubject, FullName, PodUid, Wall};
use ports::{
    CgroupError, Cgroups, ContainerLogFiles, EngineMetrics, EventSink, FilesError, HookAnswer, HttpHooks,
    LeftoverFiles, NodeSignals, OomKillStream, OomKills, PanicRecordError, PanicRecords, PluginError,
    PodFiles, PodStatusUpdate, ProbeIdentity, ProbeRecordError, ProbeRecordStore, ProbeRecords, Prober,
    RegistryCredentials, VolumeNoticeFeed, WallClock,
};

use super::host::{AgentConnection, CallError, HostState};

impl CallError for FilesError {
    fn refused(message: String) -> Self {
        FilesError::Refused { message }
    }
    fn timed_out() -> Self {
        FilesError::Refused { message: "the disk does not answer".into() }
    }
}

impl CallError for CgroupError {
    fn refused(message: String) -> Self {
        CgroupError::Systemd { operation: "simulated", unit: String::new(), message }
    }
    fn timed_out() -> Self {
        Self::refused("no answer".into())
    }
}

pub struct SimFiles(pub AgentConnection);

impl SimFiles {
    async fn on_disk(&self, uid: &PodUid, effect: impl FnOnce(&mut HostState)) -> Result<(), FilesError> {
        self.0
            .call(uid, false, |inner| {
                effect(inner);
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl PodFiles for SimFiles {
    async fn prepare_node(&self) -> Result<(), FilesError> {
        Ok(())
    }

    async fn make_pod_dirs(&self, uid: &PodUid, log_dir: &str) -> Result<(), FilesError> {
        self.on_disk(uid, |inner| inner.world.disk.make_pod(uid, log_dir)).await
    }

    async fn set_up_volume(&self, uid: &PodUid, volume: &VolumeSetup) -> Result<(), FilesError> {
        self.on_disk(uid, |inner| inner.world.disk.set_up_volume(uid, &volume.name, None)).await
    }

    async fn disk_use(&self, _: &PodUid, paths: &[String]) -> Result<Vec<u64>, FilesError> {
        self.0.alive().await;
        Ok(vec![0; paths.len()])
    }

    async fn read_env_file(&self, _: &PodUid, _: &EnvFile) -> Result<String, FilesError> {
        // No container of this world has environment files.
        self.0.alive().await;
        Ok(String::new())
    }

    async fn write_user_ids(&self, uid: &PodUid, ids: &IdMapping) -> Result<(), FilesError> {
        let keep = |inner: &mut HostState| {
            inner.world.disk.user_ids.insert(uid.clone(), ids.clone());
        };
        self.on_disk(uid, keep).await
    }

    async fn user_ids(&self) -> UserNamespaceScan {
        let inner = self.0.host.lock().await;
        let ids = inner.world.disk.user_ids.iter().map(|(uid, ids)| (uid.clone(), Some(ids.clone())));
        UserNamespaceScan { ids: ids.collect(), ..UserNamespaceScan::default() }
    }

    async fn prepare_container(&self, uid: &PodUid, files: &ContainerFiles) -> Result<(), FilesError> {
        self.on_disk(uid, |inner| inner.world.disk.make_log_dir(&files.log_dir)).await
    }

    async fn link_log(&self, pod: &FullName, container: &str, id: &str, log: &str) -> Result<(), FilesError> {
        let link = format!("{pod}_{container}-{id}.log");
        self.on_disk(&"links".into(), |inner| drop(inner.world.disk.links.insert(link, log.to_owned()))).await
    }

    async fn remove_container_logs(&self, log: &str) -> Result<(), FilesError> {
        self.on_disk(&"logs".into(), |inner| inner.world.disk.remove_log(log)).await
    }

    async fn highest_log_number(&self, container_log_dir: &str) -> Result<Option<u32>, FilesError> {
        self.0.alive().await;
        let Some((dir, container)) = container_log_dir.rsplit_once('/') else { return Ok(None) };
        Ok(self.0.host.lock().await.world.disk.highest_log(dir, container))
    }

    async fn termination_message(&self, _: &TerminationMessageRequest) -> String {
        String::new()
    }

    async fn tear_down_volumes(&self, uid: &PodUid) -> Result<(), FilesError> {
        let tear_down = |inner: &mut HostState| {
            inner.world.tear_down_volumes(uid);
        };
        self.on_disk(uid, tear_down).await
    }

    async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), FilesError> {
        let remove = |inner: &mut HostState| {
            inner.world.remove_pod_dir(uid).map_err(|refused| FilesError::refused(refused.message))
        };
        self.0.call(uid, false, remove).await
    }

    async fn remove_log_dir(&self, name: &str) -> Result<(), FilesError> {
        self.on_disk(&"logs".into(), |inner| drop(inner.world.disk.logs.remove(name))).await
    }

    async fn remove_link(&self, name: &str) -> Result<(), FilesError> {
        self.on_disk(&"links".into(), |inner| drop(inner.world.disk.links.remove(name))).await
    }

    async fn leftovers(&self) -> Result<LeftoverFiles, FilesError> {
        self.0.alive().await;
        let inner = self.0.host.lock().await;
        let disk = &inner.world.disk;
        Ok(LeftoverFiles {
            problems: Vec::new(),
            pod_dirs: disk.pods.keys().cloned().collect(),
            pod_dirs_complete: true,
            log_dirs: disk.logs.keys().cloned().collect(),
            dead_links: disk.dead_links(),
        })
    }
}

pub struct SimCgroups(pub AgentConnection);

#[async_trait]
impl Cgroups for SimCgroups {
    fn use_driver(&self, _: CgroupDriver) {}

    async fn ensure(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        let ensure = |inner: &mut HostState| {
            inner.world.cgroups.insert(spec.name.clone(), spec.values.clone());
            Ok(())
        };
        self.0.call(&"cgroups".into(), false, ensure).await
    }

    async fn update(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        self.ensure(spec).await
    }

    async fn exists(&self, name: &CgroupName) -> Result<bool, CgroupError> {
        Ok(self.0.host.lock().await.world.cgroups.contains_key(name))
    }

    fn removals(&self, _: Vec<CgroupName>) -> BoxStream<'static, CgroupName> {
        Box::pin(futures::stream::pending())
    }

    async fn destroy(&self, name: &CgroupName) -> Result<(), CgroupError> {
        let destroy = |inner: &mut HostState| {
            inner.world.cgroups.remove(name);
            Ok(())
        };
        self.0.call(&"cgroups".into(), false, destroy).await
    }

    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, CgroupError> {
        let inner = self.0.host.lock().await;
        let below = |c: &&CgroupName| c.0.len() == name.0.len() + 1 && c.0.starts_with(&name.0);
        Ok(inner.world.cgroups.keys().filter(below).filter_map(|c| c.0.last().cloned()).collect())
    }
}

pub struct SimRecords(pub AgentConnection);

#[async_trait]
impl ProbeRecordStore for SimRecords {
    async fn load(&self) -> ProbeRecords {
        let inner = self.0.host.lock().await;
        let records = inner.world.disk.probe_records.iter();
        let records = records.map(|(uid, record)| (uid.clone(), record.clone())).collect();
        ProbeRecords { records, problems: Vec::new() }
    }

    async fn save(&self, uid: &PodUid, record: &ProbeRecord) -> Result<(), ProbeRecordError> {
        self.0.alive().await;
        self.0.host.lock().await.world.disk.keep_probes(uid, record.clone());
        Ok(())
    }
}

#[async_trait]
impl PanicRecords for SimRecords {
    async fn load(&self) -> Result<Vec<PanicRecord>, PanicRecordError> {
        Ok(self.0.host.lock().await.world.disk.panic_records.clone())
    }

    async fn save(&self, records: &[PanicRecord]) -> Result<(), PanicRecordError> {
        self.0.alive().await;
        self.0.host.lock().await.world.disk.panic_records = records.to_vec();
        Ok(())
    }
}

/// Ports that the simulated world does not implement: it has no network and no metrics.
pub struct NoopPorts(pub AgentConnection);

#[async_trait]
impl VolumeNoticeFeed for NoopPorts {
    async fn next(&self) -> (PodUid, VolumeNotice) {
        std::future::pending().await
    }
}

/// The simulated kernel kills no process.
impl OomKills for NoopPorts {
    fn kills(&self) -> OomKillStream {
        Box::pin(futures::stream::pending())
    }
}

/// No threshold is configured, so nobody asks.
#[async_trait]
impl NodeSignals for NoopPorts {
    async fn memory(&self, _: Option<&str>) -> io::Result<(MemoryFigures, Option<MemoryFigures>)> {
        Ok(Default::default())
    }
    async fn disk(&self, _: &str) -> io::Result<DiskFigures> {
        Ok(DiskFigures::default())
    }
    async fn processes(&self) -> io::Result<(u64, u64)> {
        Ok((0, 0))
    }
    async fn memory_runs_short(&self, _: Option<&str>, _: &MemoryNoticeLevels) -> io::Result<()> {
        std::future::pending().await
    }
}

/// No log ever grows.
#[async_trait]
impl ContainerLogFiles for NoopPorts {
    async fn size(&self, _: &Path) -> io::Result<Option<u64>> {
        Ok(Some(0))
    }

    async fn wait_until_written(&self, _: &Path, _: u64) -> io::Result<()> {
        std::future::pending().await
    }

    async fn rename(&self, _: &Path, _: u32) -> io::Result<Option<PathBuf>> {
        Ok(None)
    }

    async fn rename_back(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }

    async fn compress(&self, _: &Path, _: u32) -> io::Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Prober for NoopPorts {
    async fn probe(&self, _: &NetworkCheck, _: Duration) -> ProbeOutcome {
        ProbeOutcome::Success
    }
}

#[async_trait]
impl HttpHooks for NoopPorts {
    async fn get(&self, _: &HttpHook) -> Result<HookAnswer, String> {
        Ok(HookAnswer::Answered)
    }
}

#[async_trait]
impl RegistryCredentials for NoopPorts {
    async fn docker_configs(&self) -> Vec<DockerConfigFile> {
        Vec::new()
    }

    fn plugins(&self) -> &[CredentialPlugin] {
        &[]
    }

    async fn ask(&self, _: &CredentialPlugin, _: &str, _: &str) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }
}

impl EventSink for NoopPorts {
    fn record(&self, _: &EventSubject, _: &ApiEvent) {}
}

impl EngineMetrics for NoopPorts {
    fn step(&self, _: &'static str, _: Duration) {
        self.0.host.steps.fetch_add(1, Ordering::Relaxed);
    }
    fn relist(&self, _: Duration) {}
    fn pod_relist(&self, _: Duration) {}
    fn pod_status(&self, _: &PodStatusUpdate<'_>) {}
    fn status_synced(&self, _: Duration) {}
    fn plan_started(&self, _: &PodUid) {}
    fn plan_ended(&self, _: &PodUid, _: bool, _: Duration) {}
    fn volume_set_up(&self, _: &str, _: bool, _: Duration) {}
    fn probe(&self, _: &ProbeIdentity<'_>, _: &ProbeOutcome, _: Duration) {}
    fn record_sleep_cut_short(&self) {}
    fn record_watcher_cut(&self) {}
    fn eviction_figures_age(&self, _: &str, _: Duration) {}
    fn record_sweep(&self, _: usize, _: usize) {}
    fn forget(&self, _: &PodUid) {}
}

impl WallClock for NoopPorts {
    fn wall(&self) -> Wall {
        self.0.host.wall()
    }
}
