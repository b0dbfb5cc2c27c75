//! Tests that kill the agent with SIGKILL at every step of setting up and tearing down each kind of volume, and then
//! start another agent.
//!
//! ```text
//!   a process of its own ──(step 0, 1, 2, ... n)──> SIGKILL
//!   this process:  continues there         ──> the volume is whole, nothing is mounted twice
//!                  or removes the pod      ──> nothing of it is left, nothing else is lost
//! ```
//! The test finds the steps by itself: it ends when the process survives. Everything that changes the disk or the mount
//! table reports its step ([`super::steps::step`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use model::PodUid;
use model::files::{ContainerFiles, FileContent};
use model::volume::{
    ContentBacking, ContentFile, ContentVolume, DevicePaths, DeviceVolume, EmptyDirMedium, HostPathCheck,
    LocalVolume, NfsVolume, SubPathMount, VolumeKind, VolumeSetup,
};
use ports::{FilesError, PodFiles};

use super::HostPodFiles;
use super::testing::{LoopDevice, Mounts, loop_devices_below, plain_volume};

pub(crate) const AT: &str = "RUBELET_TEST_KILL_AT";
const BASE: &str = "RUBELET_TEST_KILL_BASE";
const CASE: &str = "RUBELET_TEST_KILL_CASE";
const PHASE: &str = "RUBELET_TEST_KILL_PHASE";
const WALKS: &str = "RUBELET_TEST_KILL_WALKS";
const SIGKILL: i32 = 9;
const SETTING_UP: &str = "files::killed::killed_at_every_step_of_setting_up";
const TEARING_DOWN: &str = "files::killed::killed_at_every_step_of_tearing_down";

/// Kills a process that has to be killed before its n-th step.
pub fn step(_name: &str) {
    static AT_STEP: OnceLock<Option<u64>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Some(at) = AT_STEP.get_or_init(|| std::env::var(AT).ok()?.parse().ok()) else { return };
    if PASSED.fetch_add(1, Ordering::Relaxed) == *at {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    SetUp,
    Grow,
    TearDown,
}

impl Phase {
    fn of(word: &str) -> Phase {
        let known = [Phase::SetUp, Phase::Grow, Phase::TearDown];
        known.into_iter().find(|phase| format!("{phase:?}") == word).expect("a known phase")
    }
}

/// A pod with one kind of volume, on its own disk.
struct Pod {
    files: HostPodFiles,
    base: PathBuf,
    uid: PodUid,
    outside: PathBuf,
    case: &'static str,
}

const CASES: [&str; 16] = [
    "emptyDir on disk",
    "emptyDir in memory",
    "emptyDir of huge pages",
    "configMap",
    "secret",
    "downwardAPI",
    "projected",
    "hostPath directory",
    "hostPath file",
    "sub-paths",
    "local directory",
    "local directory, read only",
    "local disk",
    "sub-paths of a local disk",
    "device",
    "NFS",
];

impl Pod {
    fn new(base: &Path, case: &str) -> Pod {
        let case = CASES.into_iter().find(|known| *known == case).expect("a known case");
        let base = base.canonicalize().unwrap();
        let files = HostPodFiles::new(base.join("root"), base.join("logs"), base.join("links"));
        Pod { files, uid: PodUid::new("0f1e"), outside: base.join("outside"), base, case }
    }

    fn dir(&self) -> PathBuf {
        self.base.join("root/pods/0f1e")
    }

    fn log_dir(&self) -> String {
        text(&self.base.join("logs/ns_p_0f1e"))
    }

    fn is_persistent(&self) -> bool {
        self.case.starts_with("local") || self.case == "NFS" || self.case == "sub-paths of a local disk"
    }

    fn has_sub_paths(&self) -> bool {
        self.case.starts_with("sub-paths")
    }

    /// Files outside the pod that existed before.
    fn make_ground(&self) {
        fs::create_dir_all(self.outside.join("dir")).unwrap();
        fs::write(self.outside.join("precious"), "of others").unwrap();
        fs::write(self.outside.join("dir/old"), "of earlier pods").unwrap();
        now(self.files.prepare_node()).unwrap();
        now(self.files.make_pod_dirs(&self.uid, &self.log_dir())).unwrap();
    }

    /// The disk, for volumes that need one. Its path is the same in every process.
    fn make_disk(&self) -> Option<LoopDevice> {
        let has_disk = matches!(self.case, "local disk" | "sub-paths of a local disk" | "device");
        has_disk.then(|| {
            let disk = LoopDevice::over(&self.base.join("disk.img"), 16 << 20);
            fs::create_dir_all(&self.outside).unwrap();
            symlink(&disk.path, self.outside.join("disk")).unwrap();
            disk
        })
    }

    fn volume_dir(&self) -> PathBuf {
        let plugin = match self.case {
            "configMap" => "configmap",
            "secret" => "secret",
            "downwardAPI" => "downward-api",
            "projected" => "projected",
            "NFS" => "nfs",
            _ if self.is_persistent() => "local-volume",
            _ => "empty-dir",
        };
        self.dir().join(format!("volumes/kubernetes.io~{plugin}/v"))
    }

    fn volume(&self) -> VolumeSetup {
        let memory = EmptyDirMedium::Memory { size_bytes: Some(1 << 20) };
        let huge = EmptyDirMedium::HugePages { page_size_bytes: 2 << 20, size_bytes: 2 << 20 };
        let in_memory = ContentBacking::Memory { size_bytes: Some(1 << 20) };
        let host_path =
            |name: &str, check| VolumeKind::HostPath { path: text(&self.outside.join(name)), check };
        let kind = match self.case {
            "emptyDir in memory" => self.empty_dir(memory),
            "emptyDir of huge pages" => self.empty_dir(huge),
            "configMap" => self.content(ContentBacking::Disk),
            "secret" | "downwardAPI" | "projected" => self.content(in_memory),
            "hostPath directory" => host_path("made/deep", HostPathCheck::DirectoryOrCreate),
            "hostPath file" => host_path("made", HostPathCheck::FileOrCreate),
            "local directory" | "local directory, read only" => self.local("dir"),
            "local disk" | "sub-paths of a local disk" => self.local("disk"),
            "device" => VolumeKind::Device(DeviceVolume {
                device: text(&self.outside.join("disk")),
                paths: DevicePaths { link: text(&self.device_link()), map: text(&self.device_map()) },
            }),
            "NFS" => VolumeKind::Nfs(Box::new(NfsVolume {
                source: format!("server:{}", text(&self.outside.join("dir"))),
                target: text(&self.volume_dir()),
                mount_options: vec!["hard".into()],
                read_only: false,
            })),
            _ => self.empty_dir(EmptyDirMedium::Disk),
        };
        VolumeSetup { name: "v".into(), spec_name: "v".into(), kind }
    }

    fn empty_dir(&self, medium: EmptyDirMedium) -> VolumeKind {
        let ready_marker = text(&self.dir().join("plugins/kubernetes.io~empty-dir/v/ready"));
        VolumeKind::EmptyDir {
            path: text(&self.volume_dir()),
            ready_marker,
            medium,
            fs_group: Some(4711),
            project_quota: false,
        }
    }

    fn local(&self, path: &str) -> VolumeKind {
        VolumeKind::Local(Box::new(LocalVolume {
            name: "v".into(),
            target: text(&self.volume_dir()),
            read_only: self.case.ends_with("read only"),
            fs_group: Some(4711),
            ..plain_volume(&self.outside.join(path))
        }))
    }

    fn device_link(&self) -> PathBuf {
        self.dir().join("volumeDevices/kubernetes.io~local-volume/v")
    }

    fn device_map(&self) -> PathBuf {
        self.base.join("root/plugins/kubernetes.io~local-volume/volumeDevices/v/0f1e")
    }

    fn content(&self, backing: ContentBacking) -> VolumeKind {
        let file = |mode, owner, text: &str| ContentFile { mode, owner, bytes: text.into() };
        let files = BTreeMap::from([
            ("plain".to_owned(), file(0o644, None, "plain text")),
            ("dir/token".to_owned(), file(0o600, Some(1000), "a token")),
        ]);
        VolumeKind::Content(Box::new(ContentVolume {
            path: text(&self.volume_dir()),
            backing,
            fs_group: Some(4711),
            mount_points: vec!["for-another".into()],
            files,
            version: 1,
        }))
    }

    fn container_files(&self) -> ContainerFiles {
        let sub_path = |index: u32, sub_path: &str| SubPathMount {
            volume_path: text(&self.volume_dir()),
            sub_path: sub_path.into(),
            target: text(&self.dir().join(format!("volume-subpaths/v/c/{index}"))),
            mount_name: "v".into(),
            container: "c".into(),
            create: true,
            read_only: false,
        };
        let hosts =
            FileContent { path: text(&self.dir().join("etc-hosts")), text: "127.0.0.1 localhost\n".into() };
        ContainerFiles {
            log_dir: format!("{}/c", self.log_dir()),
            etc_hosts: Some(hosts),
            termination_log: Some(text(&self.dir().join("containers/c/0a1b2c3d"))),
            sub_paths: vec![sub_path(0, "a/b"), sub_path(1, "c")],
        }
    }

    /// The agent's work, from the pod's directories to its containers.
    fn set_up(&self) -> Result<(), FilesError> {
        now(async {
            self.files.make_pod_dirs(&self.uid, &self.log_dir()).await?;
            self.files.set_up_volume(&self.uid, &self.volume()).await?;
            if self.has_sub_paths() {
                self.files.prepare_container(&self.uid, &self.container_files()).await?;
            }
            Ok(())
        })
    }

    fn tear_down(&self) -> Result<(), FilesError> {
        now(async {
            self.files.tear_down_volumes(&self.uid).await?;
            self.files.remove_pod_dir(&self.uid).await
        })
    }

    fn expected_mounts(&self) -> usize {
        match self.case {
            "emptyDir in memory" | "emptyDir of huge pages" | "secret" | "downwardAPI" | "projected" => 1,
            "local directory" | "local directory, read only" | "NFS" | "device" => 1,
            // The node's mount, the pod's, and those of containers.
            "local disk" | "sub-paths" => 2,
            "sub-paths of a local disk" => 4,
            _ => 0,
        }
    }

    /// What a container leaves in a volume: files, directories and symlinks to the outside.
    fn use_it(&self) {
        let writable = self.case.starts_with("emptyDir") || self.has_sub_paths() || self.is_persistent();
        if !writable || self.case.ends_with("read only") {
            return;
        }
        let volume = self.volume_dir();
        fs::create_dir_all(volume.join("a/b/data")).unwrap();
        if self.case == "emptyDir of huge pages" {
            // It holds no regular files and no symlinks.
            return;
        }
        fs::write(volume.join("a/b/data/kept"), "kept").unwrap();
        symlink(&self.outside, volume.join("a/way-out")).unwrap();
    }

    fn check_whole(&self, mounts: &Mounts, when: &str) {
        // One is the agent's own, below which mounts are shared.
        assert_eq!(mounts.count() - 1, self.expected_mounts(), "mounts, {when}");
        let volume = self.volume_dir();
        match self.case {
            "hostPath directory" => assert!(self.outside.join("made/deep").is_dir(), "{when}"),
            "hostPath file" => assert!(self.outside.join("made").is_file(), "{when}"),
            "configMap" | "secret" | "downwardAPI" | "projected" => {
                assert_eq!(fs::read_to_string(volume.join("plain")).unwrap(), "plain text", "{when}");
                let token = volume.join("dir/token").metadata().unwrap();
                let of = (token.uid(), token.gid(), token.permissions().mode() & 0o777);
                assert_eq!(of, (1000, 4711, 0o640), "{when}");
                assert!(volume.join("for-another").is_dir(), "{when}");
                let hidden = |entry: &fs::DirEntry| entry.file_name().to_str().unwrap().starts_with("..");
                let hidden = fs::read_dir(&volume).unwrap().flatten().filter(hidden).count();
                assert_eq!(hidden, 2, "nothing half-written stays, {when}");
            }
            "device" => {
                let disk = self.outside.join("disk").canonicalize().unwrap();
                assert_eq!(fs::read_link(self.device_link()).unwrap(), disk, "{when}");
                let shown = self.device_map().metadata().unwrap();
                assert_eq!(shown.rdev(), disk.metadata().unwrap().rdev(), "the map, {when}");
                let pinned: Vec<PathBuf> = mounts.pinned().into_iter().map(|(_, map)| map).collect();
                assert_eq!(pinned, [self.device_map()], "loop devices, {when}");
            }
            "NFS" => assert_eq!(fs::read_to_string(volume.join("old")).unwrap(), "of earlier pods", "{when}"),
            "local directory, read only" => {
                let error = fs::write(volume.join("new"), "").unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{when}");
            }
            _ if self.is_persistent() => {
                let meta = volume.metadata().unwrap();
                assert_eq!((meta.gid(), meta.permissions().mode() & 0o2070), (4711, 0o2070), "{when}");
                let formatting = self.base.join("root/plugins/kubernetes.io/local-volume/formatting/v");
                assert!(!formatting.exists(), "the licence to format, {when}");
            }
            _ => {
                let meta = volume.metadata().unwrap();
                assert_eq!((meta.gid(), meta.permissions().mode() & 0o2777), (4711, 0o2777), "{when}");
                assert!(self.dir().join("plugins/kubernetes.io~empty-dir/v/ready").exists(), "{when}");
            }
        }
        if self.has_sub_paths() {
            let same = |a: &str, b: &str| {
                let inode = |path: &str| self.dir().join(path).metadata().unwrap().ino();
                assert_eq!(inode(a), inode(b), "{a} shows {b}, {when}");
            };
            same("volume-subpaths/v/c/0", &text(&volume.join("a/b")));
            same("volume-subpaths/v/c/1", &text(&volume.join("c")));
            let hosts = fs::read_to_string(self.dir().join("etc-hosts")).unwrap();
            assert_eq!(hosts, "127.0.0.1 localhost\n", "{when}");
        }
    }

    fn check_gone(&self, mounts: &Mounts, when: &str) {
        assert_eq!(mounts.count() - 1, 0, "mounts, {when}");
        assert!(!self.dir().exists(), "the pod's directory, {when}");
        let maps = self.base.join("root/plugins/kubernetes.io~local-volume/volumeDevices");
        assert_eq!(fs::read_dir(maps).map_or(0, |entries| entries.count()), 0, "maps of devices, {when}");
        assert_eq!(loop_devices_below(&self.base.join("root")), 0, "loop devices, {when}");
        assert_eq!(fs::read_to_string(self.outside.join("precious")).unwrap(), "of others", "{when}");
        let old = fs::read_to_string(self.outside.join("dir/old")).unwrap();
        assert_eq!(old, "of earlier pods", "{when}");
        let disks = self.base.join("root/plugins/kubernetes.io/local-volume/mounts");
        let left = fs::read_dir(disks).map_or(0, |entries| entries.count());
        assert_eq!(left, 0, "the node's mount points of disks, {when}");
    }

    /// Data that outlives a pod has the content that the last pod wrote.
    fn check_kept(&self, when: &str) {
        if !self.is_persistent() || self.case.ends_with("read only") {
            return;
        }
        self.set_up().unwrap();
        let kept = fs::read_to_string(self.volume_dir().join("a/b/data/kept")).unwrap();
        assert_eq!(kept, "kept", "{when}");
        self.tear_down().unwrap();
    }
}

/// Blocks: these processes have nothing else to do.
pub fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The process that is killed, or survives at the end of the test.
fn one_life(base: &Path, case: &str, phase: Phase) {
    let pod = Pod::new(base, case);
    match phase {
        Phase::SetUp => pod.set_up().unwrap(),
        _ => pod.tear_down().unwrap(),
    }
}

/// A kernel without huge pages can't mount them; `empty_dir` tests the error.
fn cases() -> impl Iterator<Item = &'static str> {
    let huge = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
    CASES.into_iter().filter(move |case| huge || *case != "emptyDir of huge pages")
}

/// Returns true if the process was killed at that step, false if it has fewer steps. `test`: one that calls [`apart`].
pub fn dies_at(test: &str, base: &Path, case: &str, phase: Phase, at: u64) -> bool {
    let mut life = Command::new(std::env::current_exe().unwrap());
    life.args(["--exact", test, "--nocapture", "--quiet"]);
    life.env(AT, at.to_string()).env(BASE, base).env(CASE, case).env(PHASE, format!("{phase:?}"));
    let output = life.output().unwrap();
    if output.status.signal() == Some(SIGKILL) {
        return true;
    }
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{case}, {phase:?}, step {at}: {}\n{said:?}", output.status);
    false
}

/// Kills the agent at one step, and runs the next agent.
fn die_and_go_on(case: &str, phase: Phase, at: u64, wanted: bool) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let pod = Pod::new(temp.path(), case);
    let _disk = pod.make_disk();
    let mounts = Mounts::below(temp.path());
    pod.make_ground();
    if phase == Phase::TearDown {
        pod.set_up().unwrap();
        pod.use_it();
    }
    let died = dies_at(SETTING_UP, temp.path(), case, phase, at);
    let when = format!(
        "{case}, killed at step {at} of {phase:?}, the pod is {}wanted",
        if wanted { "" } else { "un" }
    );
    let fine = |result: Result<(), FilesError>| {
        result.unwrap_or_else(|error| panic!("{when}: {}", error.user_message()));
    };
    if wanted {
        fine(pod.set_up());
        pod.check_whole(&mounts, &when);
        if phase == Phase::SetUp {
            pod.use_it();
            let kept = || fs::read(pod.volume_dir().join("a/b/data/kept")).ok();
            let before = kept();
            fine(pod.set_up());
            pod.check_whole(&mounts, &when);
            assert_eq!(kept(), before, "data of a volume that is in use, {when}");
        }
    }
    fine(pod.tear_down());
    pod.check_gone(&mounts, &when);
    if wanted || phase == Phase::TearDown {
        pod.check_kept(&when);
        pod.check_gone(&mounts, &when);
    }
    died
}

fn walk(phase: Phase, fewest: u64) {
    for case in cases() {
        let mut steps = 0;
        for wanted in [true, false] {
            steps = (0..).take_while(|at| die_and_go_on(case, phase, *at, wanted)).count() as u64;
        }
        assert!(steps >= fewest, "{case} has {steps} steps of {phase:?}: does it tell of them?");
    }
}

/// A `mount` program that comes first in PATH. For NFS it binds the server's directory, which is on this machine. The
/// kernels that run the tests may have no NFS, and only the agent's work before and after the mount is tested.
fn put_mount_program(dir: &Path) {
    let program = dir.join("mount");
    let script = "#!/bin/sh\nPATH=${PATH#*:}\n\
        if [ \"$1 $2\" = '-t nfs' ]; then\n\
        [ \"$3\" = -o ] && shift 2\n[ \"$3\" = -- ] && shift\nexec mount --bind \"${3#server:}\" \"$4\"\nfi\nexec mount \"$@\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The test has its own process too: each start of another process holds all open files for a moment, and unmounts of
/// other tests would fail as busy then.
pub fn apart(test: &str, one_life: impl FnOnce(&Path, &str, Phase), walk: impl FnOnce()) {
    if let [Ok(base), Ok(case), Ok(phase)] = [BASE, CASE, PHASE].map(std::env::var) {
        return one_life(Path::new(&base), &case, Phase::of(&phase));
    }
    if std::env::var_os(WALKS).is_some() {
        return walk();
    }
    let mut walker = Command::new(std::env::current_exe().unwrap());
    let programs = tempfile::tempdir().unwrap();
    put_mount_program(programs.path());
    let path = std::env::var("PATH").unwrap();
    walker.env("PATH", format!("{}:{path}", programs.path().display()));
    walker.args(["--exact", test, "--nocapture"]).env(WALKS, "1");
    let output = walker.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}\n{}", said[0], said[1]);
}

#[test]
fn killed_at_every_step_of_setting_up() {
    apart(SETTING_UP, one_life, || walk(Phase::SetUp, 1));
}

#[test]
fn killed_at_every_step_of_tearing_down() {
    apart(TEARING_DOWN, one_life, || walk(Phase::TearDown, 3));
}
