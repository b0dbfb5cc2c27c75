//! The volumes of a pod: which are set up now, which wait and for what, and which Events report it.
//!
//! A volume that fails or waits delays the pod, but not the pod's other volumes. A volume that was set up is not set up
//! again. Whatever a volume waits for wakes the pod when it changes; there is no polling.

use model::ApiEvent;
use model::volume::{VolumeKind, VolumeSetup};
use model::why::Cause;

use super::{PlanInputs, PlanNote, PodPlan, expansion};
use crate::action::Action;
use crate::pod_volumes::{VolumeError, VolumePaths};
use crate::volumes::csi::{UnattachedVolume, unattached};
use crate::volumes::{self, VOLUME_WAIT_PERIOD, VolumeNotReady, mount_failure};

const STEP: &str = "set up volumes";

/// The actions for the volumes of a pod that is about to start.
pub(super) struct VolumePlan {
    pub actions: Vec<Action>,
    /// Expansions, to run after `actions`: volumes whose PersistentVolume is larger than the filesystem on this node.
    pub expansions: Vec<Action>,
    /// True if everything that the pod mounts is there once these actions have succeeded.
    pub complete: bool,
}

/// The set-ups that are left and possible. Notes the reasons of those that are not possible yet.
pub(super) fn volume_setups(inputs: &PlanInputs, plan: &mut PodPlan) -> Result<VolumePlan, VolumeError> {
    let ledger = &inputs.entry.ledger;
    let found = volumes::volume_setups(&inputs.volume_inputs())?;
    let held: Vec<VolumeNotReady> =
        found.not_ready.into_iter().filter(|one| !ledger.volumes_set_up.contains(one.volume())).collect();
    let mut complete = held.is_empty();
    let late = VolumeWait::new(inputs);
    if let Some(note) = late.attach_limit_exceeded(inputs, &held) {
        plan.notes.push(note);
        return Ok(VolumePlan { actions: Vec::new(), expansions: Vec::new(), complete: false });
    }
    late.announce_unprocessed(&held, plan);
    for one in held {
        note_held_volume(inputs, one, plan);
    }
    let mut actions = Vec::new();
    for setup in found.ready.into_iter().filter(|setup| !is_done(inputs, setup)) {
        if waits_for_retry(inputs, &setup, plan) {
            complete = false;
        } else {
            actions.push(Action::SetUpVolume { volume: setup });
        }
    }
    let set_up = |name: &str| {
        let comes = |action: &Action| matches!(action, Action::SetUpVolume { volume } if volume.name == name);
        ledger.volumes_set_up.contains(name) || actions.iter().any(comes)
    };
    let (growths, all) = expansion::before_start(inputs, plan, set_up);
    complete &= all;
    if !complete {
        late.announce_timeout(inputs, plan);
    }
    let mut of_drivers: Vec<String> = actions.iter().filter_map(of_driver).collect();
    let growing: Vec<_> =
        growths.iter().filter_map(of_driver).filter(|name| !of_drivers.contains(name)).collect();
    of_drivers.extend(growing);
    if !of_drivers.is_empty() {
        // A driver may be slow, so `why` names the volumes that wait for one.
        plan.because(None, Cause::PreparingVolumes { volumes: of_drivers }, None);
    }
    if !complete || !actions.is_empty() || !growths.is_empty() {
        plan.notes.push(PlanNote::WaitingForVolumes);
    }
    Ok(VolumePlan { actions, expansions: growths, complete })
}

/// The volume is set up and has its current content.
fn is_done(inputs: &PlanInputs, setup: &VolumeSetup) -> bool {
    let ledger = &inputs.entry.ledger;
    let current = match &setup.kind {
        VolumeKind::Content(content) => {
            ledger.written_file_versions.get(&setup.name) == Some(&content.version)
        }
        _ => true,
    };
    current && ledger.volumes_set_up.contains(&setup.name)
}

/// Updates for volumes of a running pod whose content changed. If the new content can't be read, the old files stay.
pub(super) fn content_updates(inputs: &PlanInputs, plan: &mut PodPlan) -> Vec<Action> {
    let found = volumes::content_updates(&inputs.volume_inputs(), &inputs.entry.ledger.written_file_versions);
    for one in found.not_ready {
        note_held_volume(inputs, one, plan);
    }
    // Volumes in `volumes_being_updated` are skipped: `VolumeUpdated` wakes the pod.
    let ready = found
        .ready
        .into_iter()
        .filter(|setup| !inputs.entry.ledger.volumes_being_updated.contains(&setup.name));
    let mut due: Vec<_> = ready.filter(|setup| !waits_for_retry(inputs, setup, plan)).collect();
    due.extend(setups_to_republish(inputs, plan));
    let mut actions: Vec<_> = due.into_iter().map(|volume| Action::SetUpVolume { volume }).collect();
    actions.extend(expansion::online(inputs, plan));
    actions
}

/// Volumes that are due to be published again (requiresRepublish). After a restart of the agent all of them are due.
fn setups_to_republish(inputs: &PlanInputs, plan: &mut PodPlan) -> Vec<VolumeSetup> {
    if !volumes::may_use_csi_drivers(inputs.entry.view()) {
        return Vec::new();
    }
    let mut due = Vec::new();
    for setup in volumes::setups_to_republish(&inputs.volume_inputs()) {
        match inputs.entry.ledger.republish_at.get(&setup.name) {
            Some(at) if *at > inputs.now.mono => plan.wake(*at),
            _ if waits_for_retry(inputs, &setup, plan) => {}
            _ => due.push(setup),
        }
    }
    due
}

fn of_driver(action: &Action) -> Option<String> {
    match action {
        Action::SetUpVolume { volume } if matches!(volume.kind, VolumeKind::Csi(_)) => {
            Some(volume.name.clone())
        }
        Action::ExpandVolume { volume, .. } => Some(volume.name.clone()),
        _ => None,
    }
}

/// Host paths of the pod's persistent volumes. `None`, with the reason noted, while a path is not known.
pub(super) fn volume_paths(inputs: &PlanInputs, plan: &mut PodPlan) -> Option<VolumePaths> {
    match volumes::volume_paths(&inputs.volume_inputs()) {
        Ok(places) => Some(places),
        Err(held) => {
            note_held_volume(inputs, held, plan);
            None
        }
    }
}

/// Supplemental groups for the pod's persistent volumes. Empty while not all of the volumes are known.
pub(super) fn groups(inputs: &PlanInputs) -> Vec<i64> {
    volumes::volume_paths(&inputs.volume_inputs()).map(|places| places.groups).unwrap_or_default()
}

fn note_held_volume(inputs: &PlanInputs, held: VolumeNotReady, plan: &mut PodPlan) {
    match held {
        VolumeNotReady::Waiting { cause, .. } => plan.because(None, cause, None),
        VolumeNotReady::SetUpRefused { volume, message } => {
            let message = mount_failure(&volume, &message);
            // The key contains the written version, so that a volume that fails again after a success gets a new Event.
            let had = inputs.entry.ledger.written_file_versions.get(&volume);
            plan.announce(format!("{message} {had:?}"), ApiEvent::warning("FailedMount", message.clone()));
            plan.because(None, Cause::StepFailed { step: STEP.into(), message }, None);
        }
        // Its Event is sent together with that of the other volumes.
        VolumeNotReady::ClaimNotUsable { volume, claim, message } => {
            plan.because(None, Cause::WaitingForVolume { volume, claim, message }, None);
        }
        VolumeNotReady::StageFailed { volume, claim, spec_name, stage, block, message } => {
            let text = format!("{} for volume {spec_name:?} : {message}", stage.failed(block));
            plan.announce(text.clone(), ApiEvent::warning(stage.reason(block), text.clone()));
            plan.because(None, Cause::WaitingForVolume { volume, claim, message: text }, None);
        }
    }
}

/// Whether the volume is in its back-off. Each volume has its own.
fn waits_for_retry(inputs: &PlanInputs, setup: &VolumeSetup, plan: &mut PodPlan) -> bool {
    let retry = inputs.entry.ledger.volume_retry.get(&setup.name);
    let Some(retry) = retry.filter(|retry| retry.at > inputs.now.mono) else { return false };
    let message = retry.message.clone();
    plan.because(None, Cause::StepFailed { step: STEP.into(), message }, Some(retry.at));
    true
}

/// The volumes that a pod waits for, for Events about all of them.
struct VolumeWait {
    unmounted: Vec<String>,
    unattached: Vec<UnattachedVolume>,
}

impl VolumeWait {
    fn new(inputs: &PlanInputs) -> Self {
        let mut unmounted = volumes::not_set_up(inputs.entry.view(), &inputs.entry.ledger.volumes_set_up);
        unmounted.sort();
        Self { unmounted, unattached: unattached(&inputs.volume_inputs()) }
    }

    fn text(&self, unprocessed: &[&str], cause: &str) -> String {
        let unattached: Vec<&str> = self.unattached.iter().map(|one| one.volume.as_str()).collect();
        format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]: {cause}",
            self.unmounted.join(" "),
            unattached.join(" "),
            unprocessed.join(" ")
        )
    }

    /// Records one FailedMount Event for all volumes with an unusable claim, without waiting.
    fn announce_unprocessed(&self, held: &[VolumeNotReady], plan: &mut PodPlan) {
        let failed = failed_to_process(held);
        if failed.is_empty() {
            return;
        }
        let names: Vec<&str> = failed.iter().map(|(volume, _)| *volume).collect();
        let causes: Vec<&str> = failed.iter().map(|(_, message)| *message).collect();
        let text = unable(&self.text(&names, &causes.join("; ")));
        plan.announce(format!("unprocessed {causes:?}"), ApiEvent::warning("FailedMount", text));
    }

    /// The pod is rejected only after VOLUME_WAIT_PERIOD at the attach limit, because a volume that is being detached
    /// may free a slot.
    fn attach_limit_exceeded(&self, inputs: &PlanInputs, held: &[VolumeNotReady]) -> Option<PlanNote> {
        let since = inputs.entry.ledger.waiting_for_volumes_since?;
        if inputs.now.mono.since(since) < VOLUME_WAIT_PERIOD {
            return None;
        }
        let driver = self.unattached.iter().find_map(|one| one.full_driver.clone())?;
        let names: Vec<&str> = failed_to_process(held).into_iter().map(|(volume, _)| volume).collect();
        let text = self.text(&names, "context deadline exceeded");
        let message = format!("Node has reached its volume attachment limit, rejecting pod. {text}");
        Some(PlanNote::NoRoomForVolumes { driver, message })
    }

    /// Records a FailedMount Event each time another VOLUME_WAIT_PERIOD has passed while volumes are missing.
    fn announce_timeout(&self, inputs: &PlanInputs, plan: &mut PodPlan) {
        let Some(since) = inputs.entry.ledger.waiting_for_volumes_since else {
            return plan.wake(inputs.now.mono.plus(VOLUME_WAIT_PERIOD));
        };
        let rounds = inputs.now.mono.since(since).as_secs() / VOLUME_WAIT_PERIOD.as_secs();
        if rounds > 0 {
            let text = unable(&self.text(&[], "context deadline exceeded"));
            plan.announce(format!("volumes late {rounds}"), ApiEvent::warning("FailedMount", text));
        }
        let next = u32::try_from(rounds + 1).unwrap_or(u32::MAX);
        plan.wake(since.plus(VOLUME_WAIT_PERIOD.saturating_mul(next)));
    }
}

fn unable(text: &str) -> String {
    format!("Unable to attach or mount volumes: {text}")
}

/// Volumes with an unusable claim and the error of each, in the order of their names.
fn failed_to_process(held: &[VolumeNotReady]) -> Vec<(&str, &str)> {
    let mut failed: Vec<(&str, &str)> = held
        .iter()
        .filter_map(|one| match one {
            VolumeNotReady::ClaimNotUsable { volume, message, .. } => {
                Some((volume.as_str(), message.as_str()))
            }
            _ => None,
        })
        .collect();
    failed.sort();
    failed
}
