//! Storage drivers that come and go, and the volumes that the node tells to use.

use std::collections::BTreeSet;

use model::PodUid;
use model::csi::VolumeId;

use super::Context;
use super::volumes::inputs_of;
use crate::effect::Effect;
use crate::lifecycle::Lifecycle;
use crate::state::NodeState;
use crate::volumes::csi::{Needs, needs};
use crate::volumes::{PATIENCE, uses_drivers};

/// What the pod's volumes of drivers need. Grows with what is read of its claims.
pub(super) fn needs_of(state: &NodeState, cx: &Context, uid: &PodUid) -> Needs {
    let Some(entry) = state.pods.get(uid).filter(|entry| uses_drivers(&entry.view)) else {
        return Needs::default();
    };
    let since = entry.ledger.volumes_since;
    let late = since.is_some_and(|since| cx.now.mono.since(since) >= PATIENCE);
    needs(&inputs_of(state, &entry.view, cx), late)
}

/// A pod that may run is to have its volumes. What one that has ended had is on the node until it is let go of.
pub(super) fn attend(state: &mut NodeState, cx: &mut Context, uid: &PodUid, needs: Needs) {
    let lifecycle = state.pods.get(uid).map(|entry| entry.lifecycle.clone());
    let Some(desk) = &mut state.objects else { return };
    let effects = match lifecycle {
        Some(Lifecycle::Syncing) => {
            desk.csi.want(uid, needs.volumes);
            desk.claim_more(uid, needs.named)
        }
        Some(Lifecycle::Terminating(_)) => Vec::new(),
        Some(Lifecycle::Terminated | Lifecycle::Finished) | None => {
            desk.csi.want(uid, BTreeSet::new());
            desk.claim_more(uid, Default::default())
        }
    };
    effects.into_iter().for_each(|effect| cx.emit(effect));
    report(state, cx);
}

pub(super) fn registered(state: &mut NodeState, cx: &mut Context, drivers: BTreeSet<String>) {
    let changed = state.objects.as_mut().is_some_and(|desk| desk.csi.set_registered(drivers));
    if changed {
        touch_users(state, cx);
    }
}

pub(super) fn on_node(state: &mut NodeState, cx: &mut Context, volumes: BTreeSet<VolumeId>) {
    if let Some(desk) = &mut state.objects {
        desk.csi.set_on_node(volumes);
    }
    report(state, cx);
}

/// Whoever has such a volume may have waited for this.
pub(super) fn touch_users(state: &NodeState, cx: &mut Context) {
    let users = state.pods.iter().filter(|(_, entry)| uses_drivers(&entry.view));
    cx.touched.extend(users.map(|(uid, _)| uid.clone()));
}

/// The Node says which volumes are used here, once that is known. What drivers there are has to be known for it.
pub(super) fn report(state: &mut NodeState, cx: &mut Context) {
    let Some(desk) = &mut state.objects else { return };
    let Some(drivers) = desk.storage.drivers() else { return };
    let loose =
        |driver: &str| drivers.get(driver).is_some_and(|driver| driver.spec.attach_required == Some(false));
    if let Some(volumes) = desk.csi.report(|driver| !loose(driver)) {
        cx.emit(Effect::TellVolumesInUse { volumes });
    }
}
