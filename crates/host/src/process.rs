//! System calls about this process itself. Each may be refused; the caller decides whether that matters.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
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

/// Whether the users of this process are others than those of the host. `proc` is `/proc`.
pub fn in_user_namespace(proc: &Path) -> bool {
    let map = std::fs::read_to_string(proc.join("self/uid_map")).unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

/// Whether this process sees the same process 1 as the host does. `proc` is `/proc`. If that can't be told, it is taken
/// to be so.
pub fn in_pid_namespace_of_init(proc: &Path) -> bool {
    let namespace = |process: &str| std::fs::read_link(proc.join(process).join("ns/pid"));
    match (namespace("self"), namespace("1")) {
        (Ok(own), Ok(first)) => own == first,
        _ => true,
    }
}

/// Waits until somebody opens or removes the file: another agent wants the lock. Also ends when that can't be watched.
pub async fn wait_for_contention(path: &Path) -> io::Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(path, WatchMask::OPEN | WatchMask::DELETE_SELF)?;
    let mut events = inotify.into_event_stream(vec![0; 4096])?;
    events.next().await.transpose().map(|_| ())
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
    fn users_of_its_own() {
        let check = |map: &str, expect: bool| {
            let proc = tempfile::tempdir().unwrap();
            std::fs::create_dir(proc.path().join("self")).unwrap();
            std::fs::write(proc.path().join("self/uid_map"), map).unwrap();
            assert_eq!(in_user_namespace(proc.path()), expect, "{map:?}");
        };
        check("         0          0 4294967295\n", false);
        check("0 1000 1\n", true);
        check("0 1000 1\n1 100000 65536\n", true);
        check("", false);
    }

    #[test]
    fn the_namespace_of_process_one() {
        let proc = tempfile::tempdir().unwrap();
        assert!(in_pid_namespace_of_init(proc.path()), "nobody can tell");
        let link = |process: &str, target: &str| {
            let dir = proc.path().join(process).join("ns");
            std::fs::create_dir_all(&dir).unwrap();
            std::os::unix::fs::symlink(target, dir.join("pid")).unwrap();
        };
        link("self", "pid:[1]");
        link("1", "pid:[2]");
        assert!(!in_pid_namespace_of_init(proc.path()));
    }

    #[tokio::test]
    async fn another_who_wants_the_lock_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rubelet.lock");
        let held = FileLock::acquire(&path).unwrap();
        let mut waiting = Box::pin(wait_for_contention(&path));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        waiting.await.unwrap();
        // The kernel reports the removal of a file once nobody has it open any more.
        drop(held);
        let removed = Box::pin(wait_for_contention(&path));
        let remove = async {
            tokio::task::yield_now().await;
            std::fs::remove_file(&path).unwrap();
        };
        assert!(tokio::join!(removed, remove).0.is_ok());
        assert!(wait_for_contention(&path).await.is_err(), "it is gone");
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
