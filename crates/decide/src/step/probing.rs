//! Probes within a step: updates workers from observations, starts due attempts, and records outcomes.

use std::sync::Arc;

use model::k8s::PodStatus;
use model::probe::{ProbeKind, ProbeOutcome};
use model::{ContainerId, PodUid};

use super::Context;
use crate::effect::{Effect, TimerKey};
use crate::probes::{self, ATTEMPTS, DueProbe, ProbeInputs};
use crate::state::NodeState;

/// Runs before the status is derived, because the status shows the probe results of the observed instances.
pub(super) fn update_probe_workers(state: &mut NodeState, cx: &Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if entry.standing().is_orphan() || entry.standing().rejection().is_some() || entry.probes.is_idle() {
        return;
    }
    if let Some(record) = state.probe_records.remove(uid) {
        let killed = record.containers.iter().filter(|(_, of)| of.must_restart);
        entry.ledger.must_restart.extend(killed.map(|(name, of)| (name.clone(), of.id.clone())));
        entry.probes.remember(record);
    }
    if state.runtime.runtime_name_is_unknown() {
        // The status names containers as `<runtime>://<id>`, so `started` can't be matched before the runtime name is
        // known.
        return;
    }
    let (lifecycle, mut probes) = (entry.lifecycle().clone(), std::mem::take(&mut entry.probes));
    let around = ProbeInputs {
        pod: entry.view(),
        observed: entry.observed.as_ref().map(|reading| &*reading.pod),
        lifecycle: &lifecycle,
        status: entry.status.as_deref().or(entry.view().pod.status.as_ref()),
        runtime_name: &state.runtime.name,
        agent_started: state.started,
        now: cx.now,
    };
    probes::update_workers(&mut probes, &around);
    entry.probes = probes;
}

/// After a pod was settled. `before`: its status until then.
pub(super) fn settled(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    before: Option<&Arc<PodStatus>>,
) {
    let Some(entry) = state.pods.get(uid) else { return };
    let news = match (before, &entry.status) {
        (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
        (before, now) => before.is_some() != now.is_some(),
    };
    store_probe_record(state, cx, uid);
    start_due_probes(state, cx, uid, news);
}

/// Stores the probe record if it changed.
fn store_probe_record(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if entry.standing().is_orphan() || entry.lifecycle().is_terminated() {
        return;
    }
    let record = entry.probes.record(&entry.ledger.must_restart);
    if record != entry.probes.stored_record {
        entry.probes.stored_record = record.clone();
        cx.emit(Effect::StoreProbeRecord { uid: uid.clone(), record });
    }
}

/// Starts due attempts, and sets the pod's timer for the others.
pub(super) fn start_due_probes(state: &mut NodeState, cx: &mut Context, uid: &PodUid, news: bool) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if entry.probes.is_idle() && entry.probes.timer.is_none() {
        return;
    }
    let pod_ip = entry.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
    let (view, workers) = entry.view_and_probes();
    let (due, wake) = probes::schedule(workers, view, &pod_ip, cx.now.mono, news);
    if entry.probes.timer != wake {
        entry.probes.timer = wake;
        cx.timer(TimerKey::Probe(uid.clone()), wake);
    }
    for DueProbe { container, kind, id, call } in due {
        match call {
            Ok(call) => {
                let uid = uid.clone();
                cx.emit(Effect::RunProbe { uid, container, kind, id, call, attempts: ATTEMPTS });
            }
            Err(message) => {
                probe_done(state, cx, uid, (&container, kind), &id, &ProbeOutcome::unknown(message))
            }
        }
    }
}

pub(super) fn probe_timer(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.probes.timer = None;
        start_due_probes(state, cx, uid, false);
    }
}

pub(super) fn probe_done(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    probe: (&str, ProbeKind),
    id: &ContainerId,
    outcome: &ProbeOutcome,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let (view, workers) = entry.view_and_probes();
    let Some(answer) = probes::record_outcome(workers, view, probe, id, outcome) else { return };
    if let Some(event) = answer.event {
        cx.record(state, uid, event);
    }
    if answer.changed {
        cx.touch(uid);
    } else {
        start_due_probes(state, cx, uid, false);
    }
}
