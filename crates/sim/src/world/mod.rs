//! The simulated host: a runtime, images, disk and cgroups. It obeys calls at the instant they are applied and lives on
//! by itself in between; when a call arrives, and whether its caller hears of it, is the driver's business.

mod attach;
mod disk;
mod images;
mod objects;
mod runtime;
mod signer;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use model::cgroup::CgroupName;
use model::{ContainerId, Mono, Now, PodUid, SandboxId, Wall};

pub use attach::Attachments;
pub use disk::Disk;
pub use images::{ImageFate, Images};
pub use objects::{ClusterObjects, VERSION};
pub use runtime::{Container, Ghosts, Sandbox, container_name, sandbox_name};
pub use signer::{DENIES, SIGNERS, Signer, names_in, signers_of};
pub use storage::{ClaimChange, DRIVER, Storage, claims_of, pod_of};

use crate::time::{EPOCH, Nanos};

/// How a simulated program lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub life: Life,
    pub on_term: OnTerm,
    /// So many of its next creations or starts are refused.
    pub bad_creates: u32,
    pub bad_starts: u32,
    /// So many of its next hooks fail.
    pub bad_hooks: u32,
    /// So many of the next probes it fails.
    pub bad_answers: u32,
    /// So many of its next lives end with [`ASKS`], for which a rule restarts all containers.
    pub asks: u32,
}

/// The exit code that rules of the simulated pods name.
pub const ASKS: i32 = 42;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Life {
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
pub enum Fortune {
    Ends { id: ContainerId, code: i32 },
}

/// Something that a runtime would tell its listeners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Runtime { uid: PodUid, id: String },
    Images,
}

/// Why a call was not obeyed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub absent: bool,
    pub message: String,
}

impl Refused {
    pub fn because(message: impl Into<String>) -> Self {
        Self { absent: false, message: message.into() }
    }
    pub fn absent(what: impl std::fmt::Display) -> Self {
        Self { absent: true, message: format!("{what}: not found") }
    }
}

pub struct World {
    pub now: Nanos,
    /// How far the wall clock was set away from where it would be.
    pub wall_shift: i64,
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub containers: BTreeMap<ContainerId, Container>,
    pub ghosts: Ghosts,
    /// Names that a call in progress holds.
    pub reserved: BTreeSet<String>,
    pub scripts: BTreeMap<(PodUid, String), Script>,
    pub images: Images,
    pub objects: ClusterObjects,
    pub storage: Storage,
    pub signer: Signer,
    pub disk: Disk,
    pub cgroups: BTreeSet<CgroupName>,
    /// Containers that somebody else has removed while they ran, by pod and name.
    pub stolen: BTreeSet<(PodUid, String)>,
    /// Waiting to be planned by the driver.
    pub fortunes: Vec<(Nanos, Fortune)>,
    /// Waiting to be told by the driver.
    pub changes: Vec<Change>,
    made: u64,
}

impl World {
    pub fn new() -> Self {
        Self {
            now: 0,
            wall_shift: 0,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            ghosts: Ghosts::default(),
            reserved: BTreeSet::new(),
            scripts: BTreeMap::new(),
            images: Images::default(),
            objects: ClusterObjects::default(),
            signer: Signer::default(),
            storage: Storage::default(),
            disk: Disk::default(),
            cgroups: BTreeSet::new(),
            stolen: BTreeSet::new(),
            fortunes: Vec::new(),
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

    /// What the agent itself has set up for a pod; volumes of the storage driver stay.
    pub fn tear_down_volumes(&mut self, uid: &PodUid) {
        self.disk.tear_down_volumes(uid, &self.storage.mounted(uid));
    }

    /// The instance that was made last, by the world's own time.
    pub fn newest(&self, uid: &PodUid, name: &str) -> Option<&Container> {
        self.containers.values().filter(|c| c.uid == *uid && c.name == name).max_by_key(|c| c.made)
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
