//! Linux, behind the ports.

pub mod cgroup;
pub mod facts;
pub mod process;
