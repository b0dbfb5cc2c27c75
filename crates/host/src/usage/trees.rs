//! Where the files of a cgroup are, in either version.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::Files;
use crate::cgroup::Layout;

/// The mount of each controller that tells numbers.
pub(super) enum Trees {
    V1(V1Trees),
    V2(PathBuf),
}

#[derive(Default)]
pub(super) struct V1Trees {
    pub cpu: Option<PathBuf>,
    pub cpuacct: Option<PathBuf>,
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub blkio: Option<PathBuf>,
}

impl Trees {
    pub fn new(layout: &Layout) -> Self {
        match layout {
            Layout::V1(hierarchies) => {
                let of = |controller: &str| {
                    let has = |have: &String| have == controller;
                    hierarchies.iter().find(|h| h.controllers.iter().any(has)).map(|h| h.mount.clone())
                };
                Trees::V1(V1Trees {
                    cpu: of("cpu"),
                    cpuacct: of("cpuacct"),
                    memory: of("memory"),
                    pids: of("pids"),
                    blkio: of("blkio"),
                })
            }
            Layout::V2 { root } => Trees::V2(root.clone()),
        }
    }

    /// A directory of this cgroup that lists its processes and those below it.
    pub fn place(&self, path: &str) -> Option<PathBuf> {
        let tree = match self {
            Trees::V1(trees) => trees.memory.as_ref().or(trees.cpuacct.as_ref())?,
            Trees::V2(root) => root,
        };
        Some(below(tree, path))
    }

    /// The cgroup below `pod` whose name holds the id: `<id>`, or `cri-containerd-<id>.scope`.
    pub fn child(&self, pod: &str, id: &str) -> Option<String> {
        if id.is_empty() {
            return None;
        }
        let dir = self.place(pod)?;
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

    pub fn processes(&self, files: &mut Files, path: &str) -> Vec<u32> {
        let Some(dir) = self.place(path) else { return Vec::new() };
        let text = files.text(&dir, "cgroup.procs").unwrap_or_default();
        // Zero is a process of another namespace.
        text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()
    }
}

/// The directory of a cgroup in a tree.
pub(super) fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}
