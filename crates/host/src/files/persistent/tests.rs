use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::files::tear_down;
use crate::files::testing::{LoopDevice, Mounts, plain_volume};

// Dropped in this order: mounts before the disks under them, and these before their files.
struct Bench {
    mounts: Mounts,
    loops: Vec<LoopDevice>,
    layout: FilesLayout,
    _temp: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let layout = FilesLayout {
            root: root.clone(),
            pod_logs: root.join("logs"),
            log_links_dir: root.join("links"),
        };
        fs::create_dir(root.join("data")).unwrap();
        fs::write(root.join("data/precious"), "x").unwrap();
        Self { mounts: Mounts::below(temp.path()), loops: Vec::new(), layout, _temp: temp }
    }
    fn pod(&self, name: &str) -> PathBuf {
        let pod = self.layout.pods().join(name);
        fs::create_dir_all(pod.join("volumes")).unwrap();
        pod
    }
    fn volume(&self, path: &str, pod: &str) -> LocalVolume {
        let target = self.pod(pod).join("volumes").join(LOCAL).join("pv");
        LocalVolume { target: target.to_string_lossy().into_owned(), ..plain_volume(Path::new(path)) }
    }
    fn data(&self) -> String {
        self.layout.root.join("data").to_string_lossy().into_owned()
    }
    fn set_up(&self, volume: &LocalVolume) -> Result<PathBuf, FilesError> {
        let target = PathBuf::from(&volume.target);
        set_up_local(&self.layout, &target, volume).map(|()| target)
    }
    /// A loop device over a file of this size that starts with `bytes`.
    fn disk(&mut self, name: &str, bytes: &[u8]) -> String {
        let file = self.layout.root.join(name);
        fs::write(&file, bytes).unwrap();
        let device = LoopDevice::over(&file, 16 << 20);
        let path = device.path.to_string_lossy().into_owned();
        self.loops.push(device);
        path
    }
    /// The complete tear-down of a pod.
    fn tear_down(&self, pod: &str) -> Result<(), FilesError> {
        let pod = self.pod(pod);
        let mut result = tear_down::tear_down_volumes(&pod);
        for name in local_names(&pod)? {
            result = result.and(release_local_volume(&self.layout, &pod, &name));
        }
        result
    }
}

#[test]
fn a_directory_is_shown_and_stays_when_its_pod_goes() {
    let b = Bench::new();
    let volume = b.volume(&b.data(), "p");
    let target = b.set_up(&volume).unwrap();
    assert_eq!(fs::read_to_string(target.join("precious")).unwrap(), "x");
    fs::write(target.join("more"), "y").unwrap();
    b.set_up(&volume).unwrap();
    assert_eq!(b.mounts.count(), 1, "what is mounted is not mounted again");
    let pod = b.pod("p");
    assert!(matches!(tear_down::remove_pod_dir(&pod), Err(FilesError::Mounted { .. })));
    b.tear_down("p").unwrap();
    assert_eq!(b.mounts.count(), 0);
    b.tear_down("p").unwrap();
    tear_down::remove_pod_dir(&pod).unwrap();
    assert!(!pod.exists());
    assert_eq!(fs::read_to_string(b.layout.root.join("data/more")).unwrap(), "y");
}

#[test]
fn a_target_that_was_never_mounted_keeps_what_is_in_it() {
    let b = Bench::new();
    let pod = b.pod("p");
    let target = pod.join("volumes").join(LOCAL).join("pv");
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("written-by-somebody"), "x").unwrap();
    assert!(b.tear_down("p").is_err());
    assert!(target.join("written-by-somebody").exists());
}

#[test]
fn read_only_and_options_hold() {
    let b = Bench::new();
    let volume = LocalVolume { read_only: true, ..b.volume(&b.data(), "p") };
    let target = b.set_up(&volume).unwrap();
    assert_eq!(fs::write(target.join("x"), "").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::write(b.layout.root.join("data/still-writable"), "").unwrap();
    let options = vec!["noexec".to_owned(), "nosuid".to_owned()];
    let volume = LocalVolume { mount_options: options, ..b.volume(&b.data(), "q") };
    let target = b.set_up(&volume).unwrap();
    let flags = rustix::fs::statvfs(&target).unwrap().f_flag;
    assert!(flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC | rustix::fs::StatVfsMountFlags::NOSUID));
    let volume = LocalVolume { mount_options: vec!["no-such-option=1".into()], ..b.volume(&b.data(), "r") };
    let before = b.mounts.count();
    let made = usize::from(b.set_up(&volume).is_ok());
    assert_eq!(b.mounts.count(), before + made, "refused and gone, or taken by the kernel");
}

/// Restrictions of the source mount are kept.
#[test]
fn read_only_takes_nothing_else_away() {
    use rustix::fs::StatVfsMountFlags;
    let b = Bench::new();
    let source = b.layout.root.join("guarded");
    fs::create_dir(&source).unwrap();
    let guarded = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", &source, "tmpfs", guarded, None).unwrap();
    let volume = LocalVolume { read_only: true, ..b.volume(&source.to_string_lossy(), "p") };
    let target = b.set_up(&volume).unwrap();
    let wanted = StatVfsMountFlags::RDONLY
        | StatVfsMountFlags::NOSUID
        | StatVfsMountFlags::NODEV
        | StatVfsMountFlags::NOEXEC;
    assert!(rustix::fs::statvfs(&target).unwrap().f_flag.contains(wanted));
}

#[test]
fn what_can_not_be_a_volume() {
    let b = Bench::new();
    fs::write(b.layout.root.join("file"), "").unwrap();
    for (path, expect) in
        [("missing", "does not exist"), ("file", "only directory and block device are supported")]
    {
        let volume = b.volume(&b.layout.root.join(path).to_string_lossy(), "p");
        let error = b.set_up(&volume).unwrap_err();
        assert_eq!(error.stage(), MountStage::MountDevice);
        assert!(error.user_message().contains(expect), "{}", error.user_message());
    }
    let made = b.layout.root.join("local-volumes/ns/claim");
    let volume = LocalVolume { create: true, ..b.volume(&made.to_string_lossy(), "p") };
    b.set_up(&volume).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&made), 0o777);
    assert_eq!(mode(made.parent().unwrap()), 0o750, "nobody else puts anything in its place");
}

#[tokio::test]
async fn files_are_the_groups_unless_another_pod_has_them() {
    let b = Bench::new();
    let volume = LocalVolume { fs_group: Some(4321), ..b.volume(&b.data(), "p") };
    let target = b.set_up(&volume).unwrap();
    assert_eq!(fs::metadata(target.join("precious")).unwrap().gid(), 4321);
    let other = LocalVolume { fs_group: Some(5432), ..b.volume(&b.data(), "q") };
    let news = crate::files::HostVolumeNotices::default();
    let uid = model::PodUid::new("q");
    let pulse = WorkProgress::default().reporting_to(&uid, Some(news.sender()));
    for _ in 0..2 {
        pulse.count_steps_of(|| b.set_up(&other)).unwrap();
    }
    assert_eq!(fs::metadata(target.join("precious")).unwrap().gid(), 4321, "the first has it");
    let same = LocalVolume { fs_group: Some(4321), ..b.volume(&b.data(), "r") };
    pulse.count_steps_of(|| b.set_up(&same)).unwrap();
    pulse.tell(VolumeNotice::ChangingOwnership { path: "the end".into(), files: None });
    let told = [ports::VolumeNoticeFeed::next(&news).await, ports::VolumeNoticeFeed::next(&news).await];
    let other_group = VolumeNotice::FsGroupMismatch { spec_name: "pv".into(), wanted: 5432, found: 4321 };
    let end = VolumeNotice::ChangingOwnership { path: "the end".into(), files: None };
    assert_eq!(told, [(uid.clone(), other_group), (uid, end)], "once, and not of the same group");
}

#[test]
fn an_empty_disk_is_formatted_mounted_once_and_given_up_with_its_last_pod() {
    let mut b = Bench::new();
    let disk = b.disk("disk", b"");
    let first = b.set_up(&b.volume(&disk, "p")).unwrap();
    fs::write(first.join("x"), "kept").unwrap();
    let second = b.set_up(&b.volume(&disk, "q")).unwrap();
    assert_eq!(fs::read_to_string(second.join("x")).unwrap(), "kept");
    assert_eq!(b.mounts.count(), 3, "one for the node, one for each pod");
    b.tear_down("p").unwrap();
    assert_eq!(b.mounts.count(), 2);
    b.tear_down("q").unwrap();
    assert_eq!(b.mounts.count(), 0);
    let third = b.set_up(&b.volume(&disk, "r")).unwrap();
    assert_eq!(fs::read_to_string(third.join("x")).unwrap(), "kept", "it is not formatted again");
    b.tear_down("r").unwrap();
}

#[test]
fn a_disk_with_something_on_it_is_never_formatted() {
    let mut b = Bench::new();
    let disk = b.disk("odd", b"somebody's data");
    let error = b.set_up(&b.volume(&disk, "p")).unwrap_err();
    assert_eq!(error.stage(), MountStage::MountDevice);
    assert!(error.user_message().contains("holds data that is no filesystem"), "{}", error.user_message());
    assert!(fs::read(b.layout.root.join("odd")).unwrap().starts_with(b"somebody's data"));
    let blank = b.disk("blank", b"");
    let volume = LocalVolume { read_only: true, ..b.volume(&blank, "p") };
    let error = b.set_up(&volume).unwrap_err();
    assert!(error.user_message().contains("cannot mount unformatted disk"), "{}", error.user_message());
    assert_eq!(b.mounts.count(), 0);
}

#[test]
fn what_is_said_to_mount_about_a_server() {
    let check = |options: &[&str], read_only: bool, expect: &str| {
        let volume = NfsVolume {
            source: "server:/export".into(),
            target: "/t".into(),
            mount_options: options.iter().map(|option| (*option).to_owned()).collect(),
            read_only,
        };
        assert_eq!(nfs_words(Path::new("/t"), &volume).join(" "), expect);
    };
    check(&[], false, "-t nfs -- server:/export /t");
    check(&[], true, "-t nfs -o ro -- server:/export /t");
    check(&["hard", "nfsvers=4.1"], true, "-t nfs -o hard,nfsvers=4.1,ro -- server:/export /t");
}

/// If a server name that looks like a `mount` option were parsed as one, mount would read a table that the pod wrote.
#[test]
fn a_server_is_no_option() {
    let b = Bench::new();
    let target = b.pod("p").join("volumes").join(NFS).join("pv");
    let (table, shown) = (b.layout.root.join("x:"), b.layout.root.join("data"));
    fs::create_dir(&table).unwrap();
    fs::write(table.join("fstab"), format!("{} {} none bind 0 0\n", shown.display(), target.display()))
        .unwrap();
    let volume = NfsVolume {
        source: format!("-T{}/fstab", table.display()),
        target: target.to_string_lossy().into_owned(),
        mount_options: Vec::new(),
        read_only: false,
    };
    assert!(set_up_nfs(&target, &volume).is_err());
    assert_eq!(b.mounts.count(), 0);
}

#[test]
fn a_server_that_can_not_be_mounted_leaves_nothing() {
    let b = Bench::new();
    let target = b.pod("p").join("volumes").join(NFS).join("pv");
    let volume = NfsVolume {
        // The program itself refuses it, without network access.
        source: "no-server-in-this".into(),
        target: target.to_string_lossy().into_owned(),
        mount_options: Vec::new(),
        read_only: false,
    };
    let error = set_up_nfs(&target, &volume).unwrap_err();
    assert!(error.user_message().contains("mount failed"), "{}", error.user_message());
    assert!(!target.exists());
}
