//! The files of a directory (or the single file), and their last good content.
//!
//! A file is decoded again only if its content changed. One that can't be read or decoded keeps the pods of its last
//! good content for as long as it exists: an editor's half-written file must not kill a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::k8s::Pod;
use model::local::LocalObjects;
use model::runtime_class::RuntimeClasses;
use rustix::fs::OFlags;

use super::notices::{PodName, SourceSnapshot, pod_name};
use super::objects::{self, MergedObjects};
use super::{MAX_BYTES, ManifestDecoder, decode, key};

/// Two writes within this time may leave the same time stamp.
const STAMP_GRAIN: Duration = Duration::from_secs(2);

pub struct Manifests {
    path: PathBuf,
    decoder: ManifestDecoder,
    files: BTreeMap<OsString, ManifestFile>,
}

/// What the watch knows about files.
#[derive(Clone, Debug, Default)]
pub struct FileHints {
    /// Written since the last read, so their timestamps are not trusted.
    pub changed: BTreeSet<OsString>,
    /// Being written now: their content is not read.
    pub unfinished: BTreeSet<OsString>,
    /// Deleted, and maybe created again since: their pods have to end first.
    pub deleted: BTreeSet<OsString>,
}

#[derive(Default)]
struct ManifestFile {
    /// The file's path.
    origin: String,
    /// `None`: read the file next time.
    stamp: Option<Stamp>,
    content_hash: Option<u64>,
    pods: Vec<Arc<Pod>>,
    runtime_classes: RuntimeClasses,
    objects: LocalObjects,
    /// Pods were decoded from it without a problem at least once.
    was_good: bool,
    problem: Option<String>,
}

#[derive(PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// A timestamp younger than the clock granularity cannot show a second write, so the file is read again next time.
    #[allow(clippy::disallowed_methods)] // Compared with a file's own stamp, which no paused clock moves.
    fn if_settled(self) -> Option<Self> {
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or(0));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let age = now.saturating_sub(changed);
        (age > STAMP_GRAIN).then_some(self)
    }
}

/// Names that are not manifests: hidden files, and temporary files of editors.
pub fn is_ignored(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b".")
        || name.ends_with(b"~")
        || name.ends_with(b".swp")
        || (name.starts_with(b"#") && name.ends_with(b"#"))
}

impl Manifests {
    pub fn new(path: PathBuf, decoder: ManifestDecoder) -> Self {
        Self { path, decoder, files: BTreeMap::new() }
    }

    pub fn read(&mut self, hints: &FileHints) -> SourceSnapshot {
        let meta = match std::fs::metadata(&self.path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.clear();
                let mut reading = self.path_problem("path does not exist, ignoring");
                reading.pods = Some(Vec::new());
                return reading;
            }
            Err(error) => return self.path_problem(&error.to_string()),
        };
        if meta.is_dir() {
            self.read_dir(hints)
        } else if meta.is_file() {
            self.read_single(hints)
        } else {
            self.path_problem("path is not a directory or file")
        }
    }

    /// A problem with the path as a whole; the pods that were reported stay.
    fn path_problem(&self, why: &str) -> SourceSnapshot {
        let origin = self.path.display().to_string();
        let message = format!("{origin}: {why}");
        SourceSnapshot { problems: BTreeMap::from([(origin, message)]), ..SourceSnapshot::default() }
    }

    fn read_dir(&mut self, hints: &FileHints) -> SourceSnapshot {
        let names = match list(&self.path) {
            Ok(names) => names,
            Err(error) => return self.path_problem(&error.to_string()),
        };
        let mut before = std::mem::take(&mut self.files);
        let mut ended = BTreeSet::new();
        for name in names {
            let known = before.remove(&name);
            if hints.deleted.contains(&name) {
                ended.extend(known.iter().flat_map(ManifestFile::pod_names));
            }
            let now = if hints.unfinished.contains(&name) {
                known
            } else {
                read_file(&self.decoder, &self.path.join(&name), known, hints.changed.contains(&name))
            };
            if let Some(now) = now {
                self.files.insert(name, now);
            }
        }
        SourceSnapshot { deleted_meanwhile: ended, ..self.collect() }
    }

    fn read_single(&mut self, hints: &FileHints) -> SourceSnapshot {
        let name = self.path.file_name().unwrap_or_default().to_owned();
        let known = self.files.remove(&name);
        self.files.clear();
        let was_deleted = hints.deleted.contains(&name);
        let ended = known.iter().filter(|_| was_deleted).flat_map(ManifestFile::pod_names).collect();
        let now = if hints.unfinished.contains(&name) {
            known
        } else {
            read_file(&self.decoder, &self.path, known, hints.changed.contains(&name))
        };
        // A single file that never decoded successfully yields no pod set at all, so running pods are not removed.
        let was_good = now.as_ref().is_some_and(|known| known.was_good);
        self.files.extend(now.map(|now| (name, now)));
        let mut reading = SourceSnapshot { deleted_meanwhile: ended, ..self.collect() };
        if !was_good {
            reading.pods = None;
        }
        reading
    }

    /// All pods in order. If two have the same name, the one in the later file is used.
    fn collect(&self) -> SourceSnapshot {
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        let mut tell = |origin: String, message: String| {
            problems
                .entry(origin)
                .and_modify(|known| *known = format!("{known}; {message}"))
                .or_insert(message);
        };
        let mut owner: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        let mut runtime_classes = RuntimeClasses::new();
        let mut class_owner: BTreeMap<&str, &str> = BTreeMap::new();
        let mut objects = MergedObjects::default();
        for known in self.files.values() {
            let origin = &known.origin;
            for (name, class) in &known.runtime_classes {
                if let Some(earlier) = class_owner.insert(name, origin) {
                    let message =
                        format!("{earlier}: runtime class {name} is also in {origin}, which is used");
                    tell(earlier.to_owned(), message);
                }
                runtime_classes.insert(name.clone(), class.clone());
            }
            for (earlier, message) in objects.add(origin, &known.objects) {
                tell(earlier, message);
            }
            if let Some(problem) = &known.problem {
                tell(origin.clone(), problem.clone());
            }
            for pod in &known.pods {
                if let Some(earlier) = owner.insert(key(pod), origin) {
                    let (namespace, name) = key(pod);
                    let message =
                        format!("{earlier}: pod {namespace}/{name} is also in {origin}, which is used");
                    tell(earlier.to_owned(), message);
                    pods.retain(|other| key(other) != key(pod));
                }
                pods.push(Arc::clone(pod));
            }
        }
        let objects = objects.into_objects();
        SourceSnapshot {
            pods: Some(pods),
            runtime_classes,
            objects,
            problems,
            deleted_meanwhile: BTreeSet::new(),
        }
    }
}

/// Sorted names of manifests.
fn list(dir: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !is_ignored(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// `None`: the file was removed.
fn read_file(
    decoder: &ManifestDecoder,
    path: &Path,
    known: Option<ManifestFile>,
    changed: bool,
) -> Option<ManifestFile> {
    let new = || ManifestFile { origin: path.display().to_string(), ..ManifestFile::default() };
    let without_pods = |why: &str| Some(new().with_problem(why));
    let known = known.unwrap_or_else(new);
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return path.is_symlink().then(|| without_pods("is a symbolic link to nothing"))?;
        }
        Err(error) => return Some(known.with_problem(&error.to_string())),
    };
    if meta.is_dir() {
        return without_pods("is a directory, not reading what is in it");
    }
    if !meta.is_file() {
        return without_pods("is not a regular file, ignoring it");
    }
    if !changed && known.stamp.as_ref() == Some(&Stamp::of(&meta)) {
        return Some(known);
    }
    match content(path) {
        Ok((content, stamp)) => Some(known.with_content(decoder, &content, stamp)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(known.with_problem(&error.to_string())),
    }
}

/// The stamp of the file that is read, taken before the read.
fn content(path: &Path) -> io::Result<(Vec<u8>, Stamp)> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
    let file: File = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(MAX_BYTES as u64).read_to_end(&mut content)?;
    if content.len() >= MAX_BYTES {
        return Err(io::Error::other("has 10 MiB or more, which is too much for a manifest"));
    }
    Ok((content, Stamp::of(&meta)))
}

impl ManifestFile {
    fn pod_names(&self) -> impl Iterator<Item = PodName> {
        self.pods.iter().map(|pod| pod_name(pod))
    }

    /// The file's pods stay, and it is read again next time.
    fn with_problem(self, why: &str) -> Self {
        Self { problem: Some(format!("{}: {why}", self.origin)), stamp: None, content_hash: None, ..self }
    }

    fn with_content(mut self, decoder: &ManifestDecoder, content: &[u8], stamp: Stamp) -> Self {
        self.stamp = stamp.if_settled();
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.content_hash == hash {
            return self;
        }
        self.content_hash = hash;
        let mut decoded = decode(decoder, &self.origin, content);
        let mut pods: Vec<Arc<Pod>> = decoded.pods.into_iter().map(Arc::new).collect();
        if decoded.problems.is_empty() {
            self.was_good = true;
            self.problem = None;
        } else {
            // If a part of the manifest can't be decoded, pods of the last good content may still be wanted.
            let missing = |old: &Arc<Pod>| !pods.iter().any(|new| key(new) == key(old));
            let kept: Vec<Arc<Pod>> = self.pods.into_iter().filter(missing).collect();
            pods.extend(kept);
            for (name, class) in self.runtime_classes {
                decoded.runtime_classes.entry(name).or_insert(class);
            }
            objects::keep_missing(&mut decoded.objects, self.objects);
            self.problem = Some(decoded.problems.join("; "));
        }
        self.pods = pods;
        self.runtime_classes = decoded.runtime_classes;
        self.objects = decoded.objects;
        self
    }
}
