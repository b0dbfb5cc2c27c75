//! Reads and writes the files of a cgroup. Blocking; called from the blocking pool only.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use ports::CgroupError;
use rustix::io::Errno;

use super::settings::Setting;

pub(super) fn failed<'a>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> CgroupError + 'a {
    move |source| CgroupError::Io { operation, path: path.display().to_string(), source }
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("reading", path))
}

/// Never creates the file: the kernel creates all of them with the directory, and a missing file means a missing
/// controller.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(failed("writing", path))
}

/// Creates the directory if it is missing. Returns whether it was created.
pub(super) fn make(path: &Path) -> Result<bool, CgroupError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("creating", path)(error)),
    }
}

/// The directories from the first one below `root` down to `path`.
pub(super) fn directories_below(root: &Path, path: &Path) -> Vec<PathBuf> {
    let mut chain: Vec<PathBuf> =
        path.ancestors().take_while(|ancestor| *ancestor != root).map(Path::to_path_buf).collect();
    chain.reverse();
    chain
}

/// The settings that the files do not have yet.
pub(super) fn changed_settings(directory: &Path, settings: Vec<Setting>) -> Vec<Setting> {
    let page_size = rustix::param::page_size() as u64;
    settings
        .into_iter()
        .filter(|setting| match fs::read_to_string(directory.join(&setting.file)) {
            Ok(current) => !setting.holds(&current, page_size),
            // If this fails for whatever reason, the write fails too and reports a better error.
            Err(_) => true,
        })
        .collect()
}

/// Writes the settings that differ from what the files hold.
///
/// The kernel checks a quota and its period against each other and against the parent at each write. Which order works
/// depends on the old values, so a write that is refused as invalid is repeated after the others.
///
/// A value that can't be written keeps none of the others from being written. The first failure is returned.
pub(super) fn apply(directory: &Path, settings: Vec<Setting>) -> Result<(), CgroupError> {
    let mut refused = Vec::new();
    let mut outcome = Ok(());
    for setting in changed_settings(directory, settings) {
        match apply_one(directory, &setting) {
            Err(CgroupError::Io { source, .. }) if Errno::from_io_error(&source) == Some(Errno::INVAL) => {
                refused.push(setting);
            }
            result => outcome = outcome.and(result),
        }
    }
    refused.iter().fold(outcome, |outcome, setting| outcome.and(apply_one(directory, setting)))
}

fn apply_one(directory: &Path, setting: &Setting) -> Result<(), CgroupError> {
    match write(&directory.join(&setting.file), &setting.value) {
        Err(CgroupError::Io { source, .. }) if setting.optional && source.kind() == ErrorKind::NotFound => {
            Ok(())
        }
        result => result,
    }
}

/// Directories directly below; none if the directory does not exist.
pub(super) fn subdirectories(path: &Path) -> Result<Vec<String>, CgroupError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed("listing", path)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if gone(&error) => break,
            Err(error) => return Err(failed("listing", path)(error)),
        };
        // The type of the entry itself: a symlink is never followed out of the tree.
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Reading a cgroup that is being removed fails with ENODEV or ENOENT.
pub(super) fn gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::NODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::settings;
    use model::cgroup::CgroupValues;

    #[test]
    fn a_value_that_stands_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pids.max"), "100\n").unwrap();
        fs::write(dir.path().join("cpu.shares"), "5\n").unwrap();
        let values = CgroupValues { pids_limit: Some(100), cpu_shares: Some(7), ..CgroupValues::default() };
        let left = changed_settings(dir.path(), settings::v1(&values, |_| true));
        assert_eq!(left.iter().map(|s| s.file.as_str()).collect::<Vec<_>>(), ["cpu.shares"]);
        apply(dir.path(), settings::v1(&values, |_| true)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("pids.max")).unwrap(), "100\n", "left alone");
        assert_eq!(fs::read_to_string(dir.path().join("cpu.shares")).unwrap(), "7");
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let values = CgroupValues { pids_limit: Some(1), ..CgroupValues::default() };
        let error = apply(dir.path(), settings::v2(&values, |_| true, "")).unwrap_err();
        assert!(error.to_string().ends_with("/pids.max: writing failed"), "{error}");
        assert!(!dir.path().join("pids.max").exists(), "not created");
    }

    #[test]
    fn a_value_that_is_refused_keeps_no_other_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("memory.max")).unwrap();
        fs::write(dir.path().join("pids.max"), "max\n").unwrap();
        let values = CgroupValues { memory_limit: Some(1), pids_limit: Some(7), ..CgroupValues::default() };
        let error = apply(dir.path(), settings::v2(&values, |_| true, "")).unwrap_err();
        assert!(error.to_string().ends_with("/memory.max: writing failed"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("pids.max")).unwrap(), "7");
    }

    #[test]
    fn an_optional_file_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("hugetlb.2MB.max"), "max\n").unwrap();
        let values =
            CgroupValues { hugepage_limits: [("2MB".to_owned(), 0)].into(), ..CgroupValues::default() };
        apply(dir.path(), settings::v2(&values, |_| true, "")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("hugetlb.2MB.max")).unwrap(), "0");
    }

    #[test]
    fn the_chain_is_top_down_and_without_its_root() {
        let chain = directories_below(Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/a/b/c"));
        let expect = ["/sys/fs/cgroup/a", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b/c"];
        assert_eq!(chain, expect.map(PathBuf::from));
    }

    #[test]
    fn links_are_not_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        assert_eq!(subdirectories(dir.path()).unwrap(), ["real"]);
        assert!(subdirectories(&dir.path().join("absent")).unwrap().is_empty());
    }
}
