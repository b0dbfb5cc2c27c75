//! How the growth of a volume ended: what is known of its size, and who is told.

use model::csi::Expansion;
use model::quantity::Quantity;
use model::volume::VolumeSetup;
use model::{ApiEvent, PodUid};

use super::Context;
use crate::back_off::volume_delay;
use crate::effect::{Effect, LogLevel};
use crate::event::Expanded;
use crate::ledger::VolumeRetry;
use crate::state::NodeState;

pub(super) fn ended(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    (volume, expansion): (&VolumeSetup, &Expansion),
    how: Expanded,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.ledger.growth_retry.remove(&volume.name);
    let known = entry.ledger.sizes.entry(volume.name.clone()).or_default();
    let parsed = |text: &str| text.parse::<Quantity>().unwrap_or(known.size);
    match &how {
        Expanded::Grown { size } | Expanded::Unneeded { size } => {
            known.size = parsed(size);
            // The claim asks for less than what stands behind it, and would ask for just this again.
            let all = expansion.size.parse().is_ok_and(|behind: Quantity| known.size >= behind);
            known.judged = (!all).then(|| expansion.version.clone());
        }
        Expanded::NotYet => known.judged = Some(expansion.version.clone()),
        Expanded::InUse => known.in_use = true,
    }
    if let Expanded::Grown { .. } = how {
        let (name, node) = (&volume.spec_name, &state.config.node_name);
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
        let event = ApiEvent::normal("FileSystemResizeSuccessful", text);
        cx.record(state, uid, event.clone());
        cx.emit(Effect::RecordClaimEvent { claim: expansion.claim.clone(), event });
    }
}

/// Tried again, ever later.
pub(super) fn failed(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    (volume, expansion): (&VolumeSetup, &Expansion),
    cause: &str,
) {
    let (reason, what) = match (expansion.online, volume.is_block()) {
        (true, _) => ("VolumeResizeFailed", "NodeExpandVolume.NodeExpandVolume failed"),
        (false, false) => ("FailedMount", "MountVolume.Setup failed while expanding volume"),
        (false, true) => ("FailedMapVolume", "MapVolume.MarkVolumeAsMounted failed while expanding volume"),
    };
    let message = format!("{what} for volume {:?} : {cause}", volume.spec_name);
    cx.log(LogLevel::Warn, Some(uid), message.clone());
    cx.record(state, uid, ApiEvent::warning(reason, message.clone()));
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let attempts = entry.ledger.growth_retry.get(&volume.name).map_or(0, |retry| retry.attempts) + 1;
    let at = cx.now.mono.plus(volume_delay(attempts));
    entry.ledger.growth_retry.insert(volume.name.clone(), VolumeRetry { message, at, attempts });
}
