//! The memory of the node: containers use the more the longer they run, up to a bound.

use model::{ContainerId, PodUid};

use super::World;
use super::runtime::Container;
use crate::time::SECOND;

pub const NODE_MEMORY: u64 = 1000 << 20;

/// Bytes per second, by the container.
const RATES: [u64; 6] = [0, 1 << 20, 2 << 20, 5 << 20, 10 << 20, 40 << 20];
/// How long it grows.
const GROWS_SECS: u64 = 40;

impl World {
    fn memory_rate(id: &ContainerId) -> u64 {
        let number = id.as_str().bytes().fold(11_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
        RATES[number % RATES.len()]
    }

    fn used_by(&self, container: &Container) -> u64 {
        let secs = (self.now.saturating_sub(container.made) / SECOND).min(GROWS_SECS);
        if container.is_live() { Self::memory_rate(&container.id) * secs } else { 0 }
    }

    /// By all containers, never more than there is.
    pub fn memory_used(&self) -> u64 {
        self.containers.values().map(|container| self.used_by(container)).sum::<u64>().min(NODE_MEMORY)
    }

    pub fn memory_of(&self, uid: &PodUid) -> u64 {
        let of_pod = self.containers.values().filter(|container| container.uid == *uid);
        of_pod.map(|container| self.used_by(container)).sum()
    }
}
