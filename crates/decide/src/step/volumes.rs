//! Volumes outside of a pod's plan: files that are replaced while the plan runs, and Events about work on volumes.
//!
//! A plan may run for long (a `postStart` hook), and containers are to see changed content meanwhile. Only files of
//! volumes that are set up are replaced this way; the volumes themselves are set up and torn down by plans. Running
//! updates are in `Ledger::volumes_being_updated`, and the pod's volumes are not torn down before that is empty.

use model::pod::PodView;
use model::volume::{MountStage, VolumeKind, VolumeNotice, VolumeSetup};
use model::{ApiEvent, PodUid};

use super::{Context, outcome};
use crate::action::Action;
use crate::effect::Effect;
use crate::state::{NodeState, PodEntry};
use crate::volumes::{self, VolumeInputs};

/// What is known now that a pod's volumes are made from.
pub(super) fn inputs_of<'a>(state: &'a NodeState, pod: &'a PodView, cx: &Context) -> VolumeInputs<'a> {
    VolumeInputs {
        config: &state.config,
        facts: &state.facts,
        pod,
        cluster: state.objects.as_ref(),
        node: state.node.as_deref(),
        now: cx.now.wall,
    }
}

/// Updates files of a pod whose plan is running. If new content can't be read, the old files stay and the next plan
/// reports it.
pub(super) fn update_files_during_plan(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid).filter(|entry| entry.lifecycle().may_start()) else { return };
    if entry.ledger.written_file_versions.is_empty() {
        return;
    }
    let found =
        volumes::content_updates(&inputs_of(state, entry.view(), cx), &entry.ledger.written_file_versions);
    let due: Vec<_> = found.ready.into_iter().filter(|setup| may_update_files(entry, setup, cx)).collect();
    let Some(entry) = state.pods.get_mut(uid) else { return };
    for volume in due {
        entry.ledger.volumes_being_updated.insert(volume.name.clone());
        cx.emit(Effect::UpdateVolume { uid: uid.clone(), volume: Box::new(volume) });
    }
}

/// The volume is set up, no update of it is running, and it is not in a back-off.
fn may_update_files(entry: &PodEntry, setup: &VolumeSetup, cx: &Context) -> bool {
    let ledger = &entry.ledger;
    let waits = ledger.volume_retry.get(&setup.name).is_some_and(|retry| retry.at > cx.now.mono);
    let is_there =
        ledger.volumes_set_up.contains(&setup.name) && ledger.written_file_versions.contains_key(&setup.name);
    is_there
        && !waits
        && !ledger.volumes_being_updated.contains(&setup.name)
        && !is_planned(entry, &setup.name)
}

/// The plan that runs has yet to set it up, or does so now.
fn is_planned(entry: &PodEntry, name: &str) -> bool {
    let actions = entry.plan.iter().flat_map(|plan| plan.stages.iter()).flat_map(|stage| &stage.actions);
    let version = |action: &Action| match action {
        Action::SetUpVolume { volume } if volume.name == name => match &volume.kind {
            VolumeKind::Content(content) => Some(content.version),
            _ => None,
        },
        _ => None,
    };
    actions.filter_map(version).any(|version| entry.ledger.written_file_versions.get(name) != Some(&version))
}

pub(super) fn updated(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    volume: &VolumeSetup,
    result: Result<(), String>,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if !entry.ledger.volumes_being_updated.remove(&volume.name) {
        // Of an earlier life of the pod.
        return;
    }
    cx.touch(uid);
    match (result, &volume.kind) {
        (Ok(()), VolumeKind::Content(content)) => {
            entry.ledger.volume_retry.remove(&volume.name);
            entry.ledger.written_file_versions.insert(volume.name.clone(), content.version);
        }
        (Ok(()), _) => {}
        (Err(message), _) => outcome::volume_failed(state, cx, uid, volume, (MountStage::SetUp, &message)),
    }
}

pub(super) fn tell(state: &NodeState, cx: &mut Context, uid: &PodUid, news: &VolumeNotice) {
    cx.record(state, uid, event_of(uid, news));
}

/// In the reference's words.
fn event_of(uid: &PodUid, news: &VolumeNotice) -> ApiEvent {
    match news {
        VolumeNotice::ChangingOwnership { path, files } => {
            // From the pod on: where pods are is the node's affair.
            let dir = path.find(uid.as_str()).map_or(path.as_str(), |at| &path[at..]);
            let message = match files {
                None => format!(
                    "Setting volume ownership for {dir} is taking longer than expected, consider using OnRootMismatch \
                     - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-\
                     permission-and-ownership-change-policy-for-pods"
                ),
                Some(files) => format!("Setting volume ownership for {dir}, processed {files} files."),
            };
            ApiEvent::warning("VolumePermissionChangeInProgress", message)
        }
        VolumeNotice::FsGroupMismatch { spec_name, wanted, found } => ApiEvent::warning(
            "AlreadyMountedVolume",
            format!(
                "The requested fsGroup is {wanted}, but the volume {spec_name} has GID {found}. The volume may not be \
                 shareable."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_in_words() {
        let check = |news: VolumeNotice, expect: (&str, &str)| {
            let event = event_of(&PodUid::new("0f1e"), &news);
            assert_eq!((event.reason.as_str(), event.message.as_str()), expect);
        };
        let path = || "/var/lib/kubelet/pods/0f1e/volumes/kubernetes.io~local-volume/pv".to_owned();
        check(
            VolumeNotice::ChangingOwnership { path: path(), files: None },
            (
                "VolumePermissionChangeInProgress",
                "Setting volume ownership for 0f1e/volumes/kubernetes.io~local-volume/pv is taking longer than \
                 expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/\
                 security-context/#configure-volume-permission-and-ownership-change-policy-for-pods",
            ),
        );
        check(
            VolumeNotice::ChangingOwnership { path: path(), files: Some(12345) },
            (
                "VolumePermissionChangeInProgress",
                "Setting volume ownership for 0f1e/volumes/kubernetes.io~local-volume/pv, processed 12345 files.",
            ),
        );
        check(
            VolumeNotice::FsGroupMismatch { spec_name: "pv".into(), wanted: 7, found: 0 },
            (
                "AlreadyMountedVolume",
                "The requested fsGroup is 7, but the volume pv has GID 0. The volume may not be shareable.",
            ),
        );
    }
}
