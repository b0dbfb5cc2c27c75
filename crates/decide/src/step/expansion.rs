//! Handles the end of a volume expansion: updates the known size and records Events.

use model::csi::Expansion;
use model::quantity::Quantity;
use model::volume::VolumeSetup;
use model::{ApiEvent, PodUid};

use super::Context;
use crate::action::ExpandOutcome;
use crate::back_off::volume_delay;
use crate::effect::{Effect, LogLevel};
use crate::ledger::VolumeRetry;
use crate::state::NodeState;

pub(super) fn expansion_ended(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    (volume, expansion): (&VolumeSetup, &Expansion),
    how: ExpandOutcome,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.ledger.expand_retry.remove(&volume.name);
    let known = entry.ledger.volume_sizes.entry(volume.name.clone()).or_default();
    let parsed = |text: &str| text.parse::<Quantity>().unwrap_or(known.size);
    match &how {
        ExpandOutcome::Grown { size } | ExpandOutcome::Unneeded { size } => {
            known.size = parsed(size);
            known.not_our_turn_for_claim_version = completed_claim_version(known.size, expansion);
        }
        ExpandOutcome::NotYet => known.not_our_turn_for_claim_version = Some(expansion.version.clone()),
        ExpandOutcome::InUse => known.in_use = true,
    }
    if let ExpandOutcome::Grown { .. } = how {
        let (name, node) = (&volume.spec_name, &state.config.node_name);
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
        let event = ApiEvent::normal("FileSystemResizeSuccessful", text);
        cx.record(state, uid, event.clone());
        cx.emit(Effect::RecordClaimEvent { claim: expansion.claim.clone(), event });
    }
}

/// Retried with back-off.
pub(super) fn expansion_failed(
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
    let attempts = entry.ledger.expand_retry.get(&volume.name).map_or(0, |retry| retry.attempts) + 1;
    let at = cx.now.mono.plus(volume_delay(attempts));
    entry.ledger.expand_retry.insert(volume.name.clone(), VolumeRetry { message, at, attempts });
}

/// The version of a claim that has all that it asks for although more stands behind it: it would ask for just this again.
fn completed_claim_version(size: Quantity, expansion: &Expansion) -> Option<String> {
    let all = expansion.size.parse().is_ok_and(|behind: Quantity| size >= behind);
    (!all).then(|| expansion.version.clone())
}

#[cfg(test)]
mod tests {
    use model::csi::ClaimObject;

    use super::*;

    #[test]
    fn a_claim_that_asks_for_less_than_there_is_is_asked_once() {
        let expansion = Expansion {
            claim: ClaimObject { namespace: "ns".into(), name: "c".into(), uid: "u".into() },
            size: "3Gi".into(),
            secrets: Default::default(),
            version: "7".into(),
            online: true,
        };
        for (has, expect) in [("2Gi", Some("7")), ("3Gi", None), ("4Gi", None)] {
            let has: Quantity = has.parse().unwrap();
            assert_eq!(completed_claim_version(has, &expansion).as_deref(), expect, "{has}");
        }
    }
}
