//! The cluster's side of storage as the agent asks for it, and the storage driver of the node.

use decide::Event;
use model::storage::{StorageKey, StorageState};

use super::errands::Errand;
use super::{Happening, Simulation};
use crate::time::{MILLI, SECOND};
use crate::world::ClaimChange;

impl Simulation {
    /// What an agent that comes up is told of storage: the drivers' objects, who has registered, what is on the node.
    pub(super) fn show_storage(&mut self) {
        for errand in [Errand::Drivers, Errand::Registered, Errand::OnNode] {
            let wait = self.rng.between(MILLI, SECOND);
            self.plan_in(wait, Happening::Errand { generation: self.generation, errand });
        }
    }

    pub(super) fn change_claim(&mut self, name: &str, change: ClaimChange) {
        self.world.storage.change(name, change);
    }

    /// The driver comes or goes: whoever registers plugins sees it.
    pub(super) fn driver_is(&mut self, there: bool) {
        self.world.storage.registered = there;
        self.errand_soon(Errand::Registered);
        if there {
            self.let_go();
        }
    }

    pub(super) fn registered(&self) -> Event {
        let there = self.world.storage.registered.then(|| crate::world::DRIVER.to_owned());
        Event::CsiRegistered(there.into_iter().collect())
    }

    pub(super) fn read_storage(&mut self, key: StorageKey) -> Event {
        let away = self.api_away || self.faults.pull_fails(&mut self.rng, self.world.now);
        let state = match away {
            true => StorageState::Unreachable { message: "the API server is away".into() },
            false => self.world.storage.look(&key, &self.config.node_name),
        };
        Event::StorageRead { key, state }
    }

    /// What an earlier agent has left is found, and let go of where nobody uses it.
    pub(super) fn look_around(&mut self, generation: u32) {
        let Some(agent) = self.agent.as_mut().filter(|_| generation == self.generation) else { return };
        agent.looked = true;
        self.tell_on_node();
        self.let_go();
    }

    pub(super) fn tell_on_node(&mut self) {
        if self.agent.as_ref().is_some_and(|agent| agent.looked) {
            self.post(self.generation, Event::CsiOnNode(self.world.storage.on_node()));
        }
    }

    /// The record is there before the driver is asked for anything.
    pub(super) fn volume_comes(&mut self, handle: &str) {
        if self.world.storage.recorded.insert(handle.to_owned()) {
            self.tell_on_node();
        }
    }

    /// What is staged for nobody is unstaged, unless somebody is at it.
    pub(super) fn let_go(&mut self) {
        if !self.stored || !self.world.storage.registered || self.agent.is_none() {
            return;
        }
        let unused: Vec<String> = self
            .world
            .storage
            .recorded
            .iter()
            .filter(|handle| self.world.storage.users(handle).is_empty() && !self.is_at(handle))
            .cloned()
            .collect();
        for handle in unused {
            self.world.storage.staged.remove(&handle);
            self.world.storage.recorded.remove(&handle);
            self.tell_on_node();
        }
    }
}
