//! The agent dies by SIGKILL at every step of setting up and of tearing down each kind of volume; then another comes.
//!
//! ```text
//!   a process of its own ──(step 0, 1, 2, ... n)──> SIGKILL
//!   this process:  goes on where it ended  ──> the volume is whole, nothing is mounted twice
//!                  or takes the pod away   ──> nothing is left, and nothing of others is lost
//! ```
//! The walk finds the steps by itself: it ends when the process gets through alive. Everything that changes the disk or
//! the mount table tells of its step ([`super::steps::step`]).

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
    ContentBacking, ContentFile, ContentVolume, EmptyDirMedium, HostPathCheck, SubPathMount, VolumeKind,
    VolumeSetup,
};
use ports::FilesError;

use super::layout::Layout;
use super::testing::Mounts;
use super::{container, set_up, tear_down};

const AT: &str = "RUBELET_TEST_KILL_AT";
const BASE: &str = "RUBELET_TEST_KILL_BASE";
const CASE: &str = "RUBELET_TEST_KILL_CASE";
const PHASE: &str = "RUBELET_TEST_KILL_PHASE";
const WALKS: &str = "RUBELET_TEST_KILL_WALKS";
const SIGKILL: i32 = 9;

/// In a process that is to die, before its n-th step.
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
enum Phase {
    SetUp,
    TearDown,
}

/// A pod with one kind of volume, on a disk of its own.
struct Pod {
    layout: Layout,
    uid: PodUid,
    outside: PathBuf,
    case: &'static str,
}

const CASES: [&str; 10] = [
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
];

impl Pod {
    fn new(base: &Path, case: &str) -> Pod {
        let case = CASES.into_iter().find(|known| *known == case).expect("a known case");
        let layout =
            Layout { root: base.join("root"), pod_logs: base.join("logs"), links: base.join("links") };
        let uid = PodUid::new("0f1e");
        Pod { layout, uid, outside: base.join("outside"), case }
    }

    fn dir(&self) -> PathBuf {
        self.layout.pod(&self.uid).unwrap()
    }

    fn log_dir(&self) -> String {
        text(&self.layout.pod_logs.join("ns_p_0f1e"))
    }

    /// What is of others, and was there before.
    fn make_ground(&self) {
        fs::create_dir_all(self.outside.join("dir")).unwrap();
        fs::write(self.outside.join("precious"), "of others").unwrap();
        container::make_pod_dirs(&self.layout, &self.uid, &self.log_dir()).unwrap();
    }

    fn volume_dir(&self) -> PathBuf {
        let plugin = match self.case {
            "configMap" => "configmap",
            "secret" => "secret",
            "downwardAPI" => "downward-api",
            "projected" => "projected",
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
            _ => self.empty_dir(EmptyDirMedium::Disk),
        };
        VolumeSetup { name: "v".into(), spec_name: "v".into(), kind }
    }

    fn empty_dir(&self, medium: EmptyDirMedium) -> VolumeKind {
        let ready_marker = text(&self.dir().join("plugins/kubernetes.io~empty-dir/v/ready"));
        VolumeKind::EmptyDir { path: text(&self.volume_dir()), ready_marker, medium, fs_group: Some(4711) }
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

    /// What the agent does, from the pod's directories to its containers.
    fn set_up(&self) -> Result<(), FilesError> {
        container::make_pod_dirs(&self.layout, &self.uid, &self.log_dir())?;
        set_up(&self.layout, &self.uid, &self.volume())?;
        if self.case == "sub-paths" {
            container::prepare(&self.layout, &self.uid, &self.container_files())?;
        }
        Ok(())
    }

    fn tear_down(&self) -> Result<(), FilesError> {
        tear_down::volumes(&self.dir())?;
        tear_down::pod_dir(&self.dir())
    }

    fn expected_mounts(&self) -> usize {
        match self.case {
            "emptyDir in memory" | "emptyDir of huge pages" | "secret" | "downwardAPI" | "projected" => 1,
            "sub-paths" => 2,
            _ => 0,
        }
    }

    /// What a container leaves in a volume: files, directories and a way out.
    fn use_it(&self) {
        if !self.case.starts_with("emptyDir") && self.case != "sub-paths" {
            return;
        }
        let volume = self.volume_dir();
        fs::create_dir_all(volume.join("a/b/data")).unwrap();
        if self.case == "emptyDir of huge pages" {
            // It holds no plain files and no links.
            return;
        }
        fs::write(volume.join("a/b/data/kept"), "kept").unwrap();
        symlink(&self.outside, volume.join("a/way-out")).unwrap();
    }

    fn check_whole(&self, mounts: &Mounts, when: &str) {
        assert_eq!(mounts.count(), self.expected_mounts(), "mounts, {when}");
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
            _ => {
                let meta = volume.metadata().unwrap();
                assert_eq!((meta.gid(), meta.permissions().mode() & 0o2777), (4711, 0o2777), "{when}");
                assert!(self.dir().join("plugins/kubernetes.io~empty-dir/v/ready").exists(), "{when}");
            }
        }
        if self.case == "sub-paths" {
            let same = |a: &str, b: &str| {
                let inode = |path: &str| self.dir().join(path).metadata().unwrap().ino();
                assert_eq!(inode(a), inode(b), "{a} shows {b}, {when}");
            };
            same("volume-subpaths/v/c/0", "volumes/kubernetes.io~empty-dir/v/a/b");
            same("volume-subpaths/v/c/1", "volumes/kubernetes.io~empty-dir/v/c");
            let hosts = fs::read_to_string(self.dir().join("etc-hosts")).unwrap();
            assert_eq!(hosts, "127.0.0.1 localhost\n", "{when}");
        }
    }

    fn check_gone(&self, mounts: &Mounts, when: &str) {
        assert_eq!(mounts.count(), 0, "mounts, {when}");
        assert!(!self.dir().exists(), "the pod's directory, {when}");
        assert_eq!(fs::read_to_string(self.outside.join("precious")).unwrap(), "of others", "{when}");
        assert!(self.outside.join("dir").is_dir(), "{when}");
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The process that dies. Without being told what to do (in a common run of all tests) it goes through all of it alive.
#[test]
fn one_life() {
    let told = std::env::var(BASE).ok().zip(std::env::var(CASE).ok()).zip(std::env::var(PHASE).ok());
    let Some(((base, case), phase)) = told else {
        for case in cases() {
            let temp = tempfile::tempdir().unwrap();
            let (mounts, pod) = (Mounts::below(temp.path()), Pod::new(temp.path(), case));
            pod.make_ground();
            pod.set_up().unwrap();
            pod.check_whole(&mounts, case);
            pod.use_it();
            pod.tear_down().unwrap();
            pod.check_gone(&mounts, case);
        }
        return;
    };
    let pod = Pod::new(Path::new(&base), &case);
    match phase.as_str() {
        "set up" => pod.set_up().unwrap(),
        _ => pod.tear_down().unwrap(),
    }
}

/// A kernel without huge pages can't mount them; `empty_dir` tests what is said then.
fn cases() -> impl Iterator<Item = &'static str> {
    let huge = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
    CASES.into_iter().filter(move |case| huge || *case != "emptyDir of huge pages")
}

/// True if the process died at that step; false if it has no so many.
fn dies_at(base: &Path, case: &str, phase: Phase, at: u64) -> bool {
    let phase = if phase == Phase::SetUp { "set up" } else { "tear down" };
    let mut life = Command::new(std::env::current_exe().unwrap());
    life.args(["--exact", "files::killed::one_life", "--nocapture", "--quiet"]);
    life.env(AT, at.to_string()).env(BASE, base).env(CASE, case).env(PHASE, phase);
    let output = life.output().unwrap();
    if output.status.signal() == Some(SIGKILL) {
        return true;
    }
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{case}, {phase}, step {at}: {}\n{said:?}", output.status);
    false
}

/// One place where the agent dies, and what the next one does.
fn die_and_go_on(case: &str, phase: Phase, at: u64, wanted: bool) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let (mounts, pod) = (Mounts::below(temp.path()), Pod::new(temp.path(), case));
    pod.make_ground();
    if phase == Phase::TearDown {
        pod.set_up().unwrap();
        pod.use_it();
    }
    let died = dies_at(temp.path(), case, phase, at);
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

/// The walk has a process of its own, too: each start of another one holds all open files for a moment, and what other
/// tests would unmount just then would be busy.
fn apart(name: &str, walk: impl FnOnce()) {
    if std::env::var_os(WALKS).is_some() {
        return walk();
    }
    let mut walker = Command::new(std::env::current_exe().unwrap());
    walker.args(["--exact", &format!("files::killed::{name}"), "--nocapture"]).env(WALKS, "1");
    let output = walker.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}\n{}", said[0], said[1]);
}

#[test]
fn killed_at_every_step_of_setting_up() {
    apart("killed_at_every_step_of_setting_up", || walk(Phase::SetUp, 1));
}

#[test]
fn killed_at_every_step_of_tearing_down() {
    apart("killed_at_every_step_of_tearing_down", || walk(Phase::TearDown, 3));
}
