//! What neither the runtime nor the sources know about a pod: failed starts, back-offs, states of images, completed
//! preparations. A crash may lose it without harm, because each of these is found or tried again.

use std::collections::{BTreeMap, BTreeSet};

use model::files::EnvFileRead;
use model::k8s::Container;
use model::quantity::Quantity;
use model::{ContainerId, Mono, SandboxId};

use crate::back_off::{CrashBackOff, PullBackOff};
use crate::images::{ImageState, volume_key};
pub use crate::status::StartFailure;

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Directories, cgroup and volumes were set up by this agent, or found to exist.
    pub prerequisites_ready: bool,
    /// Somebody removed the pod's cgroup while the pod ran: its processes are held to nothing any more.
    pub cgroup_lost: bool,
    /// Highest log number of each container, from disk.
    pub log_numbers: BTreeMap<String, u32>,
    /// Why a container waits, by name. Shown in its status. Image volumes are here too, by their keys.
    pub start_failures: BTreeMap<String, StartFailure>,
    /// When the start of a container may be retried, by container.
    pub retry_at: BTreeMap<String, Mono>,
    /// The number of the instance whose start failed last, by container.
    pub failed_attempts: BTreeMap<String, u32>,
    /// Containers that were created and are not known to have started, and until when the runtime may still start each
    /// of them. Zero: it has refused to.
    pub may_start_until: BTreeMap<ContainerId, Mono>,
    /// Environment variables read from files, for a container that is about to start. They are read again for each
    /// start.
    pub env_files: BTreeMap<String, Vec<EnvFileRead>>,
    /// The back-off of a failed preparation or sandbox.
    pub pod_retry: Option<PodRetry>,
    /// Volumes that were set up, and not torn down since.
    pub volumes_set_up: BTreeSet<String>,
    /// Since when the pod waits for volumes.
    pub waiting_for_volumes_since: Option<Mono>,
    /// Volumes whose last set-up failed.
    pub volume_retry: BTreeMap<String, VolumeRetry>,
    /// Sizes on this node of the CSI volumes with a claim, by volume.
    pub volume_sizes: BTreeMap<String, VolumeSize>,
    /// Volumes whose last expansion failed.
    pub expand_retry: BTreeMap<String, VolumeRetry>,
    /// The content version that was written last, for each volume whose files the agent writes.
    pub written_file_versions: BTreeMap<String, u64>,
    /// Volumes whose files are being replaced while a plan runs.
    pub volumes_being_updated: BTreeSet<String>,
    /// When volumes with requiresRepublish are published again.
    pub republish_at: BTreeMap<String, Mono>,
    pub crash_back_offs: BTreeMap<String, CrashBackOff>,
    pub pull_back_offs: BTreeMap<String, PullBackOff>,
    pub image_states: BTreeMap<String, ImageState>,
    /// The image that each container and image volume was last resolved to, as the runtime refers to it.
    pub resolved_images: BTreeMap<String, String>,
    /// Containers that were killed for a restart, whatever their restart policy says about the exit code.
    pub must_restart: BTreeMap<String, ContainerId>,
    /// All containers are being restarted, and some are not removed yet.
    pub restarting_all_containers: bool,
    /// Running containers that have to be stopped, with the reason as a sentence.
    pub containers_to_stop: BTreeMap<ContainerId, String>,
    /// Containers whose preStop hook has begun.
    pub pre_stop_begun: BTreeSet<ContainerId>,
    /// Sandboxes whose stop succeeded, so that it is not requested again.
    pub stopped_sandboxes: BTreeSet<SandboxId>,
    /// Containers whose StopContainer call succeeded. If one is still listed as running, the stop had no effect and is
    /// retried with back-off.
    pub stopped_containers: BTreeSet<ContainerId>,
    /// Volumes and cgroup are released.
    pub volumes_and_cgroup_released: bool,
    /// Directories and logs are removed.
    pub directories_removed: bool,
    /// Dead containers to remove because the node has too many.
    pub excess_dead_containers: BTreeSet<ContainerId>,
    /// The node needs the room: of a pod that has ended every container and sandbox is removed.
    pub reclaim_containers: bool,
    /// Containers whose image may have arrived: the image is inspected before waiting any longer.
    pub recheck_images: BTreeSet<String>,
    /// Events that were recorded for the state we are in, so that they are not repeated at every plan.
    pub recorded_event_keys: BTreeSet<String>,
}

impl Ledger {
    /// Forgets the states of the container's images after a start, so that the next start inspects them again.
    pub fn forget_images_of(&mut self, container: &Container) {
        self.image_states.remove(&container.name);
        for mount in container.volume_mounts.iter().flatten() {
            self.image_states.remove(&volume_key(&mount.name));
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodRetry {
    pub step: &'static str,
    pub message: String,
    pub at: Mono,
    pub attempts: u32,
}

/// The known size of a volume on this node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VolumeSize {
    pub size: Quantity,
    /// The driver does not expand the volume while it is in use.
    pub in_use: bool,
    /// Resource version of the claim for which no expansion by the node is needed or allowed.
    pub not_our_turn_for_claim_version: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRetry {
    pub message: String,
    pub at: Mono,
    pub attempts: u32,
}
