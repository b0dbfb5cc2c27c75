//! Opens a log file safely.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use crate::files::open_without_symlinks;

/// Opens a regular file below `logs_dir`, following no symlink below it.
pub fn open_log(logs_dir: &Path, path: &Path) -> io::Result<File> {
    let inside = path.strip_prefix(logs_dir).ok().filter(|rest| is_plain(rest));
    let Some(inside) = inside else { return Err(outside(logs_dir, path)) };
    let base = rustix::fs::open(logs_dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Non-blocking, because opening a fifo would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_without_symlinks(base.as_fd(), inside, flags, Mode::empty())?;
    regular(File::from(file))
}

/// Opens the directory of a log below `logs_dir`, following no symlink below it.
pub(super) fn open_directory(logs_dir: &Path, log: &Path) -> io::Result<OwnedFd> {
    let inside =
        log.parent().and_then(|parent| parent.strip_prefix(logs_dir).ok()).filter(|rest| is_plain(rest));
    let Some(inside) = inside else { return Err(outside(logs_dir, log)) };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(logs_dir, OFlags::PATH | flags, Mode::empty())?;
    Ok(open_without_symlinks(base.as_fd(), inside, OFlags::RDONLY | flags, Mode::empty())?)
}

/// A path to an open directory that nobody can lead elsewhere.
pub(super) fn own_path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn is_plain(rest: &Path) -> bool {
    rest.components().next().is_some() && rest.components().all(|part| matches!(part, Component::Normal(_)))
}

fn outside(logs_dir: &Path, path: &Path) -> io::Error {
    let message = format!("{} is not below {}", path.display(), logs_dir.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Refuses everything but regular files: reading a fifo or a device may block for ever.
pub(crate) fn regular(file: File) -> io::Result<File> {
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn opens_only_regular_files_inside() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().join("real");
        let logs = temp.path().join("logs");
        fs::create_dir_all(real.join("pod/c")).unwrap();
        symlink(&real, &logs).unwrap();
        fs::write(temp.path().join("secret"), "secret").unwrap();
        fs::write(real.join("pod/c/0.log"), "log").unwrap();
        symlink("0.log", real.join("pod/c/inside.log")).unwrap();
        symlink("../../../secret", real.join("pod/c/outside.log")).unwrap();
        symlink("c", real.join("pod/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, real.join("pod/c/fifo.log"), Mode::RWXU).unwrap();

        let mut text = String::new();
        open_log(&logs, &logs.join("pod/c/0.log")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "log");
        for bad in [
            "pod/c/inside.log",
            "pod/c/outside.log",
            "pod/link/0.log",
            "pod/c/fifo.log",
            "pod/c",
            "pod/../../secret",
        ] {
            assert!(open_log(&logs, &logs.join(bad)).is_err(), "{bad}");
        }
        assert!(open_log(&logs, &temp.path().join("secret")).is_err());
        assert!(open_log(&logs, &logs).is_err());
        let missing = open_log(&logs, &logs.join("pod/c/1.log")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
