//! What neither the runtime nor the sources can tell about a pod: failed starts, back-offs, images at hand, what was
//! prepared. Lost in a crash without harm: each of these is found again or tried again.

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
    /// Directories, cgroup and volumes were made by this agent, or found to be there.
    pub prerequisites_ready: bool,
    /// Highest log number of each container, from disk.
    pub log_numbers: BTreeMap<String, u32>,
    /// Why a container waits, by name. Shown in its status. Image volumes are here too, by their keys.
    pub start_failures: BTreeMap<String, StartFailure>,
    /// A container is not tried again before this.
    pub retry_at: BTreeMap<String, Mono>,
    /// The number of the instance whose start failed last, by container.
    pub failed_attempts: BTreeMap<String, u32>,
    /// What the variables of a container that is about to start were found to be, by container. Read for each start.
    pub env_files: BTreeMap<String, Vec<EnvFileRead>>,
    /// Preparation or sandbox is not tried again before this.
    pub pod_retry: Option<PodRetry>,
    /// Volumes that were set up, and not torn down since.
    pub volumes_set_up: BTreeSet<String>,
    /// Since when volumes are waited for.
    pub waiting_for_volumes_since: Option<Mono>,
    /// Volumes whose set-up failed last.
    pub volume_retry: BTreeMap<String, VolumeRetry>,
    /// Of volumes of storage drivers with a claim: how large they are here.
    pub volume_sizes: BTreeMap<String, VolumeSize>,
    /// Volumes whose growth failed last.
    pub expand_retry: BTreeMap<String, VolumeRetry>,
    /// Of each volume whose files are made here: the version that was written last.
    pub written_file_versions: BTreeMap<String, u64>,
    /// Volumes whose files are being replaced beside a plan.
    pub volumes_being_updated: BTreeSet<String>,
    /// When volumes are published again whose drivers want that.
    pub republish_at: BTreeMap<String, Mono>,
    pub crash_back_offs: BTreeMap<String, CrashBackOff>,
    pub pull_back_offs: BTreeMap<String, PullBackOff>,
    pub image_states: BTreeMap<String, ImageState>,
    /// Containers killed in order to be started again, whatever their policy says of how they ended.
    pub must_restart: BTreeMap<String, ContainerId>,
    /// All containers start over, and some are still to be removed for it.
    pub restarting_all_containers: bool,
    /// Running containers that have to be stopped, with the sentence that says why.
    pub containers_to_stop: BTreeMap<ContainerId, String>,
    /// Containers whose preStop hook was begun.
    pub pre_stop_begun: BTreeSet<ContainerId>,
    /// Sandboxes whose stop succeeded, so that it is not asked again.
    pub stopped_sandboxes: BTreeSet<SandboxId>,
    /// Containers whose stop succeeded: one of them that still runs makes the runtime a liar.
    pub stopped_containers: BTreeSet<ContainerId>,
    /// Volumes and cgroup are released.
    pub volumes_and_cgroup_released: bool,
    /// Directories and logs are removed.
    pub directories_removed: bool,
    /// Dead containers that have to go because the node has too many.
    pub excess_dead_containers: BTreeSet<ContainerId>,
    /// Containers whose image may have arrived: look before waiting any longer.
    pub recheck_images: BTreeSet<String>,
    /// Events that were recorded for the state we are in, so that they are not repeated at every plan.
    pub recorded_event_keys: BTreeSet<String>,
}

impl Ledger {
    /// A start was tried: the next one looks for the container's images anew.
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

/// What this node knows of the size of a volume.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VolumeSize {
    pub size: Quantity,
    /// Its driver does not make it larger while it is in use.
    pub in_use: bool,
    /// With this version of its claim it was not the node's turn.
    pub not_our_turn_for_claim_version: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRetry {
    pub message: String,
    pub at: Mono,
    pub attempts: u32,
}
