//! Paths of the agent's files, and the rule that no name from a pod may lead elsewhere.

use std::io;
use std::path::{Component, Path, PathBuf};

use model::PodUid;
use ports::FilesError;
use rustix::fs::Mode;
use rustix::io::Errno;

use super::steps::step;

#[derive(Clone, Debug)]
pub struct FilesLayout {
    /// `--root-dir`
    pub root: PathBuf,
    pub pod_logs: PathBuf,
    /// `/var/log/containers`
    pub log_links_dir: PathBuf,
}

impl FilesLayout {
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub fn pod(&self, uid: &PodUid) -> Result<PathBuf, FilesError> {
        Ok(self.pods().join(single_name("pod uid", uid.as_str())?))
    }

    /// A path that must be in the pod's own directory.
    pub fn in_pod(&self, uid: &PodUid, path: &str) -> Result<PathBuf, FilesError> {
        below(&self.pod(uid)?, path)
    }

    /// A path that must be in the directory of plugins.
    pub fn in_plugins(&self, path: &str) -> Result<PathBuf, FilesError> {
        below(&self.root.join("plugins"), path)
    }

    /// The file for termination messages that `path` means, relative to [`FilesLayout::pods`]. `None`: it is not the
    /// one that the agent creates for this container. Runtimes may report the path with symlinks of the root directory
    /// resolved.
    pub fn own_termination_log(&self, uid: &PodUid, container: &str, path: &str) -> Option<PathBuf> {
        let uid = single_name("pod uid", uid.as_str()).ok()?;
        let dir = Path::new(uid).join("containers").join(single_name("container", container).ok()?);
        let is_own = |pods: PathBuf| {
            let name = Path::new(path).strip_prefix(pods.join(&dir)).ok()?.to_str()?.to_owned();
            single_name("termination log", &name).ok().map(|name| dir.join(name))
        };
        is_own(self.pods()).or_else(|| is_own(self.root.canonicalize().ok()?.join("pods")))
    }

    /// A path that must be in the pod logs directory.
    pub fn in_pod_logs(&self, path: &str) -> Result<PathBuf, FilesError> {
        below(&self.pod_logs, path)
    }
}

/// Names come from pods (a static pod may choose its UID), so `..` and `a/b` are refused.
pub fn single_name<'a>(what: &str, name: &'a str) -> Result<&'a str, FilesError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only.len() == name.len() && !name.contains('\0') => Ok(name),
        _ => Err(FilesError::Refused { message: format!("{what} {name:?} is not a plain file name") }),
    }
}

fn below(base: &Path, path: &str) -> Result<PathBuf, FilesError> {
    let rest = Path::new(path).strip_prefix(base).ok();
    let plain = |rest: &Path| {
        rest.components().next().is_some()
            && rest.components().all(|part| matches!(part, Component::Normal(_)))
    };
    match rest {
        Some(rest) if plain(rest) => Ok(base.join(rest)),
        _ => Err(FilesError::Refused { message: format!("{path} is not below {}", base.display()) }),
    }
}

/// For `map_err`: the operation and the path that failed.
pub fn failed<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> FilesError {
    let path = path.display().to_string();
    move |source| FilesError::Io { operation, path, source: source.into() }
}

/// Creates a directory and its missing parents. New ones get exactly `mode`, whatever the umask; existing ones are
/// unchanged.
pub fn make_dirs(path: &Path, mode: u32) -> Result<(), FilesError> {
    step("make a directory");
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mkdir(path, mode) {
        Ok(()) => rustix::fs::chmod(path, mode).map_err(failed("set the mode of", path)),
        Err(Errno::EXIST) if path.is_dir() => Ok(()),
        Err(Errno::NOENT) => {
            let parent = path.parent().ok_or(Errno::NOENT).map_err(failed("make directory", path))?;
            make_dirs(parent, mode.as_raw_mode())?;
            match rustix::fs::mkdir(path, mode) {
                Ok(()) => rustix::fs::chmod(path, mode).map_err(failed("set the mode of", path)),
                Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(failed("make directory", path)(errno)),
            }
        }
        Err(errno) => Err(failed("make directory", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_and_paths_stay_where_they_belong() {
        let layout = FilesLayout { root: "/r".into(), pod_logs: "/l".into(), log_links_dir: "/k".into() };
        for bad in ["", ".", "..", "a/b", "/a", "a/", "../x", "./a", "a\0b"] {
            assert!(layout.pod(&PodUid::new(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(layout.pod(&PodUid::new("..a")).unwrap(), Path::new("/r/pods/..a"));
        let uid = PodUid::new("u");
        for bad in ["/r/pods/u", "/r/pods/u/", "/r/pods/u/../v", "/r/pods/uv/x", "/etc/passwd", "", "x"] {
            assert!(layout.in_pod(&uid, bad).is_err(), "{bad:?}");
        }
        assert_eq!(layout.in_pod(&uid, "/r/pods/u/a/b").unwrap(), Path::new("/r/pods/u/a/b"));
        assert!(layout.in_pod_logs("/l/../etc/x").is_err());
        let own = |path: &str| layout.own_termination_log(&uid, "c", path);
        let expect = PathBuf::from("u/containers/c/0a1b");
        assert_eq!(own("/r/pods/u/containers/c/0a1b"), Some(expect));
        for other in [
            "/r/pods/u/containers/c",
            "/r/pods/u/containers/c/a/b",
            "/r/pods/u/containers/c/../d/0a1b",
            "/r/pods/u/containers/d/0a1b",
            "/r/pods/v/containers/c/0a1b",
            "/r/pods/u/volumes/kubernetes.io~empty-dir/v/0a1b",
            "/x/r/pods/u/containers/c/0a1b",
            "",
        ] {
            assert_eq!(own(other), None, "{other:?}");
        }
        assert_eq!(layout.own_termination_log(&"..".into(), "c", "/r/pods/../containers/c/x"), None);
        assert_eq!(layout.own_termination_log(&uid, "..", "/r/pods/u/containers/../x"), None);
        assert_eq!(layout.in_pod_logs("/l/x/0.log").unwrap(), Path::new("/l/x/0.log"));
    }

    #[test]
    fn made_directories_have_the_mode_and_others_keep_theirs() {
        let temp = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let kept = temp.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o700)).unwrap();
        make_dirs(&kept.join("a/b"), 0o777).unwrap();
        assert_eq!((mode(&kept), mode(&kept.join("a")), mode(&kept.join("a/b"))), (0o700, 0o777, 0o777));
        make_dirs(&kept.join("a/b"), 0o700).unwrap();
        assert_eq!(mode(&kept.join("a/b")), 0o777);
        std::fs::write(kept.join("file"), "").unwrap();
        let error = make_dirs(&kept.join("file"), 0o700).unwrap_err();
        assert!(error.to_string().starts_with("make directory /"), "{error}");
    }
}
