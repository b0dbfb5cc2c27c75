//! The ports of a CSI driver: its socket, its calls, and the records on disk. The engine's calls are made as they ship,
//! and each is compared with what drivers may rely on.
//!
//! | promise | broken by |
//! | --- | --- |
//! | `stage first` | a volume that is published and was not staged |
//! | `unstage last` | a volume that is unstaged while a pod has it |
//! | `unmap first` | a device that is unpublished while it is mapped and pinned |
//! | `own mounts first` | a volume that is unpublished while the agent has not taken away what it set up for the pod itself |
//! | `one at a time` | a call for a volume while another one of the same agent is not answered |
//! | `no deletion through a mount` | a directory that is removed while a volume is mounted there |

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::GrpcCode;
use model::PodUid;
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, NodeVolumeStats,
    PluginInfo, VolumeRecord,
};
use ports::{CsiDrivers, CsiError, CsiFiles, CsiVolumeOnDisk, FilesError, PluginSocketEvent, PluginSockets};
use sim::world::DRIVER;
use std::collections::BTreeSet;
use tokio::sync::{Mutex, mpsc};

use super::host::{AgentConnection, CallError, HostState};

const SOCKET: &str = "/plugins/driver.sock";

impl CallError for CsiError {
    /// A driver that reports that nothing was done must have done nothing.
    fn refused(message: String) -> Self {
        let code = match message.contains("after the effect") {
            true => GrpcCode::Unavailable,
            false => GrpcCode::Internal,
        };
        CsiError::Rpc { code, message }
    }
    fn timed_out() -> Self {
        CsiError::timed_out()
    }
}

/// What is known of the driver besides the world's own state.
#[derive(Default)]
pub struct Drivers {
    /// Volumes for which each agent has a call in progress.
    busy: BTreeSet<(u32, String)>,
    /// Sends socket events to the present agent.
    pub sockets: Option<mpsc::UnboundedSender<PluginSocketEvent>>,
}

pub fn driver_is(inner: &mut HostState, there: bool) {
    inner.world.storage.registered = there;
    if let Some(sockets) = &inner.drivers.sockets {
        let path = SOCKET.to_owned();
        let notice = if there { PluginSocketEvent::Added { path } } else { PluginSocketEvent::Gone { path } };
        // Sending fails after the agent has ended, which is fine.
        let _ = sockets.send(notice);
    }
}

pub struct SimDrivers(pub AgentConnection);

impl SimDrivers {
    /// One call about a volume.
    async fn ask(
        &self,
        handle: &str,
        effect: impl FnOnce(&mut HostState) -> Result<(), CsiError>,
    ) -> Result<(), CsiError> {
        let key = (self.0.generation, handle.to_owned());
        {
            let mut inner = self.0.host.lock().await;
            if !inner.drivers.busy.insert(key.clone()) {
                inner.check.violate("one at a time", format!("{handle} is asked for twice at once"));
            }
        }
        let effect = |inner: &mut HostState| {
            if !inner.world.storage.registered {
                let message = "the driver is away, before or after the effect".into();
                return Err(CsiError::refused(message));
            }
            effect(inner)
        };
        let answer = self.0.call(&handle.into(), true, effect).await;
        self.0.host.lock().await.drivers.busy.remove(&key);
        answer
    }
}

#[async_trait]
impl CsiDrivers for SimDrivers {
    fn set_endpoint(&self, _: &str, _: Option<&str>) {}

    async fn node_get_info(&self, _: &str) -> Result<DriverNodeInfo, CsiError> {
        Ok(DriverNodeInfo { node_id: "n1".into(), ..DriverNodeInfo::default() })
    }

    async fn node_get_capabilities(&self, driver: &str) -> Result<NodeServiceCapabilities, CsiError> {
        self.0.alive().await;
        match self.0.host.lock().await.world.storage.registered {
            true => Ok(NodeServiceCapabilities {
                stage_unstage_volume: true,
                expand_volume: true,
                ..NodeServiceCapabilities::default()
            }),
            false => Err(CsiError::NotRegistered { driver: driver.to_owned() }),
        }
    }

    async fn node_stage_volume(&self, _: &str, call: &NodeStageCall) -> Result<(), CsiError> {
        let stage = |inner: &mut HostState| {
            inner.world.stage_volume(&call.handle, &call.staging).map_err(|no| CsiError::refused(no.message))
        };
        self.ask(&call.handle, stage).await
    }

    async fn node_publish_volume(&self, _: &str, call: &NodePublishCall) -> Result<(), CsiError> {
        let publish = |inner: &mut HostState| {
            if !inner.world.storage.staged.contains_key(&call.handle) {
                inner.check.violate("stage first", format!("{} is published, and not staged", call.handle));
            }
            inner.world.publish_volume(&call.handle, &call.target).map_err(|no| CsiError::refused(no.message))
        };
        self.ask(&call.handle, publish).await
    }

    async fn node_expand_volume(&self, _: &str, call: &NodeExpandCall) -> Result<(), CsiError> {
        self.ask(&call.handle, |_| Ok(())).await
    }

    /// Volume stats are never requested in this world.
    async fn node_get_volume_stats(&self, _: &str, _: &str, _: &str) -> Result<NodeVolumeStats, CsiError> {
        Ok(NodeVolumeStats::default())
    }

    async fn node_unpublish_volume(&self, _: &str, handle: &str, target: &str) -> Result<(), CsiError> {
        let unpublish = |inner: &mut HostState| {
            if inner.world.storage.maps.values().any(|shown| shown == target) {
                inner.check.violate("unmap first", format!("{target} is unpublished while it is mapped"));
            }
            if let Some((uid, _)) = inner.world.storage.targets.get(target) {
                let mounted = inner.world.storage.mounted(uid);
                let volumes = inner.world.disk.pods.get(uid);
                let own = volumes.and_then(|volumes| volumes.difference(&mounted).next().cloned());
                if let Some(own) = own {
                    inner.check.violate("own mounts first", format!("{target} goes while {own} is there"));
                }
            }
            inner.world.unpublish_volume(target);
            Ok(())
        };
        self.ask(handle, unpublish).await
    }

    async fn node_unstage_volume(&self, _: &str, handle: &str, _: &str) -> Result<(), CsiError> {
        let unstage = |inner: &mut HostState| {
            if let Some(user) = inner.world.storage.users(handle).into_iter().next().cloned() {
                inner.check.violate("unstage last", format!("{handle} is unstaged while {user} has it"));
            }
            inner.world.storage.staged.remove(handle);
            Ok(())
        };
        self.ask(handle, unstage).await
    }
}

#[async_trait]
impl CsiFiles for SimDrivers {
    async fn make_dir(&self, _: &str) -> Result<(), FilesError> {
        self.0.alive().await;
        Ok(())
    }

    async fn write_record(&self, path: &str, record: &VolumeRecord) -> Result<(), FilesError> {
        let write = |inner: &mut HostState| {
            inner.world.storage.records.insert(path.to_owned(), record.clone());
            Ok(())
        };
        self.0.call(&"records".into(), false, write).await
    }

    async fn list_volumes(&self) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        self.0.call(&"records".into(), false, |inner| Ok(inner.world.storage.found(|_| true))).await
    }

    async fn list_pod_volumes(&self, uid: &PodUid) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        let of = |one: &CsiVolumeOnDisk| one.pod.as_ref() == Some(uid);
        self.0.call(uid, false, |inner| Ok(inner.world.storage.found(of))).await
    }

    async fn remove(&self, place: &str, record: Option<&str>) -> Result<(), FilesError> {
        let remove = |inner: &mut HostState| {
            if inner.world.storage.is_mounted(place) {
                inner.check.violate("no deletion through a mount", format!("{place} is removed"));
            }
            inner.world.remove_volume(place, record).map_err(|no| FilesError::refused(no.message))
        };
        self.0.call(&"records".into(), false, remove).await
    }

    async fn wait_until_idle(&self, _: &str) -> Result<(), FilesError> {
        Ok(())
    }
    async fn apply_fs_group(&self, _: &str, _: i64, _: bool) -> Result<(), FilesError> {
        Ok(())
    }
    async fn link_device(&self, device: &str, link: &str) -> Result<(), FilesError> {
        let insert = |inner: &mut HostState| {
            inner.world.storage.links.insert(link.to_owned(), device.to_owned());
            Ok(())
        };
        self.0.call(&"links".into(), false, insert).await
    }
    async fn unlink_device(&self, link: &str) -> Result<(), FilesError> {
        let remove = |inner: &mut HostState| {
            inner.world.storage.links.remove(link);
            Ok(())
        };
        self.0.call(&"links".into(), false, remove).await
    }
    async fn map_device(&self, device: &str, map: &str) -> Result<(), FilesError> {
        let insert = |inner: &mut HostState| {
            inner.world.map_device(device, map).map_err(|no| FilesError::refused(no.message))
        };
        self.0.call(&"maps".into(), false, insert).await
    }
    async fn unmap_device(&self, map: &str) -> Result<(), FilesError> {
        let remove = |inner: &mut HostState| {
            inner.world.storage.maps.remove(map);
            Ok(())
        };
        self.0.call(&"maps".into(), false, remove).await
    }
}

/// Its events go to one agent only.
pub struct SimSockets(pub Mutex<Option<mpsc::UnboundedReceiver<PluginSocketEvent>>>);

#[async_trait]
impl PluginSockets for SimSockets {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        let heard = self.0.try_lock().ok().and_then(|mut heard| heard.take());
        let Some(heard) = heard else { return futures::stream::pending().boxed() };
        futures::stream::unfold(heard, |mut heard| async move { Some((heard.recv().await?, heard)) }).boxed()
    }

    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        Ok(PluginInfo {
            kind: decide::csi::CSI_PLUGIN.into(),
            name: DRIVER.into(),
            endpoint: socket.to_owned(),
            versions: vec!["1.0.0".into()],
        })
    }

    async fn notify_registration_status(&self, _: &str, _: Option<&str>) -> Result<(), CsiError> {
        Ok(())
    }
}
