//! API objects: which of them each pod needs, and which pods are touched when one was read.

use std::sync::Arc;

use model::PodUid;
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest, Token};
use model::k8s::{CSIDriver, ClusterTrustBundle, Service};
use model::local::LocalObjects;
use model::storage::{StorageKey, StorageState};

use super::Context;
use crate::action::{Action, Stage};
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::lifecycle::Lifecycle;
use crate::objects::uses_trust_bundles;
use crate::render::ServiceView;
use crate::state::{NodeState, PodEntry};
use crate::volumes::{TRUST_GATE, persistent};

/// A pod that may run needs the objects that it refers to. A terminating pod keeps its objects until it has ended.
pub(super) fn request_needed_objects(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    let effects = match entry.lifecycle() {
        Lifecycle::Syncing if !entry.standing().is_orphan() => desk.set_pod_references(entry.view()),
        Lifecycle::Syncing | Lifecycle::Terminating(_) => return,
        Lifecycle::Terminated | Lifecycle::Finished => desk.release(uid),
    };
    effects.into_iter().for_each(|effect| cx.emit(effect));
    let trusts =
        entry.lifecycle().may_start() && uses_trust_bundles(entry.view()) && state.config.feature(TRUST_GATE);
    if trusts && !desk.is_standalone() && desk.trust.begin_watch() {
        cx.emit(Effect::WatchTrustBundles);
    }
    super::certificates::attend(state, cx, uid);
    request_needed_storage(state, cx, uid);
}

/// Updates the ClusterTrustBundles, and touches pods with volumes that contain them.
pub(super) fn trust_bundles(state: &mut NodeState, cx: &mut Context, bundles: Vec<Arc<ClusterTrustBundle>>) {
    let Some(desk) = &mut state.objects else { return };
    if desk.trust.set(bundles) {
        let users = state.pods.iter().filter(|(_, entry)| uses_trust_bundles(entry.view()));
        cx.touched.extend(users.map(|(uid, _)| uid.clone()));
    }
}

/// Requests claims, persistent volumes and attachments. The set grows as they are read: a bound claim names a volume.
fn request_needed_storage(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid))
        && matches!(entry.lifecycle(), Lifecycle::Syncing)
    {
        desk.storage.translate_inline(entry.view());
    }
    let needs = super::csi::needs_of(state, cx, uid);
    let attachments = needs.attachments.clone();
    super::csi::update_needed_volumes(state, cx, uid, needs);
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    match entry.lifecycle() {
        Lifecycle::Syncing if !entry.standing().is_orphan() => {
            let mut keys = persistent::keys(entry.view(), &desk.storage);
            keys.extend(attachments);
            desk.storage.set_wanted(uid, keys).into_iter().for_each(|effect| cx.emit(effect));
            find_holders(state, uid);
        }
        Lifecycle::Finished => release_storage(state, cx, uid),
        _ => {}
    }
}

/// Finds the pods that hold a ReadWriteOncePod claim of this pod. A pod that the runtime lists may have its volumes
/// mounted by this or an earlier agent until they are torn down.
fn find_holders(state: &mut NodeState, uid: &PodUid) {
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    let wanted: Vec<_> = persistent::claims(entry.view()).map(|claim| claim.key).collect();
    let wanted: Vec<_> = wanted.into_iter().filter(|key| desk.storage.is_read_write_once_pod(key)).collect();
    if wanted.is_empty() {
        return;
    }
    let is_there = |entry: &PodEntry| entry.observed.as_ref().is_some_and(|reading| !reading.pod.is_empty());
    for (other, entry) in state.pods.iter().filter(|(other, _)| *other != uid) {
        if entry.standing().is_orphan()
            || !is_there(entry)
            || matches!(entry.lifecycle(), Lifecycle::Finished)
        {
            continue;
        }
        for claim in persistent::claims(entry.view()).filter(|claim| wanted.contains(&claim.key)) {
            desk.storage.add_claim_user(other, claim.key);
        }
    }
}

/// Sets the objects that are read from files in standalone mode.
pub(super) fn set_local_objects(state: &mut NodeState, cx: &mut Context, objects: &LocalObjects) {
    let root_dir = state.config.root_dir.clone();
    let Some(desk) = &mut state.objects else { return };
    cx.touched.extend(desk.set_local_objects(objects, &root_dir));
}

/// A claim with a `SetUpVolume` action in this plan counts as held by the pod even if the action fails
/// (ReadWriteOncePod).
pub(super) fn hold_claims(state: &mut NodeState, uid: &PodUid, stages: &[Stage]) {
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    for action in stages.iter().flat_map(|stage| &stage.actions) {
        let Action::SetUpVolume { volume } = action else { continue };
        let mut claims = persistent::claims(entry.view());
        if let Some(claim) = claims.find(|claim| claim.volume.name == volume.name) {
            desk.storage.add_claim_user(uid, claim.key);
        }
    }
}

fn release_storage(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(desk) = &mut state.objects else { return };
    let (freed, effects) = desk.storage.release(uid);
    cx.touched.extend(freed.into_iter().filter(|other| other != uid));
    effects.into_iter().for_each(|effect| cx.emit(effect));
}

pub(super) fn storage_read(state: &mut NodeState, cx: &mut Context, key: &StorageKey, read: StorageState) {
    let Some(desk) = &mut state.objects else { return };
    let (users, effects) = desk.storage.record_read(key, read, cx.now);
    cx.touched.extend(users);
    effects.into_iter().for_each(|effect| cx.emit(effect));
    // A node can't watch persistent volumes, so they are read again to notice an expansion.
    let at = cx.now.mono.plus(state.config.sync_frequency);
    for key in desk.storage.settled_csi_objects(key) {
        cx.timer(TimerKey::Storage(key), Some(at));
    }
}

pub(super) fn storage_due(state: &mut NodeState, cx: &mut Context, key: &StorageKey) {
    let effect = state.objects.as_mut().and_then(|desk| desk.storage.read_again(key));
    effect.into_iter().for_each(|effect| cx.emit(effect));
}

/// Updates the CSIDriver objects, and touches pods that may have waited for one.
pub(super) fn csi_drivers(state: &mut NodeState, cx: &mut Context, drivers: &[Arc<CSIDriver>]) {
    let Some(desk) = &mut state.objects else { return };
    desk.storage.set_drivers(drivers);
    cx.emit(Effect::SetDriverUpdatePeriods { periods: crate::csi::allocatable_update_periods(drivers) });
    desk.csi.drivers_changed();
    cx.touched.extend(desk.storage.users().cloned());
    super::csi::touch_users(state, cx);
    super::csi::report_volumes_in_use(state, cx);
}

pub(super) fn release(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let effects = state.objects.as_mut().map(|desk| desk.release(uid)).unwrap_or_default();
    effects.into_iter().for_each(|effect: Effect| cx.emit(effect));
    if let Some(desk) = &mut state.objects {
        super::certificates::release(desk, cx, uid);
    }
    release_storage(state, cx, uid);
}

pub(super) fn seen(state: &mut NodeState, cx: &mut Context, key: &ObjectKey, object: ObjectState) {
    let Some(desk) = &mut state.objects else { return };
    let (users, effect) = desk.record_state(key, object);
    cx.touched.extend(users);
    effect.into_iter().for_each(|effect| cx.emit(effect));
}

/// Only the first set wakes pods: service variables are made when a container is created.
pub(super) fn services(state: &mut NodeState, cx: &mut Context, services: &[Arc<Service>]) {
    let Some(desk) = &mut state.objects else { return };
    if desk.set_services(services.iter().map(|service| ServiceView::of(service)).collect()) {
        let waiting = state.pods.iter().filter(|(_, entry)| entry.lifecycle().may_start());
        cx.touched.extend(waiting.map(|(uid, _)| uid.clone()));
    }
}

pub(super) fn token_issued(
    state: &mut NodeState,
    cx: &mut Context,
    wanted: &PodTokenRequest,
    result: Result<Token, String>,
) {
    let Some(desk) = &mut state.objects else { return };
    let problem = result.as_ref().err().map(|message| {
        let account = &wanted.service_account;
        format!("no token for service account {account}: {message}")
    });
    let (news, effects) = desk.token_issued(wanted, result, cx.now);
    effects.into_iter().for_each(|effect| cx.emit(effect));
    if let Some(problem) = problem.filter(|_| news) {
        cx.log(LogLevel::Warn, Some(&wanted.pod_uid), problem);
    }
    if news {
        cx.touch(&wanted.pod_uid);
    }
}

pub(super) fn token_due(state: &mut NodeState, cx: &mut Context, wanted: &PodTokenRequest) {
    let effect = state.objects.as_mut().and_then(|desk| desk.tokens.refresh(wanted));
    effect.into_iter().for_each(|effect| cx.emit(effect));
}
