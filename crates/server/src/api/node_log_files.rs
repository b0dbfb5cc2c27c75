//! Opens files below the directory of the node's logs.
//!
//! Links that lead out of the directory are not followed, and only regular files are read. Links of containers are
//! absolute and lead to another place inside, so a path is first resolved, and then opened without a single link.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path as FilePath, PathBuf};

use axum::body::Body;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use tokio_util::io::ReaderStream;

use super::SecureApi;

/// Names of a directory that are shown at most.
const MAX_NAMES: usize = 10_000;

/// A file below the directory of logs, all of it.
pub(super) async fn open_log_file(api: &SecureApi, path: &str) -> Option<Body> {
    let (directory, path) = (api.settings.node_log_dir.clone(), path.to_owned());
    match tokio::task::spawn_blocking(move || open(&directory, &path)).await {
        Ok(Ok(OpenedPath::File(file))) => {
            Some(Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(file))))
        }
        _ => None,
    }
}

pub(super) enum OpenedPath {
    File(File),
    /// Sorted; those of directories end with a slash.
    Directory(Vec<String>),
}

pub(super) fn open(directory: &FilePath, path: &str) -> io::Result<OpenedPath> {
    let inside = PathBuf::from(if path.is_empty() { "." } else { path });
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !inside.components().all(plain) || path.contains('\0') {
        return Err(io::ErrorKind::NotFound.into());
    }
    let directory = directory.canonicalize()?;
    let resolved = directory.join(&inside).canonicalize()?;
    let outside = |_| io::Error::from(io::ErrorKind::NotFound);
    let inside = resolved.strip_prefix(&directory).map_err(outside)?;
    let inside = if inside.as_os_str().is_empty() { FilePath::new(".") } else { inside };
    let root =
        rustix::fs::open(&directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Not blocking: opening a fifo would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // A link that was put there since the check is not followed.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&root, inside, flags, Mode::empty(), resolve)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::RegularFile => Ok(OpenedPath::File(File::from(found))),
        FileType::Directory => names(found).map(OpenedPath::Directory),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn names(directory: OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let kind = rustix::fs::statat(directory.as_fd(), entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        if kind.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            name.push('/');
        }
        names.push(name);
        if names.len() == MAX_NAMES {
            break;
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_and_nothing_strange_is_opened() {
        let temp = tempfile::tempdir().unwrap();
        let logs = temp.path().join("log");
        fs::create_dir_all(logs.join("pods/a")).unwrap();
        fs::write(temp.path().join("secret"), "secret").unwrap();
        fs::write(logs.join("syslog"), "hello").unwrap();
        symlink("syslog", logs.join("inside")).unwrap();
        symlink(logs.join("syslog"), logs.join("pods/a/there")).unwrap();
        symlink("../secret", logs.join("outside")).unwrap();
        symlink("/etc/passwd", logs.join("absolute")).unwrap();
        symlink("/proc/self/fd/0", logs.join("magic")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, logs.join("fifo"), Mode::RWXU).unwrap();
        let kind = |path: &str| match open(&logs, path) {
            Ok(OpenedPath::File(_)) => "file".to_owned(),
            Ok(OpenedPath::Directory(names)) => names.join(" "),
            Err(_) => "error".to_owned(),
        };
        assert_eq!(kind(""), "absolute fifo inside magic outside pods/ syslog");
        assert_eq!(kind("pods/"), "a/");
        for good in ["syslog", "inside", "pods/a/there"] {
            assert_eq!(kind(good), "file", "{good}");
        }
        for bad in [
            "outside",
            "absolute",
            "magic",
            "fifo",
            "../secret",
            "pods/../../secret",
            "/etc/passwd",
            "x\0",
            "none",
        ] {
            assert_eq!(kind(bad), "error", "{bad}");
        }
    }
}
