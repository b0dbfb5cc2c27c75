//! Notices of the kernel that memory runs short: a usage that crosses a level (cgroup v1), and time that processes lose
//! waiting for memory (kernels that account for pressure).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;

use crate::wake::{WakeOnDrop, event_file};

/// Some process waited for memory for 50 ms within a second. In microseconds.
const STALL: &[u8] = b"some 50000 1000000\0";

/// A file of the kernel that becomes ready when memory runs short. The kernel watches as long as it is open.
pub(super) struct Notice {
    file: OwnedFd,
    ready: PollFlags,
}

/// Several notices, of which any counts.
#[derive(Default)]
pub(super) struct Notices {
    waits: Vec<Notice>,
    failure: Option<io::Error>,
}

impl Notices {
    /// A kernel need not have each kind.
    pub fn add(&mut self, notice: io::Result<Notice>) {
        match notice {
            Ok(notice) => self.waits.push(notice),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Waits in a thread of its own.
    pub async fn first(self) -> io::Result<()> {
        if self.waits.is_empty() {
            return Err(self.failure.unwrap_or_else(|| io::Error::other("there is nothing to wait for")));
        }
        let stop = Arc::new(event_file()?);
        let _wake = WakeOnDrop(stop.clone());
        let (told, answer) = oneshot::channel();
        let wait = move || {
            // The receiver may have been dropped.
            let _ = told.send(first_ready(&self.waits, &stop));
        };
        std::thread::Builder::new().name("memory-notices".into()).spawn(wait)?;
        answer.await.map_err(io::Error::other)?
    }
}

fn first_ready(waits: &[Notice], stop: &OwnedFd) -> io::Result<()> {
    let mut files: Vec<_> =
        waits.iter().map(|wait| PollFd::from_borrowed_fd(wait.file.as_fd(), wait.ready)).collect();
    files.push(PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN));
    loop {
        match poll(&mut files, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// When processes wait for memory. `file`: of the whole machine, or of a cgroup of version 2.
pub(super) fn stalls(file: &Path) -> io::Result<Notice> {
    let mut trigger = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    trigger.write_all(STALL)?;
    Ok(Notice { file: trigger.into(), ready: PollFlags::PRI })
}

/// When the usage of a cgroup of version 1 crosses a level.
pub(super) fn usage_level(cgroup: &Path, level: u64) -> io::Result<Notice> {
    let usage = File::open(cgroup.join("memory.usage_in_bytes"))?;
    let event = event_file()?;
    let order = format!("{} {} {level}", event.as_raw_fd(), usage.as_raw_fd());
    OpenOptions::new().write(true).open(cgroup.join("cgroup.event_control"))?.write_all(order.as_bytes())?;
    Ok(Notice { file: event, ready: PollFlags::IN })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn any_notice_counts_and_none_is_an_error() {
        let mut notices = Notices::default();
        notices.add(Err(io::Error::other("not here")));
        assert_eq!(notices.first().await.unwrap_err().to_string(), "not here");
        let mut notices = Notices::default();
        notices.add(Err(io::Error::other("not here")));
        let (quiet, ready) = (event_file().unwrap(), event_file().unwrap());
        rustix::io::write(&ready, &1_u64.to_ne_bytes()).unwrap();
        for file in [quiet, ready] {
            notices.add(Ok(Notice { file, ready: PollFlags::IN }));
        }
        notices.first().await.unwrap();
    }

    /// Where the machine has cgroups of version 1: a level that is crossed by what this test maps.
    #[tokio::test]
    async fn the_kernel_tells_of_a_level_that_is_crossed() {
        let root = Path::new("/sys/fs/cgroup/memory");
        if !root.join("cgroup.event_control").exists() {
            // Version 2 has no levels: a directory without the file is refused.
            assert!(usage_level(root, 1).is_err());
            return;
        }
        let cgroup = root.join(format!("rubelet-notice-{}", std::process::id()));
        std::fs::create_dir(&cgroup).unwrap();
        let mut notices = Notices::default();
        notices.add(usage_level(&cgroup, 8 << 20));
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read go; head -c 33554432 /dev/zero | tail -c 33554432 >/dev/null; read end"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        let mut crossed = Box::pin(notices.first());
        let early = tokio::time::timeout(Duration::from_millis(200), &mut crossed).await;
        assert!(early.is_err(), "nothing was used yet");
        let mut go = child.stdin.take().unwrap();
        go.write_all(b"go\n").unwrap();
        let told = tokio::time::timeout(Duration::from_secs(20), &mut crossed).await;
        drop(go);
        child.wait().unwrap();
        std::fs::remove_dir(&cgroup).unwrap();
        told.expect("a notice").unwrap();
    }
}
