//! The adapter for Linux: cgroups, facts about the host, directories, volumes and logs of pods, and the sources of
//! static pods.

pub mod cgroup;
mod checksummed;
pub mod clock;
pub mod credentials;
pub mod facts;
pub mod feed;
pub mod files;
#[doc(hidden)]
pub mod fuzzing;
pub mod hook;
pub mod iptables;
pub mod kernel_tunables;
pub mod logs;
mod loop_device;
pub mod mountinfo;
pub mod oom_kills;
pub mod panic_records;
pub mod probe;
pub mod process;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod profile;
pub mod program_pages;
pub mod quota;
pub mod usage;
mod wake;
mod walk;
