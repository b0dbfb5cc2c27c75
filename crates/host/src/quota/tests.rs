//! The files of project ids, on a plain directory. What the kernel counts is tested in `on_disk`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::project_files::{FIRST_ID, Lock, ProjectFiles};

struct Etc {
    temp: tempfile::TempDir,
    files: ProjectFiles,
}

fn etc() -> Etc {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("pods")).unwrap();
    Etc { files: ProjectFiles::below(temp.path()), temp }
}

impl Etc {
    fn volume(&self, name: &str) -> PathBuf {
        let path = self.temp.path().join("pods").join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
    fn write(&self, projects: &str, names: &str) {
        fs::write(self.temp.path().join("projects"), projects).unwrap();
        fs::write(self.temp.path().join("projid"), names).unwrap();
    }
    /// The directory of this test is written as `@`.
    fn content(&self) -> (String, String) {
        let text = |name: &str| fs::read_to_string(self.temp.path().join(name)).unwrap_or_default();
        let text = |name| text(name).replace(self.temp.path().to_str().unwrap(), "@");
        (text("projects"), text("projid"))
    }
    fn claim(&self, path: &Path) -> u32 {
        self.files.claim(path, &|_| Ok(true)).unwrap()
    }
    fn release(&self) {
        self.files.release_below(&self.temp.path().join("pods"), Lock::Wait).unwrap();
    }
}

#[test]
fn an_id_is_kept_by_its_directory_and_free_when_that_is_gone() {
    let etc = etc();
    let (a, b) = (etc.volume("a"), etc.volume("b"));
    assert_eq!((etc.claim(&a), etc.claim(&b), etc.claim(&a)), (FIRST_ID, FIRST_ID + 1, FIRST_ID));
    let both = ("1048577:@/pods/a\n1048578:@/pods/b\n", "volume1048577:1048577\nvolume1048578:1048578\n");
    assert_eq!(etc.content(), (both.0.into(), both.1.into()));
    assert_eq!(etc.files.id_of(&b).unwrap(), Some(FIRST_ID + 1));
    etc.release();
    assert_eq!(etc.content().0, both.0, "both directories are there");
    fs::remove_dir(&a).unwrap();
    etc.release();
    assert_eq!(etc.content(), ("1048578:@/pods/b\n".into(), "volume1048578:1048578\n".into()));
    assert_eq!(etc.claim(&etc.volume("c")), FIRST_ID);
    for name in ["b", "c"] {
        fs::remove_dir(etc.volume(name)).unwrap();
    }
    etc.release();
    assert_eq!(etc.content(), (String::new(), String::new()));
    let left: Vec<_> = fs::read_dir(etc.temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no draft: {left:?}");
}

#[test]
fn lines_of_others_stay_and_their_ids_are_not_given() {
    let etc = etc();
    let projects =
        "# by hand\n1048577:/srv/data\n 1048578 :/srv/more\nnonsense\n42:/home\n1048579:/gone/for/long\n";
    let names = "#1048580:1048580\ndata:1048577\nother:1048581\nvolume1048582:1048582\n";
    // The last line has no end.
    etc.write(projects, names.trim_end());
    let path = etc.volume("a");
    // Only a comment says 1048580, and the filesystem has files with it.
    let id = etc.files.claim(&path, &|id| Ok(id != 1_048_580)).unwrap();
    assert_eq!(id, 1_048_583);
    let content = etc.content();
    assert_eq!(content.0, format!("{projects}1048583:@/pods/a\n"));
    assert_eq!(content.1, format!("{names}volume1048583:1048583\n"));
    fs::remove_dir(&path).unwrap();
    etc.release();
    assert_eq!(etc.content(), (projects.into(), names.into()));
}

#[test]
fn mode_and_owner_of_the_files_stay() {
    let etc = etc();
    etc.write("", "");
    let projects = etc.temp.path().join("projects");
    fs::set_permissions(&projects, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&projects, Some(7), Some(8)).unwrap();
    etc.claim(&etc.volume("a"));
    let found = projects.metadata().unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o640, 7, 8));
}

#[test]
fn an_id_that_two_have_is_nobodys() {
    let etc = etc();
    let path = etc.volume("a");
    let at = path.display();
    for (projects, expect) in [
        (format!("1048577:{at}\n"), Some(FIRST_ID)),
        (format!("1048577:{at}\n1048577:/srv\n"), None),
        (format!("1048577:{at}\n1048578:{at}\n"), None),
        (format!("42:{at}\n"), None),
        ("1048577:/srv\n".to_owned(), None),
    ] {
        etc.write(&projects, "");
        assert_eq!(etc.files.id_of(&path).unwrap(), expect, "{projects}");
    }
    etc.write(&format!("42:{at}\n"), "");
    let error = etc.files.claim(&path, &|_| Ok(true)).unwrap_err();
    assert!(error.to_string().contains("with another project id"), "{error}");
    assert_eq!(etc.content().0, "42:@/pods/a\n");
}

/// An agent was killed between two steps, and meanwhile the id was used for something else.
#[test]
fn a_claim_that_was_not_carried_out_is_checked_again() {
    let etc = etc();
    let path = etc.volume("a");
    etc.write(&format!("1048577:{}\n", path.display()), "");
    assert_eq!(etc.claim(&path), FIRST_ID);
    assert_eq!(etc.content().1, "volume1048577:1048577\n", "the name that was not written yet");
    assert_eq!(etc.files.claim(&path, &|id| Ok(id > FIRST_ID)).unwrap(), FIRST_ID + 1);
    assert_eq!(etc.content(), ("1048578:@/pods/a\n".into(), "volume1048578:1048578\n".into()));
    assert!(etc.files.claim(&etc.volume("b"), &|_| Ok(false)).is_err(), "the search ends");
}

/// The UID of a static pod is chosen by whoever writes its manifest.
#[test]
fn no_path_makes_lines_of_its_own() {
    let etc = etc();
    let path = etc.volume("a\n1:");
    let error = etc.files.claim(&path, &|_| Ok(true)).unwrap_err();
    assert!(error.to_string().contains("not a path for a file of lines"), "{error}");
    assert_eq!(etc.content(), (String::new(), String::new()));
}

#[test]
fn links_are_not_followed() {
    let etc = etc();
    let outside = etc.temp.path().join("outside");
    fs::write(&outside, "precious\n").unwrap();
    for name in ["projects", "projid"] {
        let link = etc.temp.path().join(name);
        let _ = fs::remove_file(&link);
        symlink(&outside, &link).unwrap();
        let error = etc.files.claim(&etc.volume("a"), &|_| Ok(true)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "precious\n");
}

/// Everybody locks the files that are at the paths, not those that were there when they began to wait.
#[test]
fn many_at_once_get_an_id_each() {
    let etc = etc();
    let volumes: Vec<PathBuf> = (0..16).map(|number| etc.volume(&number.to_string())).collect();
    let mut ids: Vec<u32> = std::thread::scope(|scope| {
        let claims: Vec<_> = volumes.iter().map(|path| scope.spawn(|| etc.claim(path))).collect();
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    ids.sort_unstable();
    assert_eq!(ids, (FIRST_ID..FIRST_ID + 16).collect::<Vec<_>>());
    assert_eq!(etc.content().0.lines().count(), 16);
    std::thread::scope(|scope| {
        let etc = &etc;
        for path in &volumes {
            scope.spawn(move || {
                fs::remove_dir(path).unwrap();
                etc.release();
            });
        }
    });
    assert_eq!(etc.content(), (String::new(), String::new()));
}

#[test]
fn who_does_not_wait_for_a_lock_is_told() {
    let etc = etc();
    let path = etc.volume("a");
    etc.claim(&path);
    fs::remove_dir(&path).unwrap();
    let held = fs::File::open(etc.temp.path().join("projects")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = etc.files.release_below(&etc.temp.path().join("pods"), Lock::Try).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    drop(held);
    etc.release();
    assert_eq!(etc.content(), (String::new(), String::new()));
}
