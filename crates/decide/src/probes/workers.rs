//! Creates and removes probe workers, and attaches each to the newest instance of its container.

use model::PodPhase;
use std::time::Duration;

use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::pod::PodView;
use model::probe::ProbeKind;
use model::{Mono, Now, Wall, k8s};

use super::timing::{AttemptSchedule, Timing};
use super::{PodProbes, ProbeResult, Worker, probe_of, probed_containers};
use crate::lifecycle::Lifecycle;

/// An instance that started this long before the agent was judged by an earlier agent.
const STARTED_BEFORE_AGENT: Duration = Duration::from_secs(10);

/// What the probe workers of a pod depend on.
pub struct ProbeInputs<'a> {
    pub pod: &'a PodView,
    pub observed: Option<&'a ObservedPod>,
    pub lifecycle: &'a Lifecycle,
    /// The last status; without one, the status that came with the pod.
    pub status: Option<&'a k8s::PodStatus>,
    /// What stands before `://` in container IDs.
    pub runtime_name: &'a str,
    pub agent_started: Wall,
    pub now: Now,
}

/// Creates the workers of a pod that may start, removes those that are no longer needed, and attaches the others to the
/// observed instances.
pub fn update_workers(probes: &mut PodProbes, around: &ProbeInputs) {
    if !probes.workers_made {
        probes.workers_made = true;
        if around.lifecycle.may_start() {
            make(probes, around.pod);
        }
    }
    if around.lifecycle.is_terminated() || phase_is_terminal(around.status) {
        probes.workers.clear();
    }
    if probes.workers.is_empty() {
        return;
    }
    if around.lifecycle.termination_requested() {
        let sidecar = |name: &str| around.pod.init_containers().iter().any(|c| c.name == name);
        probes.workers.retain(|(name, kind), _| *kind == ProbeKind::Readiness || sidecar(name));
    }
    let Some(observed) = around.observed else { return };
    let PodProbes { workers, restored_record: memory, .. } = probes;
    for ((name, kind), worker) in workers {
        // A container in state Created does not run yet and can't be probed.
        let newest = observed.newest(name).filter(|c| c.state != ContainerState::Created);
        if let Some(newest) = newest.filter(|c| worker.container.as_ref() != Some(&c.id)) {
            worker.attach_instance(*kind, newest, around);
            worker.set_initial_result(*kind, newest, memory.of(name, &newest.id), around);
        }
        worker.running = newest.is_some_and(|c| c.state == ContainerState::Running);
        if !worker.running {
            worker.clear_attempt();
        }
    }
}

fn make(probes: &mut PodProbes, pod: &PodView) {
    for container in probed_containers(pod) {
        for kind in ProbeKind::ALL.into_iter().filter(|kind| probe_of(container, *kind).is_some()) {
            probes.workers.insert((container.name.clone(), kind), Worker::default());
        }
    }
}

fn phase_is_terminal(status: Option<&k8s::PodStatus>) -> bool {
    status.and_then(PodPhase::of).is_some_and(PodPhase::is_terminal)
}

impl Worker {
    /// Attaches the worker to a new instance. The count of equal readiness results goes on. Startup and liveness
    /// results can kill a container, so a new instance starts with a count of zero.
    fn attach_instance(&mut self, kind: ProbeKind, instance: &ObservedContainer, around: &ProbeInputs) {
        let (last, in_a_row) = match kind {
            ProbeKind::Readiness => (self.last_result, self.result_run),
            ProbeKind::Startup | ProbeKind::Liveness => (None, 0),
        };
        *self = Worker {
            container: Some(instance.id.clone()),
            found_running: instance.started_at < around.agent_started,
            last_result: last,
            result_run: in_a_row,
            ..Default::default()
        };
        let spec = around.pod.container(&instance.name).and_then(|(_, c)| probe_of(c, kind));
        let Some(timing) = spec.map(Timing::of) else { return };
        self.earliest_attempt = earliest_attempt(instance.started_at, timing.delay, around.now);
        if self.found_running {
            // After a restart of the agent all containers would be probed at once, so first attempts follow the
            // schedule.
            let grid = AttemptSchedule::new(&around.pod.uid, &instance.name, kind, timing.period);
            self.earliest_attempt = grid.from(self.earliest_attempt.max(around.now.mono));
        }
    }

    /// Sets the initial result of an instance, or the one that an earlier agent recorded.
    fn set_initial_result(
        &mut self,
        kind: ProbeKind,
        instance: &ObservedContainer,
        record: Option<&model::probe::ContainerProbeRecord>,
        around: &ProbeInputs,
    ) {
        let remembered = record.and_then(|r| r.results.get(&kind)).copied();
        let said = kind == ProbeKind::Startup && was_started(instance, around);
        let elder = instance.started_at.plus(STARTED_BEFORE_AGENT) < around.agent_started;
        self.has_result = remembered.is_some() || said;
        self.result = match (remembered, record) {
            (Some(good), _) => Some(ProbeResult::of(good)),
            (None, _) if said => Some(ProbeResult::Success),
            (None, None) if elder => None,
            (None, _) => Some(initial(kind)),
        };
        self.on_hold = stops_probing(kind, self.result);
    }

    /// Drops the attempt that is planned or in flight: its outcome would be about the past.
    pub(super) fn clear_attempt(&mut self) {
        self.in_flight = None;
        self.next = None;
        self.attempt_requested = false;
        self.off_schedule = false;
    }
}

/// The initial result of each kind of probe.
fn initial(kind: ProbeKind) -> ProbeResult {
    match kind {
        ProbeKind::Startup => ProbeResult::Unknown,
        ProbeKind::Readiness => ProbeResult::Failure,
        ProbeKind::Liveness => ProbeResult::Success,
    }
}

/// A container that failed its liveness probe is about to be killed, and a startup probe is decided once.
pub(super) fn stops_probing(kind: ProbeKind, verdict: Option<ProbeResult>) -> bool {
    match kind {
        ProbeKind::Startup => matches!(verdict, Some(ProbeResult::Success | ProbeResult::Failure)),
        ProbeKind::Liveness => verdict == Some(ProbeResult::Failure),
        ProbeKind::Readiness => false,
    }
}

/// The runtime reports start times in wall-clock time. The wait is never longer than `delay`, even if the clock was set
/// back.
fn earliest_attempt(started_at: Wall, delay: Duration, now: Now) -> Mono {
    now.mono_at(started_at.plus(delay)).min(now.mono.plus(delay))
}

fn was_started(instance: &ObservedContainer, around: &ProbeInputs) -> bool {
    let lists = |s: &'_ k8s::PodStatus| {
        let regular = s.container_statuses.iter().flatten();
        let id = format!("{}://{}", around.runtime_name, instance.id);
        regular
            .chain(s.init_container_statuses.iter().flatten())
            .any(|c| c.container_id.as_deref() == Some(&id) && c.started == Some(true))
    };
    around.status.is_some_and(lists)
}
