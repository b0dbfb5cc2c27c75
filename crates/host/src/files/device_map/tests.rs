use std::fs::File;

use model::volume::DevicePaths;

use super::*;
use crate::files::HostPodFiles;
use crate::files::killed::now;
use crate::files::testing::{LoopDevice, Mounts};
use model::volume::{VolumeKind, VolumeSetup};
use ports::PodFiles;

// Dropped in this order: mounts before the disks under them, and these before their files.
struct Bench {
    mounts: Mounts,
    disk: LoopDevice,
    layout: FilesLayout,
    temp: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let layout = FilesLayout {
            root: root.clone(),
            pod_logs: root.join("logs"),
            log_links_dir: root.join("links"),
        };
        let disk = LoopDevice::over(&root.join("disk.img"), 1 << 20);
        Bench { mounts: Mounts::below(&root), disk, layout, temp }
    }

    fn files(&self) -> HostPodFiles {
        HostPodFiles::new(&self.layout.root, &self.layout.pod_logs, &self.layout.log_links_dir)
    }

    fn map_of(&self, pod: &str) -> PathBuf {
        self.layout.root.join(LOCAL_MAPS).join("pv").join(pod)
    }

    fn link_of(&self, pod: &str) -> PathBuf {
        self.layout.pods().join(pod).join(DEVICES).join(LOCAL).join("pv")
    }

    fn volume(&self, pod: &str, device: &Path) -> VolumeSetup {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let paths = DevicePaths { link: text(self.link_of(pod)), map: text(self.map_of(pod)) };
        let device = DeviceVolume { device: text(device.to_owned()), paths };
        VolumeSetup::inline("pv", VolumeKind::Device(device))
    }

    fn set_up(&self, pod: &str, device: &Path) -> Result<(), FilesError> {
        now(self.files().set_up_volume(&PodUid::new(pod), &self.volume(pod, device)))
    }

    fn tear_down(&self, pod: &str) -> Result<(), FilesError> {
        let uid = PodUid::new(pod);
        now(async {
            self.files().tear_down_volumes(&uid).await?;
            self.files().remove_pod_dir(&uid).await
        })
    }

    fn pinned(&self) -> Vec<PathBuf> {
        let mut maps: Vec<PathBuf> = self.mounts.pinned().into_iter().map(|(_, map)| map).collect();
        maps.sort();
        maps
    }
}

fn device_number(path: &Path) -> u64 {
    path.metadata().unwrap().rdev()
}

#[test]
fn pods_share_a_device_and_the_last_one_leaves_nothing() {
    let b = Bench::new();
    // Somebody else's loop device over the same disk.
    let of_others = loop_device::attach(&b.disk.path).unwrap();
    for pod in ["a", "b", "a"] {
        b.set_up(pod, &b.disk.path).unwrap();
    }
    assert_eq!(b.pinned(), [b.map_of("a"), b.map_of("b")]);
    assert_eq!(b.mounts.count(), 2);
    for pod in ["a", "b"] {
        assert_eq!(fs::read_link(b.link_of(pod)).unwrap(), b.disk.path);
        assert_eq!(device_number(&b.map_of(pod)), device_number(&b.disk.path));
    }
    b.tear_down("a").unwrap();
    assert_eq!(b.pinned(), [b.map_of("b")]);
    assert!(!b.link_of("a").is_symlink() && !b.map_of("a").exists());
    b.tear_down("b").unwrap();
    assert_eq!((b.pinned().len(), b.mounts.count()), (0, 0));
    assert!(!b.map_of("b").parent().unwrap().exists());
    assert_eq!(loop_device::find(&b.disk.path).unwrap(), std::slice::from_ref(&of_others));
    loop_device::detach(&of_others, &b.disk.path).unwrap();
}

/// Without the loop device the kernel would detach the disk at once, and give its number to the next one.
#[test]
fn a_disk_that_is_taken_away_stays_while_a_pod_uses_it() {
    let b = Bench::new();
    let file = b.temp.path().canonicalize().unwrap().join("disk.img");
    b.set_up("a", &b.disk.path).unwrap();
    let error = loop_device::detach(&b.disk.path, &file).unwrap_err();
    assert!(error.to_string().ends_with("is held open by another program"), "{error}");
    assert_eq!(loop_device::find(&file).unwrap(), std::slice::from_ref(&b.disk.path));
    b.tear_down("a").unwrap();
    assert_eq!(loop_device::find(&file).unwrap(), Vec::<PathBuf>::new(), "it goes with its last user");
}

#[test]
fn a_device_that_was_replaced_is_not_given_to_the_pod() {
    let b = Bench::new();
    let other = LoopDevice::over(&b.layout.root.join("other.img"), 1 << 20);
    let path = b.layout.root.join("by-name");
    std::os::unix::fs::symlink(&b.disk.path, &path).unwrap();
    b.set_up("a", &path).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other.path, &path).unwrap();
    let error = b.set_up("a", &path).unwrap_err();
    assert_eq!(error.stage(), MountStage::MapDevice);
    let message = error.user_message();
    assert!(message.contains("was replaced while the pod used it"), "{message}");
    assert_eq!(fs::read_link(b.link_of("a")).unwrap(), b.disk.path, "it has what it had");
    // A new pod gets the new one.
    b.set_up("b", &path).unwrap();
    assert_eq!(device_number(&b.map_of("b")), device_number(&other.path));
    b.tear_down("a").unwrap();
    b.set_up("a", &path).unwrap();
    assert_eq!(device_number(&b.map_of("a")), device_number(&other.path));
    b.tear_down("a").unwrap();
    b.tear_down("b").unwrap();
    assert_eq!((b.pinned().len(), b.mounts.count()), (0, 0));
}

#[test]
fn what_is_no_device_or_no_place_is_refused() {
    let b = Bench::new();
    let check = |device: &Path, expect: &str| {
        let message = b.set_up("a", device).unwrap_err().user_message();
        assert!(message.contains(expect), "{message}");
        assert!(!b.map_of("a").exists() && !b.link_of("a").is_symlink(), "{expect}");
    };
    check(&b.layout.root, "is not a block device");
    check(&b.layout.root.join("nothing"), "find device");
    let mut elsewhere = b.volume("a", &b.disk.path);
    if let VolumeKind::Device(device) = &mut elsewhere.kind {
        device.paths.map = "/etc/map".into();
    }
    let refused = now(b.files().set_up_volume(&PodUid::new("a"), &elsewhere)).unwrap_err();
    assert!(refused.user_message().contains("is not below"), "{}", refused.user_message());
}

/// As after a restart of the machine, and as upstream's kubelet leaves it when it is killed.
#[test]
fn a_map_without_a_mount_or_a_link_is_found() {
    let b = Bench::new();
    fs::create_dir_all(b.map_of("a").parent().unwrap()).unwrap();
    File::create(b.map_of("a")).unwrap();
    b.set_up("a", &b.disk.path).unwrap();
    assert_eq!(b.pinned(), [b.map_of("a")]);

    // The pod's directory is gone, and the sweep finds the pod by its map.
    fs::remove_dir_all(b.layout.pods().join("a")).unwrap();
    let found = now(b.files().leftovers()).unwrap();
    assert_eq!((found.pod_dirs, found.problems.len()), (vec![PodUid::new("a")], 0));
    b.tear_down("a").unwrap();
    assert_eq!((b.pinned().len(), b.mounts.count()), (0, 0));
    assert_eq!(now(b.files().leftovers()).unwrap().pod_dirs, []);
}

#[test]
fn devices_of_storage_drivers_are_found_wherever_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let devices = temp.path().join(CSI_DEVICES);
    let dirs = [
        "mapped/dev/a",
        "publish/published/b",
        "publish/mapped/a",
        "staging/mapped",
        "mapped/data/x",
        // Of a volume that is called `dev`.
        "staging/dev/of-the-driver",
        "publish/dev/c",
    ];
    for dir in dirs {
        fs::create_dir_all(devices.join(dir)).unwrap();
    }
    let names = |names: &[&str]| BTreeSet::from_iter(names.iter().map(|name| (*name).to_owned()));
    let expect = [("a", names(&["mapped"])), ("b", names(&["published"])), ("c", names(&["dev"]))];
    assert_eq!(csi_names(temp.path()).unwrap(), expect.map(|(uid, names)| (PodUid::new(uid), names)).into());
    assert_eq!(pods(temp.path()).unwrap(), ["a", "b", "c"].map(PodUid::new).into());
}
