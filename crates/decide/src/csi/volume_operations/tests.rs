//! What is called for, in which order, for inputs that only a script can put together.

use std::collections::BTreeMap;

use model::csi::{
    AccessMode, CsiVolume, CsiVolumeOnDisk, CsiVolumePaths, FsGroup, NodeServiceCapabilities,
    VolumeAccessType, VolumeId, VolumeRecord,
};
use model::{Mono, Now, PodUid, Wall};

use super::*;

const NOW: Now = Now { mono: Mono(0), wall: Wall(0) };

/// The volumes, and calls that are open: by their words, in the order in which they came.
#[derive(Default)]
struct Script {
    volumes: CsiVolumes,
    open: Vec<(VolumeCallId, String)>,
    told: Vec<String>,
    epochs: u64,
    records: BTreeMap<String, VolumeRecord>,
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
            link: None,
        },
        requires_republish: false,
    }
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
        other => format!("{other:?}"),
    }
}

impl Script {
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::CallVolume { id, call } => {
                    match &call {
                        VolumeCall::WriteRecord { path, record } => {
                            self.records.insert(path.clone(), record.clone());
                        }
                        VolumeCall::Remove { record: Some(path), .. } => drop(self.records.remove(path)),
                        _ => {}
                    }
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
            CsiVolumeOnDisk {
                block: false,
                spec_name: record.volume_handle.clone(),
                mount_dir: format!("{dir}/{}", if pod.is_some() { "mount" } else { "globalmount" }),
                pod,
                record_path: path.clone(),
                record: Ok(Some(record.clone())),
                link: None,
            }
        });
        let wanted =
            |one: &CsiVolumeOnDisk| of.is_empty() || one.pod.as_ref().is_some_and(|pod| pod.as_str() == of);
        VolumeCallAnswer::Records(found.filter(wanted).collect())
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
                    ..NodeServiceCapabilities::default()
                }),
                Some(("list", uid)) => self.records(uid),
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
    let effects = script.volumes.unstage_due(NOW, &id("v"));
    script.take(effects);
    script.until("");
    assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0));
}

/// Found by the simulator (storage, seed 37): the claim of a running pod came again with another volume.
#[test]
fn a_volume_that_was_never_on_the_node_is_not_remembered() {
    let mut script = Script::default();
    let expansion = Expansion {
        claim: model::csi::ClaimObject { namespace: "ns".into(), name: "c".into(), uid: "u".into() },
        size: "2Gi".into(),
        secrets: Default::default(),
        version: "1".into(),
        online: true,
    };
    let what = VolumeRequest::Expand { volume: Box::new(volume("a", "v")), expansion: Box::new(expansion) };
    script.request("a", what);
    let [(_, read)] = &script.open[..] else { panic!("{:?}", script.open()) };
    let read = read.clone();
    script.end(&read, Some(VolumeCallFailureKind::Open));
    assert_eq!((script.told().len(), script.volumes.remembered()), (1, 0));
}
