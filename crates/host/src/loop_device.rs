//! Loop devices that keep another block device open.
//!
//! ```text
//!   free ──(LOOP_SET_FD with a file)──> attached: the kernel holds the file ──(LOOP_CLR_FD)──> free after the last close
//! ```
//! Nothing is read or written through these loop devices. While one is attached, the kernel neither gives the device
//! number of its backing device to another device nor lets it be removed cleanly, and that outlives the agent. The loop
//! device is found again by the path of its backing file, in sysfs. It is attached read-only: that holds the device just
//! as well, and does not count as a writer, which the kernel may not allow beside a mounted filesystem.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, NoArg, Opcode, ioctl};

const SYSFS: &str = "/sys/block";
const CONTROL: &str = "/dev/loop-control";
// From linux/loop.h.
const LOOP_SET_FD: Opcode = 0x4C00;
const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// How often somebody else may take the free device first.
const ATTEMPTS: usize = 100;
/// Behind the path of a backing file whose directory entry was removed, such as that of a disk that was unplugged.
const DELETED: &[u8] = b" (deleted)";
/// A program that looks at new devices (udev) may have a loop device open when it is detached. It stays attached until
/// that is over, and nothing tells when.
const CLOSING_CHECKS: usize = 50;
const CLOSING_CHECK_PERIOD: Duration = Duration::from_millis(20);

/// The loop devices over `backing`, an absolute path without symlinks.
pub fn find(backing: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(attached()?.into_iter().filter(|(_, of)| of == backing).map(|(device, _)| device).collect())
}

/// All loop devices that are attached, each with the path of its backing file.
pub fn attached() -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(SYSFS)? {
        let name = entry?.file_name();
        if name.as_bytes().starts_with(b"loop")
            && let Some(backing) = backing_file(&Path::new("/dev").join(&name))?
        {
            found.push((Path::new("/dev").join(name), backing));
        }
    }
    found.sort();
    Ok(found)
}

/// `None`: nothing is attached.
fn backing_file(device: &Path) -> io::Result<Option<PathBuf>> {
    let name = device.file_name().unwrap_or_default();
    match fs::read(Path::new(SYSFS).join(name).join("loop/backing_file")) {
        Ok(text) => Ok(Some(parse_backing_file(&text))),
        // The directory is there only while something is attached.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error)
            if [Errno::NXIO, Errno::NODEV].map(io::Error::from).iter().any(|gone| same(gone, &error)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn same(one: &io::Error, other: &io::Error) -> bool {
    one.raw_os_error() == other.raw_os_error()
}

fn parse_backing_file(text: &[u8]) -> PathBuf {
    let path = text.strip_suffix(b"\n").unwrap_or(text);
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()))
}

/// Attaches a free loop device to the file at `backing`, and returns the path of the loop device.
pub fn attach(backing: &Path) -> io::Result<PathBuf> {
    let file = open(backing)?;
    let control = open(Path::new(CONTROL)).map_err(|error| named(Path::new(CONTROL), &error))?;
    for _ in 0..ATTEMPTS {
        let device = PathBuf::from(format!("/dev/loop{}", get_free(&control)?));
        let free = match open(&device) {
            Ok(free) => free,
            // It is being detached.
            Err(error) if same(&error, &Errno::NXIO.into()) => continue,
            Err(error) => return Err(named(&device, &error)),
        };
        match set_fd(&free, &file) {
            Ok(()) => return Ok(device),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(named(&device, &errno.into())),
        }
    }
    Err(io::Error::other("every free loop device was taken by somebody else first"))
}

/// Detaches a loop device that [`find`] has found. Succeeds if it is not attached to `backing` any more.
pub fn detach(device: &Path, backing: &Path) -> io::Result<()> {
    let opened = match open(device) {
        Ok(opened) => opened,
        Err(error) if same(&error, &Errno::NXIO.into()) => return Ok(()),
        Err(error) => return Err(named(device, &error)),
    };
    // While it is open here, nobody can attach it to something else.
    if backing_file(device)?.as_deref() != Some(backing) {
        return Ok(());
    }
    match clear_fd(&opened) {
        Ok(()) | Err(Errno::NXIO) => {}
        Err(errno) => return Err(named(device, &errno.into())),
    }
    drop(opened);
    for _ in 0..CLOSING_CHECKS {
        if backing_file(device)?.as_deref() != Some(backing) {
            return Ok(());
        }
        pause();
    }
    Err(io::Error::other(format!("{} is held open by another program", device.display())))
}

#[expect(
    clippy::disallowed_methods,
    reason = "work on volumes has a thread of its own, and sysfs tells nobody"
)]
fn pause() {
    std::thread::sleep(CLOSING_CHECK_PERIOD);
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The number comes as the result of the call.
struct GetFree;

// SAFETY: the call takes no argument and writes no memory. Its result is the number of a loop device.
#[allow(unsafe_code)]
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    // SAFETY: the pointer is not used.
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

#[allow(unsafe_code)]
fn get_free(control: &File) -> io::Result<u32> {
    // SAFETY: see `GetFree`. The descriptor is that of the loop driver's control device.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

#[allow(unsafe_code)]
fn set_fd(device: &File, backing: &File) -> rustix::io::Result<()> {
    let descriptor = usize::try_from(backing.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the argument is a descriptor, by value. It is open for as long as the call takes.
    unsafe { ioctl(device, IntegerSetter::<LOOP_SET_FD>::new_usize(descriptor)) }
}

#[allow(unsafe_code)]
fn clear_fd(device: &File) -> rustix::io::Result<()> {
    // SAFETY: the call takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_until_it_is_detached() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        let (one, other) = (dir.join("a file"), dir.join("a file of others"));
        for file in [&one, &other] {
            File::create(file).unwrap().set_len(1 << 20).unwrap();
        }
        assert_eq!(find(&one).unwrap(), Vec::<PathBuf>::new());
        let (first, of_others) = (attach(&one).unwrap(), attach(&other).unwrap());
        assert_eq!(
            (find(&one).unwrap(), find(&other).unwrap()),
            (vec![first.clone()], vec![of_others.clone()])
        );
        let read_only = Path::new(SYSFS).join(first.file_name().unwrap()).join("ro");
        assert_eq!(fs::read_to_string(read_only).unwrap().trim(), "1");

        // A loop device that was given to another file meanwhile is left alone.
        detach(&of_others, &one).unwrap();
        assert_eq!(find(&other).unwrap(), std::slice::from_ref(&of_others));

        // As the kernel shows it then.
        fs::remove_file(&one).unwrap();
        assert_eq!(find(&one).unwrap(), std::slice::from_ref(&first));
        detach(&first, &one).unwrap();
        assert_eq!(find(&one).unwrap(), Vec::<PathBuf>::new());
        detach(&first, &one).unwrap();
        detach(&of_others, &other).unwrap();
        assert_eq!(find(&other).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_loop_device_that_is_open_elsewhere_is_told_about() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().canonicalize().unwrap().join("file");
        File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let device = attach(&file).unwrap();
        let held = File::open(&device).unwrap();
        let error = detach(&device, &file).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is held open by another program", device.display()));
        drop(held);
        detach(&device, &file).unwrap();
        assert_eq!(find(&file).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = attach(Path::new("/nowhere/file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = detach(Path::new("/dev/loop-none"), Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/loop-none: "), "{error}");
    }

    #[test]
    fn paths_are_as_the_kernel_shows_them() {
        let check = |text: &str, expect: &str| {
            assert_eq!(parse_backing_file(text.as_bytes()), Path::new(expect), "{text:?}");
        };
        check("/a/b\n", "/a/b");
        check("/a/b (deleted)\n", "/a/b");
        check("/a b \n", "/a b ");
        check("", "");
    }
}
