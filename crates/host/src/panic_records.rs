//! Records of panics in `<root>/panic-records`: one small file with a checksum, replaced as a whole. If an
//! administrator removes it, every pod that was set aside is tried again at the next start.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use model::panic_record::PanicRecord;
use ports::{PanicRecordError, PanicRecords};

use crate::checksummed::{add_checksum, verify_checksum};

const FILE: &str = "panic-records";
const DRAFT: &str = "panic-records.new";
/// Larger than the records that are kept.
const MAX_BYTES: u64 = 1 << 20;

/// [`PanicRecords`] on the real disk.
#[derive(Clone, Debug)]
pub struct HostPanicRecords {
    root_dir: PathBuf,
}

impl HostPanicRecords {
    /// `root_dir` is the agent's own directory.
    pub fn new(root_dir: impl AsRef<Path>) -> Self {
        Self { root_dir: root_dir.as_ref().to_owned() }
    }
}

#[async_trait]
impl PanicRecords for HostPanicRecords {
    async fn load(&self) -> Result<Vec<PanicRecord>, PanicRecordError> {
        let path = self.root_dir.join(FILE);
        blocking(move || load(&path)).await
    }

    async fn save(&self, records: &[PanicRecord]) -> Result<(), PanicRecordError> {
        let (root_dir, records) = (self.root_dir.clone(), records.to_vec());
        blocking(move || save(&root_dir, &records)).await
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

fn load(path: &Path) -> Result<Vec<PanicRecord>, PanicRecordError> {
    let damaged = |detail: String| PanicRecordError::Damaged { path: path.display().to_string(), detail };
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits();
    let opened = File::options().read(true).custom_flags(nofollow.cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("open", path)(error)),
    };
    if !file.metadata().map_err(failed("examine", path))?.is_file() {
        return Err(damaged("it is no file".into()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed("read", path))?;
    let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let body = verify_checksum(&text).map_err(damaged)?;
    serde_json::from_str(body).map_err(|error| damaged(error.to_string()))
}

/// Write a draft, sync, rename, sync the directory: after a crash there are the old records or the new ones.
fn save(root_dir: &Path, records: &[PanicRecord]) -> Result<(), PanicRecordError> {
    let (draft, path) = (root_dir.join(DRAFT), root_dir.join(FILE));
    let body = serde_json::to_string(records).map_err(|error| failed("write", &path)(error.into()))?;
    // An earlier attempt may have left any kind of file there, even a symlink.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("replace", &draft)(error));
        }
        _ => {}
    }
    let made = File::options().write(true).create_new(true).mode(0o600).open(&draft);
    let mut file = made.map_err(failed("create", &draft))?;
    file.write_all(add_checksum(&body).as_bytes()).map_err(failed("write", &draft))?;
    file.sync_all().map_err(failed("write", &draft))?;
    fs::rename(&draft, &path).map_err(failed("replace", &path))?;
    let dir = File::open(root_dir).map_err(failed("open", root_dir))?;
    dir.sync_all().map_err(failed("write", root_dir))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PanicRecordError {
    let path = path.display().to_string();
    move |source| PanicRecordError::Io { operation, path, source }
}

#[cfg(test)]
mod tests {
    use model::Wall;
    use model::panic_record::PanickedPod;

    use super::*;

    fn record(uid: &str) -> PanicRecord {
        let (namespace, name) = ("default".to_owned(), "a".to_owned());
        PanicRecord {
            version: "1".into(),
            pod: Some(PanickedPod {
                uid: uid.into(),
                namespace,
                name,
                definition: u64::MAX,
                set_aside: false,
                in_merge: false,
            }),
            event: "timer".into(),
            message: "far away".into(),
            at: Wall(7),
        }
    }

    #[tokio::test]
    async fn records_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = HostPanicRecords::new(dir.path());
        assert_eq!(store.load().await.expect("nothing is there"), []);
        std::os::unix::fs::symlink("/nowhere", dir.path().join(DRAFT)).expect("a link");
        for count in [1, 3] {
            let records = vec![record("u"); count];
            store.save(&records).await.expect("saved");
            assert_eq!(store.load().await.expect("loaded"), records);
        }
        assert!(!dir.path().join(DRAFT).exists());
    }

    #[tokio::test]
    async fn what_is_damaged_is_told_and_can_be_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = HostPanicRecords::new(dir.path());
        store.save(&[record("u")]).await.expect("saved");
        let good = fs::read_to_string(dir.path().join(FILE)).expect("the file");
        for bad in [
            "",
            "x",
            "1 0\n[]",
            &good.replace("far", "fat"),
            &good[..good.len() - 1],
            &good.replace("1 ", "2 "),
        ] {
            fs::write(dir.path().join(FILE), bad).expect("written");
            let found = store.load().await;
            assert!(matches!(found, Err(PanicRecordError::Damaged { .. })), "{bad}: {found:?}");
        }
        store.save(&[record("v")]).await.expect("saved");
        assert_eq!(store.load().await.expect("loaded"), [record("v")]);
    }
}
