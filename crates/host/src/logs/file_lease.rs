//! Whether somebody still writes to a file.

use std::fs::File;
use std::os::fd::AsRawFd;

/// A runtime goes on writing to a log that was renamed until it has reopened it, and even a moment longer: what it has read
/// from the container by then goes to the old file.
///
/// The kernel gives a read lease only on a file that nobody has open for writing. `None`: the filesystem has no leases.
pub fn has_writer(file: &File) -> Option<bool> {
    // Who opens the file for writing while the lease is held makes the kernel send a signal. Its default, SIGIO, would end
    // this process; SIGURG is ignored unless somebody handles it.
    if !control(file, F_SETSIG, libc::SIGURG) {
        return None;
    }
    if set_lease(file, libc::F_RDLCK) {
        set_lease(file, libc::F_UNLCK);
        return Some(false);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Some(true),
        _ => None,
    }
}

fn set_lease(file: &File, kind: libc::c_int) -> bool {
    control(file, libc::F_SETLEASE, kind)
}

/// Not in the crate libc for every target; the same number on all of them.
const F_SETSIG: libc::c_int = 10;

#[allow(unsafe_code)]
fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> bool {
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and both commands take a number, no pointer.
    unsafe { libc::fcntl(file.as_raw_fd(), command, argument) == 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_writer_is_noticed_until_it_closes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let other_reader = File::open(&path).unwrap();
        assert_eq!(has_writer(&reader), Some(true));
        drop(writer);
        assert_eq!(has_writer(&reader), Some(false));
        assert_eq!(has_writer(&other_reader), Some(false), "no lease is kept");
        let again = File::options().append(true).open(&path).unwrap();
        assert_eq!(has_writer(&reader), Some(true));
        drop(again);
    }

    /// With the default signal this ends the process of the tests.
    #[test]
    fn somebody_who_opens_it_in_the_same_moment_ends_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    drop(File::options().append(true).open(&path).unwrap());
                }
            });
            for _ in 0..20_000 {
                has_writer(&reader);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(has_writer(&reader), Some(false));
    }
}
