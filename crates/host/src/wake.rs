//! Wakes threads that wait for files of the kernel. The runtime's own poller takes no such files without unsafe code.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Makes its file readable when nobody wants the thread's answer any more.
pub(crate) struct WakeOnDrop(pub Arc<OwnedFd>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        // Fails only if it is full, and then the thread is awake.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

pub(crate) fn event_file() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
