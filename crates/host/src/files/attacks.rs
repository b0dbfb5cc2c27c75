//! Known attacks on kubelets, as regression tests. Each is first carried out against a naive implementation, where it
//! succeeds, and then against ours.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use model::PodUid;
use model::files::{ContainerFiles, FileContent, TerminationMessageRequest};
use model::volume::{ContentBacking, ContentFile, ContentVolume, SubPathMount};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::mount::UnmountFlags;

use super::layout::FilesLayout;
use super::testing::{Mounts, bind};
use super::{container, content, fs_group, sub_path, tear_down, termination, tree};

/// A node with a pod, and a file that does not belong to the pod.
struct Node {
    mounts: Mounts,
    temp: tempfile::TempDir,
    layout: FilesLayout,
    uid: PodUid,
}

fn node() -> Node {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let layout = FilesLayout { root: at("root"), pod_logs: at("logs"), log_links_dir: at("links") };
    let mounts = Mounts::below(temp.path());
    fs::create_dir_all(at("host/dir")).unwrap();
    let node = Node { mounts, layout, uid: PodUid::new("u"), temp };
    node.put_secret();
    fs::create_dir_all(node.volume()).unwrap();
    node
}

impl Node {
    fn host(&self) -> PathBuf {
        self.temp.path().join("host")
    }
    fn secret(&self) -> PathBuf {
        self.host().join("secret")
    }
    fn put_secret(&self) {
        fs::create_dir_all(self.host()).unwrap();
        fs::write(self.secret(), "of the host").unwrap();
        fs::set_permissions(self.secret(), fs::Permissions::from_mode(0o600)).unwrap();
    }
    fn is_unharmed(&self) -> bool {
        let mode = self.secret().metadata().map(|meta| meta.permissions().mode() & 0o777);
        fs::read_to_string(self.secret()).is_ok_and(|text| text == "of the host")
            && mode.is_ok_and(|m| m == 0o600)
    }
    fn pod(&self) -> PathBuf {
        self.layout.pod(&self.uid).unwrap()
    }
    /// An emptyDir that a hostile container writes to.
    fn volume(&self) -> PathBuf {
        self.pod().join("volumes/kubernetes.io~empty-dir/v")
    }
    fn target(&self) -> PathBuf {
        self.pod().join("volume-subpaths/v/c/0")
    }
    fn sub_path(&self, name: &str) -> Result<(), String> {
        let mount = SubPathMount {
            volume_path: text(&self.volume()),
            sub_path: name.into(),
            target: text(&self.target()),
            mount_name: "v".into(),
            container: "c".into(),
            create: true,
            read_only: false,
        };
        sub_path::prepare(&mount, &self.target()).map_err(|error| error.to_string())
    }
    /// The naive implementation: check whether the path leads out, then mount it.
    fn naive_sub_path(&self, name: &str, check: bool, meanwhile: impl FnOnce()) -> bool {
        let wanted = self.volume().join(name);
        let inside =
            wanted.canonicalize().is_ok_and(|real| real.starts_with(self.volume().canonicalize().unwrap()));
        meanwhile();
        let target = self.temp.path().join("naive");
        fs::create_dir_all(&target).unwrap();
        if check && !inside || rustix::mount::mount_bind(&wanted, &target).is_err() {
            return false;
        }
        let shown = target.join("secret").exists();
        rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
        shown
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// CVE-2017-1002101: a symlink in the volume, mounted as a sub-path, shows the host.
#[test]
fn a_sub_path_through_a_symlink() {
    let node = node();
    symlink(node.host(), node.volume().join("absolute")).unwrap();
    symlink("../../../../../../host", node.volume().join("relative")).unwrap();
    fs::create_dir(node.volume().join("deep")).unwrap();
    symlink("../relative", node.volume().join("deep/twice")).unwrap();
    for name in ["absolute", "relative", "deep/twice"] {
        assert!(node.naive_sub_path(name, false, || {}), "the attack works on who does not look: {name}");
        let refused = node.sub_path(name).unwrap_err();
        assert!(refused.starts_with("failed to prepare subPath"), "{refused}");
        assert!(!refused.contains("host"), "the message does not tell what is there: {refused}");
        assert_eq!(node.mounts.count(), 0);
    }
    // And nothing is created on the host through it.
    assert!(node.sub_path("absolute/new/dir").is_err());
    assert!(!node.host().join("new").exists());
}

/// CVE-2021-25741: the symlink is created between the check and the mount.
#[test]
fn a_sub_path_swapped_between_check_and_use() {
    let node = node();
    let volume = node.volume();
    fs::create_dir(volume.join("dir")).unwrap();
    symlink(node.host(), volume.join("evil")).unwrap();
    let root = rustix::fs::open(&volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let swap = || rustix::fs::renameat_with(&root, "dir", &root, "evil", RenameFlags::EXCHANGE);
    assert!(!node.naive_sub_path("evil", true, || {}), "who looks notices a link that is there");
    let shown = node.naive_sub_path("dir", true, || swap().unwrap());
    assert!(shown, "and falls for one that comes just after");
    swap().unwrap();

    let stop = AtomicBool::new(false);
    let (mut mounted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = swap();
            }
        });
        let tries = std::panic::AssertUnwindSafe(|| {
            // Until both results were seen often; the number of rounds only bounds a failing run.
            for _ in 0..100_000 {
                if mounted >= 20 && refused >= 20 {
                    break;
                }
                match node.sub_path("dir") {
                    Ok(()) => {
                        mounted += 1;
                        assert!(!node.target().join("secret").exists(), "the host is shown");
                        rustix::mount::unmount(node.target(), UnmountFlags::DETACH).unwrap();
                    }
                    Err(_) => refused += 1,
                }
            }
        });
        let result = std::panic::catch_unwind(tries);
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(mounted >= 20 && refused >= 20, "{mounted} mounted, {refused} refused");
}

/// CVE-2017-1002102: a container that may write to a configMap or secret makes its update delete the host's files.
#[test]
fn an_update_that_removes_what_is_old() {
    let node = node();
    let path = node.pod().join("volumes/kubernetes.io~configmap/v");
    let wanted = |word: &str| ContentVolume {
        path: text(&path),
        backing: ContentBacking::Disk,
        fs_group: None,
        mount_points: Vec::new(),
        files: [("a".to_owned(), ContentFile { mode: 0o644, owner: None, bytes: word.into() })].into(),
        version: 0,
    };
    let plant = |target: &Path| {
        let _ = fs::remove_file(path.join("..data"));
        symlink(target, path.join("..data")).unwrap();
    };
    content::set_up(&path, &wanted("one")).unwrap();
    let relative = Path::new("../../../../../../host");
    plant(relative);
    // The naive implementation: the old target of `..data` is removed.
    let old = path.join(fs::read_link(path.join("..data")).unwrap());
    fs::remove_dir_all(old).unwrap();
    assert!(!node.host().exists(), "the attack works");
    node.put_secret();

    let host = node.host();
    for (number, target) in [relative, host.as_path()].into_iter().enumerate() {
        plant(target);
        content::set_up(&path, &wanted(&format!("new {number}"))).unwrap();
        assert!(node.is_unharmed(), "{}", target.display());
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), format!("new {number}"));
    }
    // By then the old directory itself is a symlink to the outside.
    let old = path.join(fs::read_link(path.join("..data")).unwrap());
    fs::remove_dir_all(&old).unwrap();
    symlink(node.host(), &old).unwrap();
    content::set_up(&path, &wanted("last")).unwrap();
    assert!(node.is_unharmed());
}

/// Tear-down of a volume in which a container has mounted the host's disk, through a shared mount.
#[test]
fn a_tear_down_through_a_mount() {
    let node = node();
    let inside = node.volume().join("mounted");
    fs::create_dir(&inside).unwrap();
    bind(&node.host(), &inside);
    let _ = fs::remove_dir_all(node.volume());
    assert!(!node.secret().exists(), "the attack works");
    node.put_secret();
    assert!(inside.join("secret").exists(), "it is still mounted");
    assert!(tear_down::tear_down_volumes(&node.pod()).is_err());
    assert!(tear_down::remove_pod_dir(&node.pod()).is_err());
    assert!(tree::remove_tree(&node.pod()).is_err());
    assert!(node.is_unharmed());
}

/// fsGroup changes owners as root: through a symlink in the volume it must not change the host's files.
#[test]
fn a_change_of_group_through_a_symlink() {
    let node = node();
    symlink(node.secret(), node.volume().join("link")).unwrap();
    let naive = |path: &Path| {
        for entry in fs::read_dir(path).unwrap().flatten() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o660)).unwrap();
        }
    };
    naive(&node.volume());
    assert!(!node.is_unharmed(), "the attack works");
    node.put_secret();
    fs_group::apply_fs_group(&node.volume(), 4711, fs_group::GroupAccess::ReadWrite).unwrap();
    assert!(node.is_unharmed());
}

/// The hosts file, the termination log and the logs of containers are written and read by root.
#[test]
fn files_of_containers_that_became_links() {
    let node = node();
    let hosts = node.pod().join("etc-hosts");
    let last_words = node.pod().join("containers/c/0a1b2c3d");
    let log = node.layout.pod_logs.join("ns_p_u/c/0.log");
    for path in [&hosts, &last_words, &log] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(node.secret(), path).unwrap();
    }
    assert_eq!(fs::read_to_string(&last_words).unwrap(), "of the host", "the attack works on who reads");
    fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    assert!(!node.is_unharmed(), "and on who writes");
    node.put_secret();

    let request = |file: Option<&Path>, log_fallback: Option<&Path>| {
        let request = TerminationMessageRequest {
            pod: node.uid.clone(),
            container: "c".into(),
            mounted: file.map(text).into_iter().collect(),
            log_fallback: log_fallback.map(text),
        };
        termination::message(&node.layout, &request)
    };
    for said in [request(Some(&last_words), None), request(None, Some(&log))] {
        assert!(said.starts_with("Error on reading termination") && !said.contains("of the host"), "{said}");
    }
    let files = |etc_hosts, termination_log| ContainerFiles {
        log_dir: text(&node.layout.pod_logs.join("ns_p_u/c")),
        etc_hosts,
        termination_log,
        sub_paths: Vec::new(),
    };
    let content = FileContent { path: text(&hosts), text: "127.0.0.1 localhost\n".into() };
    assert!(container::prepare(&node.layout, &node.uid, &files(Some(content), None)).is_err());
    container::prepare(&node.layout, &node.uid, &files(None, Some(text(&last_words)))).unwrap();
    assert!(last_words.symlink_metadata().unwrap().is_file());
    assert!(node.is_unharmed());
    super::log_files::remove_logs(&node.layout, &text(&log)).unwrap();
    assert!(!log.is_symlink() && node.is_unharmed(), "of a log that is a link, the link goes");
}
