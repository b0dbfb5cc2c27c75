//! The calls that are made for a volume, one by one, and those that set it up, from what it is and what its driver can do.

use std::sync::Arc;

use model::PodUid;
use model::csi::{
    Abilities, Access, AccessMode, Capability, CapabilityMode, ClaimObject, CsiVolume, Expand, FoundVolume,
    Publish, Secrets, Stage, VolumeRecord,
};
use model::k8s::PersistentVolumeClaim;
use serde::{Deserialize, Serialize};

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
    /// The answer is [`VolumeCallAnswer::Capabilities`].
    NodeGetCapabilities {
        driver: String,
    },
    NodeStageVolume {
        driver: String,
        call: Stage,
    },
    NodePublishVolume {
        driver: String,
        call: Publish,
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
        call: Expand,
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
    Records(Vec<FoundVolume>),
    Capabilities(Abilities),
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
pub struct Calls {
    pub stage: Option<Stage>,
    /// Written before the first call.
    pub stage_record: Option<VolumeRecord>,
    pub record: VolumeRecord,
    pub publish: Publish,
    /// Files get this group by the agent; with `true` only if the volume's root has not got it.
    pub group: Option<(i64, bool)>,
}

pub fn calls(volume: &CsiVolume, can: Abilities) -> Calls {
    let block = volume.access == Access::Block;
    let staged = !volume.ephemeral && can.stage;
    let capability = capability(volume, can);
    let short = VolumeRecord {
        driver_name: volume.id.driver.clone(),
        volume_handle: volume.id.handle.clone(),
        se_linux_mount_context: volume.label.clone(),
        ..VolumeRecord::default()
    };
    let lifecycle = if volume.ephemeral { "Ephemeral" } else { "Persistent" };
    let record = VolumeRecord {
        spec_vol_id: volume.spec_name.clone(),
        node_name: volume.node.clone(),
        attachment_id: volume.attachment.clone(),
        // Upstream's record of a device does not tell.
        volume_lifecycle_mode: if block { String::new() } else { lifecycle.to_owned() },
        ..short.clone()
    };
    let staging = if staged || block { volume.paths.staging.clone() } else { String::new() };
    let mut attributes = volume.attributes.clone();
    attributes.extend(volume.pod_attributes.0.clone());
    Calls {
        stage: staged.then(|| Stage {
            handle: volume.id.handle.clone(),
            publish_context: volume.publish_context.clone(),
            staging: volume.paths.staging.clone(),
            capability: capability.clone(),
            secrets: volume.stage_secrets.clone(),
            attributes: volume.attributes.clone(),
        }),
        // One record serves both uses of a device.
        stage_record: if block { Some(record.clone()) } else { staged.then_some(short) },
        record,
        publish: Publish {
            handle: volume.id.handle.clone(),
            publish_context: volume.publish_context.clone(),
            staging,
            target: volume.paths.target.clone(),
            capability,
            read_only: volume.read_only,
            secrets: volume.publish_secrets.clone(),
            attributes: Secrets(attributes),
        },
        group: volume
            .group
            .as_ref()
            .filter(|group| group.by_agent && !can.mount_group && !block)
            .map(|group| (group.id, group.on_root_mismatch)),
    }
}

pub(super) fn capability(volume: &CsiVolume, can: Abilities) -> Capability {
    let mount_group = volume.group.as_ref().filter(|_| can.mount_group).map(|group| group.id);
    let mode = match (volume.mode, can.single_node_multi_writer) {
        (AccessMode::ReadWriteOnce, true) => CapabilityMode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, true) => CapabilityMode::SingleNodeSingleWriter,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod, false) => CapabilityMode::SingleNodeWriter,
        (AccessMode::ReadOnlyMany, _) => CapabilityMode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteMany, _) => CapabilityMode::MultiNodeMultiWriter,
    };
    Capability { access: volume.access.clone(), mode, mount_group }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::csi::{Group, Paths, VolumeId};

    fn volume() -> CsiVolume {
        CsiVolume {
            id: VolumeId { driver: "d".into(), handle: "h".into() },
            spec_name: "pv".into(),
            ephemeral: false,
            access: Access::Mount { fs_type: "ext4".into(), flags: vec!["noatime".into()] },
            mode: AccessMode::ReadWriteOnce,
            read_only: false,
            node: "n".into(),
            attachment: "csi-1".into(),
            publish_context: [("device".to_owned(), "/dev/x".to_owned())].into(),
            attributes: [("a".to_owned(), "1".to_owned())].into(),
            pod_attributes: Secrets([("pod".to_owned(), "p".to_owned())].into()),
            stage_secrets: Secrets([("s".to_owned(), "stage".to_owned())].into()),
            publish_secrets: Secrets([("s".to_owned(), "publish".to_owned())].into()),
            group: None,
            label: String::new(),
            paths: Paths { staging: "/s".into(), target: "/t".into(), ..Paths::default() },
            republish: false,
        }
    }

    const NOTHING: Abilities = Abilities {
        stage: false,
        single_node_multi_writer: false,
        mount_group: false,
        expand: false,
        stats: false,
        condition: false,
    };

    #[test]
    fn staging_is_for_persistent_volumes_of_drivers_that_stage() {
        let check = |ephemeral: bool, stage: bool, staged: bool| {
            let made = calls(&CsiVolume { ephemeral, ..volume() }, Abilities { stage, ..NOTHING });
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
        let made = calls(&volume(), Abilities { stage: true, ..NOTHING });
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
        let check = |mode: AccessMode, single_node_multi_writer: bool, expect: CapabilityMode| {
            let can = Abilities { single_node_multi_writer, ..NOTHING };
            let made = calls(&CsiVolume { mode, ..volume() }, can);
            assert_eq!(made.publish.capability.mode, expect, "{mode:?} {single_node_multi_writer}");
        };
        check(AccessMode::ReadWriteOnce, false, CapabilityMode::SingleNodeWriter);
        check(AccessMode::ReadWriteOnce, true, CapabilityMode::SingleNodeMultiWriter);
        check(AccessMode::ReadWriteOncePod, false, CapabilityMode::SingleNodeWriter);
        check(AccessMode::ReadWriteOncePod, true, CapabilityMode::SingleNodeSingleWriter);
        for can in [false, true] {
            check(AccessMode::ReadOnlyMany, can, CapabilityMode::MultiNodeReaderOnly);
            check(AccessMode::ReadWriteMany, can, CapabilityMode::MultiNodeMultiWriter);
        }
    }

    #[test]
    fn the_group_is_the_drivers_or_ours_and_never_both() {
        let check = |by_agent: bool, mount_group: bool, ours: bool, theirs: bool| {
            let group = Some(Group { id: 7, by_agent, on_root_mismatch: true });
            let made = calls(&CsiVolume { group, ..volume() }, Abilities { mount_group, ..NOTHING });
            assert_eq!(made.group, ours.then_some((7, true)), "{by_agent} {mount_group}");
            assert_eq!(made.publish.capability.mount_group.is_some(), theirs, "{by_agent} {mount_group}");
        };
        check(true, false, true, false);
        check(true, true, false, true);
        check(false, true, false, true);
        check(false, false, false, false);
        assert_eq!(calls(&volume(), NOTHING).group, None);
    }

    #[test]
    fn the_label_of_a_mount_is_on_record() {
        let label = "u:r:t:s0:c1,c2".to_owned();
        let made =
            calls(&CsiVolume { label: label.clone(), ..volume() }, Abilities { stage: true, ..NOTHING });
        assert_eq!(made.record.se_linux_mount_context, label);
        assert_eq!(made.stage_record.unwrap().se_linux_mount_context, label);
    }

    #[test]
    fn a_device_has_one_record_and_no_group() {
        let group = Some(Group { id: 7, by_agent: true, on_root_mismatch: false });
        let block = CsiVolume { access: Access::Block, group, ..volume() };
        let made = calls(&block, NOTHING);
        assert_eq!(made.group, None);
        assert_eq!(made.stage, None);
        assert_eq!(made.stage_record.as_ref(), Some(&made.record));
        assert_eq!(made.publish.staging, "/s", "told although it is not staged, as upstream does");
        assert_eq!(made.record.volume_lifecycle_mode, "");
    }
}
