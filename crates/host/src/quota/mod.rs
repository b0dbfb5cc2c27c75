//! Usage of emptyDir volumes by project quotas of XFS and ext4, with the gate
//! `LocalStorageCapacityIsolationFSQuotaMonitoring`.
//!
//! ```text
//! set up:     an empty directory ──> an id that nobody has, in /etc/projects and /etc/projid ──> set on the directory
//! measure:    the id in /etc/projects, which is also the directory's ──> one question to the kernel
//!             anything else ──> `None`: the files are counted one by one
//! tear down:  the directory is removed ──> its lines are removed
//! ```
//! The kernel counts every file that is made in the directory, also one that is open and has no name any more. Limits
//! are not set: a pod that outgrows a limit is evicted, as without quotas.
//!
//! The owner of a file may change its project id, unless the owner is in a user namespace. So only pods with users of
//! their own (`hostUsers: false`) get ids, which `decide::volumes` decides. An id is trusted only while the files of the
//! host, which no pod can write, and the directory agree about it.

mod kernel;
#[cfg(test)]
mod on_disk;
mod project_files;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ports::TreeFigures;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::files::step;
use project_files::Lock;
pub use project_files::ProjectFiles;

/// Project ids of volumes. Clones share the files of ids.
#[derive(Clone, Debug, Default)]
pub struct ProjectQuotas {
    files: Arc<ProjectFiles>,
    /// Whether ids are given and asked for. What an agent with the gate has written is removed in any case.
    enabled: bool,
}

impl ProjectQuotas {
    pub fn enabled(enabled: bool) -> Self {
        Self { enabled, ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn with_files(enabled: bool, files: ProjectFiles) -> Self {
        Self { enabled, files: Arc::new(files) }
    }

    /// Gives an id to a new volume, if its filesystem counts by project. Idempotent.
    pub(crate) fn assign(&self, dir: &Path) -> io::Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let opened = open_dir(dir)?;
        if !kernel::counts_projects(opened.as_fd())? {
            return Ok(());
        }
        let current = kernel::project_of(opened.as_fd())?;
        // An id of another directory may be there by inheritance.
        let own = self.files.id_of(dir)?.filter(|id| *id == current.id);
        if own.is_some() && current.inherited_by_new_files {
            return Ok(());
        }
        // Files that are there already would not be counted.
        if !is_empty(opened.as_fd())? {
            return Ok(());
        }
        let may_use =
            |id| Ok(own == Some(id) || kernel::usage(opened.as_fd(), id).map(|usage| usage.is_unused())?);
        let id = self.files.claim(dir, &may_use)?;
        step("set a project id");
        kernel::set_project(opened.as_fd(), id).or_else(|errno| {
            self.files.release_claim(dir)?;
            Err(errno.into())
        })
    }

    /// What the volume uses, its own directory included. `None`: it has no id that can be trusted.
    pub(crate) fn usage(&self, dir: &Path) -> Option<TreeFigures> {
        if !self.enabled {
            return None;
        }
        let asked = || -> io::Result<Option<TreeFigures>> {
            let Some(id) = self.files.id_of(dir)? else { return Ok(None) };
            let opened = open_dir(dir)?;
            if kernel::project_of(opened.as_fd())? != (kernel::Project { id, inherited_by_new_files: true }) {
                return Ok(None);
            }
            let usage = kernel::usage(opened.as_fd(), id)?;
            Ok(Some(TreeFigures { bytes: usage.bytes, inodes: usage.inodes }))
        };
        asked().unwrap_or_else(|error| {
            tracing::debug!(volume = %dir.display(), %error, "the quota of the volume can't be read");
            None
        })
    }

    /// Removes the ids of volumes that are gone. `pods`: the directory of all pods, so that the end of any pod makes up
    /// for what failed at the end of another.
    pub(crate) fn release_gone(&self, pods: &Path) {
        self.release(pods, Lock::Wait);
    }

    /// At the start of the agent.
    pub(crate) fn prepare(&self, pods: &Path) {
        self.release(pods, Lock::Try);
        log_failure(self.files.remove_drafts());
        if !self.enabled {
            return;
        }
        match open_dir(pods).and_then(|dir| Ok(kernel::counts_projects(dir.as_fd())?)) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                path = %pods.display(),
                "LocalStorageCapacityIsolationFSQuotaMonitoring is on, but the filesystem has no project quotas, or is mounted \
                 without them: files of volumes are counted"
            ),
            Err(error) => {
                tracing::warn!(path = %pods.display(), %error, "can't see whether the filesystem has project quotas");
            }
        }
    }

    fn release(&self, pods: &Path, lock: Lock) {
        log_failure(self.files.release_below(pods, lock));
    }
}

/// Whoever holds the locks leaves the work to the end of the next pod.
fn log_failure(result: io::Result<()>) {
    match result {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            tracing::warn!(%error, "project ids of volumes that are gone can't be removed");
        }
        _ => {}
    }
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

fn is_empty(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    for entry in Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
