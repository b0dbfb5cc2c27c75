//! configMap, secret, downwardAPI and projected volumes: a directory or a tmpfs, and the files in it.
//!
//! ```text
//!   backing (made once) ──> mount points of other volumes ──> files, replaced as a whole (`writer`)
//! ```
//! If the first set-up fails, what it created is removed. If an update fails, the old files stay, because containers
//! may be using them.

mod writer;

use std::path::{Component, Path};

use model::volume::{ContentBacking, ContentVolume};
use ports::FilesError;

use super::empty_dir::{is_mounted, mount_tmpfs, open_to_all};
use super::fs_group::{self, GroupAccess};
use super::layout::{failed, make_dirs};
use super::steps::step;
use super::tree::remove_tree;

/// Idempotent: files that are up to date are not changed.
pub fn set_up(path: &Path, volume: &ContentVolume) -> Result<(), FilesError> {
    let made = make_backing(path, volume.backing)?;
    let result = fill(path, volume, &step);
    if made && result.is_err() {
        remove_failed_volume(path);
    }
    result
}

/// Returns true if it was created.
fn make_backing(path: &Path, backing: ContentBacking) -> Result<bool, FilesError> {
    let there = match backing {
        ContentBacking::Disk => path.symlink_metadata().is_ok_and(|meta| meta.is_dir()),
        ContentBacking::Memory { .. } => is_mounted(path)?,
    };
    if there {
        return Ok(false);
    }
    if let Some(plugin_dir) = path.parent() {
        make_dirs(plugin_dir, 0o755)?;
    }
    make_dirs(path, 0o777)?;
    open_to_all(path)?;
    if let ContentBacking::Memory { size_bytes } = backing {
        mount_tmpfs(path, size_bytes)?;
    }
    Ok(true)
}

fn fill(path: &Path, volume: &ContentVolume, step: &dyn Fn(&str)) -> Result<(), FilesError> {
    for inner in &volume.mount_points {
        make_mount_point(path, inner)?;
    }
    let own = || match volume.fs_group {
        Some(group) => fs_group::apply_fs_group(path, group, GroupAccess::ReadOnly),
        None => Ok(()),
    };
    writer::write(path, &volume.files, &own, step)
}

/// Creates a directory in the volume's root, on which another volume is mounted.
fn make_mount_point(volume: &Path, inner: &str) -> Result<(), FilesError> {
    let mut at = volume.to_path_buf();
    for part in Path::new(inner).components() {
        let Component::Normal(name) = part else {
            return Err(FilesError::Refused { message: format!("invalid container mount point {inner}") });
        };
        at.push(name);
        match at.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {}
            // The symlink of a visible file, which leads into `..data`: nothing is created there.
            Ok(_) => return Ok(()),
            Err(_) => make_dirs(&at, 0o755)?,
        }
    }
    Ok(())
}

/// Best effort: what is left is used by the next attempt, or removed with the pod.
fn remove_failed_volume(path: &Path) {
    if matches!(is_mounted(path), Ok(true)) {
        step("unmount what was not filled");
        let unmounted = rustix::mount::unmount(path, rustix::mount::UnmountFlags::NOFOLLOW);
        if let Err(error) = unmounted.map_err(failed("unmount", path)) {
            return tracing::warn!("can't clean up a volume whose set-up failed: {}", error.user_message());
        }
    }
    if let Err(error) = remove_tree(path) {
        tracing::warn!("can't clean up a volume whose set-up failed: {}", error.user_message());
    }
}

#[cfg(test)]
mod tests;
