//! Measures the disk usage of a tree, for limits of local storage.
//!
//! Containers write these trees while they are measured; [`crate::walk`] describes how they are walked. If the tree
//! keeps changing or parts can't be read, the result is a lower bound. A tree that is nested too deep counts as larger
//! than any limit, so that no files can be hidden that way.

use std::os::fd::AsFd;
use std::path::Path;

use ports::FilesError;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::layout::failed;
use super::steps::WorkProgress;
use crate::usage::count;

/// `st_blocks` counts in this unit, whatever the filesystem's block size is.
const BLOCK: u64 = 512;
/// How often a tree is walked if directories were moved during the walk.
const TRIES: u32 = 3;

/// Bytes of a directory with its content, or of a file. A missing path is empty.
pub fn measure(path: &Path) -> Result<u64, FilesError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let root = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(failed("measure", path)(errno)),
    };
    let stat = rustix::fs::fstat(&root).map_err(failed("measure", path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
    }
    let pulse = WorkProgress::current();
    let is_left = || {
        pulse.record_step();
        pulse.is_cancelled()
    };
    let mut most = 0;
    for _ in 0..TRIES {
        let counted = count(root.as_fd(), &is_left);
        most = most.max(counted.figures.bytes);
        match counted.trouble {
            Some(Errno::STALE) => {}
            Some(Errno::CANCELED) => return Err(failed("measure", path)(Errno::CANCELED)),
            Some(Errno::NAMETOOLONG) => return Ok(u64::MAX),
            _ => break,
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, bind, tmpfs};
    use std::fs;
    use std::os::unix::fs::symlink;

    fn blocks(bytes: u64) -> std::ops::Range<u64> {
        // Directories and the filesystem's own blocks are added.
        bytes..bytes + 64 * 1024
    }

    #[test]
    fn counts_what_is_on_the_disk_once() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        let volume = temp.path().join("volume");
        let outside = temp.path().join("outside");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        let megabyte = vec![1; 1 << 20];
        fs::write(volume.join("a/b/file"), &megabyte).unwrap();
        fs::hard_link(volume.join("a/b/file"), volume.join("a/again")).unwrap();
        fs::write(outside.join("big"), &megabyte).unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        symlink("../../outside/big", volume.join("a/link-to-file")).unwrap();
        for name in ["bound", "tmpfs"] {
            fs::create_dir(volume.join(name)).unwrap();
        }
        bind(&outside, &volume.join("bound"));
        tmpfs(&volume.join("tmpfs"));
        fs::write(volume.join("tmpfs/big"), &megabyte).unwrap();
        let bytes = measure(&volume).unwrap();
        assert!(blocks(1 << 20).contains(&bytes), "{bytes}");

        // A file with a hole takes what was written.
        let sparse = fs::File::create(volume.join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        assert!(measure(&volume).unwrap() < 2 << 20);
        assert_eq!(measure(&temp.path().join("none")).unwrap(), 0);
        assert!(measure(&volume.join("a/link")).is_err(), "a link is not followed");
    }

    /// CVE-2020-8557: the hosts file is mounted into containers, which can fill the node's disk through it.
    #[test]
    fn a_hosts_file_that_grows_is_seen_to_grow() {
        let temp = tempfile::tempdir().unwrap();
        let hosts = temp.path().join("etc-hosts");
        fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
        let before = measure(&hosts).unwrap();
        fs::write(&hosts, vec![b'x'; 3 << 20]).unwrap();
        let after = measure(&hosts).unwrap();
        assert!(before < 64 * 1024 && blocks(3 << 20).contains(&after), "{before} {after}");
    }

    #[test]
    fn a_comb_is_measured_with_work_that_grows_as_it_does() {
        use crate::walk::tests::{make_comb, operations_of};
        let temp = tempfile::tempdir().unwrap();
        let mut last = 0;
        for depth in [150, 300, 600] {
            let tree = temp.path().join(format!("tree-{depth}"));
            make_comb(&tree, depth, 2);
            let mut bytes = 0;
            let operations = operations_of(|| bytes = measure(&tree).unwrap());
            assert!(operations as usize >= 3 * depth, "every directory is opened: {operations}");
            assert!(last == 0 || operations <= last * 5 / 2, "{last} {operations}");
            last = operations;
            let pulse = WorkProgress::default();
            assert_eq!(pulse.count_steps_of(|| measure(&tree)).unwrap(), bytes);
            assert!(pulse.steps_taken() as usize >= 3 * depth, "{}", pulse.steps_taken());
            crate::files::remove_tree(&tree).unwrap();
        }
    }

    #[test]
    fn a_measuring_that_nobody_waits_for_ends() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), "x").unwrap();
        let pulse = WorkProgress::default();
        drop(pulse.waiter_guard());
        let error = pulse.count_steps_of(|| measure(temp.path())).unwrap_err();
        assert!(error.to_string().starts_with("measure "), "{error}");
        assert_eq!(pulse.steps_taken(), 1, "it looked at nothing more");
    }
}
