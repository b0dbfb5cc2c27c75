//! The log files of containers: some containers never write, some write at a steady rate.

use std::collections::{BTreeMap, BTreeSet};

use model::ContainerId;

use super::World;
use crate::time::{Nanos, SECOND};

/// Bytes per second, by the container.
const RATES: [u64; 8] = [0, 0, 0, 0, 0, 100, 20_000, 200_000];

#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// When the file at the container's log path was begun. A container that is not in it never started.
    begun: BTreeMap<ContainerId, Nanos>,
    /// The log was renamed, and the runtime has not begun a new one.
    pub renamed: BTreeSet<ContainerId>,
}

impl World {
    pub(super) fn begin_log(&mut self, id: &ContainerId) {
        self.logs.begun.insert(id.clone(), self.now);
    }

    pub fn log_rate(id: &ContainerId) -> u64 {
        let number = id.as_str().bytes().fold(7_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
        RATES[number % RATES.len()]
    }

    /// `None`: there is no log.
    pub fn log_size(&self, id: &ContainerId) -> Option<u64> {
        let container = self.containers.get(id)?;
        if self.logs.renamed.contains(id) {
            return None;
        }
        let begun = *self.logs.begun.get(id)?;
        let until = container.ended.unwrap_or(self.now);
        Some(until.saturating_sub(begun) / (SECOND / 1000) * Self::log_rate(id) / 1000)
    }

    /// The runtime reopens the log of a container.
    pub fn reopen_log(&mut self, id: &ContainerId) -> Result<(), String> {
        if !self.containers.get(id).is_some_and(|container| container.is_live()) {
            return Err(format!("container {id} is not running"));
        }
        self.logs.renamed.remove(id);
        self.begin_log(id);
        Ok(())
    }
}
