//! The record that outlives the agent: results that the runtime does not know, and whose loss users would see as a
//! change.

use std::collections::BTreeMap;

use model::ContainerId;
use model::probe::{ContainerProbeRecord, ProbeKind, ProbeRecord};

use super::{PodProbes, ProbeResult, Worker};

impl PodProbes {
    /// The record as it should be. A live container that is simply alive is not worth one. What an earlier agent left
    /// stays until the container was seen.
    pub fn record(&self, must_restart: &BTreeMap<String, ContainerId>) -> ProbeRecord {
        let unseen = |name: &str| {
            let mut workers = self.workers.iter().filter(|((container, _), _)| container == name).peekable();
            workers.peek().is_some() && workers.all(|(_, worker)| worker.container.is_none())
        };
        let left = self.restored_record.containers.iter().filter(|(name, _)| unseen(name));
        let mut record =
            ProbeRecord { containers: left.map(|(name, of)| (name.clone(), of.clone())).collect() };
        for ((name, kind), worker) in &self.workers {
            let (Some(id), Some(good)) = (&worker.container, worker.on_record(*kind)) else { continue };
            let of = record.containers.entry(name.clone());
            of.or_insert_with(|| ContainerProbeRecord::new(id.clone())).results.insert(*kind, good);
        }
        for (name, killed) in must_restart {
            let of = record.containers.entry(name.clone());
            let of = of.or_insert_with(|| ContainerProbeRecord::new(killed.clone()));
            of.must_restart = of.id == *killed;
        }
        record
    }
}

impl Worker {
    fn on_record(&self, kind: ProbeKind) -> Option<bool> {
        let good = match self.result.filter(|_| self.has_result)? {
            ProbeResult::Success => true,
            ProbeResult::Failure => false,
            ProbeResult::Unknown => return None,
        };
        (kind != ProbeKind::Liveness || !good).then_some(good)
    }
}
