//! Calls about volumes of the CSI driver: to the driver, the disk and the API server. Each is issued at one instant,
//! has its effect at another and is answered at a third. It may have no effect, or no answer.
//!
//! The driver may be slow, refuse, fail after its effect (even with an error that says for certain that nothing was
//! done), hang and apply the call late, or claim an unmount that it has not done. It never claims a mount that it has
//! not made, because no agent could detect that.

use decide::ActionResult;
use decide::Event;
use decide::csi::{
    VolumeCall, VolumeCallAnswer, VolumeCallFailure, VolumeCallFailureKind, VolumeCallId, VolumeCallResult,
    VolumeRequest, VolumeRequestFrom, VolumeRequestId,
};
use model::PodUid;
use model::csi::NodeServiceCapabilities;

use super::world_calls::{CallId, DEADLINE};
use super::{Mutant, SimEvent, Simulation};
use crate::faults::{CallBehavior, LateEffect};
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{DRIVER, World, WorldError, pod_of};

/// What a call does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VolumeCallStep {
    Apply(CallId),
    Reply(CallId),
}

/// A call that has not ended.
pub(super) struct VolumeCallRun {
    generation: u32,
    id: VolumeCallId,
    pub(super) call: VolumeCall,
    /// The answer that the caller gets, whatever the call does.
    outcome: Option<VolumeCallResult>,
    applied: bool,
    /// The caller no longer waits for it.
    unheard: bool,
}

fn failed(kind: VolumeCallFailureKind, message: &str) -> VolumeCallResult {
    Err(VolumeCallFailure { kind, message: message.into() })
}

fn open(message: &str) -> VolumeCallResult {
    failed(VolumeCallFailureKind::Open, message)
}

fn asks_driver(call: &VolumeCall) -> bool {
    matches!(
        call,
        VolumeCall::NodeGetCapabilities { .. }
            | VolumeCall::NodeStageVolume { .. }
            | VolumeCall::NodePublishVolume { .. }
            | VolumeCall::NodeUnpublishVolume { .. }
            | VolumeCall::NodeUnstageVolume { .. }
            | VolumeCall::NodeExpandVolume { .. }
    )
}

fn takes_away(call: &VolumeCall) -> bool {
    matches!(call, VolumeCall::NodeUnpublishVolume { .. } | VolumeCall::NodeUnstageVolume { .. })
}

/// The pod that the call is for; a UID for the node if the call is for no pod.
fn caller(call: &VolumeCall) -> PodUid {
    let of = match call {
        VolumeCall::ListPodRecords { uid } => Some(uid.clone()),
        VolumeCall::NodePublishVolume { call, .. } => pod_of(&call.target),
        VolumeCall::NodeUnpublishVolume { target, .. } => pod_of(target),
        VolumeCall::WriteRecord { path, .. } | VolumeCall::ApplyGroup { path, .. } => pod_of(path),
        VolumeCall::Remove { place, .. } | VolumeCall::WaitForEarlierWork { place } => pod_of(place),
        VolumeCall::LinkDevice { link: path, .. } | VolumeCall::UnlinkDevice { link: path } => pod_of(path),
        VolumeCall::MapDevice { map, .. } | VolumeCall::UnmapDevice { map } => pod_of(map),
        _ => None,
    };
    of.unwrap_or_else(|| "node".into())
}

impl Simulation {
    pub(super) fn call_volume(&mut self, id: VolumeCallId, call: VolumeCall) {
        let now = self.world.now;
        let in_flight: Vec<&VolumeCall> = self.volume_calls.values().map(|run| &run.call).collect();
        let state = self.agent.as_ref().map(|agent| &agent.state);
        self.check.volume_call_issued(&self.world, state, &in_flight, &call);
        let number = self.number();
        self.log.note(now, || format!("  volume call {number}: {call:?}"));
        let generation = self.generation;
        let run = VolumeCallRun {
            generation,
            id,
            call: call.clone(),
            outcome: None,
            applied: false,
            unheard: false,
        };
        self.volume_calls.insert(number, run);
        match call {
            VolumeCall::WaitForEarlierWork { place } => self.wait_for_walk(number, &place),
            VolumeCall::ApplyGroup { path, .. } => self.walk(number, path),
            call if asks_driver(&call) => self.ask_driver(number, &call),
            call => self.ask_disk_or_api(number, &call),
        }
    }

    /// The call has no effect, and its caller gets this answer later.
    fn answer_later(&mut self, number: CallId, outcome: VolumeCallResult, wait: Nanos) {
        if let Some(run) = self.volume_calls.get_mut(&number) {
            (run.applied, run.outcome) = (true, Some(outcome));
        }
        self.plan_in(wait, SimEvent::Volume(VolumeCallStep::Reply(number)));
    }

    /// The call has its effect later. `outcome`: the caller gets this answer instead of the real result.
    fn apply_later(&mut self, number: CallId, outcome: Option<VolumeCallResult>, wait: Nanos) {
        if let Some(run) = self.volume_calls.get_mut(&number) {
            run.outcome = outcome;
        }
        self.plan_in(wait, SimEvent::Volume(VolumeCallStep::Apply(number)));
    }

    fn ask_driver(&mut self, number: CallId, call: &VolumeCall) {
        let now = self.world.now;
        let hop = match call {
            VolumeCall::NodeStageVolume { .. } | VolumeCall::NodePublishVolume { .. } => {
                self.faults.volume_latency(&mut self.rng, now)
            }
            _ => self.faults.latency(&mut self.rng, now),
        };
        let fate = self.faults.call(&mut self.rng, now, &caller(call), true);
        let lies = takes_away(call) && self.faults.driver_lies(&mut self.rng, now);
        let skips = self.mutant == Mutant::SkipsStaging && matches!(call, VolumeCall::NodeStageVolume { .. });
        if skips || lies {
            return self.answer_later(number, Ok(VolumeCallAnswer::Done), hop);
        }
        if !self.world.storage.registered {
            let message = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
            let outcome = failed(VolumeCallFailureKind::NotRegistered, &message);
            return self.answer_later(number, outcome, hop);
        }
        if self.mutant == Mutant::GivesUpEarly && !matches!(call, VolumeCall::NodeGetCapabilities { .. }) {
            self.apply_later(number, None, 5 * SECOND);
            return self.answer_now(number, &open("deadline exceeded"));
        }
        match fate {
            CallBehavior::Works => self.apply_later(number, None, hop),
            CallBehavior::Refused => {
                let outcome = failed(VolumeCallFailureKind::Final, "simulated refusal");
                self.answer_later(number, outcome, hop);
            }
            CallBehavior::AppliedButFails => {
                // A failure that is `Final` is a lie here: the call had its effect.
                let kinds = [VolumeCallFailureKind::Final, VolumeCallFailureKind::Open];
                let kind = *self.rng.pick(&kinds);
                self.apply_later(number, Some(failed(kind, "simulated failure after the effect")), hop);
            }
            CallBehavior::Hangs { effect } => {
                let outcome = open("deadline exceeded");
                if effect == Some(LateEffect::BeforeDeadline) {
                    let late = self.rng.below(DEADLINE);
                    self.apply_later(number, Some(outcome.clone()), late);
                    self.plan_in(DEADLINE, SimEvent::Volume(VolumeCallStep::Reply(number)));
                } else {
                    self.answer_later(number, outcome, DEADLINE);
                }
            }
        }
    }

    fn ask_disk_or_api(&mut self, number: CallId, call: &VolumeCall) {
        let now = self.world.now;
        let hop = self.faults.latency(&mut self.rng, now);
        let fate = self.faults.call(&mut self.rng, now, &caller(call), false);
        let writes = matches!(
            call,
            VolumeCall::MakeDir { .. }
                | VolumeCall::WriteRecord { .. }
                | VolumeCall::LinkDevice { .. }
                | VolumeCall::MapDevice { .. }
        );
        let to_api = matches!(call, VolumeCall::ReadClaim { .. } | VolumeCall::PatchClaimStatus { .. });
        if self.mutant == Mutant::LeavesMaps && matches!(call, VolumeCall::UnmapDevice { .. }) {
            return self.answer_later(number, Ok(VolumeCallAnswer::Done), hop);
        }
        if self.mutant == Mutant::SkipsRecords && matches!(call, VolumeCall::WriteRecord { .. }) {
            return self.answer_later(number, Ok(VolumeCallAnswer::Done), hop);
        }
        if writes && self.disk_full {
            return self.answer_later(number, open("no space left on device"), hop);
        }
        if to_api && self.api_unreachable {
            return self.answer_later(number, open("the API server is away"), hop);
        }
        match fate {
            CallBehavior::Works => self.apply_later(number, None, hop),
            CallBehavior::AppliedButFails => {
                self.apply_later(number, Some(open("simulated failure after the effect")), hop);
            }
            CallBehavior::Refused | CallBehavior::Hangs { .. } => {
                self.answer_later(number, open("simulated refusal"), hop);
            }
        }
    }

    /// A caller that waits for a thread gives up after its timeout.
    fn wait_for_walk(&mut self, number: CallId, place: &str) {
        let now = self.world.now;
        let hop = self.rng.between(MILLI / 10, 3 * MILLI);
        let end = self.world.storage.walks.get(place).copied().unwrap_or(0);
        if end <= now || self.mutant == Mutant::LeavesWalks {
            return self.answer_later(number, Ok(VolumeCallAnswer::Done), hop);
        }
        match end - now {
            wait if wait < DEADLINE => self.answer_later(number, Ok(VolumeCallAnswer::Done), wait + hop),
            _ => self.answer_later(number, open("earlier work has not ended"), DEADLINE),
        }
    }

    /// A thread walks through the volume. It may hang, but ends at some time.
    fn walk(&mut self, number: CallId, path: String) {
        let now = self.world.now;
        let hop = self.faults.volume_latency(&mut self.rng, now);
        match self.faults.call(&mut self.rng, now, &caller(&VolumeCall::MakeDir { path: path.clone() }), true)
        {
            CallBehavior::Refused | CallBehavior::AppliedButFails => {
                self.answer_later(number, open("simulated refusal of the walk"), hop);
            }
            CallBehavior::Works => {
                self.world.storage.walks.insert(path, now + hop);
                self.answer_later(number, Ok(VolumeCallAnswer::Done), hop);
            }
            CallBehavior::Hangs { .. } => {
                let until = now + self.rng.between(SECOND, 300 * SECOND);
                self.world.storage.walks.insert(path, until);
                self.answer_later(number, open("the walk has not ended"), DEADLINE.min(until - now));
            }
        }
    }

    /// The caller gets no answer. A walk that does not hang ends at its next step.
    pub(super) fn cancel_volume_call(&mut self, id: VolumeCallId) {
        let generation = self.generation;
        let of = |run: &VolumeCallRun| run.generation == generation && run.id == id;
        let Some(number) = self.volume_calls.iter().find(|(_, run)| of(run)).map(|(number, _)| *number)
        else {
            return;
        };
        self.volume_calls.remove(&number);
    }

    pub(super) fn volume_call_goes_on(&mut self, step: VolumeCallStep) {
        match step {
            VolumeCallStep::Apply(number) => self.apply_volume_call(number),
            VolumeCallStep::Reply(number) => self.reply_volume_call(number),
        }
    }

    fn apply_volume_call(&mut self, number: CallId) {
        let Some(run) = self.volume_calls.get_mut(&number).filter(|run| !run.applied) else { return };
        run.applied = true;
        let call = run.call.clone();
        let result = carry_out(&mut self.world, &call);
        let Some(run) = self.volume_calls.get_mut(&number) else { return };
        if run.unheard {
            self.volume_calls.remove(&number);
            return;
        }
        let late = matches!(&run.outcome, Some(Err(failure)) if failure.message == "deadline exceeded");
        let refused = |refused: WorldError| VolumeCallFailure {
            kind: if asks_driver(&call) { VolumeCallFailureKind::Final } else { VolumeCallFailureKind::Open },
            message: refused.message,
        };
        run.outcome.get_or_insert(result.map_err(refused));
        // The caller of a call that timed out gets its answer at the deadline.
        if !late {
            let hop = self.faults.latency(&mut self.rng, self.world.now);
            self.plan_in(hop, SimEvent::Volume(VolumeCallStep::Reply(number)));
        }
    }

    fn reply_volume_call(&mut self, number: CallId) {
        let Some(run) = self.volume_calls.remove(&number) else { return };
        let result = run.outcome.clone().unwrap_or(Ok(VolumeCallAnswer::Done));
        if let Err(failure) = &result {
            self.log.note(self.world.now, || format!("  volume call {number} failed: {failure:?}"));
        }
        if !run.unheard {
            self.post(run.generation, Event::VolumeCallEnded { id: run.id, result });
        }
    }

    /// The caller gets this answer now, whatever the call does later.
    fn answer_now(&mut self, number: CallId, result: &VolumeCallResult) {
        let Some(run) = self.volume_calls.get_mut(&number) else { return };
        run.unheard = true;
        let (generation, id) = (run.generation, run.id);
        self.post(generation, Event::VolumeCallEnded { id, result: result.clone() });
    }

    /// The agent was killed, and its threads with it: each call it had sent takes effect before the next agent starts,
    /// or never.
    pub(super) fn abandon_volume_calls(&mut self, within: Nanos) {
        self.world.storage.walks.clear();
        for number in self.volume_calls.keys().copied().collect::<Vec<_>>() {
            let arrives = self.rng.coin();
            let Some(run) = self.volume_calls.get_mut(&number) else { continue };
            run.unheard = true;
            if run.applied || !arrives {
                self.volume_calls.remove(&number);
            } else {
                let wait = self.rng.below(within);
                self.plan_in(wait, SimEvent::Volume(VolumeCallStep::Apply(number)));
            }
        }
    }

    /// Whether the CSI driver is working on this volume now.
    pub(super) fn has_call_for(&self, handle: &str) -> bool {
        self.volume_calls.values().any(|run| match &run.call {
            VolumeCall::NodeStageVolume { call, .. } => call.handle == handle,
            VolumeCall::NodePublishVolume { call, .. } => call.handle == handle,
            _ => false,
        })
    }

    pub(super) fn volumes_are_torn_down(&mut self, uid: &PodUid) {
        let in_flight: Vec<&VolumeCall> = self.volume_calls.values().map(|run| &run.call).collect();
        self.check.volumes_torn_down(&self.world, &in_flight, uid);
    }

    // ---- sweeps -----------------------------------------------------------------------------------------------------

    /// Removes the directory of an unknown pod, after its volumes.
    pub(super) fn sweep_volumes(&mut self, uid: PodUid) {
        self.world.tear_down_volumes(&uid);
        if !self.has_storage_driver {
            self.world.disk.forget_pod(&uid);
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        agent.sweeping.insert(uid.clone());
        let request = VolumeRequestId { uid, from: VolumeRequestFrom::Sweep };
        self.post(self.generation, Event::VolumeRequested { request, what: VolumeRequest::TearDown });
    }

    pub(super) fn volumes_swept(&mut self, uid: &PodUid, result: ActionResult) {
        let Some(agent) = &mut self.agent else { return };
        agent.sweeping.remove(uid);
        match result {
            ActionResult::Ok => {
                self.volumes_are_torn_down(uid);
                // If a mount is left there, the next sweep tries again.
                if self.world.remove_pod_dir(uid).is_ok() {
                    self.world.disk.forget_pod(uid);
                }
            }
            other => agent.sweep_problems.push(format!("pod {uid}: {other:?}")),
        }
    }
}

fn carry_out(world: &mut World, call: &VolumeCall) -> Result<VolumeCallAnswer, WorldError> {
    match call {
        VolumeCall::ListRecords => return Ok(VolumeCallAnswer::Records(world.storage.found(|_| true))),
        VolumeCall::ListPodRecords { uid } => {
            let found = world.storage.found(|one| one.pod.as_ref() == Some(uid));
            return Ok(VolumeCallAnswer::Records(found));
        }
        VolumeCall::NodeGetCapabilities { .. } => {
            let can = NodeServiceCapabilities {
                stage_unstage_volume: true,
                expand_volume: true,
                ..NodeServiceCapabilities::default()
            };
            return Ok(VolumeCallAnswer::Capabilities(can));
        }
        VolumeCall::WriteRecord { path, record } => {
            world.storage.unreadable.remove(path);
            drop(world.storage.records.insert(path.clone(), record.clone()));
        }
        VolumeCall::LinkDevice { device, link } => {
            drop(world.storage.links.insert(link.clone(), device.clone()));
        }
        VolumeCall::UnlinkDevice { link } => drop(world.storage.links.remove(link)),
        VolumeCall::MapDevice { device, map } => world.map_device(device, map)?,
        VolumeCall::UnmapDevice { map } => drop(world.storage.maps.remove(map)),
        VolumeCall::Remove { place, record } => world.remove_volume(place, record.as_deref())?,
        VolumeCall::NodeStageVolume { call, .. } => world.stage_volume(&call.handle, &call.staging)?,
        VolumeCall::NodePublishVolume { call, .. } => world.publish_volume(&call.handle, &call.target)?,
        VolumeCall::NodeUnpublishVolume { target, .. } => world.unpublish_volume(target),
        VolumeCall::NodeUnstageVolume { handle, .. } => drop(world.storage.staged.remove(handle)),
        VolumeCall::ReadClaim { claim } => {
            return world.storage.claim(&claim.name).map(VolumeCallAnswer::Claim);
        }
        VolumeCall::PatchClaimStatus { claim, patch } => {
            return world.storage.patch_claim(&claim.name, patch).map(VolumeCallAnswer::Claim);
        }
        // Only its claim shows how large a volume is on the node.
        VolumeCall::NodeExpandVolume { .. }
        | VolumeCall::MakeDir { .. }
        | VolumeCall::WaitForEarlierWork { .. }
        | VolumeCall::ApplyGroup { .. } => {}
    }
    Ok(VolumeCallAnswer::Done)
}
