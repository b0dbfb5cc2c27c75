//! The kernel's calls about project ids and the quota that counts them.
//!
//! All of them take an open directory, so none depends on a path or on the name of the disk. `quotactl_fd` is in Linux
//! 5.14 and later, which is older than any kernel on which pods can have users of their own.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, opcode};

/// The kernel's `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<FileAttributes>() == 28);
const FS_IOC_FSGETXATTR: Opcode = opcode::read::<FileAttributes>(b'X', 31);
const FS_IOC_FSSETXATTR: Opcode = opcode::write::<FileAttributes>(b'X', 32);
/// What is made in the directory gets its project id and this flag.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

const PROJECT_QUOTA: libc::c_int = 2;
const Q_GETINFO: libc::c_int = 0x0080_0005;
const Q_GETQUOTA: libc::c_int = 0x0080_0007;

/// The project id of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Project {
    /// 0: none.
    pub id: u32,
    pub inherited_by_new_files: bool,
}

/// What a filesystem counts for a project id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProjectUsage {
    pub bytes: u64,
    pub inodes: u64,
    /// Somebody set limits for the id.
    pub limited: bool,
}

impl ProjectUsage {
    /// No file has the id, and nobody has prepared it for files to come.
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn project_of(dir: BorrowedFd<'_>) -> Result<Project, Errno> {
    let found = attributes(dir)?;
    let inherited_by_new_files = found.flags & FS_XFLAG_PROJINHERIT != 0;
    Ok(Project { id: found.project, inherited_by_new_files })
}

/// The directory and what is made in it later count for `id`; what is in it already does not.
#[allow(unsafe_code)]
pub(super) fn set_project(dir: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
    let found = attributes(dir)?;
    let wanted = FileAttributes { flags: found.flags | FS_XFLAG_PROJINHERIT, project: id, ..found };
    // SAFETY: the operation reads one `struct fsxattr`, which is what `Setter` points to.
    unsafe { rustix::ioctl::ioctl(dir, Setter::<FS_IOC_FSSETXATTR, FileAttributes>::new(wanted)) }
}

#[allow(unsafe_code)]
fn attributes(dir: BorrowedFd<'_>) -> Result<FileAttributes, Errno> {
    // SAFETY: the operation writes one `struct fsxattr`, which is what `Getter` has room for. Every bit pattern is a
    // valid value of the type.
    unsafe { rustix::ioctl::ioctl(dir, Getter::<FS_IOC_FSGETXATTR, FileAttributes>::new()) }
}

/// Whether the filesystem of `dir` counts usage by project.
pub(super) fn counts_projects(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    // `struct if_dqinfo` has 24 bytes.
    let mut info = [0_u64; 4];
    match quotactl(dir, Q_GETINFO, 0, &mut info) {
        Ok(()) => Ok(true),
        // No quota is on, the filesystem knows none, or the kernel has neither.
        Err(Errno::SRCH | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// One look-up, however many files there are.
pub(super) fn usage(dir: BorrowedFd<'_>, id: u32) -> Result<ProjectUsage, Errno> {
    // The fields of `struct if_dqblk`: limits of bytes (hard, soft), bytes, limits of inodes, inodes, two times, and
    // which are valid.
    let mut found = [0_u64; 9];
    match quotactl(dir, Q_GETQUOTA, id, &mut found) {
        Ok(()) => {}
        // XFS has no entry for an id that was never used.
        Err(Errno::NOENT) => return Ok(ProjectUsage::default()),
        Err(errno) => return Err(errno),
    }
    let [hard, soft, bytes, inodes_hard, inodes_soft, inodes, ..] = found;
    let limited = [hard, soft, inodes_hard, inodes_soft].into_iter().any(|limit| limit != 0);
    Ok(ProjectUsage { bytes, inodes, limited })
}

const _: () = assert!(size_of::<[u64; 9]>() == size_of::<libc::dqblk>());

#[allow(unsafe_code)]
fn quotactl<const N: usize>(
    dir: BorrowedFd<'_>,
    command: libc::c_int,
    id: u32,
    answer: &mut [u64; N],
) -> Result<(), Errno> {
    let command = (command << 8) | PROJECT_QUOTA;
    // SAFETY: both commands only write to `answer`, and no more than the struct that they are said to write where the
    // size of `answer` is chosen. It lives until the call has returned, and so does the descriptor.
    let result = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, dir.as_fd().as_raw_fd(), command, id, answer.as_mut_ptr())
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn a_filesystem_that_counts_nothing_is_told_apart_from_an_error() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for path in ["/proc", "/dev"] {
            let dir = rustix::fs::open(path, flags, Mode::empty()).unwrap();
            assert_eq!(counts_projects(dir.as_fd()), Ok(false), "{path}");
            assert!(usage(dir.as_fd(), 1).is_err(), "{path}");
        }
    }
}
