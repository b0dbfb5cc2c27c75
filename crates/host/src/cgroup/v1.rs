//! Cgroups of version 1: one directory in every mounted hierarchy.
//!
//! In *every* one, not only in those that we write to: an OCI runtime puts each container's processes into all of them,
//! below the given parent, and would otherwise leave parents behind (in devices, freezer, blkio, `name=systemd` and a
//! hybrid host's bare v2 tree) that are never removed. A failure in a hierarchy that we don't need is ignored, though.

use std::path::Path;

use model::cgroup::CgroupValues;
use ports::CgroupError;

use super::file;
use super::layout::Hierarchy;
use super::settings::{self, Setting};

pub(super) fn ensure(
    hierarchies: &[Hierarchy],
    below: &str,
    values: &CgroupValues,
) -> Result<(), CgroupError> {
    let mut outcome = Ok(());
    for hierarchy in hierarchies {
        match ensure_directory(hierarchy, below) {
            Err(error) if !hierarchy.is_required() => {
                tracing::debug!(%error, "a cgroup hierarchy that is not needed refused");
                continue;
            }
            result => result?,
        }
        outcome = outcome.and(file::apply(&hierarchy.mount.join(below), wanted(hierarchy, values)));
    }
    outcome
}

/// Writes the values into a cgroup that exists. Directories and cpusets are left as they are.
pub(super) fn update(
    hierarchies: &[Hierarchy],
    below: &str,
    values: &CgroupValues,
) -> Result<(), CgroupError> {
    // A failure in one hierarchy keeps no value from being written in another.
    let mut outcome = Ok(());
    for hierarchy in hierarchies.iter().filter(|hierarchy| hierarchy.is_required()) {
        outcome = outcome.and(file::apply(&hierarchy.mount.join(below), wanted(hierarchy, values)));
    }
    outcome
}

fn ensure_directory(hierarchy: &Hierarchy, below: &str) -> Result<(), CgroupError> {
    for directory in file::directories_below(&hierarchy.mount, &hierarchy.mount.join(below)) {
        file::make(&directory)?;
        if hierarchy.has("cpuset") {
            inherit(&directory, "cpuset.cpus")?;
            inherit(&directory, "cpuset.mems")?;
        }
    }
    Ok(())
}

/// A new cpuset of version 1 is empty, and accepts no process before it has CPUs and memory nodes.
fn inherit(directory: &Path, name: &str) -> Result<(), CgroupError> {
    let own = directory.join(name);
    if !file::read(&own)?.trim().is_empty() {
        return Ok(());
    }
    let Some(parent) = directory.parent() else { return Ok(()) };
    let given = file::read(&parent.join(name))?;
    file::write(&own, given.trim())
}

fn wanted(hierarchy: &Hierarchy, values: &CgroupValues) -> Vec<Setting> {
    settings::v1(values, |controller| hierarchy.has(controller))
}

/// Whether the cgroup exists in every needed hierarchy.
pub(super) fn exists(hierarchies: &[Hierarchy], below: &str) -> bool {
    hierarchies.iter().filter(|h| h.is_required()).all(|h| h.mount.join(below).is_dir())
}

/// Whether the cgroup exists and every file has its wanted value.
pub(super) fn is_up_to_date(hierarchies: &[Hierarchy], below: &str, values: &CgroupValues) -> bool {
    exists(hierarchies, below)
        && hierarchies.iter().all(|h| {
            file::changed_settings(&h.mount.join(below), wanted(h, values)).iter().all(|s| s.optional)
        })
}
