//! Reading and making the three-way state of a container status.

use model::k8s::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};

/// Exit code shown for a container whose real one nobody knows.
const UNKNOWN_EXIT_CODE: i32 = 137;
pub(crate) const REASON_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
pub(crate) const MESSAGE_LOST: &str = "The container could not be located when the pod was terminated";

pub fn running(status: &ContainerStatus) -> Option<&ContainerStateRunning> {
    status.state.as_ref()?.running.as_ref()
}

pub fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

pub fn waiting(status: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    status.state.as_ref()?.waiting.as_ref()
}

pub(crate) fn last_terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref()?.terminated.as_ref()
}

pub(crate) fn waiting_state(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: super::text(reason), message: super::text(message) };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

pub(crate) fn terminated_state(terminated: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

/// The end of a container that nobody saw.
pub fn lost(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: UNKNOWN_EXIT_CODE,
        reason: super::text(reason),
        message: super::text(message),
        ..Default::default()
    }
}

/// The status of a container by name.
pub fn by_name<'a>(statuses: &[&'a ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().copied().find(|status| status.name == name)
}
