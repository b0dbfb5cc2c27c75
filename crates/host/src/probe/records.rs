//! The record of a pod's probes, in the pod's directory: one small file with a checksum, replaced as a whole.
//!
//! ```text
//!   <root>/pods/<uid>/probe-results      1 <checksum>
//!                                        {"containers":...}
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use model::PodUid;
use model::probe::ProbeRecord;
use ports::{ProbeRecordError, ProbeRecordStore, ProbeRecords};
use rustix::fs::{Mode, OFlags};

use crate::checksummed::{add_checksum, verify_checksum};

const FILE: &str = "probe-results";
const DRAFT: &str = "probe-results.new";
/// Larger than any pod's record.
const MAX_BYTES: u64 = 1 << 20;

/// [`ProbeRecordStore`] on the real disk.
#[derive(Clone, Debug)]
pub struct PodProbeRecords {
    pods: PathBuf,
}

impl PodProbeRecords {
    /// `root_dir` is the agent's own directory.
    pub fn new(root_dir: impl AsRef<Path>) -> Self {
        Self { pods: root_dir.as_ref().join("pods") }
    }
}

#[async_trait]
impl ProbeRecordStore for PodProbeRecords {
    async fn load(&self) -> ProbeRecords {
        let pods = self.pods.clone();
        blocking(move || load(&pods)).await
    }

    async fn save(&self, uid: &PodUid, record: &ProbeRecord) -> Result<(), ProbeRecordError> {
        let (pods, uid, record) = (self.pods.clone(), uid.clone(), record.clone());
        blocking(move || save(&pods, &uid, &record)).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The tokio runtime is shutting down, and with it the task that waits here.
        Err(_) => std::future::pending().await,
    }
}

fn load(pods: &Path) -> ProbeRecords {
    let mut found = ProbeRecords::default();
    let entries = match fs::read_dir(pods) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return found,
        Err(error) => {
            found.problems.push(failed("list", pods)(error));
            return found;
        }
    };
    let mut names: Vec<_> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    for name in names {
        match read(&pods.join(&name).join(FILE)) {
            Ok(Some(record)) => found.records.push((PodUid::new(name), record)),
            Ok(None) => {}
            Err(problem) => found.problems.push(problem),
        }
    }
    found
}

fn read(path: &Path) -> Result<Option<ProbeRecord>, ProbeRecordError> {
    let damaged = |detail: String| ProbeRecordError::Damaged { path: path.display().to_string(), detail };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(failed("open", path)(errno.into())),
    };
    let about = file.metadata().map_err(failed("examine", path))?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return Err(damaged("it is no small file".into()));
    }
    let text = io::read_to_string(file).map_err(failed("read", path))?;
    let body = verify_checksum(&text).map_err(damaged)?;
    serde_json::from_str(body).map(Some).map_err(|error| damaged(error.to_string()))
}

/// Write a draft, sync, rename, sync the directory: after a crash there is the old record or the new one.
fn save(pods: &Path, uid: &PodUid, record: &ProbeRecord) -> Result<(), ProbeRecordError> {
    let dir = pods.join(single_name(uid)?);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(&dir, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("open", &dir)(errno.into())),
    };
    let draft = dir.join(DRAFT);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(&opened, DRAFT, flags, Mode::from_raw_mode(0o600));
    let mut file = match made {
        Ok(file) => File::from(file),
        // The directory was removed while we had it open.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("create", &draft)(errno.into())),
    };
    file.write_all(sealed_record(record).as_bytes()).map_err(failed("write", &draft))?;
    file.sync_all().map_err(failed("write", &draft))?;
    match rustix::fs::renameat(&opened, DRAFT, &opened, FILE) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("replace", &dir.join(FILE))(errno.into())),
    }
    rustix::fs::fsync(&opened).map_err(|errno| failed("write", &dir)(errno.into()))
}

fn sealed_record(record: &ProbeRecord) -> String {
    let body = serde_json::to_string(record).expect("a record is plain data");
    add_checksum(&body)
}

/// A static pod may choose its UID, so `..` and `a/b` are refused.
fn single_name(uid: &PodUid) -> Result<&str, ProbeRecordError> {
    let mut parts = Path::new(uid.as_str()).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only.len() == uid.as_str().len() => Ok(uid.as_str()),
        _ => Err(ProbeRecordError::Name { uid: uid.clone() }),
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProbeRecordError {
    let path = path.display().to_string();
    move |source| ProbeRecordError::Io { operation, path, source }
}
