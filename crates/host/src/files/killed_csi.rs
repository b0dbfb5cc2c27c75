//! Tests that kill the agent with SIGKILL at every disk step of a CSI volume, and around each call, and then start
//! another agent. The procedure is in [`super::killed`].
//!
//! The clean-up depends on records on disk, so what is killed and restarted here is the state of CSI volumes with the
//! engine's calls. The driver really mounts. A call to it is two steps, before and after its work, so the agent may be
//! killed while the answer is pending. The driver refuses wrong calls: to unstage a published volume, and to unpublish
//! one that sub-paths still show.

use model::GrpcCode;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use decide::action::ExpandOutcome;
use decide::csi::{VolumeRequest, VolumeRequestFrom, VolumeRequestId, inline_handle, paths};
use decide::volume_operations::CsiVolumes;
use decide::{ActionResult, Effect};
use engine::{CsiPorts, VolumeCalls};
use futures::StreamExt;
use futures::stream::BoxStream;
use model::csi::{
    AccessMode, ClaimObject, CsiVolume, DriverNodeInfo, Expansion, FsGroup, NodeExpandCall, NodePublishCall,
    NodeServiceCapabilities, NodeStageCall, NodeVolumeStats, PluginInfo, VolumeAccessType, VolumeId,
};
use model::files::ContainerFiles;
use model::k8s::PersistentVolumeClaim;
use model::node::NodeConfig;
use model::storage::{StorageKey, StorageObject};
use model::volume::SubPathMount;
use model::{Mono, Now, PodUid, Wall};
use ports::{ApiError, CsiDrivers, CsiError, PluginSocketEvent, PluginSockets, PodFiles, StorageApi};
use serde_json::{Value, json};

use super::killed::{Phase, apart, dies_at, now, text};
use super::steps::step;
use super::testing::{LoopDevice, Mounts, loop_devices_below};
use super::{HostCsiFiles, HostPodFiles};
use crate::mountinfo::MountTable;

const DRIVER: &str = "d.example";
const GROUP: u32 = 4711;
/// Guards against a test that waits for ever; nothing here takes nearly as long.
const STUCK: Duration = Duration::from_secs(120);

/// Time does not pass: nothing is retried.
const NOW: Now = Now { mono: Mono::ZERO, wall: Wall(0) };

const CASES: [&str; 5] = ["filesystem", "filesystem, not staged", "of the pod itself", "device", "sub-paths"];

// ---- the outside: it outlives the agent ---------------------------------------------------------------------------

/// Its volumes are directories, and one disk.
struct Driver {
    root: PathBuf,
    volumes: PathBuf,
    disk: PathBuf,
    can: NodeServiceCapabilities,
}

impl Driver {
    fn call(&self, name: &str, work: impl FnOnce() -> io::Result<()>) -> Result<(), CsiError> {
        step(name);
        let done = work();
        step(name);
        done.map_err(|error| CsiError::Rpc { code: GrpcCode::Internal, message: format!("{name}: {error}") })
    }

    fn is_mounted(&self, below: &Path) -> bool {
        MountTable::read().unwrap().at_or_below(below).next().is_some()
    }

    fn show(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.is_mounted(to) {
            return Ok(());
        }
        Ok(rustix::mount::mount_bind(from, to)?)
    }

    fn hide(&self, place: &Path) -> io::Result<()> {
        if !self.is_mounted(place) {
            return Ok(());
        }
        Ok(rustix::mount::unmount(place, rustix::mount::UnmountFlags::NOFOLLOW)?)
    }
}

fn must(wanted: bool, message: &str) -> io::Result<()> {
    if wanted { Ok(()) } else { Err(io::Error::other(message.to_owned())) }
}

#[async_trait]
impl CsiDrivers for Driver {
    fn set_endpoint(&self, _: &str, _: Option<&str>) {}
    async fn node_get_info(&self, _: &str) -> Result<DriverNodeInfo, CsiError> {
        Ok(DriverNodeInfo::default())
    }
    async fn node_get_capabilities(&self, _: &str) -> Result<NodeServiceCapabilities, CsiError> {
        Ok(self.can)
    }
    async fn node_stage_volume(&self, _: &str, call: &NodeStageCall) -> Result<(), CsiError> {
        self.call("stage", || match call.capability.access {
            VolumeAccessType::Block => Ok(()),
            VolumeAccessType::Mount { .. } => {
                self.show(&self.volumes.join(&call.handle), Path::new(&call.staging))
            }
        })
    }
    async fn node_publish_volume(&self, _: &str, call: &NodePublishCall) -> Result<(), CsiError> {
        let (target, staging) = (Path::new(&call.target), Path::new(&call.staging));
        self.call("publish", || match call.capability.access {
            VolumeAccessType::Block => {
                fs::File::options().create(true).append(true).open(target)?;
                self.show(&self.disk.canonicalize()?, target)
            }
            VolumeAccessType::Mount { .. } => {
                let own = self.volumes.join(&call.handle);
                must(call.staging.is_empty() || self.is_mounted(staging), "it is not staged")?;
                fs::create_dir_all(&own)?;
                fs::create_dir_all(target)?;
                self.show(if call.staging.is_empty() { &own } else { staging }, target)
            }
        })
    }
    async fn node_unpublish_volume(&self, _: &str, _: &str, target: &str) -> Result<(), CsiError> {
        let target = Path::new(target);
        self.call("unpublish", || {
            let sub_paths = self.root.join("pods/0f1e/volume-subpaths");
            must(!self.is_mounted(&sub_paths), "sub-paths still show it")?;
            let devices = self.root.join("plugins/kubernetes.io/csi/volumeDevices");
            must(!self.is_mounted(&devices.join("pv/dev")), "the device is still mapped")?;
            self.hide(target)?;
            let gone = if target.is_dir() { fs::remove_dir(target) } else { fs::remove_file(target) };
            gone.or_else(|error| must(error.kind() == io::ErrorKind::NotFound, "its place can't be removed"))
        })
    }
    async fn node_unstage_volume(&self, _: &str, _: &str, staging: &str) -> Result<(), CsiError> {
        self.call("unstage", || {
            must(!self.is_mounted(&self.root.join("pods")), "a pod still has it")?;
            self.hide(Path::new(staging))
        })
    }
    async fn node_expand_volume(&self, _: &str, call: &NodeExpandCall) -> Result<(), CsiError> {
        self.call("expand", || {
            must(self.is_mounted(Path::new(&call.target)), "it is not published")?;
            fs::write(self.volumes.join("size"), call.bytes.to_string())
        })
    }
    async fn node_get_volume_stats(&self, _: &str, _: &str, _: &str) -> Result<NodeVolumeStats, CsiError> {
        Ok(NodeVolumeStats::default())
    }
}

/// The driver is registered already.
struct NoSockets;

#[async_trait]
impl PluginSockets for NoSockets {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        futures::stream::pending().boxed()
    }
    async fn get_info(&self, _: &str) -> Result<PluginInfo, CsiError> {
        Ok(PluginInfo::default())
    }
    async fn notify_registration_status(&self, _: &str, _: Option<&str>) -> Result<(), CsiError> {
        Ok(())
    }
}

/// The claim of the API server, in a file. A call is two steps here as well.
struct Claims(PathBuf);

impl Claims {
    fn get(&self) -> Value {
        serde_json::from_slice(&fs::read(&self.0).unwrap()).unwrap()
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let (Value::Object(into), Value::Object(patch)) = (into, patch) else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(into.remove(key)),
            Value::Object(_) => merge(into.entry(key).or_insert_with(|| json!({})), value),
            other => drop(into.insert(key.clone(), other.clone())),
        }
    }
}

#[async_trait]
impl StorageApi for Claims {
    async fn read(&self, _: &StorageKey) -> Result<StorageObject, ApiError> {
        Ok(StorageObject::Claim(Arc::new(serde_json::from_value(self.get()).unwrap())))
    }
    async fn patch_claim_status(
        &self,
        _: &ClaimObject,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ApiError> {
        step("write the claim");
        let mut claim = self.get();
        merge(&mut claim, patch);
        fs::write(&self.0, claim.to_string()).unwrap();
        step("write the claim");
        Ok(Arc::new(serde_json::from_value(claim).unwrap()))
    }
}

// ---- a pod with one such volume -----------------------------------------------------------------------------------

struct Pod {
    files: HostPodFiles,
    base: PathBuf,
    uid: PodUid,
    case: &'static str,
}

impl Pod {
    fn new(base: &Path, case: &str) -> Pod {
        let case = CASES.into_iter().find(|known| *known == case).expect("a known case");
        let base = base.canonicalize().unwrap();
        let files = HostPodFiles::new(base.join("root"), base.join("logs"), base.join("links"));
        Pod { files, base, uid: PodUid::new("0f1e"), case }
    }

    fn root(&self) -> PathBuf {
        self.base.join("root")
    }

    fn dir(&self) -> PathBuf {
        self.root().join("pods/0f1e")
    }

    fn is_block(&self) -> bool {
        self.case == "device"
    }

    fn driver(&self) -> Driver {
        let can = NodeServiceCapabilities {
            stage_unstage_volume: !self.case.ends_with("not staged"),
            expand_volume: true,
            ..NodeServiceCapabilities::default()
        };
        let (volumes, disk) = (self.base.join("volumes"), self.base.join("disk"));
        Driver { root: self.root(), volumes, disk, can }
    }

    fn volume(&self) -> CsiVolume {
        let ephemeral = self.case == "of the pod itself";
        let handle = if ephemeral { inline_handle(&self.uid, "v") } else { "h".to_owned() };
        let id = VolumeId { driver: DRIVER.into(), handle };
        let config = NodeConfig { root_dir: text(&self.root()), ..NodeConfig::default() };
        let of_files = VolumeAccessType::Mount { fs_type: String::new(), flags: Vec::new() };
        CsiVolume {
            paths: paths(&config, &self.uid, &id, "pv", self.is_block()),
            id,
            spec_name: "pv".into(),
            ephemeral,
            access: if self.is_block() { VolumeAccessType::Block } else { of_files },
            access_mode: AccessMode::ReadWriteOnce,
            read_only: false,
            node_name: "n".into(),
            attachment_name: String::new(),
            publish_context: Default::default(),
            volume_attributes: Default::default(),
            pod_attributes: Default::default(),
            stage_secrets: Default::default(),
            publish_secrets: Default::default(),
            fs_group: Some(FsGroup { id: GROUP.into(), by_agent: true, on_root_mismatch: true }),
            selinux_context: String::new(),
            requires_republish: false,
        }
    }

    /// The driver's directory with the data.
    fn data(&self) -> PathBuf {
        self.base.join("volumes").join(self.volume().id.handle)
    }

    fn container_files(&self) -> ContainerFiles {
        let sub_path = |index: u32, sub_path: &str| SubPathMount {
            volume_path: self.volume().paths.target,
            sub_path: sub_path.into(),
            target: text(&self.dir().join(format!("volume-subpaths/pv/c/{index}"))),
            mount_name: "v".into(),
            container: "c".into(),
            create: true,
            read_only: false,
        };
        ContainerFiles {
            log_dir: text(&self.base.join("logs/ns_p_0f1e/c")),
            etc_hosts: None,
            termination_log: None,
            sub_paths: vec![sub_path(0, "a/b"), sub_path(1, "c")],
        }
    }

    /// What exists before: a volume with files of an earlier pod, a claim that is to be expanded.
    fn make_ground(&self) -> Option<LoopDevice> {
        fs::create_dir_all(self.data().join("old")).unwrap();
        for name in ["old/file", "file"] {
            fs::write(self.data().join(name), "of an earlier pod").unwrap();
        }
        let claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {
                "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            },
        });
        fs::write(self.base.join("claim"), claim.to_string()).unwrap();
        self.is_block().then(|| {
            let disk = LoopDevice::over(&self.base.join("disk.img"), 1 << 20);
            symlink(&disk.path, self.base.join("disk")).unwrap();
            disk
        })
    }

    /// What a container leaves in the volume.
    fn use_it(&self) {
        let target = PathBuf::from(self.volume().paths.target);
        match self.is_block() {
            true => fs::write(target, "kept").unwrap(),
            false => fs::write(target.join("kept"), "kept").unwrap(),
        }
    }

    fn check_kept(&self, when: &str) {
        let kept = if self.is_block() { self.base.join("disk") } else { self.data().join("kept") };
        assert!(fs::read(kept).unwrap().starts_with(b"kept"), "what a container wrote, {when}");
    }

    fn check_whole(&self, mounts: &Mounts, when: &str) {
        let (expect, records) = match self.case {
            "filesystem" => (2, 2),
            // One record serves both uses of a device.
            "device" => (2, 1),
            "sub-paths" => (4, 2),
            _ => (1, 1),
        };
        // One is the agent's own, below which mounts are shared.
        assert_eq!(mounts.count() - 1, expect, "mounts, {when}");
        let found: Vec<PathBuf> = everything_in(&self.root().join("plugins/kubernetes.io/csi"))
            .into_iter()
            .chain(everything_in(&self.dir().join("volumes")))
            .filter(|path| {
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vol_data"))
            })
            .collect();
        let drafts = found.iter().filter(|path| path.extension().is_some_and(|end| end == "new")).count();
        assert_eq!((found.len(), drafts), (records, 0), "records and drafts, {when}: {found:?}");
        let paths = self.volume().paths;
        if let Some(device) = paths.device {
            assert_eq!(fs::read_link(device.link).unwrap(), Path::new(&paths.target), "{when}");
            let number = |path: &Path| path.metadata().unwrap().rdev();
            assert_eq!(number(Path::new(&device.map)), number(&self.base.join("disk")), "the map, {when}");
            let pinned: Vec<PathBuf> = mounts.pinned().into_iter().map(|(_, map)| map).collect();
            assert_eq!(pinned, [PathBuf::from(device.map)], "loop devices, {when}");
            return;
        }
        let target = PathBuf::from(paths.target);
        for name in ["", "old", "old/file", "file"] {
            let found = target.join(name).metadata().unwrap();
            let bits = if found.is_dir() { 0o2770 } else { 0o660 };
            assert_eq!((found.gid(), found.mode() & bits), (GROUP, bits), "{name:?}, {when}");
        }
        if self.case == "sub-paths" {
            let inode = |path: PathBuf| path.metadata().unwrap().ino();
            for (index, inner) in ["a/b", "c"].into_iter().enumerate() {
                let shown = self.dir().join(format!("volume-subpaths/pv/c/{index}"));
                assert_eq!(inode(shown), inode(target.join(inner)), "{inner}, {when}");
            }
        }
    }

    fn check_grown(&self, when: &str) {
        let claim = Claims(self.base.join("claim")).get();
        assert_eq!(claim["status"]["capacity"]["storage"], "2Gi", "{when}");
        let size = fs::read_to_string(self.base.join("volumes/size")).unwrap();
        assert_eq!(size, (2_u64 << 30).to_string(), "{when}");
    }

    fn check_gone(&self, mounts: &Mounts, when: &str) {
        assert_eq!(mounts.count() - 1, 0, "mounts, {when}");
        assert!(!self.dir().exists(), "the pod's directory, {when}");
        // Other volumes may use these directories too.
        let shared = [DRIVER, "volumeDevices", "volumeDevices/staging", "volumeDevices/publish"];
        let csi = self.root().join("plugins/kubernetes.io/csi");
        let left: Vec<PathBuf> = everything_in(&csi)
            .into_iter()
            .filter(|path| !shared.iter().any(|name| csi.join(name) == *path))
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "{when}");
        assert_eq!(loop_devices_below(&self.root()), 0, "loop devices, {when}");
        for name in ["old/file", "file"] {
            let text = fs::read_to_string(self.data().join(name)).unwrap();
            assert_eq!(text, "of an earlier pod", "{name}, {when}");
        }
    }
}

fn everything_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(everything_in(&entry.path()));
        }
    }
    found
}

// ---- the agent ----------------------------------------------------------------------------------------------------

/// Its state is lost with it. Calls are made one after the other.
struct Agent<'a> {
    pod: &'a Pod,
    volumes: CsiVolumes,
    calls: VolumeCalls,
}

impl<'a> Agent<'a> {
    async fn start(pod: &'a Pod) -> Agent<'a> {
        let ports = CsiPorts {
            drivers: Arc::new(pod.driver()),
            files: Arc::new(HostCsiFiles::new(pod.root())),
            sockets: Arc::new(NoSockets),
        };
        let calls = VolumeCalls { ports, storage: Some(Arc::new(Claims(pod.base.join("claim")))) };
        let mut agent = Agent { pod, volumes: CsiVolumes::default(), calls };
        let effects = agent.volumes.list_records(NOW);
        agent.carry_out(effects).await;
        agent
    }

    /// Starts an agent after another was killed: it first scans its own directories.
    async fn start_anew(pod: &'a Pod) -> Agent<'a> {
        pod.files.prepare_node().await.unwrap();
        Self::start(pod).await
    }

    /// Runs until no call is in progress. By then the request has its answer; a pending retry counts as a failure.
    async fn carry_out(&mut self, effects: Vec<Effect>) -> Option<ActionResult> {
        let (mut effects, mut answer) = (VecDeque::from(effects), None);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::CallVolume { id, call } => {
                    let call = tokio::time::timeout(STUCK, self.calls.perform(call));
                    let result = call.await.expect("a call ends");
                    effects.extend(self.volumes.call_ended(NOW, id, result));
                }
                Effect::AnswerVolumeRequest { result, .. } => answer = Some(result),
                other => panic!("{other:?}"),
            }
        }
        answer
    }

    async fn ask(&mut self, what: VolumeRequest) -> ActionResult {
        let request = VolumeRequestId { uid: self.pod.uid.clone(), from: VolumeRequestFrom::Sweep };
        let effects = self.volumes.request(NOW, request, what);
        self.carry_out(effects).await.expect("an answer")
    }

    async fn set_up(&mut self) -> Result<(), String> {
        let Pod { files, uid, base, .. } = self.pod;
        let log_dir = text(&base.join("logs/ns_p_0f1e"));
        files.make_pod_dirs(uid, &log_dir).await.map_err(|error| error.user_message())?;
        match self.ask(VolumeRequest::SetUp { volume: Box::new(self.pod.volume()) }).await {
            ActionResult::Ok => {}
            other => return Err(format!("{other:?}")),
        }
        if self.pod.case != "sub-paths" {
            return Ok(());
        }
        let prepared = files.prepare_container(uid, &self.pod.container_files()).await;
        prepared.map_err(|error| error.user_message())
    }

    async fn grow(&mut self) -> Result<(), String> {
        let expansion = Expansion {
            claim: ClaimObject { namespace: "ns".into(), name: "c".into(), uid: "u".into() },
            size: "2Gi".into(),
            secrets: Default::default(),
            version: "1".into(),
            online: true,
        };
        let volume = Box::new(self.pod.volume());
        match self.ask(VolumeRequest::Expand { volume, expansion: Box::new(expansion) }).await {
            ActionResult::ExpandOutcome(ExpandOutcome::Grown { .. } | ExpandOutcome::Unneeded { .. }) => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// Also removes the node-wide mount of the volume, which is no longer used.
    async fn tear_down(&mut self) -> Result<(), String> {
        let Pod { files, uid, .. } = self.pod;
        files.tear_down_volumes(uid).await.map_err(|error| error.user_message())?;
        match self.ask(VolumeRequest::TearDown).await {
            ActionResult::Ok => {}
            other => return Err(format!("{other:?}")),
        }
        files.remove_pod_dir(uid).await.map_err(|error| error.user_message())?;
        match self.volumes.on_node() {
            Some(volumes) if volumes.is_empty() => Ok(()),
            left => Err(format!("{left:?} is not unstaged")),
        }
    }
}

/// The process that is killed, or survives at the end of the test.
fn one_life(base: &Path, case: &str, phase: Phase) {
    let pod = Pod::new(base, case);
    now(async {
        let mut agent = Agent::start(&pod).await;
        match phase {
            Phase::SetUp => agent.set_up().await.unwrap(),
            Phase::Grow => agent.grow().await.unwrap(),
            Phase::TearDown => agent.tear_down().await.unwrap(),
        }
    });
}

/// Kills the agent at one step, and runs the next agent.
fn die_and_go_on(case: &str, phase: Phase, at: u64, wanted: bool) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let pod = Pod::new(temp.path(), case);
    let _disk = pod.make_ground();
    let mounts = Mounts::below(temp.path());
    let when =
        format!("{case}, killed at step {at} of {phase:?}, pod {}wanted", if wanted { "" } else { "un" });
    let fine = |result: Result<(), String>| result.unwrap_or_else(|error| panic!("{when}: {error}"));
    now(async {
        let mut agent = Agent::start_anew(&pod).await;
        if phase != Phase::SetUp {
            fine(agent.set_up().await);
            pod.use_it();
        }
    });
    let died = dies_at(SETTING_UP, temp.path(), case, phase, at);
    now(async {
        let mut agent = Agent::start_anew(&pod).await;
        if wanted {
            fine(agent.set_up().await);
            pod.check_whole(&mounts, &when);
            pod.use_it();
            // Once more, as after a restart of a container.
            fine(agent.set_up().await);
            pod.check_whole(&mounts, &when);
            if phase == Phase::Grow {
                fine(agent.grow().await);
                pod.check_grown(&when);
            }
        }
        fine(agent.tear_down().await);
        pod.check_gone(&mounts, &when);
    });
    if wanted || phase != Phase::SetUp {
        pod.check_kept(&when);
    }
    died
}

fn walk(cases: &[&str], phase: Phase, fewest: u64) {
    for case in cases {
        let mut steps = 0;
        for wanted in [true, false] {
            steps = (0..).take_while(|at| die_and_go_on(case, phase, *at, wanted)).count() as u64;
        }
        assert!(steps >= fewest, "{case} has {steps} steps of {phase:?}: does it tell of them?");
    }
}

const SETTING_UP: &str = "files::killed_csi::killed_at_every_step_of_setting_up";
const GROWING: &str = "files::killed_csi::killed_at_every_step_of_growing";
const TEARING_DOWN: &str = "files::killed_csi::killed_at_every_step_of_tearing_down";

#[test]
fn killed_at_every_step_of_setting_up() {
    apart(SETTING_UP, one_life, || walk(&CASES, Phase::SetUp, 12));
}

#[test]
fn killed_at_every_step_of_growing() {
    apart(GROWING, one_life, || walk(&["filesystem"], Phase::Grow, 6));
}

#[test]
fn killed_at_every_step_of_tearing_down() {
    apart(TEARING_DOWN, one_life, || walk(&CASES, Phase::TearDown, 6));
}
