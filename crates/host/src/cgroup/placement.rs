//! Which cgroup processes that are no pods live in: `kubeletCgroups` for the agent itself, `systemCgroups` for all that
//! was left in the root.
//!
//! A process that starts later is not announced, so both are looked at again from time to time.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use model::cgroup::{CgroupName, CgroupValues};
use ports::CgroupError;

use super::layout::CgroupLayout;
use super::{file, v1, v2};

/// While processes are moved, those that are not moved yet may start others.
const ROUNDS: usize = 11;

/// A cgroup of processes that are no pods.
#[derive(Clone, Debug)]
pub struct ProcessCgroup {
    layout: CgroupLayout,
    /// Below the root, without a slash at the beginning.
    below: String,
}

impl ProcessCgroup {
    /// `None`: the root, into which nothing can be moved.
    pub fn new(layout: CgroupLayout, path: &str) -> Option<Self> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let fine = parts.iter().all(|part| part != "." && part != ".." && !part.contains(['\0', '\n']));
        (fine && !parts.is_empty()).then(|| Self { layout, below: CgroupName(parts).0.join("/") })
    }

    /// Makes the cgroup if it is missing. Its values are not ours.
    fn ensure(&self) -> Result<(), CgroupError> {
        let none = CgroupValues::default();
        match &self.layout {
            CgroupLayout::V1(hierarchies) => v1::ensure(hierarchies, &self.below, &none),
            CgroupLayout::V2 { root } => v2::ensure(root, &self.below, &none),
        }
    }

    /// Moves this process and its threads.
    pub fn move_self(&self) -> Result<(), CgroupError> {
        self.ensure()?;
        self.move_process(std::process::id())
    }

    /// Moves all processes of the root cgroup but the first one, the kernel's own, and those for which `keep` is true.
    /// Returns how many were moved.
    pub fn move_from_root(&self, proc: &Path, keep: impl Fn(u32) -> bool) -> Result<usize, CgroupError> {
        self.ensure()?;
        let mut moved = 0;
        let mut stuck = BTreeSet::new();
        for _ in 0..ROUNDS {
            let here: Vec<u32> = self.processes_of_root()?.into_iter().filter(|pid| !keep(*pid)).collect();
            let wanted = here.into_iter().filter(|pid| *pid != 1 && is_program(proc, *pid));
            let wanted: Vec<u32> = wanted.filter(|pid| !stuck.contains(pid)).collect();
            if wanted.is_empty() {
                break;
            }
            for pid in wanted {
                match self.move_process(pid) {
                    Ok(()) => moved += 1,
                    // It has ended, or may not be moved: it is not tried again in this pass.
                    Err(error) => {
                        tracing::debug!(pid, "moving a process out of the root cgroup: {error}");
                        stuck.insert(pid);
                    }
                }
            }
        }
        Ok(moved)
    }

    fn move_process(&self, pid: u32) -> Result<(), CgroupError> {
        for directory in self.layout.directories(&self.below) {
            if directory.is_dir() {
                file::write(&directory.join("cgroup.procs"), &pid.to_string())?;
            }
        }
        Ok(())
    }

    /// On version 1 the hierarchy of devices says where a process is: runtimes and systemd use it for all of theirs.
    fn processes_of_root(&self) -> Result<Vec<u32>, CgroupError> {
        let root: Option<PathBuf> = match &self.layout {
            CgroupLayout::V2 { root } => Some(root.clone()),
            CgroupLayout::V1(hierarchies) => {
                let of = |name: &str| hierarchies.iter().find(|h| h.has(name)).map(|h| h.mount.clone());
                of("devices").or_else(|| of("memory"))
            }
        };
        let Some(root) = root else { return Ok(Vec::new()) };
        let text = file::read(&root.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect())
    }
}

/// Kernel threads have no program.
fn is_program(proc: &Path, pid: u32) -> bool {
    match std::fs::read_link(proc.join(pid.to_string()).join("exe")) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory that looks like a version 2 tree, and one that looks like `/proc`.
    fn host(processes: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (tree, proc) = (dir.path().join("cgroup"), dir.path().join("proc"));
        fs::create_dir_all(tree.join("system")).unwrap();
        for place in [tree.clone(), tree.join("system")] {
            fs::write(place.join("cgroup.controllers"), "cpu memory\n").unwrap();
            fs::write(place.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
            fs::write(place.join("cgroup.procs"), "").unwrap();
        }
        fs::write(tree.join("cgroup.procs"), processes).unwrap();
        for pid in [1, 7, 9] {
            fs::create_dir_all(proc.join(pid.to_string())).unwrap();
            std::os::unix::fs::symlink("/sbin/x", proc.join(format!("{pid}/exe"))).unwrap();
        }
        (dir, tree, proc)
    }

    fn cgroup(tree: &Path, path: &str) -> Option<ProcessCgroup> {
        ProcessCgroup::new(CgroupLayout::V2 { root: tree.to_path_buf() }, path)
    }

    #[test]
    fn programs_leave_the_root() {
        // 1 stays, 2 is the kernel's, 9 is kept; garbage and zero (of another pid namespace) are nobody.
        let (_dir, tree, proc) = host("0\n1\n2\n7\n9\nx\n99999999999\n");
        let system = cgroup(&tree, "/system").unwrap();
        // The files of this test do not forget a process that was moved, so each round moves it again.
        assert_eq!(system.move_from_root(&proc, |pid| pid == 9).unwrap(), ROUNDS);
        assert_eq!(fs::read_to_string(tree.join("system/cgroup.procs")).unwrap(), "7");
    }

    #[test]
    fn this_process_moves() {
        let (_dir, tree, _) = host("");
        cgroup(&tree, "system").unwrap().move_self().unwrap();
        let own = std::process::id().to_string();
        assert_eq!(fs::read_to_string(tree.join("system/cgroup.procs")).unwrap(), own);
        fs::remove_file(tree.join("system/cgroup.procs")).unwrap();
        assert!(cgroup(&tree, "system").unwrap().move_self().is_err());
    }

    #[test]
    fn names_that_are_no_cgroup() {
        let (_dir, tree, _) = host("");
        for path in ["", "/", "/a/../b", "."] {
            assert!(cgroup(&tree, path).is_none(), "{path:?}");
        }
    }
}
