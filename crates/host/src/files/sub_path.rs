//! Sub-paths: a part of a volume, resolved inside it and bind-mounted where a container can mount it.
//!
//! A container that shares the volume may swap directories for symlinks at any time. So the kernel resolves the
//! sub-path once, beneath the volume's descriptor. The result is a descriptor too, and the bind mount is made from it.
//! No path is resolved twice.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path};

use model::volume::SubPathMount;
use ports::FilesError;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::confined_open::open_beneath;
use super::layout::{failed, make_dirs};
use super::steps::step;
use crate::mountinfo::MountTable;

/// Mounts the sub-path at `target`, which is known to be in the pod's directory. Idempotent.
pub fn prepare(mount: &SubPathMount, target: &Path) -> Result<(), FilesError> {
    let sub_path = Path::new(&mount.sub_path);
    if sub_path.is_absolute() {
        return refuse(format!("error SubPath `{}` must not be an absolute path", mount.sub_path));
    }
    if sub_path.components().any(|part| part == Component::ParentDir) {
        return refuse(format!("unable to provision SubPath `{}`: must not contain '..'", mount.sub_path));
    }
    let found = match open_volume(mount).and_then(|volume| find(&volume, sub_path, mount.create)) {
        Ok(found) => found,
        Err(failure) => return Err(failure.for_user(mount)),
    };
    bind(&found, target).map_err(|error| {
        tracing::warn!(target = %target.display(), error = %error.user_message(), "sub-path was not mounted");
        refusal("prepare subPath", mount)
    })
}

enum Failure {
    Create(Errno),
    Prepare(Errno),
}

impl Failure {
    fn for_user(self, mount: &SubPathMount) -> FilesError {
        let (what, errno) = match self {
            Failure::Create(errno) => ("create subPath directory", errno),
            Failure::Prepare(errno) => ("prepare subPath", errno),
        };
        tracing::warn!(volume = %mount.volume_path, sub_path = %mount.sub_path, error = %errno, "failed to {what}");
        refusal(what, mount)
    }
}

/// Error messages must not show users what is on the node's disk; the log may.
fn refusal(what: &str, mount: &SubPathMount) -> FilesError {
    let (name, container) = (&mount.mount_name, &mount.container);
    FilesError::Refused {
        message: format!("failed to {what} for volumeMount {name:?} of container {container:?}"),
    }
}

fn refuse(message: String) -> Result<(), FilesError> {
    Err(FilesError::Refused { message })
}

/// The volume's own path is trusted, and may be a symlink (hostPath).
fn open_volume(mount: &SubPathMount) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(mount.volume_path.as_str(), flags, Mode::empty()).map_err(Failure::Prepare)
}

fn find(volume: &OwnedFd, sub_path: &Path, create: bool) -> Result<OwnedFd, Failure> {
    match open_beneath(volume.as_fd(), sub_path, OFlags::PATH) {
        Err(Errno::NOENT) if create => make(volume, sub_path).map_err(Failure::Create),
        other => other.map_err(Failure::Prepare),
    }
}

/// Creates what is missing of the sub-path, with the mode of the volume's root. Each directory is created in its
/// parent's descriptor, so that nothing can be created outside.
fn make(volume: &OwnedFd, sub_path: &Path) -> Result<OwnedFd, Errno> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(volume)?.st_mode & 0o7777);
    let mut current = open_beneath(volume.as_fd(), Path::new("."), directory)?;
    let mut walked = std::path::PathBuf::new();
    for part in sub_path.components() {
        let Component::Normal(name) = part else { continue };
        walked.push(name);
        current = match open_beneath(volume.as_fd(), &walked, directory) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                step("make a directory of the sub-path");
                let made = rustix::fs::mkdirat(&current, name, mode);
                // Symlinks are not followed: one that is dangling, or was swapped in now, is an error.
                let next = open_beneath(current.as_fd(), Path::new(name), directory | OFlags::NOFOLLOW)?;
                if made.is_ok() {
                    rustix::fs::fchmod(&next, mode)?;
                }
                next
            }
            Err(errno) => return Err(errno),
        };
    }
    Ok(current)
}

fn bind(found: &OwnedFd, target: &Path) -> Result<(), FilesError> {
    let wanted = rustix::fs::fstat(found).map_err(failed("examine the sub-path for", target))?;
    let is_dir = FileType::from_raw_mode(wanted.st_mode) == FileType::Directory;
    let parent = target.parent().unwrap_or(Path::new("/"));
    make_dirs(parent, 0o750)?;
    let real = parent
        .canonicalize()
        .map_err(failed("resolve", parent))?
        .join(target.file_name().unwrap_or_default());
    if shows(&real, &wanted)? {
        return Ok(());
    }
    make_mount_point(&real, is_dir)?;
    step("bind the sub-path");
    let source = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::mount::mount_bind(source, &real).map_err(failed("bind-mount a sub-path on", &real))
}

/// Returns true if the same file or directory is mounted there already; any other mount there is removed.
fn shows(target: &Path, wanted: &Stat) -> Result<bool, FilesError> {
    loop {
        let table = MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
        if table.at(target).is_none() {
            return Ok(false);
        }
        if rustix::fs::lstat(target)
            .is_ok_and(|there| (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino))
        {
            return Ok(true);
        }
        step("unmount another sub-path");
        rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(failed("unmount", target))?;
    }
}

fn make_mount_point(target: &Path, is_dir: bool) -> Result<(), FilesError> {
    step("make the mount point of a sub-path");
    match rustix::fs::lstat(target).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Directory) if is_dir => return Ok(()),
        Ok(FileType::RegularFile) if !is_dir => return Ok(()),
        // A directory from an earlier sub-path of another type. Nothing is mounted on it.
        Ok(FileType::Directory) => rustix::fs::rmdir(target).map_err(failed("remove", target))?,
        Ok(_) => rustix::fs::unlink(target).map_err(failed("remove", target))?,
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("examine", target)(errno)),
    }
    if is_dir {
        return make_dirs(target, 0o750);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::open(target, flags, mode)
        .and_then(|file| rustix::fs::fchmod(file, mode))
        .map_err(failed("create", target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Mounts;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Bench {
        mounts: Mounts,
        temp: tempfile::TempDir,
        volume: PathBuf,
        target: PathBuf,
    }

    fn bench() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/secret"), "secret").unwrap();
        let target = temp.path().join("volume-subpaths/v/c/0");
        Bench { mounts: Mounts::below(temp.path()), volume, target, temp }
    }

    impl Bench {
        fn prepare(&self, sub_path: &str, create: bool) -> Result<(), String> {
            let mount = SubPathMount {
                volume_path: self.volume.to_str().unwrap().into(),
                sub_path: sub_path.into(),
                target: self.target.to_str().unwrap().into(),
                mount_name: "v".into(),
                container: "c".into(),
                create,
                read_only: false,
            };
            prepare(&mount, &self.target).map_err(|error| error.to_string())
        }
        fn at(&self, name: &str) -> PathBuf {
            self.volume.join(name)
        }
    }

    const NOT_PREPARED: &str = r#"failed to prepare subPath for volumeMount "v" of container "c""#;
    const NOT_CREATED: &str = r#"failed to create subPath directory for volumeMount "v" of container "c""#;

    #[test]
    fn shows_directories_and_files_and_reuses_what_is_mounted() {
        let b = bench();
        fs::create_dir_all(b.at("a/b")).unwrap();
        fs::write(b.at("a/b/file"), "hello").unwrap();
        b.prepare("a/b", true).unwrap();
        assert_eq!(fs::read_to_string(b.target.join("file")).unwrap(), "hello");
        b.prepare("a//./b/", true).unwrap();
        assert_eq!(b.mounts.count(), 1);
        b.prepare("a/b/file", true).unwrap();
        assert_eq!(fs::read_to_string(&b.target).unwrap(), "hello");
        assert_eq!(b.mounts.count(), 1, "the former one was unmounted");
        fs::rename(b.at("a/b/file"), b.at("a/b/old")).unwrap();
        fs::write(b.at("a/b/file"), "new").unwrap();
        b.prepare("a/b/file", true).unwrap();
        assert_eq!(fs::read_to_string(&b.target).unwrap(), "new", "replaced file is seen");
        b.prepare("a", true).unwrap();
        assert!(b.target.join("b/old").exists() && b.mounts.count() == 1);
    }

    #[test]
    fn makes_missing_directories_with_the_volume_mode() {
        let b = bench();
        fs::set_permissions(&b.volume, fs::Permissions::from_mode(0o2777)).unwrap();
        std::os::unix::fs::chown(&b.volume, None, Some(77)).unwrap();
        b.prepare("x/y", true).unwrap();
        for name in ["x", "x/y"] {
            let meta = b.at(name).metadata().unwrap();
            assert_eq!((meta.permissions().mode() & 0o7777, meta.gid()), (0o2777, 77), "{name}");
        }
        let meta = b.target.metadata().unwrap();
        assert_eq!(meta.ino(), b.at("x/y").metadata().unwrap().ino());
        assert_eq!(b.prepare("z", false).unwrap_err(), NOT_PREPARED);
        assert!(!b.at("z").exists());
    }

    #[test]
    fn symlinks_may_not_leave_the_volume() {
        let b = bench();
        fs::create_dir_all(b.at("real/inner")).unwrap();
        symlink("real", b.at("inside")).unwrap();
        symlink("../../real", b.at("real/inner/back")).unwrap();
        symlink("/etc", b.at("absolute")).unwrap();
        symlink("../outside", b.at("relative")).unwrap();
        symlink("nowhere", b.at("dangling")).unwrap();
        symlink("/proc/self/root", b.at("magic")).unwrap();
        symlink("loop", b.at("loop")).unwrap();
        b.prepare("inside/inner", true).unwrap();
        b.prepare("real/inner/back/inner", true).unwrap();
        b.prepare("inside/new", true).unwrap();
        assert!(b.at("real/new").is_dir());
        for (sub_path, expect) in [
            ("absolute", NOT_PREPARED),
            ("absolute/passwd", NOT_PREPARED),
            ("relative", NOT_PREPARED),
            ("relative/secret", NOT_PREPARED),
            ("relative/new", NOT_PREPARED),
            ("magic", NOT_PREPARED),
            ("loop", NOT_PREPARED),
            ("dangling", NOT_CREATED),
            ("dangling/x", NOT_CREATED),
        ] {
            assert_eq!(b.prepare(sub_path, true), Err(expect.to_owned()), "{sub_path}");
        }
        assert!(!b.temp.path().join("outside/new").exists() && !b.at("nowhere").exists());
        assert_eq!(
            b.prepare("a/../../x", true).unwrap_err(),
            "unable to provision SubPath `a/../../x`: must not contain '..'"
        );
        assert_eq!(b.prepare("/etc", true).unwrap_err(), "error SubPath `/etc` must not be an absolute path");
        fs::remove_dir_all(&b.volume).unwrap();
        assert_eq!(b.prepare("x", true).unwrap_err(), NOT_PREPARED);
    }

    struct StopOnDrop<'a>(&'a AtomicBool);

    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Another container swaps a directory and a symlink to the outside as fast as it can.
    #[test]
    fn a_symlink_swapped_in_between_never_shows_the_outside() {
        let b = bench();
        fs::create_dir_all(b.at("dir/leaf")).unwrap();
        symlink("../outside", b.at("evil")).unwrap();
        fs::create_dir(b.temp.path().join("outside/leaf")).unwrap();
        let outside = [b.temp.path().join("outside"), b.temp.path().join("outside/leaf")]
            .map(|path| path.metadata().unwrap().ino());
        let stop = AtomicBool::new(false);
        let (mut mounted, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let volume =
                    rustix::fs::open(&b.volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(&volume, "dir", &volume, "evil", flags);
                }
            });
            // Also if an assertion fails, because otherwise the scope would wait for the swapper for ever.
            let _stop = StopOnDrop(&stop);
            // Until both results were seen often; the number of rounds only bounds a failing run.
            for round in 0..100_000 {
                if mounted >= 10 && refused >= 10 {
                    break;
                }
                let sub_path =
                    if round % 2 == 0 { "dir/leaf".to_owned() } else { format!("dir/new-{round}") };
                match b.prepare(&sub_path, true) {
                    Ok(()) => {
                        mounted += 1;
                        assert!(!outside.contains(&b.target.metadata().unwrap().ino()));
                        rustix::mount::unmount(&b.target, UnmountFlags::DETACH).unwrap();
                    }
                    Err(message) => {
                        refused += 1;
                        assert!(message == NOT_PREPARED || message == NOT_CREATED, "{message}");
                    }
                }
            }
        });
        let names: Vec<_> = fs::read_dir(b.temp.path().join("outside")).unwrap().collect();
        assert_eq!(names.len(), 2, "nothing was made outside");
        assert!(mounted >= 10 && refused >= 10, "{mounted} mounted, {refused} refused");
    }
}
