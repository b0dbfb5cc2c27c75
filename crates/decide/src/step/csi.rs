//! Registration of CSI drivers, and the node's volumesInUse.

use std::collections::BTreeSet;

use model::csi::VolumeId;
use model::{Now, PodUid};

use super::Context;
use super::volumes::inputs_of;
use crate::action::{ActionResult, Epoch};
use crate::csi::{VolumeRequest, VolumeRequestFrom, VolumeRequestId};
use crate::effect::Effect;
use crate::lifecycle::Lifecycle;
use crate::state::NodeState;
use crate::volume_operations::CsiVolumes;
use crate::volumes::csi::{CsiVolumeNeeds, csi_volume_needs};
use crate::volumes::{VOLUME_WAIT_PERIOD, may_use_csi_drivers};

/// What the pod's CSI volumes need. The result grows as the pod's claims are read.
pub(super) fn needs_of(state: &NodeState, cx: &Context, uid: &PodUid) -> CsiVolumeNeeds {
    let Some(entry) = state.pods.get(uid).filter(|entry| may_use_csi_drivers(entry.view())) else {
        return CsiVolumeNeeds::default();
    };
    let since = entry.ledger.waiting_for_volumes_since;
    let late = since.is_some_and(|since| cx.now.mono.since(since) >= VOLUME_WAIT_PERIOD);
    csi_volume_needs(&inputs_of(state, entry.view(), cx), late)
}

/// A pod that may run wants its volumes. A terminating pod keeps those that it has. An ended pod wants none; its
/// volumes count as in use until they are unmounted.
pub(super) fn update_needed_volumes(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    needs: CsiVolumeNeeds,
) {
    let lifecycle = state.pods.get(uid).map(|entry| entry.lifecycle().clone());
    let Some(desk) = &mut state.objects else { return };
    let effects = match lifecycle {
        Some(Lifecycle::Syncing) => {
            desk.csi.set_wanted(uid, needs.volumes);
            desk.set_claimed_references(uid, needs.named)
        }
        Some(Lifecycle::Terminating(_)) => Vec::new(),
        Some(Lifecycle::Terminated | Lifecycle::Finished) | None => {
            desk.csi.set_wanted(uid, BTreeSet::new());
            desk.set_claimed_references(uid, Default::default())
        }
    };
    effects.into_iter().for_each(|effect| cx.emit(effect));
    report_volumes_in_use(state, cx);
}

pub(super) fn registered(state: &mut NodeState, cx: &mut Context, drivers: BTreeSet<String>) {
    let Some(desk) = &mut state.objects else { return };
    let new: BTreeSet<String> =
        drivers.iter().filter(|driver| !desk.csi.is_registered(driver)).cloned().collect();
    if desk.csi.set_registered(drivers) {
        operate(state, cx, |volumes, now| volumes.drivers_registered(now, &new));
        touch_users(state, cx);
    }
}

/// Passes an input to the state of CSI volumes. Updates volumesInUse if the set of volumes on the node changed.
pub(super) fn operate(
    state: &mut NodeState,
    cx: &mut Context,
    input: impl FnOnce(&mut CsiVolumes, Now) -> Vec<Effect>,
) {
    let changes = state.csi_volumes.on_node_changes();
    let effects = input(&mut state.csi_volumes, cx.now);
    effects.into_iter().for_each(|effect| cx.emit(effect));
    if changes != state.csi_volumes.on_node_changes() {
        if let Some(desk) = &mut state.objects {
            desk.csi.on_node_changed();
        }
        report_volumes_in_use(state, cx);
    }
}

/// A request of a plan that was cancelled in the meantime is answered with `Interrupted`, unless it is a tear-down.
pub(super) fn requested(
    state: &mut NodeState,
    cx: &mut Context,
    request: VolumeRequestId,
    what: VolumeRequest,
) {
    let plan = state.pods.get(&request.uid).and_then(|entry| entry.plan.as_ref());
    let is_wanted = match (request.from, &what) {
        (_, VolumeRequest::TearDown) | (VolumeRequestFrom::Sweep, _) => true,
        (VolumeRequestFrom::Plan { epoch, .. }, _) => {
            plan.is_some_and(|plan| plan.epoch == epoch && !plan.cancelled)
        }
    };
    if !is_wanted {
        return cx.emit(Effect::AnswerVolumeRequest { request, result: ActionResult::Interrupted });
    }
    operate(state, cx, |volumes, now| volumes.request(now, request, what));
}

/// Cancels the volume operations of a plan.
pub(super) fn plan_cancelled(state: &mut NodeState, cx: &mut Context, uid: &PodUid, epoch: Epoch) {
    operate(state, cx, |volumes, now| volumes.cancel(now, uid, epoch));
}

/// Touches every pod with a CSI volume: it may have waited for this driver.
pub(super) fn touch_users(state: &NodeState, cx: &mut Context) {
    let users = state.pods.iter().filter(|(_, entry)| may_use_csi_drivers(entry.view()));
    cx.touched.extend(users.map(|(uid, _)| uid.clone()));
}

/// Reports volumesInUse if it changed. The CSIDriver objects have to be known for it, and, while records can't be read,
/// what an earlier agent has reported.
pub(super) fn report_volumes_in_use(state: &mut NodeState, cx: &mut Context) {
    let Some(desk) = &mut state.objects else { return };
    let Some(drivers) = desk.storage.drivers() else { return };
    if state.csi_volumes.has_unreadable_records() && !desk.csi.knows_earlier() {
        let Some(node) = &state.node else { return };
        let names = node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
        desk.csi.set_earlier(names.into_iter().flatten().map(String::as_str));
    }
    let loose =
        |driver: &str| drivers.get(driver).is_some_and(|driver| driver.spec.attach_required == Some(false));
    let may_be = |id: &VolumeId| state.csi_volumes.may_have_unreadable_record(id);
    if let Some(volumes) = desk.csi.report(state.csi_volumes.on_node(), may_be, |driver| !loose(driver)) {
        cx.emit(Effect::ReportVolumesInUse { volumes });
    }
}
