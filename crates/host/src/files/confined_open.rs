//! Opens files inside a volume, so that no symlink and no race leads out of it.
//!
//! The kernel does this in one call (`openat2`, since 5.6). If the call is missing or blocked by a seccomp filter, the
//! path is opened component by component, each in the descriptor of the one before and never through a symlink.
//! Symlinks are read and followed here, and mounts are recognized by their mount ID.

use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kernel returns EAGAIN if a rename elsewhere disturbed the resolution of `..`.
const RESOLVE_TRIES: usize = 128;
/// The kernel's limit.
const MAX_LINKS: usize = 40;

/// Symlinks are followed as long as they stay inside.
pub fn open_beneath(base: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match open_by_kernel(base, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => open_by_hand(base, path, flags, SymlinkPolicy::FollowInside),
        other => other,
    }
}

/// Opens a path that stays inside and contains no symlink. `mode` is for a created file.
pub fn open_without_symlinks(
    base: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW;
    match open_by_kernel(base, path, flags, mode, resolve) {
        Err(Errno::NOSYS | Errno::PERM) => walk_to_parent(base, path)
            .and_then(|(parent, name)| rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, mode)),
        other => other,
    }
}

/// Opens a directory by its name in its parent, only if it is neither a symlink nor a mount point.
pub fn open_subdir_on_same_mount(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    open_dir_on_same_mount(parent, Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// The same for a directory that lies deeper: no part of the path is a symlink or a mount point.
pub fn open_dir_on_same_mount(parent: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match open_by_kernel(parent, path, flags, Mode::empty(), resolve | ResolveFlags::BENEATH) {
        Err(Errno::NOSYS | Errno::PERM) => {
            let found = open_by_hand(parent, path, flags, SymlinkPolicy::None)?;
            // If a part of the path were a mount point, the result would be on another mount, since `..` is not
            // followed.
            if mount_id(found.as_fd())? == mount_id(parent)? { Ok(found) } else { Err(Errno::XDEV) }
        }
        other => other,
    }
}

/// Opens a file by a path of which no part, nor the file itself, is a symlink or a mount point.
pub fn open_file_on_same_mount(base: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match open_by_kernel(base, path, flags, Mode::empty(), resolve | ResolveFlags::BENEATH) {
        Err(Errno::NOSYS | Errno::PERM) => {
            // Opened without access to the content first: the server of a mounted file may hang.
            let own = mount_id(base)?;
            let (parent, name) = walk_to_parent(base, path)?;
            let way = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let looked = rustix::fs::openat(&parent, &name, way, Mode::empty())?;
            if mount_id(looked.as_fd())? != own {
                return Err(Errno::XDEV);
            }
            let found = rustix::fs::openat(&parent, &name, flags | OFlags::CLOEXEC, Mode::empty())?;
            if mount_id(found.as_fd())? == own { Ok(found) } else { Err(Errno::XDEV) }
        }
        other => other,
    }
}

fn open_by_kernel(
    base: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(base, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN) if tries < RESOLVE_TRIES => tries += 1,
            other => return other,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SymlinkPolicy {
    /// Followed, but never to the outside.
    FollowInside,
    None,
}

fn is_link(file: &OwnedFd) -> Result<bool, Errno> {
    let mode = rustix::fs::fstat(file)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Symlink)
}

/// Descriptors from `base` to the current directory. `..` pops this stack instead of opening `..` on disk, so a
/// directory that is moved out of the volume cannot lead the walk out.
fn open_by_hand(
    base: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    links: SymlinkPolicy,
) -> Result<OwnedFd, Errno> {
    let way = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut trail = vec![rustix::fs::openat(base, c".", way | OFlags::DIRECTORY, Mode::empty())?];
    let mut left = parts(path)?;
    let mut followed = 0;
    while let Some(part) = left.pop_front() {
        let at = trail.last().ok_or(Errno::XDEV)?.as_fd();
        if part == ".." {
            trail.pop();
            if trail.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let last = left.is_empty();
        let target = match rustix::fs::readlinkat(at, &part, Vec::new()) {
            Ok(target) => target,
            // Not a symlink: go on with this component.
            Err(Errno::INVAL) => {
                let flags =
                    if last { flags | OFlags::NOFOLLOW | OFlags::CLOEXEC } else { way | OFlags::DIRECTORY };
                let next = rustix::fs::openat(at, &part, flags, Mode::empty())?;
                // A symlink that replaced it in between would be followed by the user of the descriptor.
                if flags.contains(OFlags::PATH) && is_link(&next)? {
                    return Err(Errno::LOOP);
                }
                if last {
                    return Ok(next);
                }
                trail.push(next);
                continue;
            }
            Err(errno) => return Err(errno),
        };
        if last && flags.contains(OFlags::NOFOLLOW) {
            // Open the symlink itself, for callers that can.
            return rustix::fs::openat(at, &part, flags | OFlags::CLOEXEC, Mode::empty());
        }
        followed += 1;
        if links == SymlinkPolicy::None || followed > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        for part in parts(Path::new(&OsString::from_vec(target.into_bytes())))?.into_iter().rev() {
            left.push_front(part);
        }
    }
    let at = trail.last().ok_or(Errno::XDEV)?;
    rustix::fs::openat(at, c".", flags | OFlags::CLOEXEC, Mode::empty())
}

/// The directory that holds the last component of a path without symlinks.
fn walk_to_parent(base: BorrowedFd<'_>, path: &Path) -> Result<(OwnedFd, OsString), Errno> {
    let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
    let parent = path.parent().unwrap_or(Path::new(""));
    let parent = open_by_hand(base, parent, OFlags::PATH | OFlags::DIRECTORY, SymlinkPolicy::None)?;
    Ok((parent, name))
}

fn parts(path: &Path) -> Result<VecDeque<OsString>, Errno> {
    let mut parts = VecDeque::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push_back(name.to_owned()),
            Component::ParentDir => parts.push_back("..".into()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(parts)
}

/// The `mnt_id` of an open file, which differs between bind mounts of one filesystem.
fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let info = info.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|number| number.trim().parse().ok()).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, bind, tmpfs};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn anchor(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    /// The walk by hand gives the kernel's result for every path through a tree with every kind of symlink.
    #[test]
    fn by_hand_and_by_kernel_agree() {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(volume.join("a/file"), "x").unwrap();
        for (target, link) in [
            ("a", "in"),
            ("../..", "a/b/up"),
            ("../../..", "a/b/out"),
            ("/etc", "absolute"),
            ("../outside", "outside"),
            ("nowhere", "dangling"),
            ("loop", "loop"),
            ("a/../in/b", "a-round"),
            ("in", "twice"),
            ("/proc/self/root", "magic"),
            ("file", "a/link"),
        ] {
            symlink(target, volume.join(link)).unwrap();
        }
        let base = anchor(&volume);
        let mut agreed = (0, 0);
        for path in [
            ".",
            "a",
            "a/b",
            "a/file",
            "a/file/x",
            "in/b",
            "in/file",
            "a/b/up",
            "a/b/up/a",
            "a/b/up/..",
            "a/b/out",
            "absolute",
            "absolute/passwd",
            "outside",
            "dangling",
            "dangling/x",
            "loop",
            "a-round",
            "a-round/..",
            "twice/b",
            "magic/etc",
            "a/link",
            "none",
            "..",
            "a/..",
            "a/../..",
            "/etc",
            "a/b/../../a/file",
        ] {
            let path = Path::new(path);
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let kernel = open_by_kernel(base.as_fd(), path, OFlags::PATH, Mode::empty(), resolve);
            let hand = open_by_hand(base.as_fd(), path, OFlags::PATH, SymlinkPolicy::FollowInside);
            let shown = (kernel.as_ref().map(inode), hand.as_ref().map(inode));
            assert_eq!(shown.0, shown.1, "{}", path.display());
            if shown.0.is_ok() {
                agreed.0 += 1
            } else {
                agreed.1 += 1
            }

            let resolve = resolve | ResolveFlags::NO_SYMLINKS;
            let kernel =
                open_by_kernel(base.as_fd(), path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), resolve);
            let hand = open_by_hand(base.as_fd(), path, OFlags::PATH | OFlags::NOFOLLOW, SymlinkPolicy::None);
            assert_eq!(kernel.map(|fd| inode(&fd)), hand.map(|fd| inode(&fd)), "plain {}", path.display());
        }
        assert!(agreed.0 >= 10 && agreed.1 >= 10, "{agreed:?}");
    }

    #[test]
    fn by_hand_a_mount_is_noticed_too() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        for name in ["plain/deep", "bind/deep", "tmpfs", "outside/deep"] {
            fs::create_dir_all(temp.path().join(name)).unwrap();
        }
        bind(&temp.path().join("outside"), &temp.path().join("bind"));
        tmpfs(&temp.path().join("tmpfs"));
        let base = anchor(temp.path());
        let id = |name: &str| {
            let found = open_by_hand(
                base.as_fd(),
                Path::new(name),
                OFlags::PATH | OFlags::DIRECTORY,
                SymlinkPolicy::None,
            );
            mount_id(found.unwrap().as_fd()).unwrap()
        };
        let own = mount_id(base.as_fd()).unwrap();
        assert_eq!(id("plain/deep"), own);
        assert!(id("bind/deep") != own && id("tmpfs") != own);
        assert!(open_dir_on_same_mount(base.as_fd(), Path::new("plain/deep")).is_ok());
        for name in ["bind", "bind/deep", "tmpfs"] {
            assert_eq!(
                open_dir_on_same_mount(base.as_fd(), Path::new(name)).unwrap_err(),
                Errno::XDEV,
                "{name}"
            );
        }
    }

    /// A directory that is swapped for a symlink right after it was checked: an open that follows symlinks would leave
    /// the volume.
    #[test]
    fn by_hand_a_link_that_comes_after_the_look_leads_nowhere() {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("volume");
        for dir in ["volume/dir/deep", "volume/spare", "outside/deep"] {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        symlink(temp.path().join("outside"), volume.join("evil")).unwrap();
        symlink("spare/../dir", volume.join("round")).unwrap();
        let base = anchor(&volume);
        let outside = ["outside", "outside/deep"].map(|name| inode(&anchor(&temp.path().join(name))));
        let swap =
            || rustix::fs::renameat_with(&base, "dir", &base, "evil", rustix::fs::RenameFlags::EXCHANGE);

        let looked = rustix::fs::readlinkat(&base, "dir", Vec::new()).unwrap_err();
        assert_eq!(looked, Errno::INVAL, "no link yet");
        swap().unwrap();
        let naive = rustix::fs::openat(&base, "dir", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(inode(&naive), outside[0], "the attack works on who follows what comes after the look");
        swap().unwrap();

        let stop = AtomicBool::new(false);
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = swap();
                }
            });
            let tries = std::panic::AssertUnwindSafe(|| {
                // Until both results were seen often; the number of rounds only bounds a failing run.
                for round in 0..3_000_000_usize {
                    if opened >= 2_000 && refused >= 2_000 {
                        break;
                    }
                    let path = Path::new(["dir", "dir/deep", "round", "round/deep"][round % 4]);
                    let flags =
                        [OFlags::PATH, OFlags::PATH | OFlags::DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY];
                    match open_by_hand(base.as_fd(), path, flags[round % 3], SymlinkPolicy::FollowInside) {
                        Ok(found) => {
                            opened += 1;
                            assert!(!outside.contains(&inode(&found)), "{} leads out", path.display());
                            assert!(
                                !is_link(&found).unwrap(),
                                "{} is a link, for others to follow",
                                path.display()
                            );
                        }
                        Err(_) => refused += 1,
                    }
                }
            });
            let result = std::panic::catch_unwind(tries);
            stop.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert!(opened >= 2_000 && refused >= 2_000, "{opened} opened, {refused} refused");
    }
}
