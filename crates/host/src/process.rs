//! System calls about this process itself. Each may be refused; the caller decides whether that matters.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[derive(thiserror::Error, Debug)]
pub enum ProcessError {
    #[error("can't set the OOM score adjustment to {score}")]
    OomScore {
        score: i32,
        #[source]
        source: io::Error,
    },
    #[error("can't raise the limit of open files to {wanted}")]
    OpenFiles {
        wanted: u64,
        #[source]
        source: io::Error,
    },
    #[error("lock file {}: {operation} failed", path.display())]
    Lock {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// How readily the kernel kills this process when memory runs out: -1000 (never) to 1000 (first).
pub fn set_oom_score_adj(score: i32) -> Result<(), ProcessError> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
        .map_err(|source| ProcessError::OomScore { score, source })
}

/// Raises the limit of open files to `wanted`. A limit that is higher already stays.
pub fn raise_open_files(wanted: u64) -> Result<(), ProcessError> {
    let raised = raised(getrlimit(Resource::Nofile), wanted);
    let Some(limit) = raised else { return Ok(()) };
    setrlimit(Resource::Nofile, limit)
        .map_err(|error| ProcessError::OpenFiles { wanted, source: error.into() })
}

/// `None` in a limit is no limit.
fn raised(now: Rlimit, wanted: u64) -> Option<Rlimit> {
    let at_least = |limit: Option<u64>| limit.map(|limit| limit.max(wanted));
    let raised = Rlimit { current: at_least(now.current), maximum: at_least(now.maximum) };
    (raised != now).then_some(raised)
}

/// An exclusive lock on a file, held while this value lives. The kernel releases it when the process ends, even after a
/// crash; the file itself stays.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// `None` if another process holds the lock.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, ProcessError> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(lock_failed("locking", path, error.into())),
        }
    }

    /// Waits for the lock without a limit. Blocks the thread: call it from the blocking pool.
    pub fn acquire(path: &Path) -> Result<Self, ProcessError> {
        let file = open(path)?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(lock_failed("locking", path, error.into())),
            }
        }
    }
}

fn open(path: &Path) -> Result<File, ProcessError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| lock_failed("opening", path, source))
}

fn lock_failed(operation: &'static str, path: &Path, source: io::Error) -> ProcessError {
    ProcessError::Lock { operation, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_only_go_up() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let check = |now: Rlimit, wanted, expect: Option<Rlimit>| {
            assert_eq!(raised(now, wanted), expect, "{now:?} {wanted}");
        };
        check(limit(Some(10), Some(100)), 50, Some(limit(Some(50), Some(100))));
        check(limit(Some(10), Some(100)), 500, Some(limit(Some(500), Some(500))));
        check(limit(Some(100), Some(100)), 50, None);
        check(limit(None, None), u64::MAX, None);
        check(limit(Some(10), None), 50, Some(limit(Some(50), None)));
    }

    #[test]
    fn the_limit_of_this_process_is_raised() {
        let before = getrlimit(Resource::Nofile);
        // Up to the limit that an ordinary user may set.
        let Some(wanted) = before.maximum else { return };
        raise_open_files(wanted).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(wanted));
        raise_open_files(1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(wanted), "never lowered");
    }

    #[test]
    fn the_score_of_this_process_is_set() {
        // Raising it is always allowed. The test process keeps the value.
        set_oom_score_adj(7).unwrap();
        assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim(), "7");
        let error = set_oom_score_adj(5_000).unwrap_err();
        assert_eq!(error.to_string(), "can't set the OOM score adjustment to 5000");
    }

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rubelet.lock");
        let held = FileLock::acquire(&path).unwrap();
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || FileLock::acquire(&path).map(drop)
        });
        assert!(!waiting.is_finished());
        drop(held);
        waiting.join().unwrap().unwrap();
        assert!(FileLock::try_acquire(&path).unwrap().is_some());
        assert!(path.exists());

        let error = FileLock::acquire(&dir.path().join("no/such/place")).unwrap_err();
        assert!(error.to_string().ends_with("no/such/place: opening failed"), "{error}");
    }
}
