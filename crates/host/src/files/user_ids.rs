//! The host's user IDs of a pod, in a file of its directory with upstream's name and format.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use model::PodUid;
use model::cri::IdMapping;
use model::user_namespace::{UserNamespaceFile, UserNamespaceScan};
use ports::FilesError;
use rustix::fs::{Mode, OFlags};

use super::layout::FilesLayout;

const FILE: &str = "userns";
const DRAFT: &str = "userns.new";
/// Larger than any mapping.
const MAX_BYTES: u64 = 64 << 10;

/// Write a draft, sync, rename, sync the directory: after a crash there is the old file or the new one.
pub fn write(layout: &FilesLayout, uid: &PodUid, ids: &IdMapping) -> Result<(), FilesError> {
    let dir = layout.pod(uid)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&dir, flags, Mode::empty()).map_err(|e| failed("open", &dir)(e.into()))?;
    let draft = dir.join(DRAFT);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&opened, DRAFT, flags, Mode::from_raw_mode(0o600));
    let mut file = File::from(file.map_err(|e| failed("create", &draft)(e.into()))?);
    let text = serde_json::to_string(&UserNamespaceFile::of(ids)).expect("plain data");
    file.write_all(text.as_bytes()).map_err(failed("write", &draft))?;
    file.sync_all().map_err(failed("write", &draft))?;
    rustix::fs::renameat(&opened, DRAFT, &opened, FILE).map_err(|e| failed("replace", &draft)(e.into()))?;
    rustix::fs::fsync(&opened).map_err(|e| failed("write", &dir)(e.into()))
}

/// Also returns the pods whose file can't be parsed: their IDs are unknown and may be in use.
pub fn read_all(layout: &FilesLayout) -> UserNamespaceScan {
    let mut found = UserNamespaceScan::default();
    let pods = layout.root.join("pods");
    let mut names = match names(&pods) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return found,
        Err(error) => {
            found.unlisted = true;
            found.problems.push(format!("list {}: {error}", pods.display()));
            return found;
        }
    };
    names.sort();
    for name in names {
        let path = pods.join(&name).join(FILE);
        match read(&path) {
            Ok(Some(ids)) => found.ids.push((PodUid::new(name), Some(ids))),
            Ok(None) => {}
            Err(error) => {
                found.problems.push(format!("{}: {error}", path.display()));
                found.ids.push((PodUid::new(name), None));
            }
        }
    }
    found
}

/// Names that are not UTF-8 are not pods.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(io::Result::transpose).collect()
}

fn read(path: &Path) -> io::Result<Option<IdMapping>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    let content: UserNamespaceFile = serde_json::from_str(&text)?;
    let ids =
        content.ids().ok_or_else(|| io::Error::other("it does not hold one mapping for users and groups"));
    ids.map(Some)
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    let path = path.display().to_string();
    move |source| FilesError::Io { operation, path, source }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn layout(root: PathBuf) -> FilesLayout {
        FilesLayout { pod_logs: root.join("logs"), log_links_dir: root.join("links"), root }
    }

    fn ids(host_id: u32) -> IdMapping {
        IdMapping { host_id, container_id: 0, length: 65536 }
    }

    #[test]
    fn what_is_written_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path().to_owned());
        for (uid, host_id) in [("b", 131_072), ("a", 65_536), ("b", 196_608)] {
            fs::create_dir_all(root.path().join("pods").join(uid)).unwrap();
            write(&layout, &uid.into(), &ids(host_id)).unwrap();
        }
        fs::create_dir_all(root.path().join("pods/without")).unwrap();
        let found = read_all(&layout);
        assert_eq!(found.ids, [("a".into(), Some(ids(65_536))), ("b".into(), Some(ids(196_608)))]);
        assert_eq!(found.problems, [""; 0]);
        let left: Vec<_> = fs::read_dir(root.path().join("pods/b")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "no draft stays");
    }

    #[test]
    fn what_makes_no_sense_is_told_and_the_rest_counts() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path().to_owned());
        for (uid, text) in [("a", "{"), ("b", "{\"uidMappings\":[],\"gidMappings\":[]}")] {
            let dir = root.path().join("pods").join(uid);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(FILE), text).unwrap();
        }
        fs::create_dir_all(root.path().join("pods/c")).unwrap();
        write(&layout, &"c".into(), &ids(65_536)).unwrap();
        let found = read_all(&layout);
        assert_eq!(found.ids, [("a".into(), None), ("b".into(), None), ("c".into(), Some(ids(65_536)))]);
        assert_eq!((found.problems.len(), found.unlisted), (2, false), "{:?}", found.problems);
    }

    #[test]
    fn directories_that_can_not_be_listed_are_told() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path().to_owned());
        assert!(!read_all(&layout).unlisted, "none are there yet");
        fs::write(root.path().join("pods"), "no directory").unwrap();
        let found = read_all(&layout);
        assert!(found.unlisted && found.ids.is_empty() && found.problems.len() == 1, "{found:?}");
    }

    #[test]
    fn nothing_is_written_without_a_directory_or_outside_of_it() {
        let root = tempfile::tempdir().unwrap();
        let layout = layout(root.path().to_owned());
        assert!(write(&layout, &"a".into(), &ids(65_536)).is_err());
        assert!(write(&layout, &"..".into(), &ids(65_536)).is_err());
        assert_eq!(read_all(&layout).ids, []);
    }
}
