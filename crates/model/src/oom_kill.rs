//! A process that the kernel killed because memory ran out.

use serde::{Deserialize, Serialize};

/// Cgroups are paths from the machine's root cgroup, as the kernel's log shows them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OomKill {
    pub ran_out: OutOfMemory,
    /// Where the process was, if the kernel said it.
    pub process_cgroup: Option<String>,
    pub victim: OomVictim,
}

/// What had no memory left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OutOfMemory {
    Machine,
    /// The cgroup whose limit was reached.
    Cgroup(String),
    /// A cgroup that the kernel's log does not name, because a line of it was cut.
    UnknownCgroup,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OomVictim {
    /// The process chose it, and may have chosen none. Control characters are escaped by the kernel.
    pub name: String,
    pub pid: u32,
}
