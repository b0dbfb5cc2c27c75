//! The cluster's storage objects as the agent reads them, and the CSI driver of the node.

use decide::Event;
use model::storage::{StorageKey, StorageState};

use super::background_calls::BackgroundCall;
use super::scheduled_faults::ScheduledFault;
use super::{Mutant, SimEvent, Simulation};
use crate::time::{MILLI, SECOND};
use crate::world::ClaimChange;

impl Simulation {
    /// Sends a starting agent the storage state: whether drivers exist, their objects, and which are registered.
    pub(super) fn show_storage(&mut self) {
        if self.generation == 1 || self.mutant != Mutant::ForgetsPastVolumes {
            self.post_once(self.generation, Event::CsiEnabled);
        }
        for errand in [BackgroundCall::Drivers, BackgroundCall::Registered] {
            let wait = self.rng.between(MILLI, SECOND);
            self.plan_in(
                wait,
                SimEvent::BackgroundCall { generation: self.generation, background_call: errand },
            );
        }
    }

    pub(super) fn change_claim(&mut self, name: &str, change: ClaimChange) {
        self.world.storage.change(name, change);
    }

    /// The driver registers or is removed: the agent's plugin registration sees it.
    pub(super) fn driver_is(&mut self, there: bool) {
        self.world.storage.registered = there;
        self.schedule_background_call(BackgroundCall::Registered);
    }

    pub(super) fn registered(&self) -> Event {
        let there = self.world.storage.registered.then(|| crate::world::DRIVER.to_owned());
        Event::CsiDriversRegistered(there.into_iter().collect())
    }

    pub(super) fn read_storage(&mut self, key: StorageKey) -> Event {
        let away = self.api_unreachable || self.faults.pull_fails(&mut self.rng, self.world.now);
        let state = match away {
            true => StorageState::Unreachable { message: "the API server is away".into() },
            false => self.world.storage.look(&key, &self.config.node_name),
        };
        Event::StorageRead { key, state }
    }

    /// Makes the record of a volume unreadable, of a pod or of the node, and readable again later.
    pub(super) fn record_breaks(&mut self, for_ns: u64) {
        let paths: Vec<String> = self.world.storage.records.keys().cloned().collect();
        if !paths.is_empty() {
            self.world.storage.unreadable.insert(self.rng.pick(&paths).clone());
            self.plan_in(for_ns, SimEvent::ScheduledFault(ScheduledFault::RecordsAreMended));
        }
    }
}
