//! Removes everything that drivers have published for a pod.
//!
//! ```text
//!   records of the pod read ──> unpublish each volume that is not being published ┐
//!   publications that have begun ──> have ended ──────────────────────────────────┴─> read again ──> unpublish the others
//!       ──> unstage volumes that no pod uses ──> done
//!   one volume: earlier work has ended ──> lane ──> [device unmapped] ──> NodeUnpublishVolume ──> record removed
//!       ──> [link removed]
//! ```
//! The map of a device and its loop device are in use until they are gone, so the driver is called after that. The
//! link shows that the pod has a device, so it is removed last. A hanging walk that applies fsGroup can't be
//! stopped by a call to the driver. It must not go on in a volume that belongs to another pod by then, so the driver is
//! called only after the walk has ended.
//!
//! Failures: the operation goes on with the other volumes and reports all failures.

use std::collections::{BTreeMap, BTreeSet};

use model::PodUid;
use model::csi::{CsiVolumeOnDisk, VolumeId, VolumeRecord};

use super::{
    CsiVolumes, Input, Operation, OperationId, Outputs, VolumeCall, VolumeCallFailureKind, VolumeRequestId,
};
use crate::action::{ActionResult, CallFailure};

#[derive(Clone, Debug)]
pub(super) struct TearDown {
    request: VolumeRequestId,
    /// Volumes that were being published for the pod when it began.
    at_work: BTreeSet<VolumeId>,
    /// Those of these set-ups that have not ended: their traces are seen afterwards.
    waits_for: BTreeSet<OperationId>,
    /// The records are being read.
    listing: bool,
    /// The second time: the volumes that were being published.
    second_round: bool,
    /// Volumes that are being unpublished.
    unpublishing: BTreeSet<OperationId>,
    /// In the order of the records.
    failures: BTreeMap<OperationId, String>,
    /// Volumes that the pod has no longer.
    released: BTreeSet<VolumeId>,
    /// Volumes whose unpublication failed before their records were removed. The next tear-down finds these.
    kept: BTreeSet<VolumeId>,
}

#[derive(Clone, Debug)]
pub(super) struct Unpublish {
    of: OperationId,
    found: CsiVolumeOnDisk,
    step: Step,
}

/// What it waits for.
#[derive(Clone, Copy, Debug)]
enum Step {
    Turn,
    EarlierWork,
    Lane,
    UnmapDevice,
    NodeUnpublish,
    Removal,
    Unlink,
}

/// What an answer leads to.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and only for as long as it is taken apart"
)]
enum Next {
    Call(Step, VolumeCall),
    Lane(VolumeId),
    Done,
}

impl CsiVolumes {
    pub(super) fn begin_tear_down(&mut self, out: &mut Outputs, request: VolumeRequestId) {
        let publications = self.publications_of(&request.uid);
        let (waits_for, at_work) = publications.map(|(id, volume)| (id, volume.clone())).unzip();
        let tear_down = TearDown {
            request,
            at_work,
            waits_for,
            listing: false,
            second_round: false,
            unpublishing: BTreeSet::new(),
            failures: BTreeMap::new(),
            released: BTreeSet::new(),
            kept: BTreeSet::new(),
        };
        let id = self.new_id();
        self.list_pod_records(out, id, tear_down);
    }

    fn list_pod_records(&mut self, out: &mut Outputs, id: OperationId, mut tear_down: TearDown) {
        tear_down.listing = true;
        let uid = tear_down.request.uid.clone();
        self.call(out, id, Operation::TearDown(tear_down), VolumeCall::ListPodRecords { uid });
    }

    pub(super) fn tear_down_goes_on(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut tear_down: TearDown,
        input: Input,
    ) {
        tear_down.listing = false;
        match input.records() {
            Ok(found) => {
                for found in found {
                    if tear_down.is_free(&found) == tear_down.second_round {
                        continue;
                    }
                    tear_down.unpublishing.insert(self.begin_unpublish(id, found));
                }
            }
            Err(failure) => drop(tear_down.failures.insert(self.new_id(), failure.message)),
        }
        self.tear_down_looks(out, id, tear_down);
    }

    /// Goes on, if nothing is left to wait for.
    fn tear_down_looks(&mut self, out: &mut Outputs, id: OperationId, mut tear_down: TearDown) {
        let TearDown { listing, unpublishing, waits_for, .. } = &tear_down;
        if *listing || !unpublishing.is_empty() || !waits_for.is_empty() {
            self.operations.insert(id, Operation::TearDown(tear_down));
            return;
        }
        if !tear_down.at_work.is_empty() && !tear_down.second_round {
            tear_down.second_round = true;
            return self.list_pod_records(out, id, tear_down);
        }
        let TearDown { request, failures, mut released, kept, .. } = tear_down;
        let begun = self.begun.remove(&request.uid).unwrap_or_default();
        released.extend(begun.difference(&kept).cloned());
        for volume in &released {
            self.unstage_if_unused(volume);
        }
        let messages: Vec<String> = failures.into_values().collect();
        let failure = || CallFailure { unreachable: false, message: messages.join("; ") };
        let result = if messages.is_empty() { ActionResult::Ok } else { ActionResult::Failed(failure()) };
        out.answer(request, result);
    }

    /// Whoever waits for the end of this set-up goes on.
    pub(super) fn publication_ended(&mut self, out: &mut Outputs, set_up: OperationId) {
        let waits = |operation: &Operation| matches!(operation, Operation::TearDown(tear_down) if tear_down.waits_for.contains(&set_up));
        let waiting: Vec<OperationId> =
            self.operations.iter().filter(|(_, one)| waits(one)).map(|(id, _)| *id).collect();
        for id in waiting {
            if let Some(Operation::TearDown(mut tear_down)) = self.operations.remove(&id) {
                tear_down.waits_for.remove(&set_up);
                self.tear_down_looks(out, id, tear_down);
            }
        }
    }

    fn begin_unpublish(&mut self, of: OperationId, found: CsiVolumeOnDisk) -> OperationId {
        let id = self.new_id();
        let unpublish = Unpublish { of, found, step: Step::Turn };
        self.operations.insert(id, Operation::Unpublish(Box::new(unpublish)));
        self.ready.push_back(id);
        id
    }

    pub(super) fn unpublish_goes_on(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut unpublish: Box<Unpublish>,
        input: Input,
    ) {
        let result = match unpublish.next(input) {
            Ok(Next::Call(step, call)) => {
                unpublish.step = step;
                return self.call(out, id, Operation::Unpublish(unpublish), call);
            }
            Ok(Next::Lane(volume)) => {
                unpublish.step = Step::Lane;
                return self.enter_lane(id, Operation::Unpublish(unpublish), &volume);
            }
            Ok(Next::Done) => Ok(()),
            Err(cause) => {
                let name = &unpublish.found.spec_name;
                Err(format!("UnmountVolume.TearDown failed for volume {name:?} : {cause}"))
            }
        };
        if let Some(volume) = unpublish.found.id() {
            self.leave_lane(id, &volume);
        }
        if let Some(Operation::TearDown(mut tear_down)) = self.operations.remove(&unpublish.of) {
            tear_down.unpublishing.remove(&id);
            if let Some(volume) = unpublish.found.id().filter(|_| !unpublish.found.is_ephemeral()) {
                // A record that could not be removed may be gone nevertheless.
                let may_be_gone = result.is_ok() || matches!(unpublish.step, Step::Removal | Step::Unlink);
                let volumes = if may_be_gone { &mut tear_down.released } else { &mut tear_down.kept };
                volumes.insert(volume);
            }
            tear_down.failures.extend(result.err().map(|message| (id, message)));
            self.tear_down_looks(out, unpublish.of, tear_down);
        }
    }
}

impl TearDown {
    pub(super) fn pod(&self) -> &PodUid {
        &self.request.uid
    }

    /// It was not being published when the tear-down began. One whose record can't be read may have been.
    fn is_free(&self, one: &CsiVolumeOnDisk) -> bool {
        self.at_work.is_empty() || one.id().is_some_and(|volume| !self.at_work.contains(&volume))
    }
}

impl Unpublish {
    fn unmap_device(&self) -> Option<Next> {
        let map = self.found.device.clone()?.map;
        Some(Next::Call(Step::UnmapDevice, VolumeCall::UnmapDevice { map }))
    }

    fn node_unpublish(&self, record: &VolumeRecord) -> Next {
        let (driver, handle) = (record.driver_name.clone(), record.volume_handle.clone());
        let call = VolumeCall::NodeUnpublishVolume { driver, handle, target: self.found.mount_dir.clone() };
        Next::Call(Step::NodeUnpublish, call)
    }

    /// The driver was never called for this volume.
    fn remove_without_record(&self) -> Next {
        let place = self.found.mount_dir.clone();
        Next::Call(Step::Removal, VolumeCall::Remove { place, record: None })
    }

    pub(super) fn pod(&self) -> Option<&PodUid> {
        self.found.pod.as_ref()
    }

    fn next(&self, input: Input) -> Result<Next, String> {
        let place = self.found.mount_dir.clone();
        let record = match &self.found.record {
            Err(_) => return Err(self.found.unreadable_message()),
            Ok(record) => record,
        };
        Ok(match (self.step, record) {
            (Step::Turn, None) => self.unmap_device().unwrap_or_else(|| self.remove_without_record()),
            (Step::UnmapDevice, None) => {
                input.done().map_err(|failure| failure.message)?;
                self.remove_without_record()
            }
            (Step::Turn, Some(_)) => Next::Call(Step::EarlierWork, VolumeCall::WaitForEarlierWork { place }),
            (Step::EarlierWork, Some(record)) => {
                input.done().map_err(|failure| failure.message)?;
                Next::Lane(record.id())
            }
            (Step::Lane, Some(record)) => self.unmap_device().unwrap_or_else(|| self.node_unpublish(record)),
            (Step::UnmapDevice, Some(record)) => {
                input.done().map_err(|failure| failure.message)?;
                self.node_unpublish(record)
            }
            (Step::NodeUnpublish, _) => {
                input.done().map_err(|failure| {
                    let text = match failure.kind {
                        VolumeCallFailureKind::NotRegistered => {
                            "Unmounter.TearDownAt failed to get CSI client"
                        }
                        _ => "Unmounter.TearDownAt failed",
                    };
                    format!("kubernetes.io/csi: {text}: {}", failure.message)
                })?;
                // The record of a device is the node's, and goes when the volume is unstaged.
                let record = (!self.found.block).then(|| self.found.record_path.clone());
                Next::Call(Step::Removal, VolumeCall::Remove { place, record })
            }
            (Step::Removal, _) => {
                input.done().map_err(|failure| failure.message)?;
                match self.found.device.clone() {
                    Some(paths) => Next::Call(Step::Unlink, VolumeCall::UnlinkDevice { link: paths.link }),
                    None => Next::Done,
                }
            }
            (Step::Unlink, _) => {
                input.done().map_err(|failure| failure.message)?;
                Next::Done
            }
            (Step::EarlierWork | Step::Lane, None) => Next::Done,
        })
    }
}
