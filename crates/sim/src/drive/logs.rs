//! Calls about the logs of containers.

use decide::Event;
use model::ContainerId;
use model::log_rotation::{LogCall, LogCallResult};

use super::background_calls::BackgroundCall;
use super::{SimEvent, Simulation};
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::World;

impl Simulation {
    pub(super) fn call_log(&mut self, id: ContainerId, call: LogCall) {
        let wait = match call {
            LogCall::AwaitWrite { size } => match self.next_write(&id, size) {
                Some(wait) => wait,
                None => return,
            },
            LogCall::Compress { .. } => self.rng.between(10 * MILLI, 2 * SECOND),
            LogCall::Measure | LogCall::Rotate { .. } => self.faults.latency(&mut self.rng, self.world.now),
        };
        let background_call = BackgroundCall::Log { id, call };
        self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
    }

    /// `None`: the container writes no more.
    fn next_write(&self, id: &ContainerId, size: u64) -> Option<Nanos> {
        if self.world.log_size(id) != Some(size) {
            return Some(MILLI);
        }
        let rate = World::log_rate(id);
        let live = self.world.containers.get(id).is_some_and(|container| container.is_live());
        (live && rate > 0).then(|| SECOND / rate + MILLI)
    }

    /// The call takes effect now.
    pub(super) fn log_call_ended(&mut self, id: ContainerId, call: &LogCall) -> Event {
        let result = match call {
            LogCall::Measure => LogCallResult::Measured(Ok(self.world.log_size(&id))),
            LogCall::AwaitWrite { .. } => LogCallResult::Written(Ok(())),
            LogCall::Compress { .. } => LogCallResult::Compressed(Ok(())),
            LogCall::Rotate { .. } => LogCallResult::Rotated(self.rotate_log(&id)),
        };
        Event::LogCallEnded { id, result }
    }

    fn rotate_log(&mut self, id: &ContainerId) -> Result<(), String> {
        if let Some(failure) = self.call_fails() {
            // An agent that is killed between the two steps leaves the log renamed, as one whose undoing fails.
            if self.rng.coin() {
                self.world.logs.renamed.insert(id.clone());
            }
            return Err(failure.message);
        }
        self.world.reopen_log(id)
    }
}
