//! Follows the kernel's log for processes that were killed because memory ran out.

mod records;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::{StreamExt, stream};
use model::oom_kill::OomKill;
use ports::{OomKillStream, OomKills};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

pub(crate) use self::records::KillReader;
use self::records::MAX_RECORD;
use crate::wake::{WakeOnDrop, event_file};

/// Kills that were read and not taken yet. After that many the log itself keeps them.
const AHEAD: usize = 64;

/// The kernel's log, of which each read returns one record.
pub struct HostOomKills {
    path: PathBuf,
}

impl HostOomKills {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// At the end: what happened before this agent started was another agent's to tell.
    fn open(&self) -> io::Result<File> {
        let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path)?;
        log.seek(SeekFrom::End(0))?;
        Ok(log)
    }
}

impl OomKills for HostOomKills {
    fn kills(&self) -> OomKillStream {
        match self.open().and_then(follow) {
            Ok(kills) => kills,
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// Reads in a thread of its own, which ends with the stream. Reading `log` does not block.
fn follow(log: File) -> io::Result<OomKillStream> {
    let stop = Arc::new(event_file()?);
    let wake = WakeOnDrop(stop.clone());
    let (told, kills) = mpsc::channel(AHEAD);
    let mut follower = LogFollower { log, stop, reader: KillReader::default(), record: vec![0; MAX_RECORD] };
    let run = move || {
        while let Some(kill) = follower.next().transpose() {
            let is_last = kill.is_err();
            if told.blocking_send(kill).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("oom-kills".into()).spawn(run)?;
    let next = |(mut kills, wake): (mpsc::Receiver<_>, WakeOnDrop)| async move {
        kills.recv().await.map(|kill| (kill, (kills, wake)))
    };
    Ok(stream::unfold((kills, wake), next).boxed())
}

struct LogFollower {
    log: File,
    /// Readable when nobody wants to know any more.
    stop: Arc<OwnedFd>,
    reader: KillReader,
    record: Vec<u8>,
}

impl LogFollower {
    /// The next kill, or `None` when nobody wants to know.
    fn next(&mut self) -> io::Result<Option<OomKill>> {
        loop {
            match self.log.read(&mut self.record) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    if let Some(kill) = self.reader.record(&self.record[..length]) {
                        return Ok(Some(kill));
                    }
                }
                // The kernel overwrote records before they were read; the next read goes on behind them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => self.reader.records_lost(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait()? {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Until there is something to read (true) or to stop for.
    fn wait(&self) -> io::Result<bool> {
        let mut files = [
            PollFd::from_borrowed_fd(self.log.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut files, None) {
            Ok(_) => Ok(files[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use model::oom_kill::{OomVictim, OutOfMemory};

    use super::*;

    /// A socket of datagrams: one read is one record, as of the kernel's log.
    fn log() -> (UnixDatagram, OomKillStream) {
        let (kernel, log) = UnixDatagram::pair().expect("a pair of sockets");
        log.set_nonblocking(true).expect("a socket that does not block");
        (kernel, follow(File::from(OwnedFd::from(log))).expect("a stream"))
    }

    #[tokio::test]
    async fn kills_are_told_as_they_are_written() {
        let (kernel, mut kills) = log();
        let early = tokio::time::timeout(Duration::from_millis(50), kills.next()).await;
        assert!(early.is_err(), "nothing was killed yet");
        for (pid, name) in [(7, "first"), (8, "second")] {
            for record in [
                "6,1,1,-;eth0: link up\n SUBSYSTEM=net\n".to_owned(),
                format!("4,2,2,-;{name} invoked oom-killer: gfp_mask=0x0\n"),
                "no record".to_owned(),
                format!("3,3,3,-;Out of memory: Killed process {pid} ({name}) total-vm:1kB\n"),
            ] {
                kernel.send(record.as_bytes()).expect("write to the log");
            }
            let expect = OomKill {
                ran_out: OutOfMemory::Machine,
                process_cgroup: None,
                victim: OomVictim { name: name.to_owned(), pid },
            };
            assert_eq!(kills.next().await.expect("a kill").expect("no error"), expect);
        }
    }

    #[tokio::test]
    async fn the_thread_ends_with_the_stream() {
        let (kernel, kills) = log();
        drop(kills);
        let ended = tokio::task::spawn_blocking(move || {
            // Its end of the pair is closed then.
            while kernel.send(b"6,1,1,-;x").is_ok() {
                std::thread::yield_now();
            }
        });
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect("the thread ends")
            .expect("no panic");
    }

    #[tokio::test]
    async fn a_log_that_can_not_be_followed_is_one_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "6,1,1,-;x\n").expect("a plain file");
        for path in [dir.path().join("missing"), plain, dir.path().to_owned()] {
            let told: Vec<_> = HostOomKills::new(&path).kills().collect().await;
            assert!(matches!(told[..], [Err(_)]), "{}: {told:?}", path.display());
        }
    }
}
