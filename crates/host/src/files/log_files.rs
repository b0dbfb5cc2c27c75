//! Log files of containers, the symlinks to them, and the logs of pods that were removed.
//!
//! A container with a hostPath on the logs can swap a directory for a symlink at any moment. So files are listed and
//! removed through descriptors: the directory is opened below the logs directory through no symlink, and its entries
//! are unlinked in it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use model::{FullName, PodUid};
use ports::{FilesError, LeftoverFiles};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::confined_open::open_without_symlinks;
use super::device_map;
use super::layout::{FilesLayout, failed, single_name};
use super::tree::remove_tree;

const LINK_SUFFIX: &str = ".log";
const MAX_FILE_NAME: usize = 255;

/// `<pod>_<namespace>_<container>-<id>.log`, as log collectors expect it.
pub fn link_name(pod: &FullName, container: &str, id: &str) -> String {
    let mut base = format!("{pod}_{container}-{id}");
    let mut end = base.len().min(MAX_FILE_NAME - LINK_SUFFIX.len());
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    base.truncate(end);
    base + LINK_SUFFIX
}

/// A container without a log file (its log driver is off) gets no symlink.
pub fn link(layout: &FilesLayout, name: &str, log: &str) -> Result<(), FilesError> {
    let log = layout.in_pod_logs(log)?;
    if !log.exists() {
        return Ok(());
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = layout.log_links_dir.join(single_name("log link", name)?);
    if std::fs::read_link(&path).is_ok_and(|target| target == log) {
        return Ok(());
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = layout.log_links_dir.join(format!(".{}-{number}{LINK_SUFFIX}", std::process::id()));
    // A killed agent with our process ID may have left one.
    let _ = std::fs::remove_file(&new);
    std::os::unix::fs::symlink(&log, &new).map_err(failed("make link", &new))?;
    std::fs::rename(&new, &path).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        failed("make link", &path)(error)
    })
}

/// Removes the log, its rotated files, and the symlinks to it.
pub fn remove_logs(layout: &FilesLayout, log: &str) -> Result<(), FilesError> {
    let log = layout.in_pod_logs(log)?;
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Err(failed("remove", &log)(Errno::INVAL));
    };
    let rotated = format!("{name}.");
    let mut result = Ok(());
    if let Some(dir) = OpenDir::of_logs(layout, dir)? {
        for found in dir.names()? {
            if found == name || found.starts_with(&rotated) {
                result = result.and(dir.unlink(&found));
            }
        }
    }
    result.and(unlink_all(layout, |target| target == log))
}

/// A directory whose entries are listed and unlinked by its descriptor.
struct OpenDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl OpenDir {
    /// Opens a directory that the agent is configured with. `None`: it does not exist.
    fn trusted(path: &Path) -> Result<Option<Self>, FilesError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::opened(path, rustix::fs::open(path, flags, Mode::empty()))
    }

    /// Opens a directory below the logs directory, through no symlink.
    fn of_logs(layout: &FilesLayout, path: &Path) -> Result<Option<Self>, FilesError> {
        let Some(base) = Self::trusted(&layout.pod_logs)? else { return Ok(None) };
        let inner = path.strip_prefix(&layout.pod_logs).map_err(|_| failed("open", path)(Errno::XDEV))?;
        let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Self::opened(path, open_without_symlinks(base.fd.as_fd(), inner, flags, Mode::empty()))
    }

    fn opened(path: &Path, fd: Result<OwnedFd, Errno>) -> Result<Option<Self>, FilesError> {
        match fd {
            Ok(fd) => Ok(Some(Self { fd, path: path.to_owned() })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("open", path)(errno)),
        }
    }

    /// Sorted; names that are not UTF-8 are left out.
    fn names(&self) -> Result<Vec<String>, FilesError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed("list", &self.path))? {
            let entry = entry.map_err(failed("list", &self.path))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            names.extend(name.to_str().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn unlink(&self, name: &str) -> Result<(), FilesError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("remove", &self.path.join(name))(errno)),
        }
    }

    /// The target of a symlink in it.
    fn target(&self, name: &str) -> Option<PathBuf> {
        let target = rustix::fs::readlinkat(&self.fd, name, Vec::new()).ok()?;
        Some(OsString::from_vec(target.into_bytes()).into())
    }
}

/// Removes a pod's log directory, and the symlinks into it, which would dangle.
pub fn remove_dir(layout: &FilesLayout, name: &str) -> Result<(), FilesError> {
    let dir = layout.pod_logs.join(single_name("log directory", name)?);
    remove_tree(&dir)?;
    unlink_all(layout, |target| target.starts_with(&dir))
}

fn unlink_all(layout: &FilesLayout, leads_there: impl Fn(&Path) -> bool) -> Result<(), FilesError> {
    let Some(links) = OpenDir::trusted(&layout.log_links_dir)? else { return Ok(()) };
    let mut result = Ok(());
    for found in links.names()? {
        if links.target(&found).is_some_and(|target| leads_there(&target)) {
            result = result.and(links.unlink(&found));
        }
    }
    result
}

pub fn remove_link(layout: &FilesLayout, name: &str) -> Result<(), FilesError> {
    let name = single_name("log link", name)?;
    let Some(links) = OpenDir::trusted(&layout.log_links_dir)? else { return Ok(()) };
    match rustix::fs::statat(&links.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Symlink => {
            let path = layout.log_links_dir.join(name);
            Err(FilesError::Refused { message: format!("{} is not a link, not removing it", path.display()) })
        }
        // A log that was being rotated is there again.
        _ if layout.log_links_dir.join(name).exists() => Ok(()),
        _ => links.unlink(name),
    }
}

/// The highest N of `N.log` and its rotated files (`N.log.20240102-030405.gz`).
pub fn highest_number(layout: &FilesLayout, dir: &str) -> Result<Option<u32>, FilesError> {
    let dir = layout.in_pod_logs(dir)?;
    let Some(dir) = OpenDir::of_logs(layout, &dir)? else { return Ok(None) };
    let number = |name: String| {
        let (number, rest) = name.split_once('.')?;
        let plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let log = rest == "log" || rest.starts_with("log.");
        number.parse().ok().filter(|_| plain && log)
    };
    Ok(dir.names()?.into_iter().filter_map(number).max())
}

pub fn leftovers(layout: &FilesLayout) -> Result<LeftoverFiles, FilesError> {
    let mut problems = Vec::new();
    let pod_dirs = directories(&layout.pods(), &mut problems).into_iter().map(PodUid::from);
    let mut pod_dirs: BTreeSet<PodUid> = pod_dirs.collect();
    let pod_dirs_complete = problems.is_empty();
    let log_dirs = directories(&layout.pod_logs, &mut problems);
    let links = names(&layout.log_links_dir).unwrap_or_else(|error| {
        problems.push(error.user_message());
        Vec::new()
    });
    let dead = |name: &String| {
        let path = layout.log_links_dir.join(name);
        name.ends_with(LINK_SUFFIX)
            && path.is_symlink()
            && matches!(path.metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    };
    let dead_links = links.into_iter().filter(dead).collect();
    // Maps of devices of pods whose directory is gone.
    match device_map::pods(&layout.root) {
        Ok(found) => pod_dirs.extend(found),
        Err(error) => problems.push(error.user_message()),
    }
    let pod_dirs = Vec::from_iter(pod_dirs);
    Ok(LeftoverFiles { pod_dirs, pod_dirs_complete, log_dirs, dead_links, problems })
}

/// Names of the directories in a directory of the agent. `problems` gets what could not be read.
fn directories(dir: &Path, problems: &mut Vec<String>) -> Vec<String> {
    let names = names(dir).unwrap_or_else(|error| {
        problems.push(error.user_message());
        Vec::new()
    });
    let mut is_dir = |name: &String| {
        let path = dir.join(name);
        match path.symlink_metadata() {
            Ok(found) => found.is_dir(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => {
                problems.push(format!("look at {}: {error}", path.display()));
                false
            }
        }
    };
    names.into_iter().filter(|name| is_dir(name)).collect()
}

/// Sorted names in a directory of the agent. A missing directory has none.
fn names(dir: &Path) -> Result<Vec<String>, FilesError> {
    OpenDir::trusted(dir)?.map_or(Ok(Vec::new()), |dir| dir.names())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn bench() -> (tempfile::TempDir, FilesLayout) {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let layout = FilesLayout { root: at("root"), pod_logs: at("logs"), log_links_dir: at("links") };
        fs::create_dir_all(layout.pod_logs.join("ns_p_u/c")).unwrap();
        fs::create_dir_all(&layout.log_links_dir).unwrap();
        (temp, layout)
    }

    #[test]
    fn link_names_fit_into_a_file_name() {
        let pod = FullName::new("pod", "ns");
        assert_eq!(link_name(&pod, "c", "0123"), "pod_ns_c-0123.log");
        let long = link_name(&FullName::new(&"p".repeat(253), "ns"), "c", "0123");
        assert_eq!((long.len(), &long[250..]), (255, "p.log"));
        assert_eq!(link_name(&FullName::new(&"p".repeat(250), "ns"), "c", "1").len(), 255);
        assert!(link_name(&FullName::new(&"ä".repeat(140), "ns"), "c", "1").len() <= 255);
    }

    #[test]
    fn links_are_made_replaced_and_removed_with_the_logs() {
        let (_temp, layout) = bench();
        let dir = layout.pod_logs.join("ns_p_u/c");
        let log = |number: u32| dir.join(format!("{number}.log")).to_str().unwrap().to_owned();
        link(&layout, "l.log", &log(0)).unwrap();
        assert_eq!(names(&layout.log_links_dir).unwrap(), [""; 0], "no log, no link");
        for name in ["0.log", "0.log.20240102-030405", "0.log.1.gz", "0.logs", "1.log", "10.log"] {
            fs::write(dir.join(name), "x").unwrap();
        }
        link(&layout, "l.log", &log(0)).unwrap();
        link(&layout, "m.log", &log(1)).unwrap();
        assert_eq!(fs::read_link(layout.log_links_dir.join("l.log")).unwrap().to_str().unwrap(), log(0));
        link(&layout, "l.log", &log(1)).unwrap();
        link(&layout, "l.log", &log(1)).unwrap();
        assert_eq!(fs::read_link(layout.log_links_dir.join("l.log")).unwrap().to_str().unwrap(), log(1));
        link(&layout, "l.log", &log(0)).unwrap();
        assert_eq!(names(&layout.log_links_dir).unwrap(), ["l.log", "m.log"], "nothing temporary stays");

        remove_logs(&layout, &log(0)).unwrap();
        assert_eq!(names(&dir).unwrap(), ["0.logs", "1.log", "10.log"]);
        assert_eq!(names(&layout.log_links_dir).unwrap(), ["m.log"]);
        remove_logs(&layout, &log(0)).unwrap();
        assert!(remove_logs(&layout, "/etc/passwd").is_err());
        assert!(link(&layout, "x.log", "/etc/passwd").is_err());
        assert!(link(&layout, "../x.log", &log(1)).is_err());
    }

    #[test]
    fn links_into_a_directory_of_logs_go_with_it() {
        let (temp, layout) = bench();
        let log = layout.pod_logs.join("ns_p_u/c/0.log");
        let other = layout.pod_logs.join("ns_p_u2/0.log");
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        for (name, target) in [("a.log", &log), ("b.log", &other), ("c.log", &temp.path().join("nowhere"))] {
            symlink(target, layout.log_links_dir.join(name)).unwrap();
        }
        remove_dir(&layout, "ns_p_u").unwrap();
        assert_eq!(names(&layout.log_links_dir).unwrap(), ["b.log", "c.log"]);
        assert_eq!(names(&layout.pod_logs).unwrap(), ["ns_p_u2"]);
        remove_dir(&layout, "ns_p_u").unwrap();
        assert!(remove_dir(&layout, "../links").is_err());
    }

    #[test]
    fn the_highest_log_number_counts_rotated_files() {
        let (_temp, layout) = bench();
        let check = |names: &[&str], expect: Option<u32>| {
            let dir = tempfile::tempdir_in(&layout.pod_logs).unwrap();
            for name in names {
                fs::write(dir.path().join(name), "").unwrap();
            }
            let found = highest_number(&layout, dir.path().to_str().unwrap());
            assert_eq!(found.unwrap(), expect, "{names:?}");
        };
        check(&[], None);
        check(&["0.log"], Some(0));
        check(&["2.log", "10.log", "9.log"], Some(10));
        check(&["2.log", "3.log.20240102-030405.gz"], Some(3));
        check(&["x.log", "5", "5.txt", "+6.log", "99999999999.log", "7.logs"], None);
        let missing = layout.pod_logs.join("missing");
        assert_eq!(highest_number(&layout, missing.to_str().unwrap()).unwrap(), None);
    }

    /// If a log directory is or becomes a symlink, nothing behind the symlink is removed.
    #[test]
    fn nothing_is_removed_through_a_link() {
        let (temp, layout) = bench();
        let (dir, spare) = (layout.pod_logs.join("ns_p_u/c"), layout.pod_logs.join("ns_p_u/spare"));
        let precious = temp.path().join("precious");
        fs::create_dir(&precious).unwrap();
        symlink(&precious, &spare).unwrap();
        let log = dir.join("0.log").to_str().unwrap().to_owned();
        let real = rustix::fs::open(&dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let write_real_log = || rustix::fs::openat(&real, "0.log", flags, Mode::RWXU).map(drop).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(rustix::fs::CWD, &dir, rustix::fs::CWD, &spare, flags);
                }
            });
            let (mut removed, mut refused, mut harmed) = (0, 0, false);
            // Until both results were seen often; the number of rounds only bounds a failing run.
            for _ in 0..1_000_000 {
                if harmed || (removed >= 500 && refused >= 500) {
                    break;
                }
                fs::write(precious.join("0.log"), "of the host").unwrap();
                // Without a log there is nothing to remove, and so no moment between the list and the removal.
                write_real_log();
                match remove_logs(&layout, &log) {
                    Ok(()) => removed += 1,
                    Err(_) => refused += 1,
                }
                harmed = !precious.join("0.log").exists();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(!harmed && removed >= 500 && refused >= 500, "{removed} {refused} {harmed}");
        });
    }

    #[test]
    fn a_directory_that_cannot_be_listed_hides_no_leftovers_of_the_others() {
        let (_temp, layout) = bench();
        fs::create_dir_all(layout.pods().join("uid-a")).unwrap();
        fs::remove_dir(&layout.log_links_dir).unwrap();
        symlink(&layout.log_links_dir, &layout.log_links_dir).unwrap();
        let found = leftovers(&layout).unwrap();
        assert_eq!((found.pod_dirs.len(), found.log_dirs.len()), (1, 1));
        assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
        assert!(found.pod_dirs_complete, "pods are not concerned");
    }

    #[test]
    fn directories_of_pods_that_can_not_be_listed_are_not_taken_for_absent() {
        let (_temp, layout) = bench();
        assert!(leftovers(&layout).unwrap().pod_dirs_complete, "no pods directory yet");
        fs::create_dir_all(layout.root.clone()).unwrap();
        fs::write(layout.pods(), "no directory").unwrap();
        let found = leftovers(&layout).unwrap();
        assert_eq!((found.pod_dirs_complete, found.pod_dirs.len(), found.log_dirs.len()), (false, 0, 1));
        assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    }

    #[test]
    fn leftovers_are_names_only() {
        let (_temp, layout) = bench();
        assert_eq!(leftovers(&layout).unwrap().pod_dirs, [], "no pods directory yet");
        fs::create_dir_all(layout.pods().join("uid-b")).unwrap();
        fs::create_dir_all(layout.pods().join("uid-a")).unwrap();
        fs::write(layout.pods().join("file"), "").unwrap();
        let log = layout.pod_logs.join("ns_p_u/c/0.log");
        fs::write(&log, "").unwrap();
        symlink(&log, layout.log_links_dir.join("alive.log")).unwrap();
        symlink("/nowhere/0.log", layout.log_links_dir.join("dead.log")).unwrap();
        symlink("/nowhere/0", layout.log_links_dir.join("dead-other")).unwrap();
        let found = leftovers(&layout).unwrap();
        assert_eq!(found.pod_dirs, [PodUid::new("uid-a"), PodUid::new("uid-b")]);
        assert_eq!(
            (found.log_dirs, found.dead_links),
            (vec!["ns_p_u".to_owned()], vec!["dead.log".to_owned()])
        );
        remove_link(&layout, "dead.log").unwrap();
        remove_link(&layout, "dead.log").unwrap();
        assert_eq!(leftovers(&layout).unwrap().dead_links, [""; 0]);
        fs::write(layout.log_links_dir.join("real.log"), "").unwrap();
        assert!(remove_link(&layout, "real.log").is_err() && layout.log_links_dir.join("real.log").exists());
    }
}
