//! Pull records on disk, with upstream's format and paths.
//!
//! ```text
//! <root>/image_manager/pulling/sha256-<of the image's name>       a pull has begun
//!                     /pulled/sha256-<of the runtime's reference>  how an image was pulled
//! ```
//!
//! A file is written next to its final path and renamed, so that a crash leaves either the old or the new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use model::credentials::PulledRecord;
use ports::{PullRecords, RecordError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const PREFIX: &str = "sha256-";

/// [`PullRecords`] in the agent's root directory.
#[derive(Clone, Debug)]
pub struct HostPullRecords {
    dirs: Arc<Dirs>,
}

#[derive(Debug)]
struct Dirs {
    pulling: PathBuf,
    pulled: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Document<T> {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize, Deserialize)]
struct PullIntent {
    image: String,
}

impl HostPullRecords {
    pub fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        Self { dirs: Arc::new(Dirs { pulling: dir.join("pulling"), pulled: dir.join("pulled") }) }
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Dirs) -> T + Send + 'static) -> T {
        let dirs = Arc::clone(&self.dirs);
        match tokio::task::spawn_blocking(move || work(&dirs)).await {
            Ok(value) => value,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The tokio runtime is shutting down, and with it the task that waits here.
            Err(_) => std::future::pending().await,
        }
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = path.display().to_string();
    move |source| RecordError::Io { operation, path, source }
}

fn pull_record_path(dir: &Path, name: &str) -> PathBuf {
    let digest: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("{PREFIX}{digest}"))
}

fn write<T: Serialize>(dir: &Path, name: &str, kind: &str, content: T) -> Result<(), RecordError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))?;
    let path = pull_record_path(dir, name);
    let document = Document { kind: kind.into(), api_version: API_VERSION.into(), content };
    let bytes = serde_json::to_vec(&document)
        .map_err(|source| RecordError::Malformed { path: path.display().to_string(), source })?;
    let draft = path.with_extension("tmp");
    let put = || -> io::Result<()> {
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(dir)?.sync_all()
    };
    put().map_err(|error| {
        let _ = fs::remove_file(&draft);
        failed("write", &path)(error)
    })
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    serde_json::from_slice::<Document<T>>(&bytes)
        .map(|document| Some(document.content))
        .map_err(|source| RecordError::Malformed { path: path.display().to_string(), source })
}

fn remove(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// All documents of a directory, without those that can't be read.
fn read_all<T: for<'de> Deserialize<'de>>(dir: &Path) -> Result<Vec<T>, RecordError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", dir)(error)),
    };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || name.ends_with(".tmp") {
            continue;
        }
        match read::<T>(&entry.path()) {
            Ok(document) => all.extend(document),
            Err(error) => tracing::warn!("{}", error.user_message()),
        }
    }
    Ok(all)
}

fn intents(dir: &Path) -> Result<Vec<String>, RecordError> {
    let intents: Vec<PullIntent> = read_all(dir)?;
    let mut images: Vec<String> = intents.into_iter().map(|intent| intent.image).collect();
    images.sort();
    Ok(images)
}

#[async_trait]
impl PullRecords for HostPullRecords {
    async fn write_intent(&self, image: &str) -> Result<(), RecordError> {
        let image = image.to_owned();
        self.blocking(move |dirs| {
            write(&dirs.pulling, &image, "ImagePullIntent", PullIntent { image: image.clone() })
        })
        .await
    }

    async fn remove_intent(&self, image: &str) -> Result<(), RecordError> {
        let image = image.to_owned();
        self.blocking(move |dirs| remove(&pull_record_path(&dirs.pulling, &image))).await
    }

    async fn has_intent(&self, image: &str) -> Result<bool, RecordError> {
        let image = image.to_owned();
        self.blocking(move |dirs| {
            let found: Option<PullIntent> = read(&pull_record_path(&dirs.pulling, &image))?;
            Ok(found.is_some_and(|intent| intent.image == image))
        })
        .await
    }

    async fn intents(&self) -> Result<Vec<String>, RecordError> {
        self.blocking(|dirs| intents(&dirs.pulling)).await
    }

    async fn pulled(&self) -> Result<Vec<PulledRecord>, RecordError> {
        self.blocking(|dirs| read_all(&dirs.pulled)).await
    }

    async fn read_pulled(&self, image_ref: &str) -> Result<Option<PulledRecord>, RecordError> {
        let image_ref = image_ref.to_owned();
        self.blocking(move |dirs| {
            let found: Option<PulledRecord> = read(&pull_record_path(&dirs.pulled, &image_ref))?;
            Ok(found.filter(|record| record.image_ref == image_ref))
        })
        .await
    }

    async fn write_pulled(&self, record: &PulledRecord) -> Result<(), RecordError> {
        let record = record.clone();
        self.blocking(move |dirs| write(&dirs.pulled, &record.image_ref.clone(), "ImagePulledRecord", record))
            .await
    }

    async fn remove_pulled(&self, image_ref: &str) -> Result<(), RecordError> {
        let image_ref = image_ref.to_owned();
        self.blocking(move |dirs| remove(&pull_record_path(&dirs.pulled, &image_ref))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credentials::PullCredentials;
    use std::os::unix::fs::PermissionsExt;

    struct Bench {
        dir: tempfile::TempDir,
        records: HostPullRecords,
    }

    fn bench() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let records = HostPullRecords::new(dir.path());
        Bench { dir, records }
    }

    fn record(image_ref: &str) -> PulledRecord {
        let node = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
        PulledRecord {
            last_updated_time: Some(model::Wall(1_729_513_600_000_000_000).api_time()),
            image_ref: image_ref.into(),
            credential_mapping: [("docker.io/testing/test".to_owned(), node)].into(),
        }
    }

    impl Bench {
        fn file(&self, name: &str) -> PathBuf {
            self.dir.path().join("image_manager").join(name)
        }
    }

    /// Name and content as upstream writes them.
    const PULLED: (&str, &str) = (
        "pulled/sha256-a2eace2182b24cdbbb730798e47b10709b9ef5e0f0c1624a3bc06c8ca987727a",
        r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"testimage-anonpull","credentialMapping":{"docker.io/testing/test":{"nodePodsAccessible":true}}}"#,
    );
    const INTENT: (&str, &str) = (
        "pulling/sha256-ee81caca15454863449fb55a1d942904d56d5ed9f9b20a7cb3453944ea2c7e11",
        r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"repo.repo/test/test:v1"}"#,
    );

    #[tokio::test]
    async fn files_are_those_of_the_reference() {
        let b = bench();
        b.records.write_pulled(&record("testimage-anonpull")).await.unwrap();
        b.records.write_intent("repo.repo/test/test:v1").await.unwrap();
        for (name, text) in [PULLED, INTENT] {
            assert_eq!(fs::read_to_string(b.file(name)).unwrap(), text);
            assert_eq!(b.file(name).metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        for name in ["", "pulled", "pulling"] {
            assert_eq!(b.file(name).metadata().unwrap().permissions().mode() & 0o777, 0o700, "{name}");
        }
    }

    #[tokio::test]
    async fn what_was_written_is_read() {
        let b = bench();
        assert_eq!(b.records.read_pulled("r").await.unwrap(), None);
        b.records.write_pulled(&record("r")).await.unwrap();
        assert_eq!(b.records.read_pulled("r").await.unwrap(), Some(record("r")));
        b.records.remove_pulled("r").await.unwrap();
        b.records.remove_pulled("r").await.unwrap();
        assert_eq!(b.records.read_pulled("r").await.unwrap(), None);

        assert_eq!(b.records.intents().await.unwrap(), [""; 0]);
        for image in ["b", "a"] {
            b.records.write_intent(image).await.unwrap();
        }
        assert_eq!(b.records.intents().await.unwrap(), ["a", "b"]);
        assert!(b.records.has_intent("a").await.unwrap());
        b.records.remove_intent("a").await.unwrap();
        b.records.remove_intent("a").await.unwrap();
        assert!(!b.records.has_intent("a").await.unwrap());
        assert_eq!(b.records.intents().await.unwrap(), ["b"]);
    }

    #[tokio::test]
    async fn older_versions_are_read_as_well() {
        let b = bench();
        let (name, text) = PULLED;
        b.records.write_pulled(&record("x")).await.unwrap();
        fs::write(b.file(name), text.replace("v1beta1", "v1alpha1")).unwrap();
        let expect = Some(record("testimage-anonpull"));
        assert_eq!(b.records.read_pulled("testimage-anonpull").await.unwrap(), expect);
        let bare = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":null,"imageRef":"testimage-anonpull"}"#;
        fs::write(b.file(name), bare).unwrap();
        let read = b.records.read_pulled("testimage-anonpull").await.unwrap().unwrap();
        assert!(read.credential_mapping.is_empty());
    }

    #[tokio::test]
    async fn broken_files_are_told_of_and_stop_nothing_else() {
        let b = bench();
        b.records.write_pulled(&record("testimage-anonpull")).await.unwrap();
        fs::write(b.file(PULLED.0), "{").unwrap();
        let text = b.records.read_pulled("testimage-anonpull").await.unwrap_err().user_message();
        assert!(text.contains("sha256-a2eace") && text.contains("is no record of a pull"), "{text}");
        b.records.write_pulled(&record("testimage-anonpull")).await.unwrap();
        assert!(b.records.read_pulled("testimage-anonpull").await.unwrap().is_some());

        b.records.write_intent("a").await.unwrap();
        fs::write(b.file("pulling/sha256-broken"), "{").unwrap();
        fs::write(b.file("pulling/sha256-half.tmp"), "{").unwrap();
        fs::write(b.file("pulling/other"), "{").unwrap();
        assert_eq!(b.records.intents().await.unwrap(), ["a"]);
    }

    #[tokio::test]
    async fn a_record_of_another_image_is_none_of_this_one() {
        let b = bench();
        b.records.write_pulled(&record("a")).await.unwrap();
        let (from, to) = (pull_record_path(&b.file("pulled"), "a"), pull_record_path(&b.file("pulled"), "b"));
        fs::rename(from, to).unwrap();
        assert_eq!(b.records.read_pulled("b").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_place_that_can_not_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("image_manager"), "a file").unwrap();
        let records = HostPullRecords::new(dir.path());
        let text = records.write_intent("a").await.unwrap_err().user_message();
        assert!(
            text.starts_with(&format!("make {}/image_manager/pulling: ", dir.path().display())),
            "{text}"
        );
    }
}
