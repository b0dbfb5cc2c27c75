//! The walk over a tree that containers wrote, used wherever every file has to be visited: volume usage, limits of
//! local storage, fsGroup.
//!
//! ```text
//!   top ──> read an entry ──> a directory? ──> open it in its parent ──> read an entry ...
//!             ^                                                             │ no more entries
//!             └── go on behind the entry, in the parent (opened by `..`) <──┘
//! ```
//! A container may nest a million directories with long names, or create a million side by side at every depth. So
//! - no path and no list of names is stored: a directory on the way down is remembered by its identity and by the
//!   position in it, which is 24 bytes per level, and at most [`MAX_DEPTH`] levels are entered;
//! - at most [`MAX_OPEN`] directories are open: one further up is opened again from below, through `..`, and only if
//!   that is still the directory from which the walk came;
//! - each directory is opened, read and left once, so the work grows with the number of entries;
//! - directories are opened through their parent's descriptor, never through a symlink and never onto another mount;
//! - the visitor may end the walk at every entry.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::files::open_subdir_on_same_mount;

/// Directories that are open at once.
pub(crate) const MAX_OPEN: usize = 32;
/// Levels below the top that are entered. No real program nests nearly as deep; it bounds the cost of a hostile one.
pub(crate) const MAX_DEPTH: usize = 1 << 20;
/// The memory per level, so [`MAX_DEPTH`] levels take 24 MiB.
const _: () = assert!(size_of::<Level>() == 24);

/// Processes the entries. An error ends the walk with it.
pub(crate) trait Visitor {
    /// Called with each entry but `.` and `..`. `true`: the entry is a directory that the walk should enter.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno>;
    /// A directory could not be entered: it is a mount point or no longer a directory, or it lies deeper than
    /// [`MAX_DEPTH`] (`NAMETOOLONG`).
    fn not_entered(&mut self, dir: BorrowedFd<'_>, name: &CStr, errno: Errno) -> Result<(), Errno>;
    /// The rest of a directory can't be read.
    fn unreadable(&mut self, dir: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno>;
    /// Everything in the directory was visited. The top is left last, with depth 0.
    fn leave(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno>;
}

/// Device and inode.
pub(crate) type Identity = (u32, u32, u64);

/// A directory between the top and the one that is being read.
struct Level {
    is: Identity,
    /// The position after the last entry that was read.
    position: i64,
}

/// Returns `STALE` when a directory was moved during the walk, so that `..` no longer leads to its former parent.
/// Callers that must see every file start again.
pub(crate) fn walk(top: BorrowedFd<'_>, visitor: &mut impl Visitor) -> Result<(), Errno> {
    walk_within(top, MAX_DEPTH, visitor)
}

/// Enters at most `max_depth` levels below the top.
fn walk_within(top: BorrowedFd<'_>, max_depth: usize, visitor: &mut impl Visitor) -> Result<(), Errno> {
    let mut way = WalkPath { levels: Vec::new(), open: VecDeque::new() };
    way.enter(Dir::read_from(top)?)?;
    loop {
        let (Some(level), Some(dir)) = (way.levels.last_mut(), way.open.back_mut()) else { return Ok(()) };
        let entry = match dir.read() {
            Some(Ok(entry)) => entry,
            Some(Err(errno)) => {
                visitor.unreadable(dir.fd()?, errno)?;
                way.return_to_parent(visitor)?;
                continue;
            }
            None => {
                way.return_to_parent(visitor)?;
                continue;
            }
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        level.position = entry.offset();
        let dir = dir.fd()?;
        if !visitor.entry(dir, name, entry.file_type())? {
            continue;
        }
        if way.levels.len() > max_depth {
            visitor.not_entered(dir, name, Errno::NAMETOOLONG)?;
            continue;
        }
        match open_subdir_on_same_mount(dir, name).and_then(|found| way.enter(Dir::new(found)?)) {
            Ok(()) => {}
            Err(errno) => visitor.not_entered(way.lowest()?, name, errno)?,
        }
    }
}

struct WalkPath {
    levels: Vec<Level>,
    /// The lowest directories.
    open: VecDeque<Dir>,
}

impl WalkPath {
    fn lowest(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.open.back().ok_or(Errno::STALE)?.fd()
    }

    fn enter(&mut self, dir: Dir) -> Result<(), Errno> {
        count_operation();
        let is = identity(&statx_nofollow(dir.fd()?, c"", AtFlags::EMPTY_PATH)?);
        self.levels.push(Level { is, position: 0 });
        self.open.push_back(dir);
        if self.open.len() > MAX_OPEN {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Leaves the lowest directory. If the one above was closed, it is opened again from below.
    fn return_to_parent(&mut self, visitor: &mut impl Visitor) -> Result<(), Errno> {
        let Some(below) = self.open.pop_back() else { return Err(Errno::STALE) };
        self.levels.pop();
        visitor.leave(below.fd()?, self.levels.len())?;
        let Some(above) = self.levels.last().filter(|_| self.open.is_empty()) else { return Ok(()) };
        count_operation();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(below.fd()?, c"..", flags, Mode::empty())?;
        if identity(&statx_nofollow(dir.as_fd(), c"", AtFlags::EMPTY_PATH)?) != above.is {
            return Err(Errno::STALE);
        }
        let mut dir = Dir::new(dir)?;
        dir.seek(above.position)?;
        self.open.push_back(dir);
        Ok(())
    }
}

/// The metadata of an entry or, with `EMPTY_PATH`, of the directory itself.
pub(crate) fn statx_nofollow(dir: BorrowedFd<'_>, name: &CStr, more: AtFlags) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | more;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

pub(crate) fn identity(found: &Statx) -> Identity {
    (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)
}

#[cfg(test)]
thread_local! {
    /// How many directories the walks of this thread have opened, for tests.
    pub(crate) static OPERATIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn count_operation() {
    #[cfg(test)]
    OPERATIONS.set(OPERATIONS.get() + 1);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Of which 4 KiB hold no more than sixteen.
    pub(crate) const LONG_NAME: &CStr = c"a-name-that-is-as-long-as-names-of-directories-may-become-on-most-filesystems-so-that-a-path-of-some-of-them-is-longer-than-the-kernel-takes-in-one-piece-and-everybody-who-keeps-paths-needs-memory-for-each-of-them-again-and-again-and-again-0123456";

    /// A chain of directories with long names, each with a few more directories beside the next one of the chain.
    pub(crate) fn make_comb(top: &Path, depth: usize, teeth: usize) {
        fs::create_dir_all(top).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut dir = rustix::fs::open(top, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            for tooth in 0..teeth {
                rustix::fs::mkdirat(&dir, format!("tooth-{tooth}"), Mode::RWXU).unwrap();
            }
            rustix::fs::mkdirat(&dir, LONG_NAME, Mode::RWXU).unwrap();
            dir = open_subdir_on_same_mount(dir.as_fd(), LONG_NAME).unwrap();
        }
    }

    /// How many directories `work` opens.
    pub(crate) fn operations_of(work: impl FnOnce()) -> u64 {
        let before = OPERATIONS.get();
        work();
        OPERATIONS.get() - before
    }

    #[derive(Default)]
    struct Names {
        seen: Vec<String>,
        left: Vec<usize>,
        most_open: usize,
    }

    impl Visitor for Names {
        fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno> {
            let name = name.to_string_lossy();
            let found = fs::read_dir("/proc/self/fd")
                .unwrap()
                .flatten()
                .filter_map(|fd| fs::read_link(fd.path()).ok());
            let top =
                fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).unwrap();
            let top = top.to_string_lossy().split("/tree").next().unwrap().to_owned() + "/tree";
            self.most_open = self.most_open.max(found.filter(|path| path.starts_with(&top)).count());
            self.seen.push(name.into_owned());
            Ok(kind == FileType::Directory)
        }
        fn not_entered(&mut self, _: BorrowedFd<'_>, _: &CStr, errno: Errno) -> Result<(), Errno> {
            Err(errno)
        }
        fn unreadable(&mut self, _: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
            Err(errno)
        }
        fn leave(&mut self, _: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
            self.left.push(depth);
            Ok(())
        }
    }

    fn walked(top: &Path) -> (Result<(), Errno>, Names) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(top, flags, Mode::empty()).unwrap();
        let mut names = Names::default();
        (walk(dir.as_fd(), &mut names), names)
    }

    #[test]
    fn everything_is_seen_once_however_deep_and_wide() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        let depth = MAX_OPEN * 3;
        let mut dir = tree.clone();
        for level in 0..depth {
            fs::create_dir_all(dir.join(format!("side-{level}/below"))).unwrap();
            for file in 0..10 {
                fs::write(dir.join(format!("file-{level}-{file}")), "").unwrap();
            }
            dir.push(format!("d{level}"));
        }
        fs::create_dir(&dir).unwrap();
        let (result, mut names) = walked(&tree);
        assert_eq!(result, Ok(()));
        assert!(names.most_open <= MAX_OPEN + 2, "{}", names.most_open);
        assert_eq!(names.left.len(), 1 + 3 * depth, "each directory is left once");
        assert_eq!((names.left.last(), names.left.iter().filter(|d| **d == 0).count()), (Some(&0), 1));
        let count = names.seen.len();
        assert_eq!(count, depth * (10 + 3));
        names.seen.retain(|name| name != "below");
        names.seen.sort();
        names.seen.dedup();
        assert_eq!(names.seen.len(), count - depth, "and every entry is seen once");
    }

    /// Each level takes memory, so the walk ends at some depth, and its visitor learns what was left out.
    #[test]
    fn deeper_levels_are_not_entered_and_named() {
        #[derive(Default)]
        struct Levels {
            deepest: usize,
            left_out: Vec<(String, Errno)>,
        }
        impl Visitor for Levels {
            fn entry(&mut self, _: BorrowedFd<'_>, _: &CStr, kind: FileType) -> Result<bool, Errno> {
                Ok(kind == FileType::Directory)
            }
            fn not_entered(&mut self, _: BorrowedFd<'_>, name: &CStr, errno: Errno) -> Result<(), Errno> {
                self.left_out.push((name.to_string_lossy().into_owned(), errno));
                Ok(())
            }
            fn unreadable(&mut self, _: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
                Err(errno)
            }
            fn leave(&mut self, _: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
                self.deepest = self.deepest.max(depth);
                Ok(())
            }
        }
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("a/b/c/d/e")).unwrap();
        fs::create_dir(temp.path().join("a/b/also")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(temp.path(), flags, Mode::empty()).unwrap();
        let levels = |most: usize| {
            let mut levels = Levels::default();
            walk_within(dir.as_fd(), most, &mut levels).unwrap();
            levels.left_out.sort_by(|one, other| one.0.cmp(&other.0));
            (levels.deepest, levels.left_out)
        };
        let too_deep = |name: &str| (name.to_owned(), Errno::NAMETOOLONG);
        assert_eq!(levels(2), (2, vec![too_deep("also"), too_deep("c")]));
        assert_eq!(levels(4), (4, vec![too_deep("e")]));
        assert_eq!(levels(5), (5, vec![]));
    }

    /// Twice as many directories are twice as much work, and no level stores a name.
    #[test]
    fn the_work_grows_with_the_number_of_directories() {
        struct Count;
        impl Visitor for Count {
            fn entry(&mut self, _: BorrowedFd<'_>, _: &CStr, kind: FileType) -> Result<bool, Errno> {
                Ok(kind == FileType::Directory)
            }
            fn not_entered(&mut self, _: BorrowedFd<'_>, _: &CStr, errno: Errno) -> Result<(), Errno> {
                Err(errno)
            }
            fn unreadable(&mut self, _: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
                Err(errno)
            }
            fn leave(&mut self, _: BorrowedFd<'_>, _: usize) -> Result<(), Errno> {
                Ok(())
            }
        }
        let temp = tempfile::tempdir().unwrap();
        for (depth, teeth) in [(400, 0), (800, 0), (100, 4), (200, 4)] {
            let tree = temp.path().join(format!("tree-{depth}-{teeth}"));
            make_comb(&tree, depth, teeth);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
            let operations = operations_of(|| walk(dir.as_fd(), &mut Count).unwrap());
            let directories = (1 + depth * (1 + teeth)) as u64;
            // Each is opened once from above, and those in the chain at most once more from below.
            assert!(operations >= directories && operations <= directories + depth as u64, "{operations}");
            crate::files::remove_tree(&tree).unwrap();
        }
    }

    /// If a directory was moved, the walk does not continue in a wrong parent.
    #[test]
    fn a_directory_that_is_moved_meanwhile_ends_the_walk() {
        struct Mover(std::path::PathBuf, bool);
        impl Visitor for Mover {
            fn entry(&mut self, _: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno> {
                if name == c"deepest" && !std::mem::replace(&mut self.1, true) {
                    fs::rename(self.0.join("a/a"), self.0.join("elsewhere")).unwrap();
                }
                Ok(kind == FileType::Directory)
            }
            fn not_entered(&mut self, _: BorrowedFd<'_>, _: &CStr, _: Errno) -> Result<(), Errno> {
                Ok(())
            }
            fn unreadable(&mut self, _: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
                Err(errno)
            }
            fn leave(&mut self, _: BorrowedFd<'_>, _: usize) -> Result<(), Errno> {
                Ok(())
            }
        }
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/".repeat(MAX_OPEN + 5)).join("deepest")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        assert_eq!(walk(dir.as_fd(), &mut Mover(tree.clone(), false)), Err(Errno::STALE));
        assert_eq!(walk(dir.as_fd(), &mut Mover(tree, true)), Ok(()));
    }
}
