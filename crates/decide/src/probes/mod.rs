//! When a container is probed, and what its answers mean.
//!
//! ```text
//!   attend    a reading of the pod: which instance each worker looks after
//!      |
//!   (status, lifecycle, plan: see the verdicts)
//!      |
//!   schedule  what is due now goes out, the rest waits for one timer per pod
//!      |
//!   done      an answer: counted against the thresholds, it may become the verdict
//! ```
//!
//! A worker per container and kind of probe; no task and no thread belongs to it. Attempts stand on a grid of the
//! probe's period whose offset comes from the worker's name: a hundred pods that began together are not asked
//! together. Off the grid are only first attempts and those that something has asked for.
//!
//! A late answer about an earlier instance is dropped. An answer that never comes is the transport's to bound.

mod call;
mod record;
mod results;
mod schedule;
#[cfg(test)]
mod tests;
mod timing;
mod workers;

use std::collections::BTreeMap;

use model::k8s;
use model::pod::{PodView, is_sidecar};
use model::probe::{ProbeKind, ProbeRecord};
use model::{ContainerId, Mono};

pub use call::call;
pub use results::{ProbeUpdate, record_outcome};
pub use schedule::{ATTEMPTS, DueProbe, schedule};
pub use workers::{ProbeInputs, update_workers};

use crate::status::ProbeReport;

/// The probes of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodProbes {
    /// Workers are made once in a pod's life.
    workers_made: bool,
    workers: BTreeMap<(String, ProbeKind), Worker>,
    /// What an earlier agent left on record.
    restored_record: ProbeRecord,
    /// What was last put on record.
    pub stored_record: ProbeRecord,
    /// The pod's one timer, as it is set.
    pub timer: Option<Mono>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeResult {
    Unknown,
    Success,
    Failure,
}

impl ProbeResult {
    fn of(good: bool) -> Self {
        if good { ProbeResult::Success } else { ProbeResult::Failure }
    }
}

/// Looks after one probe of one container, through all its instances.
#[derive(Clone, Debug, Default, PartialEq)]
struct Worker {
    /// The instance that the rest is about.
    container: Option<ContainerId>,
    running: bool,
    /// It ran before this agent did: nobody waits for its first answer.
    found_running: bool,
    /// No attempt before this.
    earliest_attempt: Mono,
    next: Option<Mono>,
    /// The next attempt does not stand on the grid.
    off_schedule: bool,
    in_flight: Option<InFlight>,
    /// Somebody wants another attempt as soon as this one is over.
    attempt_requested: bool,
    /// `None`: nothing may be said, because an earlier agent said it.
    result: Option<ProbeResult>,
    /// The verdict comes from an answer, not from the beginning.
    has_result: bool,
    /// The last answer, and how often in a row it came.
    last_result: Option<bool>,
    result_run: u32,
    /// Nothing more to ask this instance.
    on_hold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct InFlight {
    /// A look before the grid's first time: only a success counts.
    early: bool,
}

impl PodProbes {
    /// With what an earlier agent knew of the pod.
    pub fn remember(&mut self, record: ProbeRecord) {
        self.stored_record = record.clone();
        self.restored_record = record;
    }

    fn worker(&self, container: &str, kind: ProbeKind) -> Option<&Worker> {
        self.workers.get(&(container.to_owned(), kind))
    }

    fn result(&self, container: &str, kind: ProbeKind) -> Option<ProbeResult> {
        self.worker(container, kind).and_then(|w| w.result)
    }

    /// Whether this instance failed the probe and has to be killed for it.
    pub fn has_failed(&self, container: &str, kind: ProbeKind, id: &ContainerId) -> bool {
        self.worker(container, kind)
            .is_some_and(|w| w.container.as_ref() == Some(id) && w.result == Some(ProbeResult::Failure))
    }

    /// Whether this instance passed its startup probe, or has none.
    pub fn has_started(&self, container: &str, id: &ContainerId) -> bool {
        self.worker(container, ProbeKind::Startup)
            .is_none_or(|w| w.container.as_ref() == Some(id) && w.result == Some(ProbeResult::Success))
    }

    /// The same without regard to the instance.
    fn is_started(&self, container: &str) -> bool {
        self.worker(container, ProbeKind::Startup).is_none_or(|w| w.result == Some(ProbeResult::Success))
    }

    /// What a status is to say, by container. Empty until the workers are made.
    pub fn reports(&self, pod: &PodView) -> BTreeMap<String, ProbeReport> {
        if !self.workers_made {
            return BTreeMap::new();
        }
        let report = |c: &k8s::Container| {
            let said = |kind| self.result(&c.name, kind).map(|verdict| verdict == ProbeResult::Success);
            ProbeReport {
                startup: said(ProbeKind::Startup),
                has_startup_worker: self.worker(&c.name, ProbeKind::Startup).is_some(),
                readiness: said(ProbeKind::Readiness),
                has_readiness_worker: self.worker(&c.name, ProbeKind::Readiness).is_some(),
            }
        };
        probed_containers(pod).map(|c| (c.name.clone(), report(c))).collect()
    }

    /// Whether there is anything to look after.
    pub fn is_idle(&self) -> bool {
        self.workers_made && self.workers.is_empty()
    }
}

/// Containers that may define probes.
fn probed_containers(pod: &PodView) -> impl Iterator<Item = &k8s::Container> {
    pod.init_containers().iter().filter(|c| is_sidecar(c)).chain(pod.containers())
}

/// The probe of that kind, if the container defines it.
pub fn probe_of(container: &k8s::Container, kind: ProbeKind) -> Option<&k8s::Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}
