//! From our nouns to the interface's messages and back.

use std::collections::BTreeMap;

use model::csi::{
    Abilities, Access, Amounts, Capability, CapabilityMode, Condition, DriverNode, Expand, Publish, Secrets,
    Stage, Told,
};

use crate::csi as pb;
use pb::node_service_capability::rpc::Type as Ability;
use pb::volume_capability::access_mode::Mode;
use pb::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

pub(crate) fn stage(call: &Stage) -> pb::NodeStageVolumeRequest {
    pb::NodeStageVolumeRequest {
        volume_id: call.handle.clone(),
        publish_context: call.publish_context.clone(),
        staging_target_path: call.staging.clone(),
        volume_capability: Some(capability(&call.capability)),
        secrets: plain(&call.secrets),
        volume_context: call.attributes.clone(),
    }
}

pub(crate) fn publish(call: &Publish) -> pb::NodePublishVolumeRequest {
    pb::NodePublishVolumeRequest {
        volume_id: call.handle.clone(),
        publish_context: call.publish_context.clone(),
        staging_target_path: call.staging.clone(),
        target_path: call.target.clone(),
        volume_capability: Some(capability(&call.capability)),
        readonly: call.read_only,
        secrets: plain(&call.secrets),
        volume_context: plain(&call.attributes),
    }
}

pub(crate) fn expand(call: &Expand) -> pb::NodeExpandVolumeRequest {
    pb::NodeExpandVolumeRequest {
        volume_id: call.handle.clone(),
        volume_path: call.target.clone(),
        capacity_range: Some(pb::CapacityRange { required_bytes: call.bytes, limit_bytes: 0 }),
        staging_target_path: call.staging.clone(),
        volume_capability: Some(capability(&call.capability)),
        secrets: plain(&call.secrets),
    }
}

fn plain(secrets: &Secrets) -> BTreeMap<String, String> {
    secrets.0.clone()
}

fn capability(wanted: &Capability) -> pb::VolumeCapability {
    let access_type = match &wanted.access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: wanted.mount_group.map(|group| group.to_string()).unwrap_or_default(),
        }),
    };
    let mode = match wanted.mode {
        CapabilityMode::SingleNodeWriter => Mode::SingleNodeWriter,
        CapabilityMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        CapabilityMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        CapabilityMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        CapabilityMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
    };
    pb::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn abilities(answer: &pb::NodeGetCapabilitiesResponse) -> Abilities {
    let mut found = Abilities::default();
    for capability in &answer.capabilities {
        let Some(pb::node_service_capability::Type::Rpc(rpc)) = &capability.r#type else { continue };
        match rpc.r#type() {
            Ability::Unknown => {}
            Ability::StageUnstageVolume => found.stage = true,
            Ability::GetVolumeStats => found.stats = true,
            Ability::ExpandVolume => found.expand = true,
            Ability::VolumeCondition => found.condition = true,
            Ability::SingleNodeMultiWriter => found.single_node_multi_writer = true,
            Ability::VolumeMountGroup => found.mount_group = true,
        }
    }
    found
}

pub(crate) fn driver_node(answer: pb::NodeGetInfoResponse) -> DriverNode {
    DriverNode {
        node_id: answer.node_id,
        max_volumes: answer.max_volumes_per_node,
        topology: answer.accessible_topology.map(|topology| topology.segments).unwrap_or_default(),
    }
}

/// The last of each unit counts. What is less than nothing is nothing.
pub(crate) fn told(answer: pb::NodeGetVolumeStatsResponse) -> Told {
    use pb::volume_usage::Unit;
    let number = |told: i64| u64::try_from(told).unwrap_or(0);
    let mut told = Told::default();
    for usage in &answer.usage {
        let amounts = Amounts {
            total: number(usage.total),
            used: number(usage.used),
            available: number(usage.available),
        };
        match usage.unit() {
            Unit::Unknown => {}
            Unit::Bytes => told.bytes = Some(amounts),
            Unit::Inodes => told.inodes = Some(amounts),
        }
    }
    let condition = answer.volume_condition.unwrap_or_default();
    told.condition = Condition { abnormal: condition.abnormal, message: condition.message };
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_can_do_is_read_and_the_unknown_is_overlooked() {
        let ability = |number: i32| pb::NodeServiceCapability {
            r#type: Some(pb::node_service_capability::Type::Rpc(pb::node_service_capability::Rpc {
                r#type: number,
            })),
        };
        let check = |numbers: &[i32], expect: Abilities| {
            let answer = pb::NodeGetCapabilitiesResponse {
                capabilities: numbers.iter().map(|n| ability(*n)).collect(),
            };
            assert_eq!(abilities(&answer), expect, "{numbers:?}");
        };
        check(&[], Abilities::default());
        check(&[0, 77, -1], Abilities::default());
        check(&[1], Abilities { stage: true, ..Default::default() });
        check(&[2, 3, 4], Abilities { stats: true, expand: true, condition: true, ..Default::default() });
        check(&[5, 6], Abilities { single_node_multi_writer: true, mount_group: true, ..Default::default() });
    }

    #[test]
    fn figures_are_read_by_their_units() {
        let usage =
            |unit: i32, [total, used, available]: [i64; 3]| pb::VolumeUsage { available, total, used, unit };
        let check = |usage: Vec<pb::VolumeUsage>, bytes: Option<[u64; 3]>, inodes: Option<[u64; 3]>| {
            let amounts = |[total, used, available]: [u64; 3]| Amounts { total, used, available };
            let found = told(pb::NodeGetVolumeStatsResponse { usage, volume_condition: None });
            let expect = Told {
                bytes: bytes.map(amounts),
                inodes: inodes.map(amounts),
                condition: Condition::default(),
            };
            assert_eq!(found, expect);
        };
        check(vec![], None, None);
        check(vec![usage(1, [9, 4, 5])], Some([9, 4, 5]), None);
        check(vec![usage(2, [3, 2, 1]), usage(1, [9, 4, -1])], Some([9, 4, 0]), Some([3, 2, 1]));
        check(vec![usage(0, [1, 1, 1]), usage(77, [1, 1, 1])], None, None);
        let condition = pb::VolumeCondition { abnormal: true, message: "torn".into() };
        let found = told(pb::NodeGetVolumeStatsResponse { usage: vec![], volume_condition: Some(condition) });
        assert_eq!(found.condition, Condition { abnormal: true, message: "torn".into() });
    }

    #[test]
    fn capabilities_have_the_numbers_of_the_interface() {
        let check = |mode: CapabilityMode, number: i32| {
            let wanted = Capability { access: Access::Block, mode, mount_group: Some(7) };
            let sent = capability(&wanted);
            assert_eq!(sent.access_mode.map(|m| m.mode), Some(number));
            assert_eq!(sent.access_type, Some(AccessType::Block(BlockVolume {})));
        };
        check(CapabilityMode::SingleNodeWriter, 1);
        check(CapabilityMode::MultiNodeReaderOnly, 3);
        check(CapabilityMode::MultiNodeMultiWriter, 5);
        check(CapabilityMode::SingleNodeSingleWriter, 6);
        check(CapabilityMode::SingleNodeMultiWriter, 7);
        let mount = Access::Mount { fs_type: "ext4".into(), flags: vec!["noatime".into()] };
        let wanted =
            Capability { access: mount, mode: CapabilityMode::SingleNodeWriter, mount_group: Some(7) };
        let expect = MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["noatime".into()],
            volume_mount_group: "7".into(),
        };
        assert_eq!(capability(&wanted).access_type, Some(AccessType::Mount(expect)));
    }
}
