//! What can be requested for a volume, the calls that are made for it one by one, and those that set it up, from what it
//! is and what its driver can do.

use std::sync::Arc;

use model::PodUid;
use model::csi::{
    AccessMode, ClaimObject, CsiAccessMode, CsiVolume, CsiVolumeOnDisk, Expansion, NodeExpandCall,
    NodePublishCall, NodeServiceCapabilities, NodeStageCall, SecretMap, VolumeAccessType, VolumeCapability,
    VolumeRecord,
};
use model::k8s::PersistentVolumeClaim;
use serde::{Deserialize, Serialize};

use crate::action::Epoch;

/// Number of a call. Grows; an answer with an unknown one is late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VolumeCallId(pub u64);

/// The requester of an operation, which waits for its outcome.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VolumeRequestId {
    pub uid: PodUid,
    pub from: VolumeRequestFrom,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum VolumeRequestFrom {
    /// An action of the pod's plan.
    Plan { epoch: Epoch, stage: usize, action: usize },
    /// The sweep over leftovers of unknown pods.
    Sweep,
}

/// What is wanted for a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeRequest {
    SetUp {
        volume: Box<CsiVolume>,
    },
    Expand {
        volume: Box<CsiVolume>,
        expansion: Box<Expansion>,
    },
    /// Of everything that drivers have published for the pod. Goes on past failures.
    TearDown,
}

/// One call to a disk, a storage driver or the API server about a volume. The engine makes it and tells how it ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeCall {
    /// The records of all volumes on the node. The answer is [`VolumeCallAnswer::Records`].
    ListRecords,
    /// Those of one pod.
    ListPodRecords {
        uid: PodUid,
    },
    /// Ends when nothing that was begun for the volume at this place is at work any more. May be cancelled.
    WaitForEarlierWork {
        place: String,
    },
    MakeDir {
        path: String,
    },
    WriteRecord {
        path: String,
        record: VolumeRecord,
    },
    /// The place, then its record. Refused while something is mounted there.
    Remove {
        place: String,
        record: Option<String>,
    },
    /// Gives all files of a volume to a group. May be cancelled.
    ApplyGroup {
        path: String,
        group: i64,
        on_root_mismatch: bool,
    },
    LinkDevice {
        device: String,
        link: String,
    },
    UnlinkDevice {
        link: String,
    },
    /// Bind-mounts a published device in the global map directory, and pins it with a loop device.
    MapDevice {
        device: String,
        map: String,
    },
    /// Undoes [`VolumeCall::MapDevice`], however far that came.
    UnmapDevice {
        map: String,
    },
    /// The answer is [`VolumeCallAnswer::Capabilities`].
    NodeGetCapabilities {
        driver: String,
    },
    NodeStageVolume {
        driver: String,
        call: NodeStageCall,
    },
    NodePublishVolume {
        driver: String,
        call: NodePublishCall,
    },
    NodeUnpublishVolume {
        driver: String,
        handle: String,
        target: String,
    },
    NodeUnstageVolume {
        driver: String,
        handle: String,
        staging: String,
    },
    NodeExpandVolume {
        driver: String,
        call: NodeExpandCall,
    },
    /// The answer is [`VolumeCallAnswer::Claim`].
    ReadClaim {
        claim: ClaimObject,
    },
    /// The answer is [`VolumeCallAnswer::Claim`], as it is afterwards.
    PatchClaimStatus {
        claim: ClaimObject,
        patch: serde_json::Value,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum VolumeCallAnswer {
    Done,
    Records(Vec<CsiVolumeOnDisk>),
    Capabilities(NodeServiceCapabilities),
    Claim(Arc<PersistentVolumeClaim>),
}

/// Why a call failed, in the words of whoever was called.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCallFailure {
    pub kind: VolumeCallFailureKind,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeCallFailureKind {
    /// The driver is not there.
    NotRegistered,
    /// Whoever was called may still be at work.
    Open,
    /// The driver has not done it, and is not at it any more.
    Final,
    /// As `Final`, and it never will.
    Infeasible,
    /// As `Final`: the driver does not do it while the volume is in use.
    InUse,
}

impl VolumeCallFailure {
    /// The driver has said that it did not do it, and is not at it any more.
    pub fn is_final(&self) -> bool {
        use VolumeCallFailureKind::{Final, InUse, Infeasible};
        matches!(self.kind, Final | Infeasible | InUse)
    }
}

pub type VolumeCallResult = Result<VolumeCallAnswer, VolumeCallFailure>;

/// In this order. What is `None` is not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeCalls {
    pub stage: Option<NodeStageCall>,
    /// Written before the first call.
    pub stage_record: Option<VolumeRecord>,
    pub record: VolumeRecord,
    pub publish: NodePublishCall,
    /// Files get this group by the agent; with `true` only if the volume's root has not got it.
    pub group: Option<(i64, bool)>,
}

pub fn node_calls(volume: &CsiVolume, can: NodeServiceCapabilities) -> NodeCalls {
    let block = volume.access == VolumeAccessType::Block;
    let staged = !volume.ephemeral && can.stage_unstage_volume;
    let capability = capability(volume, can);
    let short = VolumeRecord {
        driver_name: volume.id.driver.clone(),
        volume_handle: volume.id.handle.clone(),
        se_linux_mount_context: volume.selinux_context.clone(),
        ..VolumeRecord::default()
    };
    let lifecycle = if volume.ephemeral { "Ephemeral" } else { "Persistent" };
    let record = VolumeRecord {
        spec_vol_id: volume.spec_name.clone(),
        node_name: volume.node_name.clone(),
        attachment_id: volume.attachment_name.clone(),
        // Upstream's record of a device does not tell.
        volume_lifecycle_mode: if block { String::new() } else { lifecycle.to_owned() },
        ..short.clone()
    };
    let staging = if staged || block { volume.paths.staging.clone() } else { String::new() };
    let mut attributes = volume.volume_attributes.clone();
    attributes.extend(volume.pod_attributes.0.clone());
    NodeCalls {
        stage: staged.then(|| NodeStageCall {
            handle: volume.id.handle.clone(),
            publish_context: volume.publish_context.clone(),
            staging: volume.paths.staging.clone(),
            capability: capability.clone(),
            secrets: volume.stage_secrets.clone(),
            attributes: volume.volume_attributes.clone(),
        }),
        // One record serves both uses of a device.
        stage_record: if block { Some(record.clone()) } else { staged.then_some(short) },
        record,
        publish: NodePublishCall {
            handle: volume.id.handle.clone(),
            publish_context: volume.publish_context.clone(),
            staging,
            target: volume.paths.target.clone(),
            capability,
            read_only: volume.read_only,
            secrets: volume.publish_secrets.clone(),
            attributes: SecretMap(attributes),
        },
        group: volume
            .fs_group
            .as_ref()
            .filter(|group| group.by_agent && !can.volume_mount_group && !block)
            .map(|group| (group.id, group.on_root_mismatch)),
    }
}

pub(super) fn capability(volume: &CsiVolume, can: NodeServiceCapabilities) -> VolumeCapability {
    let mount_group = volume.fs_group.as_ref().filter(|_| can.volume_mount_group).map(|group| group.id);
    let mode = match (volume.access_mode, can.single_node_multi_writer) {
        (AccessMode::ReadWriteOnce, true) => CsiAccessMode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, true) => CsiAccessMode::SingleNodeSingleWriter,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod, false) => CsiAccessMode::SingleNodeWriter,
        (AccessMode::ReadOnlyMany, _) => CsiAccessMode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteMany, _) => CsiAccessMode::MultiNodeMultiWriter,
    };
    VolumeCapability { access: volume.access.clone(), mode, mount_group }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::csi::{CsiVolumePaths, FsGroup, VolumeId};

    fn volume() -> CsiVolume {
        CsiVolume {
            id: VolumeId { driver: "d".into(), handle: "h".into() },
            spec_name: "pv".into(),
            ephemeral: false,
            access: VolumeAccessType::Mount { fs_type: "ext4".into(), flags: vec!["noatime".into()] },
            access_mode: AccessMode::ReadWriteOnce,
            read_only: false,
            node_name: "n".into(),
            attachment_name: "csi-1".into(),
            publish_context: [("device".to_owned(), "/dev/x".to_owned())].into(),
            volume_attributes: [("a".to_owned(), "1".to_owned())].into(),
            pod_attributes: SecretMap([("pod".to_owned(), "p".to_owned())].into()),
            stage_secrets: SecretMap([("s".to_owned(), "stage".to_owned())].into()),
            publish_secrets: SecretMap([("s".to_owned(), "publish".to_owned())].into()),
            fs_group: None,
            selinux_context: String::new(),
            paths: CsiVolumePaths { staging: "/s".into(), target: "/t".into(), ..CsiVolumePaths::default() },
            requires_republish: false,
        }
    }

    const NOTHING: NodeServiceCapabilities = NodeServiceCapabilities {
        stage_unstage_volume: false,
        single_node_multi_writer: false,
        volume_mount_group: false,
        expand_volume: false,
        get_volume_stats: false,
        volume_condition: false,
    };

    #[test]
    fn staging_is_for_persistent_volumes_of_drivers_that_stage() {
        let check = |ephemeral: bool, stage: bool, staged: bool| {
            let made = node_calls(
                &CsiVolume { ephemeral, ..volume() },
                NodeServiceCapabilities { stage_unstage_volume: stage, ..NOTHING },
            );
            assert_eq!(made.stage.is_some(), staged, "{ephemeral} {stage}");
            assert_eq!(made.stage_record.is_some(), staged, "{ephemeral} {stage}");
            assert_eq!(made.publish.staging, if staged { "/s" } else { "" }, "{ephemeral} {stage}");
            let mode = if ephemeral { "Ephemeral" } else { "Persistent" };
            assert_eq!(made.record.volume_lifecycle_mode, mode);
        };
        check(false, true, true);
        check(false, false, false);
        check(true, true, false);
        check(true, false, false);
    }

    #[test]
    fn each_call_gets_its_own_secrets_and_attributes() {
        let made = node_calls(&volume(), NodeServiceCapabilities { stage_unstage_volume: true, ..NOTHING });
        let stage = made.stage.unwrap();
        assert_eq!(stage.secrets.0["s"], "stage");
        assert_eq!(stage.attributes.keys().collect::<Vec<_>>(), ["a"], "a stage is of no pod");
        assert_eq!(made.publish.secrets.0["s"], "publish");
        assert_eq!(made.publish.attributes.0.keys().collect::<Vec<_>>(), ["a", "pod"]);
        assert_eq!(stage.publish_context, made.publish.publish_context);
        assert_eq!((made.record.attachment_id.as_str(), made.record.spec_vol_id.as_str()), ("csi-1", "pv"));
    }

    #[test]
    fn access_modes_depend_on_what_the_driver_can_tell_apart() {
        let check = |mode: AccessMode, single_node_multi_writer: bool, expect: CsiAccessMode| {
            let can = NodeServiceCapabilities { single_node_multi_writer, ..NOTHING };
            let made = node_calls(&CsiVolume { access_mode: mode, ..volume() }, can);
            assert_eq!(made.publish.capability.mode, expect, "{mode:?} {single_node_multi_writer}");
        };
        check(AccessMode::ReadWriteOnce, false, CsiAccessMode::SingleNodeWriter);
        check(AccessMode::ReadWriteOnce, true, CsiAccessMode::SingleNodeMultiWriter);
        check(AccessMode::ReadWriteOncePod, false, CsiAccessMode::SingleNodeWriter);
        check(AccessMode::ReadWriteOncePod, true, CsiAccessMode::SingleNodeSingleWriter);
        for can in [false, true] {
            check(AccessMode::ReadOnlyMany, can, CsiAccessMode::MultiNodeReaderOnly);
            check(AccessMode::ReadWriteMany, can, CsiAccessMode::MultiNodeMultiWriter);
        }
    }

    #[test]
    fn the_group_is_the_drivers_or_ours_and_never_both() {
        let check = |by_agent: bool, mount_group: bool, ours: bool, theirs: bool| {
            let group = Some(FsGroup { id: 7, by_agent, on_root_mismatch: true });
            let made = node_calls(
                &CsiVolume { fs_group: group, ..volume() },
                NodeServiceCapabilities { volume_mount_group: mount_group, ..NOTHING },
            );
            assert_eq!(made.group, ours.then_some((7, true)), "{by_agent} {mount_group}");
            assert_eq!(made.publish.capability.mount_group.is_some(), theirs, "{by_agent} {mount_group}");
        };
        check(true, false, true, false);
        check(true, true, false, true);
        check(false, true, false, true);
        check(false, false, false, false);
        assert_eq!(node_calls(&volume(), NOTHING).group, None);
    }

    #[test]
    fn the_label_of_a_mount_is_on_record() {
        let label = "u:r:t:s0:c1,c2".to_owned();
        let made = node_calls(
            &CsiVolume { selinux_context: label.clone(), ..volume() },
            NodeServiceCapabilities { stage_unstage_volume: true, ..NOTHING },
        );
        assert_eq!(made.record.se_linux_mount_context, label);
        assert_eq!(made.stage_record.unwrap().se_linux_mount_context, label);
    }

    #[test]
    fn a_device_has_one_record_and_no_group() {
        let group = Some(FsGroup { id: 7, by_agent: true, on_root_mismatch: false });
        let block = CsiVolume { access: VolumeAccessType::Block, fs_group: group, ..volume() };
        let made = node_calls(&block, NOTHING);
        assert_eq!(made.group, None);
        assert_eq!(made.stage, None);
        assert_eq!(made.stage_record.as_ref(), Some(&made.record));
        assert_eq!(made.publish.staging, "/s", "told although it is not staged, as upstream does");
        assert_eq!(made.record.volume_lifecycle_mode, "");
    }
}
