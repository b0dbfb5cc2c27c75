//! Derives the container statuses of one list of the spec.
//!
//! Per container: `missing` for a container that the runtime does not list (it was never created, has ended, or
//! vanished), or `seen` for one that it lists. Then `show_failed_start` replaces the state if a start failed, and
//! `ready::fill` sets readiness.

use std::collections::BTreeSet;

use model::k8s;
use model::observed::{ContainerState, ObservedContainer};
use model::pod::{ContainerKind, PodView, is_sidecar};
use model::reason::Reason;

use super::convert::{carry_over, convert};
use super::state::{self, REASON_STATUS_UNKNOWN};
use super::{StatusInputs, ready, some_unless_empty};
use crate::restart;

const MESSAGE_REMOVED: &str = "The container is removed because RestartAllContainers in place";
// both spaces belong to it
const MESSAGE_VANISHED: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
const MESSAGE_INIT_VANISHED: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// Regular and ephemeral statuses are sorted by name, init ones are in the order of the spec.
pub fn container_statuses(inputs: &StatusInputs<'_>, kind: ContainerKind) -> Vec<k8s::ContainerStatus> {
    let list = StatusList {
        inputs,
        kind,
        default_reason: default_reason(inputs.pod),
        restarting_all: inputs.restarting_all(),
        regular_created: any_regular_created(inputs),
    };
    let mut statuses: Vec<_> =
        containers_of(inputs.pod, kind).iter().map(|container| list.status(container)).collect();
    if kind != ContainerKind::Init {
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
    }
    statuses
}

fn containers_of(pod: &PodView, kind: ContainerKind) -> &[k8s::Container] {
    match kind {
        ContainerKind::Regular => pod.containers(),
        ContainerKind::Init => pod.init_containers(),
        ContainerKind::Ephemeral => pod.ephemeral_containers(),
    }
}

fn default_reason(pod: &PodView) -> Reason {
    if pod.init_containers().is_empty() { Reason::ContainerCreating } else { Reason::PodInitializing }
}

fn any_regular_created(inputs: &StatusInputs<'_>) -> bool {
    inputs.pod.containers().iter().any(|container| {
        inputs.observed.newest(&container.name).is_some_and(|c| c.state != ContainerState::Unknown)
    })
}

struct StatusList<'a> {
    inputs: &'a StatusInputs<'a>,
    kind: ContainerKind,
    default_reason: Reason,
    restarting_all: bool,
    /// A regular container was created, so all init containers have completed.
    regular_created: bool,
}

impl StatusList<'_> {
    fn status(&self, container: &k8s::Container) -> k8s::ContainerStatus {
        let old = self.old_status(&container.name);
        let mut instances = self.inputs.observed.containers.iter().filter(|c| c.name == container.name);
        let newest = instances.next();
        let mut status = match newest {
            None => self.missing(container, old),
            Some(newest) => self.seen(container, newest, instances.next(), old),
        };
        self.show_failed_start(container, newest, &mut status);
        if self.kind != ContainerKind::Ephemeral {
            ready::fill(self.inputs, self.kind, container, &mut status);
        }
        status
    }

    fn old_status(&self, name: &str) -> Option<&k8s::ContainerStatus> {
        let old = self.inputs.previous()?;
        let list = match self.kind {
            ContainerKind::Regular => &old.container_statuses,
            ContainerKind::Init => &old.init_container_statuses,
            ContainerKind::Ephemeral => &old.ephemeral_container_statuses,
        };
        list.iter().flatten().find(|status| status.name == name)
    }

    /// The status of a container that the runtime does not list.
    fn missing(
        &self,
        container: &k8s::Container,
        old: Option<&k8s::ContainerStatus>,
    ) -> k8s::ContainerStatus {
        let Some(old) = old else { return self.initial_status(container) };
        if self.restarting_all && state::waiting(old).is_none() {
            return self.removed_for_restart(container, old);
        }
        if state::terminated(old).is_some() {
            return old.clone();
        }
        let mut status = self.initial_status(container);
        status.restart_count = old.restart_count;
        status.last_state = old.last_state.clone().or(status.last_state);
        if is_waiting_for(old, Reason::RestartingAllContainers) {
            // the state stays until the next instance is created
            status.state = old.state.clone();
        }
        if state::running(old).is_some() && state::last_terminated(&status).is_none() {
            // a terminated last state shows that the container ran
            let end = state::lost(REASON_STATUS_UNKNOWN, MESSAGE_VANISHED);
            status.last_state = Some(state::terminated_state(end));
            if !self.inputs.pod.is_deleting() {
                status.restart_count = status.restart_count.saturating_add(1);
            }
        }
        status
    }

    /// The status of a container that was never created.
    fn initial_status(&self, container: &k8s::Container) -> k8s::ContainerStatus {
        k8s::ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(state::waiting_state(self.default_reason.as_str(), "")),
            last_state: Some(k8s::ContainerState::default()),
            volume_mounts: self.volume_mounts(container),
            ..Default::default()
        }
    }

    fn removed_for_restart(
        &self,
        container: &k8s::Container,
        old: &k8s::ContainerStatus,
    ) -> k8s::ContainerStatus {
        let end = state::lost(Reason::RestartingAllContainers.as_str(), MESSAGE_REMOVED);
        k8s::ContainerStatus {
            restart_count: old.restart_count.saturating_add(1),
            state: Some(state::waiting_state(Reason::RestartingAllContainers.as_str(), MESSAGE_REMOVED)),
            last_state: Some(state::terminated_state(end)),
            ..self.initial_status(container)
        }
    }

    fn volume_mounts(&self, container: &k8s::Container) -> Option<Vec<k8s::VolumeMountStatus>> {
        let status = |mount: &k8s::VolumeMount| {
            let read_only = mount.read_only.unwrap_or(false);
            let recursive = match mount.recursive_read_only.as_deref() {
                Some("Enabled" | "IfPossible") => self.inputs.recursive_read_only,
                _ => false,
            };
            k8s::VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only
                    .then(|| if recursive { "Enabled" } else { "Disabled" }.to_owned()),
                volume_status: None,
            }
        };
        some_unless_empty(container.volume_mounts.iter().flatten().map(status).collect())
    }

    /// Sets the digests of mounted image volumes. They are known once the runtime has created the container.
    fn set_image_references(&self, status: &mut k8s::ContainerStatus, instance: &ObservedContainer) {
        let volumes = self.inputs.pod.spec().volumes.iter().flatten();
        let images: BTreeSet<&str> =
            volumes.filter(|volume| volume.image.is_some()).map(|volume| volume.name.as_str()).collect();
        for mount in status.volume_mounts.iter_mut().flatten() {
            // A path in the spec may leave out the leading slash, which the runtime is told.
            let path = mount.mount_path.trim_start_matches('/');
            let mounted = instance.image_mounts.iter().find(|(at, _)| at.trim_start_matches('/') == path);
            let Some((_, image)) = mounted else { continue };
            if images.contains(mount.name.as_str()) {
                mount.volume_status = Some(k8s::VolumeStatus {
                    image: Some(k8s::ImageVolumeStatus { image_ref: image.clone() }),
                });
            }
        }
    }

    /// The status of a container that the runtime lists.
    fn seen(
        &self,
        container: &k8s::Container,
        newest: &ObservedContainer,
        before: Option<&ObservedContainer>,
        old: Option<&k8s::ContainerStatus>,
    ) -> k8s::ContainerStatus {
        let mut status = convert(self.inputs, container, newest, old, self.restarting_all);
        if let Some(old) = old {
            carry_over(&mut status, newest, old);
        }
        // mounts of a container never change, so the ones reported before stay
        status.volume_mounts =
            old.and_then(|old| old.volume_mounts.clone()).or_else(|| self.volume_mounts(container));
        if self.inputs.image_volume_digests {
            self.set_image_references(&mut status, newest);
        }
        // An earlier instance that did not exit has no end to show, so the carried-over last state stays. It also stays
        // if the newest instance is in state Unknown and was already reported.
        let given_up = newest.state == ContainerState::Unknown
            && old.is_some_and(|old| old.container_id == status.container_id);
        if let Some(before) = before.filter(|c| c.state == ContainerState::Exited && !given_up) {
            status.last_state = convert(self.inputs, container, before, old, self.restarting_all).state;
        }
        if newest.state == ContainerState::Exited && self.must_restart(newest) {
            show_awaited_restart(&mut status);
        }
        status
    }

    fn must_restart(&self, newest: &ObservedContainer) -> bool {
        self.inputs.must_restart.get(&newest.name) == Some(&newest.id)
    }

    /// Shows a failed start as the waiting state of the container.
    fn show_failed_start(
        &self,
        container: &k8s::Container,
        newest: Option<&ObservedContainer>,
        status: &mut k8s::ContainerStatus,
    ) {
        if self.kind == ContainerKind::Init {
            if newest.is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0) {
                return;
            }
            // when all containers are restarted, the init containers run again
            let behind = self.regular_created && !self.restarting_all;
            if newest.is_none() && behind && !is_sidecar(container) {
                if state::waiting(status).is_some() {
                    status.state = Some(init_ended_unseen());
                }
                return;
            }
        }
        if !restart::should_restart(self.inputs.pod, container, newest) {
            return;
        }
        let Some(failure) = self.inputs.failures.get(&container.name) else { return };
        if state::terminated(status).is_some() {
            status.last_state = status.state.take();
        }
        if newest.is_none() {
            // the instance that exited is no longer listed: only its last state is kept
            let (restart_count, last_state) = (status.restart_count, status.last_state.take());
            *status = k8s::ContainerStatus { restart_count, last_state, ..self.initial_status(container) };
        }
        status.state = Some(state::waiting_state(failure.reason.as_str(), &failure.message));
    }
}

/// The API server lets no container leave the terminated state against its restart policy. One that was killed in
/// order to be started again has not ended for good, so its end is shown as that of the last instance.
fn show_awaited_restart(status: &mut k8s::ContainerStatus) {
    status.last_state = status.state.take();
    status.state = Some(state::waiting_state(Reason::ContainerCreating.as_str(), ""));
}

fn is_waiting_for(status: &k8s::ContainerStatus, reason: Reason) -> bool {
    let waiting = state::waiting(status).and_then(|waiting| waiting.reason.as_deref());
    waiting.and_then(Reason::parse) == Some(reason)
}

/// Dead init containers may be removed once the pod runs.
fn init_ended_unseen() -> k8s::ContainerState {
    state::terminated_state(k8s::ContainerStateTerminated {
        exit_code: 0,
        reason: Some("Completed".to_owned()),
        message: Some(MESSAGE_INIT_VANISHED.to_owned()),
        ..Default::default()
    })
}
