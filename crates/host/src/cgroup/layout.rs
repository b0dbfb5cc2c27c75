//! Which cgroup hierarchies this host has, and where.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use model::node::CgroupVersion;
use ports::CgroupError;

/// The controllers that a pod's cgroup needs, as far as the host has them.
pub(super) const REQUIRED_CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];

/// The named hierarchy in which systemd and the runtimes track processes.
const SYSTEMD: &str = "name=systemd";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CgroupLayout {
    V1(Vec<Hierarchy>),
    V2 { root: PathBuf },
}

/// One mounted v1 hierarchy. Controllers may share one (`cpu,cpuacct`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    pub mount: PathBuf,
    /// Sorted. `name=systemd` for a named hierarchy; empty for the bare v2 tree of a hybrid host.
    pub controllers: Vec<String>,
}

impl Hierarchy {
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|have| have == controller)
    }

    /// Whether a cgroup that is missing here counts as missing. In the other hierarchies (devices, freezer, blkio, …)
    /// it is created too, but not required.
    pub(super) fn is_required(&self) -> bool {
        self.controllers.iter().any(|have| have == SYSTEMD || REQUIRED_CONTROLLERS.contains(&have.as_str()))
    }
}

impl CgroupLayout {
    pub fn version(&self) -> CgroupVersion {
        match self {
            CgroupLayout::V1(_) => CgroupVersion::V1,
            CgroupLayout::V2 { .. } => CgroupVersion::V2,
        }
    }

    /// Directories that a cgroup needs and does not have. `path` is in the configuration's form.
    pub fn missing(&self, path: &str) -> Vec<PathBuf> {
        self.required_directories(path).into_iter().filter(|path| !path.is_dir()).collect()
    }

    /// The directories that every cgroup has.
    pub(super) fn required_directories(&self, path: &str) -> Vec<PathBuf> {
        let below = path.trim_start_matches('/');
        match self {
            CgroupLayout::V1(hierarchies) => {
                hierarchies.iter().filter(|h| h.is_required()).map(|h| h.mount.join(below)).collect()
            }
            CgroupLayout::V2 { root } => vec![root.join(below)],
        }
    }

    /// The directories of a cgroup: `path` as `CgroupName::spell` returns it.
    pub(super) fn directories(&self, path: &str) -> Vec<PathBuf> {
        let below = path.trim_start_matches('/');
        match self {
            CgroupLayout::V1(hierarchies) => hierarchies.iter().map(|h| h.mount.join(below)).collect(),
            CgroupLayout::V2 { root } => vec![root.join(below)],
        }
    }
}

/// Finds the hierarchies below `root` (`/sys/fs/cgroup`), from the kernel's mount table of this process.
pub fn detect(root: &Path) -> Result<CgroupLayout, CgroupError> {
    let mountinfo = read(Path::new("/proc/self/mountinfo"))?;
    // Only needed for v1, and kernels without v1 may not have it.
    let cgroups = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
    detect_in(root, &mountinfo, &cgroups).ok_or_else(|| CgroupError::Io {
        operation: "finding a mounted hierarchy",
        path: root.display().to_string(),
        source: io::Error::from(io::ErrorKind::NotFound),
    })
}

fn read(path: &Path) -> Result<String, CgroupError> {
    std::fs::read_to_string(path).map_err(|source| CgroupError::Io {
        operation: "reading",
        path: path.display().to_string(),
        source,
    })
}

/// `detect`, over the texts of `/proc/self/mountinfo` and `/proc/cgroups`.
///
/// It is v2 only if the v2 tree is mounted on `root` itself. A hybrid host has its controllers on v1 and a bare v2 tree
/// next to them, and counts as v1.
pub fn detect_in(root: &Path, mountinfo: &str, cgroups: &str) -> Option<CgroupLayout> {
    let known: BTreeSet<&str> = parse_controllers(cgroups);
    let mut unified = None;
    let mut hierarchies: Vec<Hierarchy> = Vec::new();
    for mount in mountinfo.lines().filter_map(parse_mount) {
        if mount.point == root {
            // A later mount hides an earlier one on the same point.
            unified = (mount.kind == "cgroup2").then(|| mount.point.clone());
            continue;
        }
        if !mount.point.starts_with(root) {
            continue;
        }
        let controllers = match mount.kind {
            "cgroup2" => Vec::new(),
            "cgroup" => mount.controllers(&known),
            _ => continue,
        };
        // If a hierarchy is mounted twice, one mount is enough. A v1 mount without a known name is a controller that
        // /proc/cgroups does not list, and is ignored.
        let seen = hierarchies.iter().any(|h| h.controllers == controllers);
        if !seen && (mount.kind == "cgroup2" || !controllers.is_empty()) {
            hierarchies.push(Hierarchy { mount: mount.point, controllers });
        }
    }
    match unified {
        Some(root) => Some(CgroupLayout::V2 { root }),
        None if hierarchies.iter().any(|h| !h.controllers.is_empty()) => Some(CgroupLayout::V1(hierarchies)),
        None => None,
    }
}

fn parse_controllers(cgroups: &str) -> BTreeSet<&str> {
    cgroups
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

struct Mount<'a> {
    point: PathBuf,
    kind: &'a str,
    super_options: &'a str,
}

impl Mount<'_> {
    fn controllers(&self, known: &BTreeSet<&str>) -> Vec<String> {
        let mut found: Vec<String> = self
            .super_options
            .split(',')
            .filter(|option| known.contains(option) || option.starts_with("name="))
            .map(str::to_owned)
            .collect();
        found.sort();
        found
    }
}

/// `36 35 98:0 /root /point options [optional…] - type source super-options`
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let point = unescape(mount.split(' ').nth(4)?);
    let mut fields = filesystem.split(' ');
    let kind = fields.next()?;
    let super_options = fields.nth(1)?;
    Some(Mount { point: PathBuf::from(point), kind, super_options })
}

/// The kernel writes blanks and backslashes in a path as three octal digits.
fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'\\').then(|| octal(tail)).flatten();
        match code {
            Some(code) => {
                out.push(code);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits.get(..3)?).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| u8::from_str_radix(text, 8).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CGROUPS: &str = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
        cpuset\t3\t1\t1\ncpu\t1\t1\t1\ncpuacct\t1\t1\t1\nmemory\t4\t33\t1\npids\t8\t1\t1\nhugetlb\t0\t1\t1\n";

    fn found(lines: &[&str]) -> Option<CgroupLayout> {
        detect_in(Path::new("/sys/fs/cgroup"), &lines.join("\n"), CGROUPS)
    }

    fn v1(hierarchies: &[(&str, &[&str])]) -> Option<CgroupLayout> {
        Some(CgroupLayout::V1(
            hierarchies
                .iter()
                .map(|(mount, controllers)| Hierarchy {
                    mount: PathBuf::from(mount),
                    controllers: controllers.iter().map(|c| c.to_string()).collect(),
                })
                .collect(),
        ))
    }

    const TMPFS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755";
    const CPU: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpuacct,cpu";
    const MEMORY: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const NAMED: &str = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
    const BARE_V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    const ROOT_V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn one_hierarchy_for_each_v1_mount() {
        assert_eq!(
            found(&["22 27 0:21 / /proc rw - proc proc rw", TMPFS, CPU, MEMORY, NAMED]),
            v1(&[
                ("/sys/fs/cgroup/cpu,cpuacct", &["cpu", "cpuacct"]),
                ("/sys/fs/cgroup/memory", &["memory"]),
                ("/sys/fs/cgroup/systemd", &["name=systemd"]),
            ])
        );
    }

    #[test]
    fn hybrid_is_v1_and_keeps_the_bare_tree() {
        assert_eq!(
            found(&[TMPFS, MEMORY, BARE_V2]),
            v1(&[("/sys/fs/cgroup/memory", &["memory"]), ("/sys/fs/cgroup/unified", &[])])
        );
    }

    #[test]
    fn v2_when_mounted_on_the_root() {
        assert_eq!(found(&[ROOT_V2]), Some(CgroupLayout::V2 { root: "/sys/fs/cgroup".into() }));
        assert_eq!(
            found(&[ROOT_V2, TMPFS, MEMORY]),
            v1(&[("/sys/fs/cgroup/memory", &["memory"])]),
            "hidden by a later mount"
        );
        assert_eq!(found(&[TMPFS, ROOT_V2]), Some(CgroupLayout::V2 { root: "/sys/fs/cgroup".into() }));
    }

    #[test]
    fn nothing_usable() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[TMPFS, BARE_V2]), None, "a v2 tree elsewhere has no controllers for us");
        assert_eq!(found(&["32 31 0:29 / /elsewhere/memory rw - cgroup cgroup rw,memory"]), None);
        assert_eq!(found(&["- - -", "1 2 3", " - cgroup", "a b c d e - cgroup x"]), None);
    }

    #[test]
    fn a_second_door_to_a_hierarchy_is_ignored() {
        let again = "50 31 0:32 / /sys/fs/cgroup/again rw - cgroup cgroup rw,memory";
        assert_eq!(found(&[TMPFS, MEMORY, again]), v1(&[("/sys/fs/cgroup/memory", &["memory"])]));
    }

    #[test]
    fn octal_escapes() {
        let check = |field: &str, expect: &str| assert_eq!(unescape(field), expect, "{field}");
        check(r"/a\040b", "/a b");
        check(r"/a\134", r"/a\");
        check(r"/a\04", r"/a\04");
        check(r"/a\999", r"/a\999");
        check(r"\", r"\");
        check("", "");
    }

    #[test]
    fn this_host_has_a_layout() {
        // Whatever machine runs the tests, its kernel has one version or the other.
        assert!(detect(Path::new("/sys/fs/cgroup")).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(mountinfo in r"[ -~\n]{0,200}", cgroups in ".{0,60}", field in r"[\\0-9a]{0,12}") {
            let _ = detect_in(Path::new("/sys/fs/cgroup"), &mountinfo, &cgroups);
            prop_assert!(unescape(&field).len() <= field.len() * 3);
        }
    }
}
