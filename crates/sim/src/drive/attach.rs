//! The Node's volumes in use: the agent patches the newest set into the Node, one patch at a time, and a simulated
//! controller attaches and detaches volumes according to it.

use model::PodPhase;
use std::collections::BTreeSet;

use model::k8s::Pod;
use model::pod::Source;

use super::background_calls::BackgroundCall;
use super::cluster::is_mirror;
use super::{SimEvent, Simulation};
use crate::time::{MILLI, SECOND};
use crate::world::claims_of;

#[derive(Default)]
pub struct InUse {
    /// The newest set that was decided and is not sent yet.
    newest: Option<Vec<String>>,
    /// A patch is being sent or waits for its retry.
    telling: bool,
}

/// The pod no longer needs its volumes.
fn is_over(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(PodPhase::of).is_some_and(PodPhase::is_terminal)
}

impl Simulation {
    pub(super) fn set_volumes_in_use_to_send(&mut self, volumes: Vec<String>) {
        let Some(agent) = &mut self.agent else { return };
        agent.in_use.newest = Some(volumes);
        if !std::mem::replace(&mut agent.in_use.telling, true) {
            self.send_volumes_in_use(self.generation);
        }
    }

    /// Sends the newest set.
    pub(super) fn send_volumes_in_use(&mut self, generation: u32) {
        let Some(agent) = self.agent.as_mut().filter(|_| generation == self.generation) else { return };
        match agent.in_use.newest.clone() {
            Some(volumes) => self.schedule_background_call(BackgroundCall::PatchVolumesInUse(volumes)),
            None => agent.in_use.telling = false,
        }
    }

    /// The patch arrives, unless the agent that sent it was killed. It is retried if it fails.
    pub(super) fn volumes_in_use_arrive(&mut self, generation: u32, volumes: Vec<String>) {
        if generation != self.generation || self.agent.is_none() {
            return;
        }
        if self.api_says_no().is_some() {
            let wait = self.rng.between(100 * MILLI, 7 * SECOND);
            return self.plan_in(
                wait,
                SimEvent::BackgroundCall { generation, background_call: BackgroundCall::RetryVolumesInUse },
            );
        }
        self.log.note(self.world.now, || format!("the Node says that {volumes:?} are in use"));
        self.world.storage.attachments.set_volumes_in_use(volumes.clone());
        self.schedule_background_call(BackgroundCall::ShowNode);
        if let Some(agent) = &mut self.agent {
            agent.in_use.newest.take_if(|newest| *newest == volumes);
        }
        self.send_volumes_in_use(generation);
    }

    pub(super) fn run_attach_controller(&mut self) {
        let wait = self.rng.between(50 * MILLI, 2 * SECOND);
        self.plan_in(wait, SimEvent::Controller);
        let storage = &mut self.world.storage;
        let pods = self.sources.get(&Source::Api).into_iter().flat_map(|set| set.values());
        let wanted: BTreeSet<String> = pods
            .filter(|pod| !is_mirror(pod) && !is_over(pod))
            .flat_map(|pod| claims_of(pod))
            .filter_map(|(_, claim)| storage.volume_of(claim).cloned())
            .collect();
        let turn = storage.attachments.attach_or_detach_step(&wanted, || self.rng.coin());
        for handle in turn.detached {
            self.log.note(self.world.now, || format!("{handle} is detached"));
            let asked = self.has_call_for(&handle);
            self.check.detached(&self.world, &handle, asked);
        }
        if turn.node_changed {
            self.log.note(self.world.now, || "the Node lists other volumes as attached".to_owned());
            self.schedule_background_call(BackgroundCall::ShowNode);
        }
    }

    pub(super) fn force_detach_a_volume(&mut self) {
        let number = self.rng.below(1000) as usize;
        if let Some(handle) = self.world.storage.attachments.force_detach(number) {
            self.log.note(self.world.now, || format!("{handle} is taken away"));
            self.schedule_background_call(BackgroundCall::ShowNode);
        }
    }
}
