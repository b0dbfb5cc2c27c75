//! Certificates of pods: which pods need them, and who is woken when there is news of one.

use std::sync::Arc;

use model::PodUid;
use model::k8s::PodCertificateRequest;
use model::pod_certificate::{CertificateRequested, CertificateSource};

use super::Context;
use crate::effect::{Effect, LogLevel};
use crate::lifecycle::Lifecycle;
use crate::objects::{CERTIFICATES_GATE, ObjectCache, RequestingNode, needs_certificates};
use crate::state::NodeState;

/// A pod that may run needs what it names. One that is ending keeps what it has until it has ended.
pub(super) fn attend(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if !state.config.feature(CERTIFICATES_GATE) {
        return;
    }
    let (Some(desk), Some(entry)) = (&mut state.objects, state.pods.get(uid)) else { return };
    if desk.is_standalone() {
        return;
    }
    let node_uid = state.node.as_ref().and_then(|node| node.metadata.uid.as_deref());
    let node = RequestingNode { name: &state.config.node_name, uid: node_uid };
    let effects = match entry.lifecycle() {
        Lifecycle::Syncing if entry.standing().is_orphan() || !needs_certificates(entry.view()) => return,
        Lifecycle::Syncing => {
            if desk.certificates.follow() {
                cx.emit(Effect::FollowCertificateRequests { node: node.name.to_owned() });
            }
            desk.certificates.claim(entry.view(), node, cx.now)
        }
        Lifecycle::Terminating(_) => return,
        Lifecycle::Terminated | Lifecycle::Finished => desk.certificates.release(uid),
    };
    emit_all(cx, effects);
}

pub(super) fn release(desk: &mut ObjectCache, cx: &mut Context, uid: &PodUid) {
    let effects = desk.certificates.release(uid);
    emit_all(cx, effects);
}

pub(super) fn requested(
    state: &mut NodeState,
    cx: &mut Context,
    source: &CertificateSource,
    call: u64,
    result: Result<CertificateRequested, String>,
) {
    let Some(desk) = &mut state.objects else { return };
    let problem = result.as_ref().err().map(|message| {
        format!("creating a PodCertificateRequest failed for volume {}: {message}", source.volume)
    });
    let Some(effects) = desk.certificates.requested(source, call, result, cx.now) else { return };
    emit_all(cx, effects);
    if let Some(problem) = problem {
        cx.log(LogLevel::Warn, Some(&source.pod), problem);
    }
    cx.touch(&source.pod);
}

pub(super) fn read(state: &mut NodeState, cx: &mut Context, requests: &[Arc<PodCertificateRequest>]) {
    let Some(desk) = &mut state.objects else { return };
    let (concerned, effects) = desk.certificates.read(requests, cx.now);
    emit_all(cx, effects);
    cx.touched.extend(concerned);
}

pub(super) fn due(state: &mut NodeState, cx: &mut Context, source: &CertificateSource) {
    let Some(desk) = &mut state.objects else { return };
    let effects = desk.certificates.due(source, cx.now);
    emit_all(cx, effects);
}

fn emit_all(cx: &mut Context, effects: Vec<Effect>) {
    effects.into_iter().for_each(|effect| cx.emit(effect));
}
