//! The paths of a cgroup's files, in either version.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::KernelFileReader;
use crate::cgroup::CgroupLayout;

/// The mounts of the controllers that have usage numbers.
pub(super) enum CgroupMounts {
    V1(V1Mounts),
    V2(PathBuf),
}

#[derive(Default)]
pub(super) struct V1Mounts {
    pub cpu: Option<PathBuf>,
    pub cpuacct: Option<PathBuf>,
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub blkio: Option<PathBuf>,
}

impl CgroupMounts {
    pub fn new(layout: &CgroupLayout) -> Self {
        match layout {
            CgroupLayout::V1(hierarchies) => {
                let of = |controller: &str| {
                    let has = |have: &String| have == controller;
                    hierarchies.iter().find(|h| h.controllers.iter().any(has)).map(|h| h.mount.clone())
                };
                CgroupMounts::V1(V1Mounts {
                    cpu: of("cpu"),
                    cpuacct: of("cpuacct"),
                    memory: of("memory"),
                    pids: of("pids"),
                    blkio: of("blkio"),
                })
            }
            CgroupLayout::V2 { root } => CgroupMounts::V2(root.clone()),
        }
    }

    /// A directory of this cgroup that lists its processes, and has its child cgroups.
    pub fn cgroup_dir(&self, path: &str) -> Option<PathBuf> {
        let tree = match self {
            CgroupMounts::V1(trees) => trees.memory.as_ref().or(trees.cpuacct.as_ref())?,
            CgroupMounts::V2(root) => root,
        };
        Some(below(tree, path))
    }

    /// The cgroup below `pod` whose name holds the id: `<id>`, or `cri-containerd-<id>.scope`.
    pub fn child(&self, pod: &str, id: &str) -> Option<String> {
        if id.is_empty() {
            return None;
        }
        let dir = self.cgroup_dir(pod)?;
        let name = match dir.join(id).is_dir() {
            true => id.to_owned(),
            false => {
                let names = fs::read_dir(dir).ok()?.flatten();
                let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
                names.find(|name| name.contains(id))?
            }
        };
        Some(format!("{}/{name}", pod.trim_end_matches('/')))
    }

    pub fn processes(&self, files: &mut KernelFileReader, path: &str) -> Vec<u32> {
        let Some(dir) = self.cgroup_dir(path) else { return Vec::new() };
        let text = files.text(&dir, "cgroup.procs").unwrap_or_default();
        // Zero stands for a process of another PID namespace.
        text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()
    }
}

/// The directory of a cgroup below a mount.
pub(super) fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}
