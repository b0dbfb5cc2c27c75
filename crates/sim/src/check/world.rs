//! Invariants about the runtime's objects, checked at every change.

use std::collections::BTreeMap;

use super::InvariantChecker;
use crate::world::{World, WorldChange};

impl InvariantChecker {
    /// K1, for all pods that changed.
    pub fn world_changed(&mut self, world: &World, changes: &[WorldChange]) {
        for change in changes {
            let WorldChange::Runtime { uid, .. } = change else { continue };
            let mut live: BTreeMap<&str, u32> = BTreeMap::new();
            for container in world.of_pod(uid).filter(|c| c.is_live()) {
                *live.entry(container.name.as_str()).or_default() += 1;
            }
            if let Some((name, count)) = live.into_iter().find(|(_, count)| *count > 1) {
                self.violate("K1", format!("container {name} of {uid} runs {count} times"));
            }
            let ready = world.sandboxes_of(uid).filter(|(_, s)| s.ready).count();
            if ready > 1 {
                self.violate("K1", format!("pod {uid} has {ready} ready sandboxes"));
            }
        }
    }
}
