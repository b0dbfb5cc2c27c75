//! What is called for, in which order, for inputs that only a script can put together.

mod devices;
mod records;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use model::csi::{
    AccessMode, CsiVolume, CsiVolumeOnDisk, CsiVolumePaths, Expansion, FsGroup, NodeServiceCapabilities,
    VolumeAccessType, VolumeId, VolumeRecord,
};
use model::k8s::PersistentVolumeClaim;
use model::node::{HostFacts, NodeConfig};
use model::volume::DevicePaths;
use model::{Mono, Now, PodUid, Wall};
use serde_json::json;

use super::*;
use crate::state::NodeState;

const NOW: Now = Now { mono: Mono(0), wall: Wall(0) };

/// The volumes, and calls that are open: by their words, in the order in which they came.
#[derive(Default)]
struct Script {
    volumes: CsiVolumes,
    open: Vec<(VolumeCallId, String)>,
    /// Every call that was made.
    called: Vec<String>,
    told: Vec<String>,
    epochs: u64,
    records: BTreeMap<String, VolumeRecord>,
    /// Of devices: where each leads.
    links: BTreeMap<String, String>,
    /// Paths of records that can't be read.
    unreadable: BTreeSet<String>,
}

fn id(handle: &str) -> VolumeId {
    VolumeId { driver: "d".into(), handle: handle.into() }
}

fn volume(uid: &str, handle: &str) -> CsiVolume {
    CsiVolume {
        id: id(handle),
        spec_name: handle.into(),
        ephemeral: false,
        access: VolumeAccessType::Mount { fs_type: String::new(), flags: Vec::new() },
        access_mode: AccessMode::ReadWriteMany,
        read_only: false,
        node_name: "n".into(),
        attachment_name: String::new(),
        publish_context: Default::default(),
        volume_attributes: Default::default(),
        pod_attributes: Default::default(),
        stage_secrets: Default::default(),
        publish_secrets: Default::default(),
        fs_group: Some(FsGroup { id: 7, by_agent: true, on_root_mismatch: false }),
        selinux_context: String::new(),
        paths: CsiVolumePaths {
            staging: format!("/staged/{handle}/globalmount"),
            stage_record: format!("/staged/{handle}/vol_data.json"),
            target: format!("/pods/{uid}/{handle}/mount"),
            record: format!("/pods/{uid}/{handle}/vol_data.json"),
            device: None,
        },
        requires_republish: false,
    }
}

fn device(uid: &str, handle: &str) -> CsiVolume {
    let record = format!("/devices/{handle}/vol_data.json");
    CsiVolume {
        access: VolumeAccessType::Block,
        paths: CsiVolumePaths {
            staging: format!("/devices/staging/{handle}"),
            stage_record: record.clone(),
            target: format!("/devices/publish/{handle}/{uid}"),
            record,
            device: Some(device_paths(uid, handle)),
        },
        ..volume(uid, handle)
    }
}

fn device_paths(uid: &str, handle: &str) -> DevicePaths {
    DevicePaths { link: format!("/links/{uid}/{handle}"), map: format!("/devices/{handle}/dev/{uid}") }
}

fn claim_to_expand() -> PersistentVolumeClaim {
    let claim = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "1"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        },
    });
    serde_json::from_value(claim).expect("a claim")
}

fn words(call: &VolumeCall) -> String {
    match call {
        VolumeCall::ListRecords => "list".into(),
        VolumeCall::ListPodRecords { uid } => format!("list {uid}"),
        VolumeCall::WaitForEarlierWork { place } => format!("wait {place}"),
        VolumeCall::WriteRecord { path, .. } => format!("write {path}"),
        VolumeCall::Remove { place, .. } => format!("remove {place}"),
        VolumeCall::ApplyGroup { path, .. } => format!("group {path}"),
        VolumeCall::NodeGetCapabilities { .. } => "capabilities".into(),
        VolumeCall::NodeStageVolume { call, .. } => format!("stage {}", call.handle),
        VolumeCall::NodePublishVolume { call, .. } => format!("publish {}", call.target),
        VolumeCall::NodeUnpublishVolume { target, .. } => format!("unpublish {target}"),
        VolumeCall::NodeUnstageVolume { handle, .. } => format!("unstage {handle}"),
        VolumeCall::MakeDir { path } => format!("mkdir {path}"),
        VolumeCall::LinkDevice { link, .. } => format!("link {link}"),
        VolumeCall::UnlinkDevice { link } => format!("unlink {link}"),
        VolumeCall::MapDevice { map, .. } => format!("map {map}"),
        VolumeCall::UnmapDevice { map } => format!("unmap {map}"),
        VolumeCall::NodeExpandVolume { call, .. } => format!("expand {}", call.handle),
        VolumeCall::ReadClaim { .. } => "read claim".into(),
        VolumeCall::PatchClaimStatus { .. } => "patch claim".into(),
    }
}

impl Script {
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::CallVolume { id, call } => {
                    match &call {
                        VolumeCall::WriteRecord { path, record } => {
                            self.unreadable.remove(path);
                            self.records.insert(path.clone(), record.clone());
                        }
                        VolumeCall::Remove { record: Some(path), .. } => drop(self.records.remove(path)),
                        VolumeCall::LinkDevice { device, link } => {
                            self.links.insert(link.clone(), device.clone());
                        }
                        VolumeCall::UnlinkDevice { link } => drop(self.links.remove(link)),
                        _ => {}
                    }
                    self.called.push(words(&call));
                    self.open.push((id, words(&call)));
                }
                Effect::CancelVolumeCall { id } => self.open.retain(|(open, _)| *open != id),
                Effect::AnswerVolumeRequest { request, result } => {
                    let result = match result {
                        ActionResult::Ok => "ok".into(),
                        ActionResult::Interrupted => "interrupted".into(),
                        other => format!("{other:?}"),
                    };
                    self.told.push(format!("{} {result}", request.uid));
                }
                Effect::SetTimer { key, .. } => self.told.push(format!("{key:?}")),
                _ => {}
            }
        }
    }

    /// Gives the number of the plan that asks.
    fn request(&mut self, uid: &str, what: VolumeRequest) -> Epoch {
        self.epochs += 1;
        let epoch = Epoch(self.epochs);
        let from = VolumeRequestFrom::Plan { epoch, stage: 0, action: 0 };
        let request = VolumeRequestId { uid: PodUid::new(uid), from };
        let effects = self.volumes.request(NOW, request, what);
        self.take(effects);
        epoch
    }

    fn set_up(&mut self, uid: &str, handle: &str) -> Epoch {
        self.request(uid, VolumeRequest::SetUp { volume: Box::new(volume(uid, handle)) })
    }

    fn expand(&mut self, uid: &str, handle: &str) -> Epoch {
        let expansion = Expansion {
            claim: model::csi::ClaimObject { namespace: "ns".into(), name: "c".into(), uid: "u".into() },
            size: "2Gi".into(),
            secrets: Default::default(),
            version: "1".into(),
            online: true,
        };
        let volume = Box::new(volume(uid, handle));
        self.request(uid, VolumeRequest::Expand { volume, expansion: Box::new(expansion) })
    }

    fn set_up_labelled(&mut self, uid: &str, handle: &str, label: &str) {
        let volume = CsiVolume { selinux_context: label.into(), ..volume(uid, handle) };
        self.request(uid, VolumeRequest::SetUp { volume: Box::new(volume) });
    }

    /// As an earlier agent left it: staged, and in use by the pod.
    fn set_up_by_earlier_agent(uid: &str, handle: &str) -> Script {
        let mut script = Script::default();
        script.set_up(uid, handle);
        script.until("");
        Script { records: script.records, ..Script::default() }
    }

    fn list_records(&mut self) {
        let effects = self.volumes.list_records(NOW);
        self.take(effects);
        self.until("");
    }

    fn unstage_due(&mut self, handle: &str) {
        let effects = self.volumes.unstage_due(NOW, &id(handle));
        self.take(effects);
    }

    fn is_on_node(&self, handle: &str) -> bool {
        self.volumes.on_node().is_some_and(|volumes| volumes.contains(&id(handle)))
    }

    fn cancel(&mut self, uid: &str, epoch: Epoch) {
        let effects = self.volumes.cancel(NOW, &PodUid::new(uid), epoch);
        self.take(effects);
    }

    fn open(&self) -> Vec<&str> {
        self.open.iter().map(|(_, words)| words.as_str()).collect()
    }

    fn records(&self, of: &str) -> VolumeCallAnswer {
        let found = self.records.iter().map(|(path, record)| {
            let dir = path.strip_suffix("/vol_data.json").expect("a record");
            let pod = dir.strip_prefix("/pods/").and_then(|rest| rest.split('/').next()).map(PodUid::new);
            let staging = match dir.strip_prefix("/devices/") {
                Some(handle) => format!("/devices/staging/{handle}"),
                None => format!("{dir}/{}", if pod.is_some() { "mount" } else { "globalmount" }),
            };
            CsiVolumeOnDisk {
                block: false,
                spec_name: record.volume_handle.clone(),
                mount_dir: staging,
                pod,
                record_path: path.clone(),
                record: match self.unreadable.contains(path) {
                    true => Err("it is no JSON".into()),
                    false => Ok(Some(record.clone())),
                },
                device: None,
            }
        });
        let linked = self.links.iter().map(|(link, place)| {
            let [uid, handle] = link.split('/').skip(2).collect::<Vec<_>>()[..] else { panic!("{link}") };
            let record_path = format!("/devices/{handle}/vol_data.json");
            CsiVolumeOnDisk {
                pod: Some(PodUid::new(uid)),
                block: true,
                spec_name: handle.to_owned(),
                mount_dir: place.clone(),
                record: Ok(self.records.get(&record_path).cloned()),
                record_path,
                device: Some(device_paths(uid, handle)),
            }
        });
        let wanted =
            |one: &CsiVolumeOnDisk| of.is_empty() || one.pod.as_ref().is_some_and(|pod| pod.as_str() == of);
        VolumeCallAnswer::Records(found.chain(linked).filter(wanted).collect())
    }

    /// The call ends well, or with this failure.
    fn end(&mut self, call: &str, failure: Option<VolumeCallFailureKind>) {
        let at = self.open.iter().position(|(_, words)| words == call);
        let (number, _) =
            self.open.remove(at.unwrap_or_else(|| panic!("{call} is not open: {:?}", self.open())));
        let result = match failure {
            Some(kind) => Err(VolumeCallFailure { kind, message: "no".into() }),
            None => Ok(match call.split_once(' ') {
                None if call == "list" => self.records(""),
                None => VolumeCallAnswer::Capabilities(NodeServiceCapabilities {
                    stage_unstage_volume: true,
                    expand_volume: true,
                    ..NodeServiceCapabilities::default()
                }),
                Some(("list", uid)) => self.records(uid),
                Some(("read" | "patch", _)) => VolumeCallAnswer::Claim(Arc::new(claim_to_expand())),
                Some(_) => VolumeCallAnswer::Done,
            }),
        };
        let effects = self.volumes.call_ended(NOW, number, result);
        self.take(effects);
    }

    /// Ends the one open call well, again and again, until it is this one, or nothing is open.
    fn until(&mut self, call: &str) {
        while let [(_, only)] = &self.open[..]
            && only != call
        {
            let only = only.clone();
            self.end(&only, None);
        }
    }

    /// Ends each call well until none is open. Returns them in their order.
    fn rest(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        while let Some((_, first)) = self.open.first().cloned() {
            self.end(&first, None);
            ended.push(first);
        }
        ended
    }

    fn set_up_device(&mut self, uid: &str, handle: &str) -> Epoch {
        self.request(uid, VolumeRequest::SetUp { volume: Box::new(device(uid, handle)) })
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }
}

#[test]
fn a_pod_that_goes_gets_nothing_more_wherever_its_set_up_is() {
    let calls = [
        "wait /pods/a/v/mount",
        "capabilities",
        "write /staged/v/vol_data.json",
        "stage v",
        "list a",
        "write /pods/a/v/vol_data.json",
        "publish /pods/a/v/mount",
        "group /pods/a/v/mount",
    ];
    for call in calls {
        let mut script = Script::default();
        let epoch = script.set_up("a", "v");
        script.until(call);
        assert_eq!(script.open(), [call]);
        script.cancel("a", epoch);
        assert_eq!(script.told(), ["a interrupted"], "{call}: nobody waits for a driver");
        let cut_short = call.starts_with("wait") || call.starts_with("group");
        assert_eq!(script.open().is_empty(), cut_short, "{call}");
        if !cut_short {
            script.end(call, None);
        }
        assert_eq!(script.open(), Vec::<&str>::new(), "{call}: nothing is begun after it");
        script.request("a", VolumeRequest::TearDown);
        script.until("");
        assert_eq!(script.told(), ["a ok"], "{call}");
        assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0), "{call}");
    }
}

#[test]
fn a_tear_down_waits_for_a_publication_and_not_for_a_staging() {
    for (call, waits) in [("stage v", false), ("publish /pods/a/v/mount", true)] {
        let mut script = Script::default();
        let epoch = script.set_up("a", "v");
        script.until(call);
        script.cancel("a", epoch);
        script.told();
        script.request("a", VolumeRequest::TearDown);
        script.end("list a", None);
        assert_eq!(script.told().is_empty(), waits, "{call}");
        assert_eq!(script.open(), [call]);
        assert_eq!(script.volumes.is_publishing(&PodUid::new("a")), waits);
        script.end(call, Some(VolumeCallFailureKind::Open));
        script.until("");
        assert_eq!(script.told().is_empty(), !waits, "{call}");
        assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0), "{call}");
    }
}

#[test]
fn one_volume_has_one_operation_at_a_time_and_others_do_not_wait() {
    let mut script = Script::default();
    script.set_up("a", "v");
    script.until("stage v");
    script.set_up("b", "v");
    script.end("wait /pods/b/v/mount", None);
    script.set_up("c", "w");
    script.end("wait /pods/c/w/mount", None);
    assert_eq!(script.open(), ["stage v", "capabilities"]);
    script.end("stage v", None);
    script.end("list a", None);
    script.end("write /pods/a/v/vol_data.json", None);
    assert!(!script.open().contains(&"list b"));
    script.end("publish /pods/a/v/mount", None);
    // The walk is the business of one pod.
    assert_eq!(script.open(), ["capabilities", "group /pods/a/v/mount", "capabilities"]);
}

#[test]
fn an_answer_that_comes_twice_or_late_changes_nothing() {
    let mut script = Script::default();
    let epoch = script.set_up("a", "v");
    let (number, _) = script.open[0];
    script.end("wait /pods/a/v/mount", None);
    let again = script.volumes.call_ended(NOW, number, Ok(VolumeCallAnswer::Done));
    assert!(again.is_empty(), "{again:?}");
    script.until("group /pods/a/v/mount");
    let (number, _) = script.open[0];
    script.cancel("a", epoch);
    let late = script.volumes.call_ended(NOW, number, Ok(VolumeCallAnswer::Done));
    assert!(late.is_empty(), "{late:?}");
    assert_eq!(script.told(), ["a interrupted"], "it has one answer");
}

#[test]
fn an_unstaging_that_failed_is_tried_again_by_a_timer() {
    let mut script = Script::default();
    script.set_up("a", "v");
    script.until("");
    script.request("a", VolumeRequest::TearDown);
    script.until("unstage v");
    script.told();
    script.end("unstage v", Some(VolumeCallFailureKind::Final));
    assert_eq!(script.told(), ["Unstage(VolumeId { driver: \"d\", handle: \"v\" })"]);
    assert_eq!(script.records.len(), 1);
    script.unstage_due("v");
    script.until("");
    assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0));
}

/// Found by the simulator (storage, seed 37): the claim of a running pod came again with another volume.
#[test]
fn a_volume_that_was_never_on_the_node_is_not_remembered() {
    let mut script = Script::default();
    script.expand("a", "v");
    let [(_, read)] = &script.open[..] else { panic!("{:?}", script.open()) };
    let read = read.clone();
    script.end(&read, Some(VolumeCallFailureKind::Open));
    assert_eq!((script.told().len(), script.volumes.remembered()), (1, 0));
}

/// Found by the engine in the simulation (storage, seed 479): an agent was restarted while a pod ran on the volume, and the
/// driver refused to stage it for a second pod.
#[test]
fn a_refusal_to_stage_removes_only_the_record_of_this_very_attempt() {
    use VolumeCallFailureKind::{Final, Open};
    // What was there before, how the attempts end, and whether the record of the staging is left.
    let rows: [(bool, Option<bool>, &[VolumeCallFailureKind], bool); 6] = [
        (true, None, &[Final], false),
        (true, None, &[Final, Final], false),
        (true, None, &[Open, Final], true),
        (true, Some(true), &[Final], true),
        // Its records can't be read.
        (true, Some(false), &[Final], true),
        // The records are not read yet: who knows.
        (false, None, &[Final], true),
    ];
    for (listed, staged_before, attempts, left) in rows {
        let mut script = Script::default();
        if let Some(readable) = staged_before {
            script = Script::set_up_by_earlier_agent("a", "v");
            let unreadable = script.records.keys().filter(|_| !readable).cloned().collect();
            script.unreadable = unreadable;
        }
        if listed {
            script.list_records();
        }
        for failure in attempts {
            script.set_up("b", "v");
            script.until("stage v");
            script.end("stage v", Some(*failure));
            script.until("");
        }
        let record = script.records.contains_key("/staged/v/vol_data.json");
        assert_eq!(record, left, "{listed} {staged_before:?} {attempts:?}");
        if staged_before.is_none() {
            script.request("b", VolumeRequest::TearDown);
            script.until("");
            assert_eq!(script.records.len(), 0, "{listed} {attempts:?}: the tear-down leaves nothing");
        }
    }
}

#[test]
fn an_unstaging_is_tried_again_when_its_driver_registers() {
    let mut script = Script::set_up_by_earlier_agent("a", "v");
    script.records.retain(|path, _| !path.starts_with("/pods"));
    let effects = script.volumes.list_records(NOW);
    script.take(effects);
    script.until("capabilities");
    script.end("capabilities", Some(VolumeCallFailureKind::NotRegistered));
    script.told();
    for driver in ["other", "d"] {
        assert_eq!(script.open(), Vec::<&str>::new());
        let effects = script.volumes.drivers_registered(NOW, &[driver.to_owned()].into());
        script.take(effects);
    }
    assert_eq!(script.open(), ["list"]);
    assert_eq!(script.told().len(), 1, "the timer is not needed any more");
    script.until("");
    assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0));
}

#[test]
fn an_expansion_that_was_cancelled_begins_nothing_more() {
    // When it is cancelled, and what is called for after that: the claim shows what the driver has done.
    let rows = [
        ("read claim", None),
        ("capabilities", None),
        ("patch claim", None),
        ("expand v", Some("patch claim")),
    ];
    for (call, after) in rows {
        let mut script = Script::default();
        let epoch = script.expand("a", "v");
        script.until(call);
        assert_eq!(script.open(), [call]);
        script.cancel("a", epoch);
        script.end(call, None);
        assert_eq!(script.open().first().copied(), after, "{call}");
        script.until("");
        assert_eq!(
            (script.told(), script.volumes.remembered()),
            (vec!["a interrupted".to_owned()], 0),
            "{call}"
        );
    }
}

/// The end of a call for one pod lets the operation of another one go on.
#[test]
fn a_panic_over_a_volume_names_the_pod_of_the_operation() {
    let mut script = Script::default();
    script.set_up("a", "v");
    script.until("publish /pods/a/v/mount");
    script.set_up("b", "v");
    script.end("wait /pods/b/v/mount", None);
    let named = |script: Script| {
        let mut state = NodeState::new(NodeConfig::default(), HostFacts::default(), Wall(0));
        state.csi_volumes = script.volumes;
        state.pod_in_step = Some("other".into());
        let record = state.panic_record("volume_call_ended", "overflow", Wall(0));
        record.pod.map(|pod| pod.uid.to_string())
    };
    // One more number for the walk of `a`. There is none for the call of `b`.
    script.volumes.numbers = u64::MAX - 1;
    let end = AssertUnwindSafe(|| script.end("publish /pods/a/v/mount", None));
    assert!(catch_unwind(end).is_err());
    assert_eq!(named(script).as_deref(), Some("b"));

    let mut script = Script::default();
    script.set_up("a", "v");
    script.until("");
    script.request("a", VolumeRequest::TearDown);
    script.until("capabilities");
    script.volumes.numbers = u64::MAX;
    assert!(catch_unwind(AssertUnwindSafe(|| script.end("capabilities", None))).is_err());
    assert_eq!(named(script), None, "an unstaging is for no pod");

    let mut script = Script::default();
    script.set_up("a", "v");
    script.until("");
    assert_eq!(named(script).as_deref(), Some("other"), "no operation has panicked");
}
