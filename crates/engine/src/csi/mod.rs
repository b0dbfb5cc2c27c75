//! Volumes of storage drivers: set up, taken away, and let go of when nobody on the node uses them any more.
//!
//! ```text
//!   set_up:     record ──> stage (if the node has not) ──> record ──> publish ──> group
//!   tear_down:  unpublish ──> record gone ──> nobody's any more? ──> let_go: unstage ──> record gone
//! ```
//! Each volume has a lane: one operation at a time, so a call that hangs holds up its own volume and nothing else. The
//! group is given outside of it, since that may take as long as there are files, and hang: it is the business of one pod.
//! What has to be undone is found on disk, where a record is before its driver is asked for anything. A kill at any point
//! leaves a record, and the next agent finishes by it.
//!
//! A set-up runs in a task of its own. Whoever wants the pod gone does not wait for a driver that does not answer: only a
//! publication that has begun is waited for, by the pod's tear-down, since it may leave something of the pod behind. The
//! walk that gives the group is cut short. Nothing is asked of the driver before it has ended: one that hangs keeps its
//! volume and so its pod, which says so, and neither the pod's other volumes nor other pods.
//!
//! Failures: a driver that may still be at work keeps its record. A record that can't be read is somebody's volume:
//! nothing is unstaged that it might name.

pub(crate) mod expand;
pub(crate) mod node_object;
pub(crate) mod registry;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use decide::Event;
use decide::back_off::volume_delay;
use decide::csi::{Calls, Labelled, Relabelling, calls, labels_may_differ, relabelling};
use futures::future::join_all;
use model::PodUid;
use model::csi::{CsiVolume, VolumeId};
use model::volume::MountStage;
use ports::{CsiDrivers, CsiError, CsiFiles, FilesError, FoundVolume, PluginSockets};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::dispatcher::Outbox;

/// Storage drivers of the node, as the engine uses them.
#[derive(Clone)]
pub struct CsiPorts {
    pub drivers: Arc<dyn CsiDrivers>,
    pub files: Arc<dyn CsiFiles>,
    pub sockets: Arc<dyn PluginSockets>,
}

/// Why a volume could not be set up, and how far it came.
pub struct Trouble {
    pub stage: MountStage,
    pub message: String,
}

pub struct CsiKeeper {
    ports: CsiPorts,
    outbox: Outbox,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    lanes: BTreeMap<VolumeId, Arc<Mutex<Lane>>>,
    /// Staged or published here, or about to be.
    on_node: BTreeSet<VolumeId>,
    /// The disk was looked at: what is not known is not there.
    looked: bool,
    /// Volumes that somebody is letting go of; with `true` it was asked for again meanwhile.
    leaving: BTreeMap<VolumeId, bool>,
    /// What was begun for a pod, however it ended: a driver may be at work without a record of the pod's.
    begun: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    /// A set-up of a volume for a pod is there from its first step to its last, one at a time.
    errands: BTreeMap<Errand, Arc<Mutex<()>>>,
    /// Errands that have come so far that something of the pod's may be left.
    publishing: BTreeSet<Errand>,
}

type Errand = (PodUid, VolumeId);

/// What became of volumes of a pod.
#[derive(Default)]
struct Unpublished {
    ids: BTreeSet<VolumeId>,
    failures: Vec<String>,
}

#[derive(Default)]
struct Lane {
    /// This agent has staged it, with this SELinux label.
    staged: Option<String>,
    /// Its driver has refused to make it larger, and not done it since.
    refused_to_grow: bool,
}

impl CsiKeeper {
    pub(crate) fn new(ports: CsiPorts, outbox: Outbox) -> Arc<Self> {
        Arc::new(Self { ports, outbox, shelf: Mutex::default() })
    }

    /// One without an engine around it, and what it would tell the engine.
    pub fn alone(ports: CsiPorts) -> (Arc<Self>, mpsc::UnboundedReceiver<Event>) {
        let (outbox, told) = mpsc::unbounded_channel();
        (Self::new(ports, Outbox(outbox)), told)
    }

    /// Finds what an earlier agent has left, and lets go of what nobody uses.
    pub async fn look_around(self: Arc<Self>) {
        let mut attempts = 0;
        let found = loop {
            match self.ports.files.found().await {
                Ok(found) => break found,
                Err(error) => {
                    tracing::error!("volumes of drivers can't be listed: {}", error.user_message());
                    attempts += 1;
                    tokio::time::sleep(volume_delay(attempts)).await;
                }
            }
        };
        for one in found.iter().filter(|one| one.record.is_err()) {
            tracing::error!(
                record = one.record_path,
                "the record of a volume can't be read: {}",
                unreadable(one)
            );
        }
        let ids: BTreeSet<VolumeId> =
            found.iter().filter(|one| !is_ephemeral(one)).filter_map(id_of).collect();
        let mut shelf = self.shelf.lock().await;
        shelf.looked = true;
        shelf.on_node.extend(ids.iter().cloned());
        self.tell(&shelf);
        drop(shelf);
        for id in ids {
            self.clone().let_go(id).await;
        }
    }

    fn tell(&self, shelf: &Shelf) {
        if shelf.looked {
            self.outbox.send(Event::CsiOnNode(shelf.on_node.clone()));
        }
    }

    async fn lane(&self, id: &VolumeId) -> Arc<Mutex<Lane>> {
        self.shelf.lock().await.lanes.entry(id.clone()).or_default().clone()
    }

    async fn comes(&self, id: &VolumeId) {
        let mut shelf = self.shelf.lock().await;
        if shelf.on_node.insert(id.clone()) {
            self.tell(&shelf);
        }
    }

    async fn goes(&self, id: &VolumeId) {
        let mut shelf = self.shelf.lock().await;
        // Whoever waits for the lane goes on with this one, and so must whoever comes after. Two: the shelf and we.
        if shelf.lanes.get(id).is_some_and(|lane| Arc::strong_count(lane) <= 2) {
            shelf.lanes.remove(id);
        }
        if shelf.on_node.remove(id) {
            self.tell(&shelf);
        }
    }

    // ---- setting up -------------------------------------------------------------------------------------------------

    /// `None`: the pod is going, and what was begun for it ends by itself.
    pub async fn set_up(
        self: &Arc<Self>,
        uid: &PodUid,
        volume: &CsiVolume,
        cancel: &CancellationToken,
    ) -> Option<Result<(), Trouble>> {
        self.shelf.lock().await.begun.entry(uid.clone()).or_default().insert(volume.id.clone());
        let (this, uid, volume, token) = (self.clone(), uid.clone(), volume.clone(), cancel.clone());
        detached(cancel, async move { this.set_up_now(&uid, &volume, &token).await }).await
    }

    async fn set_up_now(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
        cancel: &CancellationToken,
    ) -> Result<(), Trouble> {
        let errand = (uid.clone(), volume.id.clone());
        let turn = self.shelf.lock().await.errands.entry(errand.clone()).or_default().clone();
        let own = turn.lock().await;
        let result = self.in_turn(&errand, volume, cancel).await;
        let mut shelf = self.shelf.lock().await;
        shelf.publishing.remove(&errand);
        drop(own);
        // Two: the shelf and we. Nobody waits for it.
        if Arc::strong_count(&turn) <= 2 {
            shelf.errands.remove(&errand);
        }
        result
    }

    /// The walk of an earlier try may hang. It is waited for here, before the volume's lane, where that keeps nobody else.
    async fn in_turn(
        &self,
        errand: &Errand,
        volume: &CsiVolume,
        cancel: &CancellationToken,
    ) -> Result<(), Trouble> {
        let rest = self.ports.files.at_rest(&volume.paths.target);
        let rest = cancel.run_until_cancelled(rest).await.ok_or_else(canceled)?;
        rest.map_err(|error| at(MountStage::SetUp, error.user_message()))?;
        let calls = self.show(errand, volume, cancel).await?;
        self.finish(volume, &calls, cancel).await
    }

    /// What the driver does, in the volume's lane. Between two calls `cancel` is looked at: a pod that is going gets
    /// nothing more.
    async fn show(
        &self,
        errand: &Errand,
        volume: &CsiVolume,
        cancel: &CancellationToken,
    ) -> Result<Calls, Trouble> {
        let lane = self.lane(&volume.id).await;
        let mut lane = lane.lock().await;
        if cancel.is_cancelled() {
            return Err(canceled());
        }
        if !volume.ephemeral {
            self.comes(&volume.id).await;
        }
        let can = self.ports.drivers.abilities(&volume.id.driver).await;
        let can = can.map_err(|error| no_client(volume, &error))?;
        let calls = calls(volume, can);
        self.stage(&errand.0, volume, &calls, &mut lane).await?;
        if !self.may_publish(errand, cancel).await {
            return Err(canceled());
        }
        self.publish(&errand.0, volume, &calls).await?;
        Ok(calls)
    }

    /// From here on the pod's tear-down waits for the errand. One that has begun already was cancelled before it.
    async fn may_publish(&self, errand: &Errand, cancel: &CancellationToken) -> bool {
        let mut shelf = self.shelf.lock().await;
        if cancel.is_cancelled() {
            return false;
        }
        shelf.publishing.insert(errand.clone());
        true
    }

    async fn stage(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
        calls: &Calls,
        lane: &mut Lane,
    ) -> Result<(), Trouble> {
        let (files, paths) = (&self.ports.files, &volume.paths);
        let device = |error: FilesError| at(MountStage::MountDevice, error.user_message());
        self.unstage_other_label(uid, volume, lane).await?;
        let due = lane.staged.is_none();
        if let Some(record) = calls.stage_record.as_ref().filter(|_| due) {
            files.write_record(&paths.stage_record, record).await.map_err(device)?;
        }
        let Some(stage) = calls.stage.as_ref().filter(|_| due) else { return Ok(()) };
        files.make_dir(&paths.staging).await.map_err(device)?;
        if let Err(error) = self.ports.drivers.stage(&volume.id.driver, stage).await {
            // With a device the record serves other pods too; it goes when the volume is let go of.
            if error.is_final() && paths.link.is_none() {
                self.forget(&paths.staging, Some(&paths.stage_record)).await;
            }
            return Err(at(MountStage::MountDevice, error.to_string()));
        }
        lane.staged = Some(volume.label.clone());
        Ok(())
    }

    /// A mount keeps the label that it was made with.
    async fn unstage_other_label(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
        lane: &mut Lane,
    ) -> Result<(), Trouble> {
        if !labels_may_differ(lane.staged.as_deref(), &volume.label) {
            return Ok(());
        }
        let device = |message: String| at(MountStage::MountDevice, message);
        let found = self.ports.files.found().await.map_err(|error| device(error.user_message()))?;
        let here: Vec<(&FoundVolume, Labelled<'_>)> =
            found.iter().filter_map(|one| Some((one, labelled(one, &volume.id)?))).collect();
        match relabelling(uid, &volume.label, here.iter().map(|(_, seen)| *seen)) {
            Relabelling::Fits => return Ok(()),
            Relabelling::Waits { message } => return Err(device(message)),
            Relabelling::Anew => lane.staged = None,
        }
        for (stage, _) in here.iter().filter(|(one, _)| one.pod.is_none()) {
            self.unstage(&volume.id, stage).await.map_err(device)?;
        }
        Ok(())
    }

    async fn publish(&self, uid: &PodUid, volume: &CsiVolume, calls: &Calls) -> Result<(), Trouble> {
        let (files, paths) = (&self.ports.files, &volume.paths);
        let pod = |error: FilesError| at(MountStage::SetUp, error.user_message());
        let found = files.found_of(uid).await.map_err(pod)?;
        let known = found.iter().any(|one| one.place == paths.target && matches!(one.record, Ok(Some(_))));
        files.write_record(&paths.record, &calls.record).await.map_err(pod)?;
        if let Some(link) = &paths.link {
            let dir = paths.target.rsplit_once('/').map_or(paths.target.as_str(), |(dir, _)| dir);
            files.make_dir(dir).await.map_err(pod)?;
            files.link_device(&paths.target, link).await.map_err(pod)?;
        }
        let Err(error) = self.ports.drivers.publish(&volume.id.driver, &calls.publish).await else {
            return Ok(());
        };
        // What was published before stays as it is: its pod may be running on it.
        if error.is_final() && !known && paths.link.is_none() {
            self.forget(&paths.target, Some(&paths.record)).await;
        }
        Err(at(MountStage::SetUp, error.to_string()))
    }

    /// Left behind when the pod is going: the walk ends at its next step then, and the tear-down looks whether it has.
    async fn finish(
        &self,
        volume: &CsiVolume,
        calls: &Calls,
        cancel: &CancellationToken,
    ) -> Result<(), Trouble> {
        let Some((group, on_root_mismatch)) = calls.group else { return Ok(()) };
        let walk = self.ports.files.apply_group(&volume.paths.target, group, on_root_mismatch);
        let applied = cancel.run_until_cancelled(walk).await.ok_or_else(canceled)?;
        applied.map_err(|error| {
            let cause = error.user_message();
            at(MountStage::SetUp, format!("applyFSGroup failed for vol {}: {cause}", volume.id.handle))
        })
    }

    /// The driver has said that there is nothing. What can't be removed is found again when the pod goes.
    async fn forget(&self, place: &str, record: Option<&str>) {
        if let Err(error) = self.ports.files.remove(place, record).await {
            tracing::warn!("after a call of a storage driver failed: {}", error.user_message());
        }
    }

    // ---- taking away ------------------------------------------------------------------------------------------------

    /// Everything of a pod. Goes on past failures; each of them is told.
    pub async fn tear_down(self: &Arc<Self>, uid: &PodUid) -> Result<(), String> {
        // What is at work for the pod although nobody waits for it any more has its end first: its traces are seen then.
        let at_work = self.at_work(uid).await;
        let is_free =
            |one: &FoundVolume| at_work.is_empty() || id_of(one).is_some_and(|id| !at_work.contains_key(&id));
        let rest = join_all(at_work.values().map(|turn| async { drop(turn.lock().await) }));
        let (mut done, _) = tokio::join!(self.unpublish_all(uid, &is_free), rest);
        if !at_work.is_empty() {
            let late = self.unpublish_all(uid, &|one| !is_free(one)).await;
            done.ids.extend(late.ids);
            done.failures.extend(late.failures);
        }
        drop(at_work);
        let mut shelf = self.shelf.lock().await;
        // Whoever ended while we waited for it has left its turn to us.
        shelf.errands.retain(|(of, _), turn| of != uid || Arc::strong_count(turn) > 1);
        let Shelf { errands, publishing, .. } = &mut *shelf;
        publishing.retain(|errand| errand.0 != *uid || errands.contains_key(errand));
        done.ids.extend(shelf.begun.remove(uid).unwrap_or_default());
        drop(shelf);
        for id in done.ids {
            self.clone().let_go(id).await;
        }
        if done.failures.is_empty() { Ok(()) } else { Err(done.failures.join("; ")) }
    }

    /// Publications of the pod that have not ended.
    async fn at_work(&self, uid: &PodUid) -> BTreeMap<VolumeId, Arc<Mutex<()>>> {
        let shelf = self.shelf.lock().await;
        let own = shelf.publishing.iter().filter(|(of, _)| of == uid);
        own.filter_map(|errand| Some((errand.1.clone(), shelf.errands.get(errand)?.clone()))).collect()
    }

    async fn unpublish_all(
        &self,
        uid: &PodUid,
        wanted: &(dyn Fn(&FoundVolume) -> bool + Sync),
    ) -> Unpublished {
        let found = match self.ports.files.found_of(uid).await {
            Ok(found) => found,
            Err(error) => return Unpublished { failures: vec![error.user_message()], ..Default::default() },
        };
        let found: Vec<FoundVolume> = found.into_iter().filter(wanted).collect();
        let results = join_all(found.iter().map(|one| self.unpublish(one))).await;
        let failures = results.into_iter().filter_map(Result::err).collect();
        Unpublished { ids: found.iter().filter_map(id_of).collect(), failures }
    }

    async fn unpublish(&self, one: &FoundVolume) -> Result<(), String> {
        let failed =
            |cause: String| format!("UnmountVolume.TearDown failed for volume {:?} : {cause}", one.spec_name);
        let remove = |record| self.ports.files.remove(&one.place, record);
        let record = match &one.record {
            Err(_) => return Err(failed(unreadable(one))),
            // Its driver was never asked for anything.
            Ok(None) => return self.drop_link(one, remove(None).await).await.map_err(failed),
            Ok(Some(record)) => record,
        };
        // A walk through it that hangs ends or not, whatever its driver is told: it may not go on in what is another's.
        self.ports.files.at_rest(&one.place).await.map_err(|error| failed(error.user_message()))?;
        let lane = self.lane(&record.id()).await;
        let _lane = lane.lock().await;
        let (driver, handle) = (&record.driver_name, &record.volume_handle);
        if let Err(error) = self.ports.drivers.unpublish(driver, handle, &one.place).await {
            let text = match &error {
                CsiError::NotRegistered { .. } => "Unmounter.TearDownAt failed to get CSI client",
                CsiError::Rpc { .. } => "Unmounter.TearDownAt failed",
            };
            return Err(failed(format!("kubernetes.io/csi: {text}: {error}")));
        }
        // The record of a device is the node's, and goes when it is let go of.
        let own = (!one.block).then_some(one.record_path.as_str());
        self.drop_link(one, remove(own).await).await.map_err(failed)
    }

    /// The link is what tells that the pod has the device: it goes last.
    async fn drop_link(&self, one: &FoundVolume, removed: Result<(), FilesError>) -> Result<(), String> {
        removed.map_err(|error| error.user_message())?;
        let Some(link) = &one.link else { return Ok(()) };
        self.ports.files.unlink_device(link).await.map_err(|error| error.user_message())
    }

    /// Unless a pod has it: it is unstaged, however often that takes, and is no longer on the node then.
    async fn let_go(self: Arc<Self>, id: VolumeId) {
        let mut shelf = self.shelf.lock().await;
        if let Some(again) = shelf.leaving.get_mut(&id) {
            *again = true;
            return;
        }
        shelf.leaving.insert(id.clone(), false);
        drop(shelf);
        tokio::spawn(async move {
            let mut attempts = 0;
            loop {
                if let Err(message) = self.try_let_go(&id).await {
                    attempts += 1;
                    tracing::warn!(volume = %id, attempts, "volume is not let go of: {message}");
                    tokio::time::sleep(volume_delay(attempts)).await;
                    continue;
                }
                let mut shelf = self.shelf.lock().await;
                match shelf.leaving.get_mut(&id) {
                    Some(again) if *again => *again = false,
                    _ => {
                        shelf.leaving.remove(&id);
                        return;
                    }
                }
            }
        });
    }

    /// `Ok`: somebody uses it, or nothing is left of it.
    async fn try_let_go(&self, id: &VolumeId) -> Result<(), String> {
        let lane = self.lane(id).await;
        let mut lane = lane.lock().await;
        let found = self.ports.files.found().await.map_err(|error| error.user_message())?;
        let of_pods = |one: &&FoundVolume| one.pod.is_some();
        if found.iter().filter(of_pods).any(|one| id_of(one).as_ref() == Some(id)) {
            return Ok(());
        }
        let stages = found.iter().filter(|one| one.pod.is_none() && id_of(one).as_ref() == Some(id));
        let stages: Vec<&FoundVolume> = stages.collect();
        if let Some(broken) =
            found.iter().filter(of_pods).find(|one| one.record.is_err() && !stages.is_empty())
        {
            let pod = broken.pod.as_ref().map(PodUid::as_str).unwrap_or_default();
            return Err(format!("pod {pod} may use it: {}", unreadable(broken)));
        }
        // Also when it fails: nobody knows then how far the driver came, so the next pod has it staged again.
        lane.staged = None;
        for stage in stages {
            self.unstage(id, stage).await?;
        }
        self.goes(id).await;
        Ok(())
    }

    async fn unstage(&self, id: &VolumeId, stage: &FoundVolume) -> Result<(), String> {
        let drivers = &self.ports.drivers;
        let can = drivers.abilities(&id.driver).await.map_err(|error| error.to_string())?;
        if can.stage {
            let gone = drivers.unstage(&id.driver, &id.handle, &stage.place).await;
            gone.map_err(|error| format!("kubernetes.io/csi: attacher.UnmountDevice failed: {error}"))?;
        }
        let removed = self.ports.files.remove(&stage.place, Some(&stage.record_path)).await;
        removed.map_err(|error| error.user_message())
    }
}

/// Work that goes on when nobody waits for it any more. `None`: that is so.
async fn detached<T: Send + 'static>(
    cancel: &CancellationToken,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    match cancel.run_until_cancelled(tokio::spawn(work)).await? {
        Ok(result) => Some(result),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The agent ends.
        Err(_) => None,
    }
}

fn canceled() -> Trouble {
    at(MountStage::SetUp, "context canceled")
}

fn at(stage: MountStage, message: impl Into<String>) -> Trouble {
    Trouble { stage, message: message.into() }
}

fn no_client(volume: &CsiVolume, error: &CsiError) -> Trouble {
    let what = match (error, volume.ephemeral) {
        (CsiError::NotRegistered { .. }, true) => "mounter.SetUpAt failed to get CSI client",
        (CsiError::NotRegistered { .. }, false) => "attacher.MountDevice failed to create newCsiDriverClient",
        (CsiError::Rpc { .. }, _) => "the capabilities of the driver can't be read",
    };
    let stage = if volume.ephemeral { MountStage::SetUp } else { MountStage::MountDevice };
    at(stage, format!("kubernetes.io/csi: {what}: {error}"))
}

fn id_of(one: &FoundVolume) -> Option<VolumeId> {
    one.record.as_ref().ok()?.as_ref().map(model::csi::VolumeRecord::id)
}

/// Of this volume only.
fn labelled<'a>(one: &'a FoundVolume, id: &VolumeId) -> Option<Labelled<'a>> {
    let record = one.record.as_ref().ok()?.as_ref().filter(|record| record.id() == *id)?;
    Some(Labelled { pod: one.pod.as_ref(), label: &record.se_linux_mount_context })
}

fn is_ephemeral(one: &FoundVolume) -> bool {
    matches!(&one.record, Ok(Some(record)) if record.volume_lifecycle_mode == "Ephemeral")
}

/// What is wrong, and what to do.
fn unreadable(one: &FoundVolume) -> String {
    let cause = one.record.as_ref().err().map(String::as_str).unwrap_or_default();
    format!(
        "{} can't be read ({cause}), so its driver is not known: write it anew, or unmount {} and remove both",
        one.record_path, one.place
    )
}

#[cfg(test)]
mod tests;
