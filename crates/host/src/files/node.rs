//! The agent's own directories.

use std::path::Path;

use ports::FilesError;
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;

use super::csi;
use super::layout::{FilesLayout, failed, make_dirs};
use crate::mountinfo::MountTable;

pub fn prepare(layout: &FilesLayout) -> Result<(), FilesError> {
    make_dirs(&layout.root, 0o750)?;
    if let Err(error) = make_mount_shared(&layout.root) {
        // Only pods that use mountPropagation are affected.
        tracing::warn!(root = %layout.root.display(), error = %error.user_message(), "root directory is not a shared mount");
    }
    make_dirs(&layout.pod_logs, 0o750)?;
    for name in ["pods", "plugins", "plugins_registry", "pod-resources"] {
        make_dirs(&layout.root.join(name), 0o750)?;
    }
    make_dirs(&layout.root.join("checkpoints"), 0o700)?;
    if let Err(error) = csi::remove_volumes_without_record(&layout.root) {
        tracing::warn!("can't remove CSI volume directories that have no record: {}", error.user_message());
    }
    make_dirs(&layout.log_links_dir, 0o755)
}

/// Mounts made below the root must be visible in containers with mount propagation. If the root lies on a shared mount
/// (the usual case under systemd) they are; otherwise the root becomes a mount of its own.
fn make_mount_shared(root: &Path) -> Result<(), FilesError> {
    let root = root.canonicalize().map_err(failed("resolve", root))?;
    let table = MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
    let mount = table.containing(&root).ok_or(Errno::NOENT).map_err(failed("find the mount of", &root))?;
    if mount.shared {
        return Ok(());
    }
    if mount.mount_point != root {
        rustix::mount::mount_bind_recursive(&root, &root).map_err(failed("bind onto itself", &root))?;
    }
    rustix::mount::mount_change(&root, MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .map_err(failed("make shared", &root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, tmpfs};
    use std::os::unix::fs::PermissionsExt;

    fn layout(base: &Path) -> FilesLayout {
        FilesLayout {
            root: base.join("root"),
            pod_logs: base.join("log/pods"),
            log_links_dir: base.join("log/containers"),
        }
    }

    #[test]
    fn makes_directories_with_their_modes_and_shares_the_root_once() {
        let temp = tempfile::tempdir().unwrap();
        let mounts = Mounts::below(temp.path());
        let layout = layout(temp.path());
        prepare(&layout).unwrap();
        let mode = |name: &str| temp.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
        for name in
            ["root", "root/pods", "root/plugins", "root/plugins_registry", "root/pod-resources", "log/pods"]
        {
            assert_eq!(mode(name), 0o750, "{name}");
        }
        assert_eq!((mode("root/checkpoints"), mode("log/containers")), (0o700, 0o755));

        let root = layout.root.canonicalize().unwrap();
        assert!(MountTable::read().unwrap().containing(&root).unwrap().shared);
        let made = mounts.count();
        assert!(made <= 1);
        prepare(&layout).unwrap();
        assert_eq!(mounts.count(), made, "a second start mounts nothing");
    }

    #[test]
    fn a_root_that_is_a_mount_is_only_made_shared() {
        let temp = tempfile::tempdir().unwrap();
        let mounts = Mounts::below(temp.path());
        let layout = layout(temp.path());
        std::fs::create_dir(&layout.root).unwrap();
        tmpfs(&layout.root);
        rustix::mount::mount_change(&layout.root, MountPropagationFlags::PRIVATE).unwrap();
        prepare(&layout).unwrap();
        assert_eq!(mounts.count(), 1);
        assert!(MountTable::read().unwrap().at(&layout.root.canonicalize().unwrap()).unwrap().shared);
    }
}
