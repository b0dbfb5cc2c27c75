//! Objects of the cluster: which pods need them, and who is woken when one was read.

use std::sync::Arc;

use model::PodUid;
use model::cluster::{ObjectKey, ObjectState, Token, TokenWanted};
use model::k8s::Service;

use super::Context;
use crate::effect::{Effect, LogLevel};
use crate::lifecycle::Lifecycle;
use crate::render::ServiceView;
use crate::state::NodeState;

/// A pod that may run needs what it names. One that is ending keeps what it has until it has ended.
pub(super) fn attend(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    let effects = match &entry.lifecycle {
        Lifecycle::Syncing if !entry.orphan => desk.claim(&entry.view),
        Lifecycle::Syncing | Lifecycle::Terminating(_) => return,
        Lifecycle::Terminated | Lifecycle::Finished => desk.release(uid),
    };
    effects.into_iter().for_each(|effect| cx.emit(effect));
}

pub(super) fn release(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let effects = state.objects.as_mut().map(|desk| desk.release(uid)).unwrap_or_default();
    effects.into_iter().for_each(|effect: Effect| cx.emit(effect));
}

pub(super) fn seen(state: &mut NodeState, cx: &mut Context, key: &ObjectKey, object: ObjectState) {
    let Some(desk) = &mut state.objects else { return };
    let (users, effect) = desk.seen(key, object);
    cx.touched.extend(users);
    effect.into_iter().for_each(|effect| cx.emit(effect));
}

/// Only the first set wakes anybody: variables are made when a container is.
pub(super) fn services(state: &mut NodeState, cx: &mut Context, services: &[Arc<Service>]) {
    let Some(desk) = &mut state.objects else { return };
    if desk.set_services(services.iter().map(|service| ServiceView::of(service)).collect()) {
        let waiting = state.pods.iter().filter(|(_, entry)| entry.lifecycle.may_start());
        cx.touched.extend(waiting.map(|(uid, _)| uid.clone()));
    }
}

pub(super) fn token_issued(
    state: &mut NodeState,
    cx: &mut Context,
    wanted: &TokenWanted,
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

pub(super) fn token_due(state: &mut NodeState, cx: &mut Context, wanted: &TokenWanted) {
    let effect = state.objects.as_mut().and_then(|desk| desk.tokens.due(wanted));
    effect.into_iter().for_each(|effect| cx.emit(effect));
}
