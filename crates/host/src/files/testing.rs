//! Real mounts for tests, and the promise that none of them stays.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::mountinfo::MountTable;

/// Unmounts whatever is mounted below a directory when the test ends, however it ends.
pub struct Mounts {
    base: PathBuf,
}

impl Mounts {
    pub fn below(base: &Path) -> Self {
        Self { base: base.canonicalize().unwrap() }
    }
    pub fn count(&self) -> usize {
        MountTable::read().unwrap().at_or_below(&self.base).count()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let table = MountTable::read().unwrap();
        for mount in table.at_or_below(&self.base) {
            let _ = rustix::mount::unmount(&mount.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

pub fn bind(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).unwrap();
}

pub fn tmpfs(at: &Path) {
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), None).unwrap();
}
