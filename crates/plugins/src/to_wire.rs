//! From our nouns to the interface's messages and back.

use std::collections::BTreeMap;

use model::csi::{
    CsiAccessMode, DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall,
    NodeVolumeStats, SecretMap, VolumeAccessType, VolumeCapability, VolumeCondition, VolumeUsage,
};
use model::text_limits::{TextLimit, truncate_text};

use crate::csi as pb;
use pb::node_service_capability::rpc::Type as Ability;
use pb::volume_capability::access_mode::Mode;
use pb::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

pub(crate) fn stage_request(call: &NodeStageCall) -> pb::NodeStageVolumeRequest {
    pb::NodeStageVolumeRequest {
        volume_id: call.handle.clone(),
        publish_context: call.publish_context.clone(),
        staging_target_path: call.staging.clone(),
        volume_capability: Some(capability(&call.capability)),
        secrets: plain(&call.secrets),
        volume_context: call.attributes.clone(),
    }
}

pub(crate) fn publish_request(call: &NodePublishCall) -> pb::NodePublishVolumeRequest {
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

pub(crate) fn expand_request(call: &NodeExpandCall) -> pb::NodeExpandVolumeRequest {
    pb::NodeExpandVolumeRequest {
        volume_id: call.handle.clone(),
        volume_path: call.target.clone(),
        capacity_range: Some(pb::CapacityRange { required_bytes: call.bytes, limit_bytes: 0 }),
        staging_target_path: call.staging.clone(),
        volume_capability: Some(capability(&call.capability)),
        secrets: plain(&call.secrets),
    }
}

fn plain(secrets: &SecretMap) -> BTreeMap<String, String> {
    secrets.0.clone()
}

fn capability(wanted: &VolumeCapability) -> pb::VolumeCapability {
    let access_type = match &wanted.access {
        VolumeAccessType::Block => AccessType::Block(BlockVolume {}),
        VolumeAccessType::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: wanted.mount_group.map(|group| group.to_string()).unwrap_or_default(),
        }),
    };
    let mode = match wanted.mode {
        CsiAccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        CsiAccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        CsiAccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        CsiAccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        CsiAccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
    };
    pb::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn node_capabilities(answer: &pb::NodeGetCapabilitiesResponse) -> NodeServiceCapabilities {
    let mut found = NodeServiceCapabilities::default();
    for capability in &answer.capabilities {
        let Some(pb::node_service_capability::Type::Rpc(rpc)) = &capability.r#type else { continue };
        match rpc.r#type() {
            Ability::Unknown => {}
            Ability::StageUnstageVolume => found.stage_unstage_volume = true,
            Ability::GetVolumeStats => found.get_volume_stats = true,
            Ability::ExpandVolume => found.expand_volume = true,
            Ability::VolumeCondition => found.volume_condition = true,
            Ability::SingleNodeMultiWriter => found.single_node_multi_writer = true,
            Ability::VolumeMountGroup => found.volume_mount_group = true,
        }
    }
    found
}

pub(crate) fn node_info(answer: pb::NodeGetInfoResponse) -> DriverNodeInfo {
    DriverNodeInfo {
        node_id: answer.node_id,
        max_volumes: answer.max_volumes_per_node,
        topology: answer.accessible_topology.map(|topology| topology.segments).unwrap_or_default(),
    }
}

/// The last of each unit counts. What is less than nothing is nothing.
pub(crate) fn volume_stats(answer: pb::NodeGetVolumeStatsResponse) -> NodeVolumeStats {
    use pb::volume_usage::Unit;
    let number = |told: i64| u64::try_from(told).unwrap_or(0);
    let mut told = NodeVolumeStats::default();
    for usage in &answer.usage {
        let amounts = VolumeUsage {
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
    told.condition = VolumeCondition {
        abnormal: condition.abnormal,
        message: truncate_text(condition.message, TextLimit::PluginMessage),
    };
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
        let check = |numbers: &[i32], expect: NodeServiceCapabilities| {
            let answer = pb::NodeGetCapabilitiesResponse {
                capabilities: numbers.iter().map(|n| ability(*n)).collect(),
            };
            assert_eq!(node_capabilities(&answer), expect, "{numbers:?}");
        };
        check(&[], NodeServiceCapabilities::default());
        check(&[0, 77, -1], NodeServiceCapabilities::default());
        check(&[1], NodeServiceCapabilities { stage_unstage_volume: true, ..Default::default() });
        check(
            &[2, 3, 4],
            NodeServiceCapabilities {
                get_volume_stats: true,
                expand_volume: true,
                volume_condition: true,
                ..Default::default()
            },
        );
        check(
            &[5, 6],
            NodeServiceCapabilities {
                single_node_multi_writer: true,
                volume_mount_group: true,
                ..Default::default()
            },
        );
    }

    #[test]
    fn figures_are_read_by_their_units() {
        let usage =
            |unit: i32, [total, used, available]: [i64; 3]| pb::VolumeUsage { available, total, used, unit };
        let check = |usage: Vec<pb::VolumeUsage>, bytes: Option<[u64; 3]>, inodes: Option<[u64; 3]>| {
            let amounts = |[total, used, available]: [u64; 3]| VolumeUsage { total, used, available };
            let found = volume_stats(pb::NodeGetVolumeStatsResponse { usage, volume_condition: None });
            let expect = NodeVolumeStats {
                bytes: bytes.map(amounts),
                inodes: inodes.map(amounts),
                condition: VolumeCondition::default(),
            };
            assert_eq!(found, expect);
        };
        check(vec![], None, None);
        check(vec![usage(1, [9, 4, 5])], Some([9, 4, 5]), None);
        check(vec![usage(2, [3, 2, 1]), usage(1, [9, 4, -1])], Some([9, 4, 0]), Some([3, 2, 1]));
        check(vec![usage(0, [1, 1, 1]), usage(77, [1, 1, 1])], None, None);
        let condition = pb::VolumeCondition { abnormal: true, message: "torn".into() };
        let found =
            volume_stats(pb::NodeGetVolumeStatsResponse { usage: vec![], volume_condition: Some(condition) });
        assert_eq!(found.condition, VolumeCondition { abnormal: true, message: "torn".into() });
    }

    #[test]
    fn capabilities_have_the_numbers_of_the_interface() {
        let check = |mode: CsiAccessMode, number: i32| {
            let wanted = VolumeCapability { access: VolumeAccessType::Block, mode, mount_group: Some(7) };
            let sent = capability(&wanted);
            assert_eq!(sent.access_mode.map(|m| m.mode), Some(number));
            assert_eq!(sent.access_type, Some(AccessType::Block(BlockVolume {})));
        };
        check(CsiAccessMode::SingleNodeWriter, 1);
        check(CsiAccessMode::MultiNodeReaderOnly, 3);
        check(CsiAccessMode::MultiNodeMultiWriter, 5);
        check(CsiAccessMode::SingleNodeSingleWriter, 6);
        check(CsiAccessMode::SingleNodeMultiWriter, 7);
        let mount = VolumeAccessType::Mount { fs_type: "ext4".into(), flags: vec!["noatime".into()] };
        let wanted =
            VolumeCapability { access: mount, mode: CsiAccessMode::SingleNodeWriter, mount_group: Some(7) };
        let expect = MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["noatime".into()],
            volume_mount_group: "7".into(),
        };
        assert_eq!(capability(&wanted).access_type, Some(AccessType::Mount(expect)));
    }

    #[test]
    fn a_long_condition_of_a_volume_is_cut() {
        let condition = pb::VolumeCondition { abnormal: true, message: "x".repeat(1 << 20) };
        let told = volume_stats(pb::NodeGetVolumeStatsResponse {
            volume_condition: Some(condition),
            ..Default::default()
        });
        assert!(told.condition.abnormal);
        assert!(told.condition.message.len() <= TextLimit::PluginMessage.bytes());
    }
}
