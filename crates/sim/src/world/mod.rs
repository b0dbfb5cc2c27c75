//! The simulated host: a runtime, images, disk and cgroups. It carries out calls at the instant they are applied and
//! changes by itself in between. When a call arrives, and whether its caller gets an answer, is decided by the driver.

mod attachments;
mod disk;
mod images;
mod logs;
mod memory;
mod objects;
mod runtime;
mod signer;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use model::cgroup::{CgroupName, CgroupValues};
use model::{ContainerId, Mono, Now, PodUid, SandboxId, Wall};

pub use attachments::Attachments;
pub use disk::Disk;
pub use images::{ImageFate, Images};
pub use logs::Logs;
pub use memory::NODE_MEMORY;
pub use objects::{SimulatedConfigMaps, VERSION};
pub use runtime::{Container, RemovedButListed, Sandbox, container_name, sandbox_name};
pub use signer::{DENIES, SIGNERS, Signer, names_in, signers_of};
pub use storage::{ClaimChange, DRIVER, Storage, claims_of, pod_of};

use crate::time::{EPOCH, Nanos};

/// How a simulated program behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramScript {
    pub life: Lifetime,
    pub on_term: OnTerm,
    /// How many of its next creations or starts are refused.
    pub failing_creates: u32,
    pub failing_starts: u32,
    /// How many of its next hooks fail.
    pub failing_hooks: u32,
    /// How many of its next probes fail.
    pub failing_probes: u32,
    /// How many of its next runs end with [`RESTART_ALL_EXIT_CODE`], for which a rule restarts all containers.
    pub restart_all_exits: u32,
}

/// The exit code that rules of the simulated pods name.
pub const RESTART_ALL_EXIT_CODE: i32 = 42;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lifetime {
    Forever,
    Ends { after: Nanos, code: i32 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnTerm {
    Ends { after: Nanos, code: i32 },
    Ignores,
}

/// Something that the world will do by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramEvent {
    Ends { id: ContainerId, code: i32 },
}

/// A change that a runtime would send as an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorldChange {
    Runtime { uid: PodUid, id: String },
    Images,
}

/// Why a call was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorldError {
    pub absent: bool,
    pub message: String,
}

impl WorldError {
    pub fn because(message: impl Into<String>) -> Self {
        Self { absent: false, message: message.into() }
    }
    pub fn absent(what: impl std::fmt::Display) -> Self {
        Self { absent: true, message: format!("{what}: not found") }
    }
}

pub struct World {
    pub now: Nanos,
    /// How far the wall clock was moved.
    pub wall_shift: i64,
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub containers: BTreeMap<ContainerId, Container>,
    pub removed_but_listed: RemovedButListed,
    /// Names that are reserved by a call in progress.
    pub reserved: BTreeSet<String>,
    pub scripts: BTreeMap<(PodUid, String), ProgramScript>,
    pub images: Images,
    pub objects: SimulatedConfigMaps,
    pub storage: Storage,
    pub signer: Signer,
    pub disk: Disk,
    pub logs: Logs,
    /// With the values that were written last.
    pub cgroups: BTreeMap<CgroupName, CgroupValues>,
    /// Containers that something outside has removed while they ran, by pod and name.
    pub removed_by_others: BTreeSet<(PodUid, String)>,
    /// Events that the driver has yet to schedule.
    pub program_events: Vec<(Nanos, ProgramEvent)>,
    /// Changes that the driver has yet to report.
    pub changes: Vec<WorldChange>,
    made: u64,
}

impl World {
    pub fn new() -> Self {
        Self {
            now: 0,
            wall_shift: 0,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            removed_but_listed: RemovedButListed::default(),
            reserved: BTreeSet::new(),
            scripts: BTreeMap::new(),
            images: Images::default(),
            objects: SimulatedConfigMaps::default(),
            signer: Signer::default(),
            storage: Storage::default(),
            disk: Disk::default(),
            logs: Logs::default(),
            cgroups: BTreeMap::new(),
            removed_by_others: BTreeSet::new(),
            program_events: Vec::new(),
            changes: Vec::new(),
            made: 0,
        }
    }

    pub fn wall(&self) -> Wall {
        Wall(EPOCH.0 + self.now as i64 + self.wall_shift)
    }

    /// Both clocks, the monotonic one as the world's own.
    pub fn clocks(&self) -> Now {
        Now { mono: Mono(self.now), wall: self.wall() }
    }

    /// An id without order, as real ones are.
    fn fresh_id(&mut self) -> String {
        self.made += 1;
        format!("{:016x}", crate::rng::mix(self.made))
    }

    pub fn of_pod<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a Container> {
        self.containers.values().filter(move |c| c.uid == *uid)
    }

    pub fn sandboxes_of<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = (&'a SandboxId, &'a Sandbox)> {
        self.sandboxes.iter().filter(move |(_, s)| s.uid == *uid)
    }

    pub fn anything_live(&self, uid: &PodUid) -> bool {
        self.of_pod(uid).any(Container::is_live)
    }

    /// Removes the agent's own mounts of a pod; volumes of the CSI driver stay.
    pub fn tear_down_volumes(&mut self, uid: &PodUid) {
        self.disk.tear_down_volumes(uid, &self.storage.mounted(uid));
    }

    /// The instance that was created last, by the world's own time.
    pub fn newest(&self, uid: &PodUid, name: &str) -> Option<&Container> {
        self.containers.values().filter(|c| c.uid == *uid && c.name == name).max_by_key(|c| c.made)
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
