//! `started` and `ready` of a container.

use std::time::Duration;

use model::pod::{ContainerKind, is_sidecar};
use model::{Wall, k8s};

use super::{ProbeReport, StatusInputs, state};

/// If a container started this long before the agent, an earlier agent has reported its readiness.
const STARTED_BEFORE_AGENT: Duration = Duration::from_secs(10);

/// Sets `started` and `ready`. A `started` that is already set was carried over from the same instance.
pub fn fill(
    inputs: &StatusInputs<'_>,
    kind: ContainerKind,
    container: &k8s::Container,
    status: &mut k8s::ContainerStatus,
) {
    let normal_init = kind == ContainerKind::Init && !is_sidecar(container);
    let probes = report(inputs, container, normal_init);
    let started = is_started(inputs, status, probes);
    status.started = Some(started);
    status.ready = if normal_init {
        state::terminated(status).is_some_and(|end| end.exit_code == 0)
    } else {
        started && is_ready(inputs, container, status, probes)
    };
}

/// If no report exists yet, assume that a worker will exist for each probe of the spec.
fn report(inputs: &StatusInputs<'_>, container: &k8s::Container, normal_init: bool) -> ProbeReport {
    let expected = ProbeReport {
        has_startup_worker: !normal_init && container.startup_probe.is_some(),
        has_readiness_worker: !normal_init && container.readiness_probe.is_some(),
        ..Default::default()
    };
    inputs.probes.get(&container.name).copied().unwrap_or(expected)
}

fn is_started(inputs: &StatusInputs<'_>, status: &k8s::ContainerStatus, probes: ProbeReport) -> bool {
    if state::running(status).is_none() {
        return false;
    }
    let said_before = inputs.keeps_readiness && status.started == Some(true);
    probes.startup.unwrap_or(said_before || !probes.has_startup_worker)
}

fn is_ready(
    inputs: &StatusInputs<'_>,
    container: &k8s::Container,
    status: &k8s::ContainerStatus,
    probes: ProbeReport,
) -> bool {
    let ready = probes.readiness == Some(true) || !probes.has_readiness_worker;
    let keeps = inputs.keeps_readiness && judged_before(inputs, status);
    if ready || probes.readiness.is_some() || !keeps {
        return ready;
    }
    // readiness reported before the agent started stays until the first result
    container.readiness_probe.is_none() || api_says_ready(inputs)
}

fn judged_before(inputs: &StatusInputs<'_>, status: &k8s::ContainerStatus) -> bool {
    let started = state::running(status).and_then(|running| running.started_at.as_ref());
    started.is_some_and(|at| Wall::from_timestamp(at.0).plus(STARTED_BEFORE_AGENT) < inputs.agent_started)
}

fn api_says_ready(inputs: &StatusInputs<'_>) -> bool {
    let conditions = inputs.api().and_then(|api| api.conditions.as_ref());
    conditions.is_some_and(|list| list.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}
