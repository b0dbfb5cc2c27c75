//! Schedules probes of containers, and derives results from their outcomes.
//!
//! ```text
//!   update_workers  after an observation: attaches each worker to the newest instance of its container
//!      |
//!   (status, lifecycle and plan read the results)
//!      |
//!   schedule        starts the attempts that are due, and sets one timer per pod for the others
//!      |
//!   record_outcome  counts an outcome against the thresholds, which may change the result
//! ```
//!
//! There is one worker per container and kind of probe. It is plain data, without a task or thread. Attempts are made
//! at multiples of the probe's period plus an offset that is derived from the worker's name, so that a hundred pods
//! that start together are not probed together. Only first attempts and requested attempts are made at other times.
//!
//! A late outcome about an earlier instance is dropped. The code that runs the probe enforces its timeout.

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
pub use results::record_outcome;
pub use schedule::{ATTEMPTS, DueProbe, schedule};
pub use workers::{ProbeInputs, update_workers};

use crate::status::ProbeReport;

/// The probes of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodProbes {
    /// Workers are created once in a pod's life.
    workers_made: bool,
    workers: BTreeMap<(String, ProbeKind), Worker>,
    /// The record that an earlier agent left.
    restored_record: ProbeRecord,
    /// The record that was stored last.
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

/// One probe of one container, through all its instances.
#[derive(Clone, Debug, Default, PartialEq)]
struct Worker {
    /// The instance that the other fields are about.
    container: Option<ContainerId>,
    running: bool,
    /// The instance ran before this agent started, so its first attempt is not urgent.
    found_running: bool,
    /// No attempt before this.
    earliest_attempt: Mono,
    next: Option<Mono>,
    /// The next attempt is not at a time of the schedule.
    off_schedule: bool,
    in_flight: Option<InFlight>,
    /// Another attempt was requested and follows as soon as this one ends.
    attempt_requested: bool,
    /// `None`: no result yet, and the container predates this agent, so the status keeps what the API server shows.
    result: Option<ProbeResult>,
    /// True once a probe attempt (of this or an earlier agent) produced the result; false for the initial result.
    has_result: bool,
    /// The last outcome, and how often in a row it came.
    last_result: Option<bool>,
    result_run: u32,
    /// This instance is not probed any more.
    on_hold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct InFlight {
    /// An attempt before the first scheduled time: only a success counts.
    early: bool,
}

impl PodProbes {
    /// Starts with the record that an earlier agent left of the pod.
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

    /// Whether the container passed its startup probe, or has none, whichever instance the result is of.
    fn is_started(&self, container: &str) -> bool {
        self.worker(container, ProbeKind::Startup).is_none_or(|w| w.result == Some(ProbeResult::Success))
    }

    /// Probe results for the pod's status, by container. Empty until the workers are created.
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

    /// Whether the pod has no probes to run.
    pub fn is_idle(&self) -> bool {
        self.workers_made && self.workers.is_empty()
    }
}

/// Containers that may define probes.
fn probed_containers(pod: &PodView) -> impl Iterator<Item = &k8s::Container> {
    pod.init_containers().iter().filter(|c| is_sidecar(c)).chain(pod.containers())
}

/// The probe of that kind, if the container defines it.
pub(crate) fn probe_of(container: &k8s::Container, kind: ProbeKind) -> Option<&k8s::Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}
