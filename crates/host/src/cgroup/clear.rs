//! Empties a cgroup: kills its processes, then removes its directories. Nothing outside the given directories is
//! touched.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ports::CgroupError;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};

use super::file;

/// Kills every process in the trees. Returns how many were alive.
pub(super) fn kill(directories: &[PathBuf]) -> Result<usize, CgroupError> {
    for directory in directories {
        // Kill all at once if the kernel can (v2 since 5.14), so that no fork escapes.
        match file::write(&directory.join("cgroup.kill"), "1") {
            Err(CgroupError::Io { source, .. }) if file::gone(&source) => {}
            Err(error) => tracing::debug!(%error, "killing a cgroup one process at a time"),
            Ok(()) => {}
        }
    }
    let found = processes(directories)?;
    let held: Vec<(Pid, Option<OwnedFd>)> =
        found.iter().filter_map(|pid| open_pidfd(*pid).map(|fd| (*pid, fd))).collect();
    // A PID may be reused between listing and pidfd_open. Only PIDs that are still in cgroup.procs afterwards are
    // signalled.
    let still = processes(directories)?;
    for (pid, fd) in held {
        if still.contains(&pid) && pid != getpid() {
            signal(pid, fd.as_ref());
        }
    }
    for directory in directories {
        thaw(directory);
    }
    Ok(still.len())
}

/// A pidfd of the process, or `Some(None)` if the kernel has no pidfds. `None` if the process has ended.
fn open_pidfd(pid: Pid) -> Option<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Some(Some(fd)),
        Err(Errno::SRCH) => None,
        Err(_) => Some(None),
    }
}

fn signal(pid: Pid, fd: Option<&OwnedFd>) {
    let result = match fd {
        Some(fd) => pidfd_send_signal(fd, Signal::KILL),
        None => kill_process(pid, Signal::KILL),
    };
    match result {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => tracing::warn!(%error, pid = pid.as_raw_nonzero(), "cannot kill a process of a cgroup"),
    }
}

/// A process in the v1 freezer can't even be killed. (On v2 it can.)
fn thaw(directory: &Path) {
    for_each(directory, &mut |directory| {
        let state = directory.join("freezer.state");
        if fs::read_to_string(&state).is_ok_and(|text| text.trim() != "THAWED") {
            let _ = file::write(&state, "THAWED");
        }
        Ok(())
    })
    .unwrap_or_else(|error| tracing::debug!(%error, "looking for frozen cgroups"));
}

/// All processes in the trees.
pub(super) fn processes(directories: &[PathBuf]) -> Result<HashSet<Pid>, CgroupError> {
    let mut found = HashSet::new();
    for directory in directories {
        for_each(directory, &mut |directory| {
            let path = directory.join("cgroup.procs");
            match fs::read_to_string(&path) {
                Ok(text) => found.extend(parse_pids(&text)),
                // A threaded cgroup lists its processes at the root of its domain.
                Err(error)
                    if file::gone(&error) || Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(file::failed("reading", &path)(error)),
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// A process of another PID namespace is listed as 0, which as an argument of kill(2) would mean ourselves.
fn parse_pids(text: &str) -> impl Iterator<Item = Pid> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|raw| *raw > 0).filter_map(Pid::from_raw)
}

/// Removes the trees, leaves first. Returns `false` while the kernel still holds one of them.
pub(super) fn remove(directories: &[PathBuf]) -> Result<bool, CgroupError> {
    let mut removed = true;
    for directory in directories {
        let mut failure = None;
        for_each(directory, &mut |directory| {
            match fs::remove_dir(directory) {
                Ok(()) => {}
                Err(error) if file::gone(&error) => {}
                Err(error) if error.kind() == ErrorKind::ResourceBusy => removed = false,
                // Continue with the others.
                Err(error) => failure = Some(file::failed("removing", directory)(error)),
            }
            Ok(())
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    Ok(removed)
}

pub(super) fn busy_error(path: &str) -> CgroupError {
    file::failed("removing", Path::new(path))(io::Error::from(ErrorKind::ResourceBusy))
}

/// Visits a tree, leaves first.
fn for_each(
    directory: &Path,
    visit: &mut impl FnMut(&Path) -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    for name in file::subdirectories(directory)? {
        for_each(&directory.join(name), visit)?;
    }
    visit(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_real_process_numbers() {
        let check = |text: &str, expect: &[i32]| {
            let found: Vec<i32> = parse_pids(text).map(|pid| pid.as_raw_nonzero().get()).collect();
            assert_eq!(found, expect, "{text:?}");
        };
        check("", &[]);
        check("12\n7\n", &[12, 7]);
        check("0\n", &[]);
        check("-1\n-5\n9\n", &[9]);
        check("abc\n99999999999999\n3", &[3]);
    }

    proptest! {
        #[test]
        fn any_text_gives_positive_numbers(text in ".{0,80}", numbers in proptest::collection::vec(any::<i64>(), 0..9)) {
            prop_assert!(parse_pids(&text).all(|pid| pid.as_raw_nonzero().get() > 0));
            let lines: Vec<String> = numbers.iter().map(i64::to_string).collect();
            prop_assert!(parse_pids(&lines.join("\n")).all(|pid| pid.as_raw_nonzero().get() > 0));
        }
    }

    #[test]
    fn trees_go_leaves_first_and_absent_ones_are_fine() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pod/a/b")).unwrap();
        fs::create_dir_all(dir.path().join("other")).unwrap();
        assert!(remove(&[dir.path().join("pod"), dir.path().join("never")]).unwrap());
        assert!(!dir.path().join("pod").exists());
        assert!(dir.path().join("other").exists());
    }

    #[test]
    fn what_cannot_be_removed_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pod/a")).unwrap();
        fs::write(dir.path().join("pod/stray"), "").unwrap();
        let error = remove(&[dir.path().join("pod")]).unwrap_err();
        assert!(error.to_string().ends_with("/pod: removing failed"), "{error}");
        assert!(!dir.path().join("pod/a").exists(), "the rest is gone");
    }
}
