//! A simulated driver and disk: every call is recorded, and hangs or fails on demand. On the disk only walks, which
//! take long, are recorded.

use model::GrpcCode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::PodUid;
use model::csi::{
    AccessMode, CsiVolume, CsiVolumePaths, DriverNodeInfo, NodeExpandCall, NodePublishCall,
    NodeServiceCapabilities, NodeStageCall, NodeVolumeStats, PluginInfo, VolumeAccessType, VolumeId,
    VolumeRecord,
};
use ports::{CsiDrivers, CsiError, CsiFiles, CsiVolumeOnDisk, FilesError, PluginSocketEvent, PluginSockets};
use tokio::sync::{Mutex, mpsc, watch};

use super::super::CsiPorts;
use super::keeper::{Keeper, OnNode};

pub const DRIVER: &str = "d.example";
/// The deadline of each call, as in the adapter.
const DEADLINE: Duration = Duration::from_secs(120);
/// After this time without progress the disk reports a hang.
const QUIET: Duration = Duration::from_secs(120);

#[derive(Default)]
pub struct Inner {
    pub calls: Vec<String>,
    pub failing: BTreeMap<String, CsiError>,
    /// Names of disk steps that fail.
    pub broken: BTreeSet<&'static str>,
    records: BTreeMap<String, VolumeRecord>,
    pub infos: BTreeMap<String, PluginInfo>,
    pub can: NodeServiceCapabilities,
}

pub struct World {
    pub inner: Mutex<Inner>,
    /// Calls do not return while their names are in this set.
    pub hanging: watch::Sender<BTreeSet<String>>,
    /// Directories that a thread walks through, whether or not a caller waits for it.
    walks: watch::Sender<BTreeSet<String>>,
    notices: Mutex<Option<mpsc::UnboundedReceiver<PluginSocketEvent>>>,
    pub tell: mpsc::UnboundedSender<PluginSocketEvent>,
}

impl World {
    pub fn new() -> Arc<Self> {
        let (tell, notices) = mpsc::unbounded_channel();
        let can = NodeServiceCapabilities {
            stage_unstage_volume: true,
            expand_volume: true,
            ..NodeServiceCapabilities::default()
        };
        let inner = Mutex::new(Inner { can, ..Inner::default() });
        let (hanging, notices) = (watch::Sender::default(), Mutex::new(Some(notices)));
        Arc::new(Self { inner, hanging, walks: watch::Sender::default(), notices, tell })
    }

    pub fn ports(self: &Arc<Self>) -> CsiPorts {
        CsiPorts { drivers: self.clone(), files: self.clone(), sockets: self.clone() }
    }

    pub fn keeper(self: &Arc<Self>) -> (Arc<Keeper>, OnNode) {
        Keeper::start(self.ports(), None)
    }

    pub fn hang(&self, call: &str) {
        self.hanging.send_modify(|hanging| {
            hanging.insert(call.to_owned());
        });
    }

    pub fn heal(&self, call: &str) {
        self.hanging.send_modify(|hanging| {
            hanging.remove(call);
        });
    }

    pub async fn fail(&self, call: &str, code: GrpcCode) {
        let error = CsiError::Rpc { code, message: "no".into() };
        self.inner.lock().await.failing.insert(call.to_owned(), error);
    }

    pub async fn mend(&self, call: &str) {
        self.inner.lock().await.failing.remove(call);
    }

    /// Returns the calls so far, and clears them.
    pub async fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.lock().await.calls)
    }

    /// Waits until every task that can run has run.
    pub async fn rest(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn record_count(&self) -> usize {
        self.inner.lock().await.records.len()
    }

    pub async fn break_disk(&self, step: &'static str) {
        self.inner.lock().await.broken.insert(step);
    }

    pub async fn mend_disk(&self) {
        self.inner.lock().await.broken.clear();
    }

    async fn records(&self) -> Vec<CsiVolumeOnDisk> {
        let found = |(path, record): (&String, &VolumeRecord)| {
            let dir = path.strip_suffix("/vol_data.json").unwrap();
            let uid = dir.strip_prefix("/pods/").and_then(|rest| rest.split('/').next());
            CsiVolumeOnDisk {
                pod: uid.map(PodUid::new),
                block: false,
                spec_name: record.volume_handle.clone(),
                mount_dir: format!("{dir}/{}", if uid.is_some() { "mount" } else { "globalmount" }),
                record_path: path.clone(),
                record: Ok(Some(record.clone())),
                device: None,
            }
        };
        self.inner.lock().await.records.iter().map(found).collect()
    }

    async fn on_disk(&self, step: &str) -> Result<(), FilesError> {
        match self.inner.lock().await.broken.contains(step) {
            true => Err(FilesError::Refused { message: format!("the disk refuses to {step}") }),
            false => Ok(()),
        }
    }

    /// Waits while a thread walks there, at most until the stall timeout.
    async fn walked(&self, place: &str, what: &str) -> Result<(), FilesError> {
        let mut walks = self.walks.subscribe();
        let end = walks.wait_for(|walks| !walks.contains(place));
        match tokio::time::timeout(QUIET, end).await {
            Ok(_) => Ok(()),
            Err(_) => Err(FilesError::Hung { what: format!("{what} {place}"), stall_timeout: QUIET }),
        }
    }

    async fn call(&self, call: &str, about: &str) -> Result<(), CsiError> {
        self.inner.lock().await.calls.push(format!("{call} {about}"));
        let mut hanging = self.hanging.subscribe();
        let wait = hanging.wait_for(|hanging| !hanging.contains(call));
        if tokio::time::timeout(DEADLINE, wait).await.is_err() {
            return Err(CsiError::timed_out());
        }
        match self.inner.lock().await.failing.get(call) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

pub fn volume(uid: &str, handle: &str) -> CsiVolume {
    let paths = CsiVolumePaths {
        staging: format!("/staged/{handle}/globalmount"),
        stage_record: format!("/staged/{handle}/vol_data.json"),
        target: format!("/pods/{uid}/{handle}/mount"),
        record: format!("/pods/{uid}/{handle}/vol_data.json"),
        device: None,
    };
    CsiVolume {
        id: VolumeId { driver: DRIVER.into(), handle: handle.into() },
        spec_name: handle.into(),
        ephemeral: false,
        access: VolumeAccessType::Mount { fs_type: String::new(), flags: Vec::new() },
        access_mode: AccessMode::ReadWriteMany,
        read_only: false,
        node_name: "n".into(),
        attachment_name: String::new(),
        publish_context: BTreeMap::new(),
        volume_attributes: BTreeMap::new(),
        pod_attributes: Default::default(),
        stage_secrets: Default::default(),
        publish_secrets: Default::default(),
        fs_group: None,
        selinux_context: String::new(),
        paths,
        requires_republish: false,
    }
}

#[async_trait]
impl CsiDrivers for World {
    fn set_endpoint(&self, _: &str, _: Option<&str>) {}
    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError> {
        self.call("info", driver).await?;
        Ok(DriverNodeInfo { node_id: "id".into(), ..DriverNodeInfo::default() })
    }
    async fn node_get_capabilities(&self, _: &str) -> Result<NodeServiceCapabilities, CsiError> {
        Ok(self.inner.lock().await.can)
    }
    async fn node_stage_volume(&self, _: &str, call: &NodeStageCall) -> Result<(), CsiError> {
        self.call("stage", &call.handle).await
    }
    async fn node_publish_volume(&self, _: &str, call: &NodePublishCall) -> Result<(), CsiError> {
        self.call("publish", &call.target).await
    }
    async fn node_unpublish_volume(&self, _: &str, _: &str, target: &str) -> Result<(), CsiError> {
        self.call("unpublish", target).await
    }
    async fn node_unstage_volume(&self, _: &str, handle: &str, _: &str) -> Result<(), CsiError> {
        self.call("unstage", handle).await
    }
    async fn node_expand_volume(&self, _: &str, call: &NodeExpandCall) -> Result<(), CsiError> {
        self.call("expand", &format!("{} to {}", call.handle, call.bytes)).await
    }
    async fn node_get_volume_stats(
        &self,
        _: &str,
        handle: &str,
        _: &str,
    ) -> Result<NodeVolumeStats, CsiError> {
        self.call("tell", handle).await?;
        Ok(NodeVolumeStats::default())
    }
}

#[async_trait]
impl CsiFiles for World {
    async fn make_dir(&self, _: &str) -> Result<(), FilesError> {
        self.on_disk("make a directory").await
    }
    async fn write_record(&self, path: &str, record: &VolumeRecord) -> Result<(), FilesError> {
        self.on_disk("write a record").await?;
        self.walked(&path.replace("vol_data.json", "mount"), "writing the record of").await?;
        self.inner.lock().await.records.insert(path.to_owned(), record.clone());
        Ok(())
    }
    async fn list_volumes(&self) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        self.on_disk("list all records").await?;
        Ok(self.records().await)
    }
    async fn list_pod_volumes(&self, uid: &PodUid) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        self.on_disk("list records").await?;
        let all = self.records().await;
        Ok(all.into_iter().filter(|one| one.pod.as_ref() == Some(uid)).collect())
    }
    async fn wait_until_idle(&self, place: &str) -> Result<(), FilesError> {
        self.walked(place, "earlier work on").await
    }
    async fn remove(&self, place: &str, record: Option<&str>) -> Result<(), FilesError> {
        self.on_disk("remove").await?;
        self.walked(place, "removing").await?;
        if let Some(record) = record {
            self.inner.lock().await.records.remove(record);
        }
        Ok(())
    }
    /// The thread goes on even if its caller is gone.
    async fn apply_fs_group(&self, place: &str, _: i64, _: bool) -> Result<(), FilesError> {
        self.on_disk("walk").await?;
        self.walked(place, "walking through").await?;
        self.inner.lock().await.calls.push(format!("walk {place}"));
        self.walks.send_modify(|walks| {
            walks.insert(place.to_owned());
        });
        let (walks, mut hanging) = (self.walks.clone(), self.hanging.subscribe());
        let (own, name) = (place.to_owned(), format!("walk {place}"));
        tokio::spawn(async move {
            let _ = hanging.wait_for(|hanging| !hanging.contains(&name)).await;
            walks.send_modify(|walks| {
                walks.remove(&own);
            });
        });
        self.walked(place, "walking through").await
    }
    async fn link_device(&self, _: &str, _: &str) -> Result<(), FilesError> {
        Ok(())
    }
    async fn unlink_device(&self, _: &str) -> Result<(), FilesError> {
        Ok(())
    }
    async fn map_device(&self, _: &str, _: &str) -> Result<(), FilesError> {
        Ok(())
    }
    async fn unmap_device(&self, _: &str) -> Result<(), FilesError> {
        Ok(())
    }
}

#[async_trait]
impl PluginSockets for World {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        let notices = self.notices.try_lock().ok().and_then(|mut notices| notices.take());
        let notices = notices.expect("it is watched once");
        futures::stream::unfold(notices, |mut notices| async { Some((notices.recv().await?, notices)) })
            .boxed()
    }
    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        let found = self.inner.lock().await.infos.get(socket).cloned();
        found.ok_or(CsiError::Rpc { code: GrpcCode::Unavailable, message: "nobody listens".into() })
    }
    async fn notify_registration_status(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError> {
        let said = trouble.map_or("registered".to_owned(), |trouble| format!("refused: {trouble}"));
        self.call("tell", &format!("{socket} {said}")).await
    }
}
