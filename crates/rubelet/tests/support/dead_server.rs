//! A filesystem whose server is this process, and never answers: whoever asks it for anything waits.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// Unmounted when it is dropped. Whoever waits for its server gets an error then.
pub struct DeadServer {
    at: PathBuf,
    _server: OwnedFd,
}

impl DeadServer {
    pub fn mount(at: &Path) -> rustix::io::Result<DeadServer> {
        let server = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options).expect("options without a zero byte");
        rustix::mount::mount("dead", at, "fuse", MountFlags::empty(), options.as_c_str())?;
        Ok(DeadServer { at: at.to_owned(), _server: server })
    }
}

impl Drop for DeadServer {
    fn drop(&mut self) {
        // Lazily: unmounting must not wait for those who wait for the server.
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}
