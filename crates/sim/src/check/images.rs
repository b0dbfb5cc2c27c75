//! Invariants about images that are removed.
//!
//! What an agent decided before it was killed may still happen when the next one runs. The next one can't know of that,
//! so only the present agent's removals are held against it.

use decide::{NodeState, StartContainer};
use model::ContainerId;

use super::InvariantChecker;
use crate::world::World;

impl InvariantChecker {
    /// The agent decides to remove the image of this id.
    pub fn image_removal_begins(&mut self, world: &World, state: &NodeState, id: &str) {
        if world.images.is_pinned(id) {
            self.violate("images in use", format!("the pinned image {id} is removed"));
        }
        let needs = |entry: &&decide::state::PodEntry| {
            let containers = entry.view().all_containers().map(|(_, container)| container);
            let mut names = containers.filter_map(|container| container.image.as_deref());
            // That another name stands for the same image shows when it was pulled.
            let is_this = |name: &str| world.images.id_of(name) == id && !world.images.has_other_name(name);
            entry.lifecycle().may_start() && names.any(is_this)
        };
        if let Some(entry) = state.pods.values().find(needs) {
            let uid = &entry.view().uid;
            self.violate("images in use", format!("the image {id} is removed, and pod {uid} needs it"));
        }
    }

    /// The image is about to vanish.
    pub fn image_removed(&mut self, world: &World, id: &str) {
        let users = world.containers.values();
        let user = users.into_iter().find(|c| c.image_ref == id && !self.made_late.contains(&c.id));
        if let Some(user) = user {
            let message = format!("the image {id} is removed, and container {} has it", user.name);
            self.violate("images in use", message);
        }
        self.removed_images.insert(id.to_owned());
    }

    pub fn image_came(&mut self, id: &str) {
        self.removed_images.remove(id);
    }

    /// The runtime was asked to create a container. `late`: the agent that asked does not wait for it any more.
    pub fn create_applied(
        &mut self,
        world: &World,
        start: &StartContainer,
        made: Option<&ContainerId>,
        late: bool,
    ) {
        if late {
            self.made_late.extend(made.cloned());
            return;
        }
        let id = start.config.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        if made.is_none() && world.images.is_missing(id) && self.removed_images.contains(id) {
            let name = &start.name;
            self.violate("images first", format!("container {name} is made from {id}, which was removed"));
        }
    }
}
