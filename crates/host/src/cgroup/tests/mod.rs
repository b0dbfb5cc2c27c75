//! On the kernel's own hierarchies (below a directory of the test's own), on a tree of plain files where the
//! kernel here has no such controller, with a systemd that records what it is asked for, and with a real
//! one.

mod kernel;
mod plain;
mod real_systemd;
mod slices;

use model::cgroup::{CgroupName, CgroupSpec, CgroupValues};

fn name(parts: &[&str]) -> CgroupName {
    CgroupName(parts.iter().map(|part| part.to_string()).collect())
}

fn spec(name: &CgroupName, values: CgroupValues) -> CgroupSpec {
    CgroupSpec { name: name.clone(), values }
}
