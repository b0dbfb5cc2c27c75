//! Real mounts and disks for tests, which are always removed.

use std::path::{Path, PathBuf};
use std::process::Command;

use model::volume::LocalVolume;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::loop_device;
use crate::mountinfo::MountTable;

/// Unmounts whatever is mounted below a directory when the test ends, however it ends, and detaches loop devices over
/// what is mounted.
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
    /// Loop devices over mounted devices, each with what it is attached to.
    pub fn pinned(&self) -> Vec<(PathBuf, PathBuf)> {
        let table = MountTable::read().unwrap();
        let mut attached = loop_device::attached().unwrap();
        attached.retain(|(_, backing)| backing.starts_with(&self.base) && table.at(backing).is_some());
        attached
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let table = MountTable::read().unwrap();
        for (device, backing) in self.pinned() {
            let _ = loop_device::detach(&device, &backing);
        }
        for mount in table.at_or_below(&self.base) {
            let _ = rustix::mount::unmount(&mount.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

/// Loop devices over files in a directory, mounted or not.
pub fn loop_devices_below(dir: &Path) -> usize {
    loop_device::attached().unwrap().iter().filter(|(_, backing)| backing.starts_with(dir)).count()
}

pub fn bind(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).unwrap();
}

pub fn tmpfs(at: &Path) {
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), None).unwrap();
}

/// A loop device over a file. Declare it before [`Mounts`], which is dropped first then.
pub struct LoopDevice {
    pub path: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    pub fn over(file: &Path, bytes: u64) -> Self {
        std::fs::File::options().create(true).append(true).open(file).unwrap().set_len(bytes).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let path: PathBuf = String::from_utf8(output.stdout).unwrap().trim().into();
        // A test that was killed may have left the device read-only, which outlives the file that it was attached to.
        assert!(Command::new("blockdev").arg("--setrw").arg(&path).status().unwrap().success());
        Self { path, file: file.canonicalize().unwrap() }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Its number may be another test's by now.
        let _ = loop_device::detach(&self.path, &self.file);
    }
}

/// The volume of a claim, on this directory or disk and without options.
pub fn plain_volume(path: &Path) -> LocalVolume {
    LocalVolume {
        name: "pv".into(),
        path: path.to_string_lossy().into_owned(),
        target: String::new(),
        read_only: false,
        fs_type: None,
        mount_options: Vec::new(),
        fs_group: None,
        on_root_mismatch: false,
        create: false,
    }
}
