//! Cgroups of version 2: one directory, with the controllers that its parent has enabled.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use model::cgroup::CgroupValues;
use ports::CgroupError;

use super::file;
use super::layout::REQUIRED_CONTROLLERS;
use super::settings::{self, Setting};

pub(super) fn ensure(root: &Path, below: &str, values: &CgroupValues) -> Result<(), CgroupError> {
    let mut parent = root.to_path_buf();
    for directory in file::directories_below(root, &root.join(below)) {
        enable_for_children(&parent)?;
        file::make(&directory)?;
        parent = directory;
    }
    file::apply(&parent, wanted(root, &parent, values)?)
}

/// Writes the values into a cgroup that exists.
pub(super) fn update(root: &Path, below: &str, values: &CgroupValues) -> Result<(), CgroupError> {
    let directory = root.join(below);
    file::apply(&directory, wanted(root, &directory, values)?)
}

/// The controllers of the host that the cgroup lacks for these values.
pub(super) fn missing_for(
    root: &Path,
    below: &str,
    values: &CgroupValues,
) -> Result<Vec<String>, CgroupError> {
    let memory = [values.memory_limit.is_some(), values.memory_min.is_some(), values.memory_low.is_some()];
    let is_needed = |controller: &str| match controller {
        "cpu" => values.cpu_shares.is_some() || values.cpu_quota.is_some() || values.cpu_period.is_some(),
        "memory" => memory.contains(&true),
        "pids" => values.pids_limit.is_some(),
        "hugetlb" => !values.hugepage_limits.is_empty(),
        _ => false,
    };
    Ok(missing(root, below)?.into_iter().filter(|controller| is_needed(controller)).collect())
}

/// The needed controllers of the host that the cgroup lacks.
fn missing(root: &Path, below: &str) -> Result<Vec<String>, CgroupError> {
    let own = match controllers(&root.join(below)) {
        Ok(own) => own,
        Err(CgroupError::Io { source, .. })
            if file::gone(&source) || source.kind() == ErrorKind::NotADirectory =>
        {
            BTreeSet::new()
        }
        Err(error) => return Err(error),
    };
    let host = controllers(root)?;
    let needed = REQUIRED_CONTROLLERS.iter().filter(|needed| host.contains(**needed));
    Ok(needed.filter(|needed| !own.contains(**needed)).map(|needed| (*needed).to_owned()).collect())
}

/// Enables in the children of `directory` all controllers that it has itself. The runtime's containers, further down,
/// need more than we do (io), and each ancestor must enable it.
fn enable_for_children(directory: &Path) -> Result<(), CgroupError> {
    let control = directory.join("cgroup.subtree_control");
    let enabled = words(&file::read(&control)?);
    let available = controllers(directory)?;
    let missing: Vec<&String> = available.difference(&enabled).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = missing.iter().map(|controller| format!("+{controller}")).collect();
    if file::write(&control, &all.join(" ")).is_ok() {
        return Ok(());
    }
    // The kernel enables all or none in one write, so now each is written separately: one that fails affects no other.
    for controller in missing {
        match file::write(&control, &format!("+{controller}")) {
            Err(error) if !REQUIRED_CONTROLLERS.contains(&controller.as_str()) => {
                tracing::debug!(%error, %controller, "a controller that is not needed cannot be handed down");
            }
            result => result?,
        }
    }
    Ok(())
}

fn controllers(directory: &Path) -> Result<BTreeSet<String>, CgroupError> {
    Ok(words(&file::read(&directory.join("cgroup.controllers"))?))
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn wanted(root: &Path, directory: &Path, values: &CgroupValues) -> Result<Vec<Setting>, CgroupError> {
    // Compared with the root's controllers, not with the cgroup's own: a controller that the host has and this cgroup
    // lacks is an error; one that the host lacks is left out.
    let have = controllers(root)?;
    let cpu_max = file::read(&directory.join("cpu.max")).unwrap_or_default();
    Ok(settings::v2(values, |controller| have.contains(controller), &cpu_max))
}

/// Whether the directory exists with every needed controller that the host has.
pub(super) fn exists(root: &Path, below: &str) -> Result<bool, CgroupError> {
    // A directory that is gone may lack nothing, on a host without controllers.
    Ok(root.join(below).is_dir() && missing(root, below)?.is_empty())
}

/// Whether the cgroup exists and every file has its wanted value.
pub(super) fn is_up_to_date(root: &Path, below: &str, values: &CgroupValues) -> Result<bool, CgroupError> {
    let directory = root.join(below);
    Ok(exists(root, below)?
        && file::changed_settings(&directory, wanted(root, &directory, values)?).iter().all(|s| s.optional))
}
