//! CSI volumes: which calls are made for a volume, which drivers may register, and what is published in API objects.
//!
//! ```text
//!   persistent:  attached? ──> stage (once for the node) ──> publish (for each pod) ──> group
//!   inline:                                                  publish
//!   expansion:   the claim requests it ──> expand ──> patch the claim
//!   removal:     unpublish ──> after the last pod: unstage ──> no longer in use
//! ```
//! The calls depend on the volume and the capabilities of its driver (`calls`), their time on other operations on the
//! volume ([`crate::volume_operations`]). The engine makes the calls.

mod calls;
mod expand;
mod node_object;
mod registration;
mod selinux;
pub mod translation;
mod volumes_in_use;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::PodUid;
use model::csi::{CsiVolumeOnDisk, CsiVolumePaths, PLUGIN, VolumeId};
use model::k8s::CSIDriver;
use model::node::NodeConfig;
use model::volume::DevicePaths;
use sha2::{Digest, Sha256};

pub use calls::{
    NodeCalls, VolumeCall, VolumeCallAnswer, VolumeCallFailure, VolumeCallFailureKind, VolumeCallId,
    VolumeCallResult, VolumeRequest, VolumeRequestFrom, VolumeRequestId, node_calls,
};
pub use expand::{
    ExpansionFailure, ExpansionFailureKind, ExpansionNeed, ExpansionStep, NodeExpansion, capacity_of,
    expand_call, expansion_need, quantity,
};
pub use node_object::{
    NODE_ID, add_driver_patch, migrated_plugins_patch, new_csi_node, node_patch, owned_by,
    remove_driver_patch,
};
pub use registration::{CSI_PLUGIN, Version, check_registration, registration_failed, unknown_kind};
pub use selinux::{LabelCheck, LabelRecord, check_staged_label, labels_may_differ};
pub use volumes_in_use::CsiVolumesInUse;

/// Name of the attachment of a volume to a node.
pub fn attachment_name(id: &VolumeId, node: &str) -> String {
    format!("csi-{}", hex_digest(&format!("{}{}{node}", id.handle, id.driver)))
}

/// What a volume that is part of a pod is called towards its driver.
pub fn inline_handle(uid: &PodUid, volume: &str) -> String {
    format!("csi-{}", hex_digest(&format!("{uid}{volume}")))
}

/// The interval in seconds at which each driver is asked how many volumes the node can take. Drivers without the field
/// are asked once.
pub(crate) fn allocatable_update_periods(drivers: &[Arc<CSIDriver>]) -> BTreeMap<String, u64> {
    let period =
        |driver: &Arc<CSIDriver>| Some((driver.metadata.name.clone()?, allocatable_update_period(driver)?));
    drivers.iter().filter_map(period).collect()
}

/// Of one driver, if it wants to be asked.
pub(crate) fn allocatable_update_period(driver: &CSIDriver) -> Option<u64> {
    let seconds = u64::try_from(driver.spec.node_allocatable_update_period_seconds?).ok()?;
    Some(seconds).filter(|seconds| *seconds > 0)
}

fn hex_digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Directories beside those of devices: a device of such a name would be taken for them.
const TAKEN: [&str; 2] = ["staging", "publish"];

/// Why a device of this name has no place on a node.
pub(crate) fn reserved_device_name(spec_name: &str) -> Option<String> {
    TAKEN.contains(&spec_name).then(|| {
        format!(
            "the name {spec_name:?} of the persistent volume is that of a directory which every device of a driver \
             shares: give the volume another name"
        )
    })
}

/// Whether a record that can't be read may be of the volume. The directory of a staging names its driver and its volume;
/// that of a device or of a pod does not.
pub(crate) fn may_be_record_of(one: &CsiVolumeOnDisk, volume: &VolumeId) -> bool {
    let staging = match one.pod.is_some() || one.block {
        true => None,
        false => one.record_path.rsplit_once(&format!("/{PLUGIN}/")),
    };
    let Some((_, staging)) = staging else { return true };
    let mut parts = staging.split('/');
    parts.next() == Some(&volume.driver)
        // The directory of a driver whose volumes can't be listed is one of all its volumes.
        && parts.next().is_none_or(|name| name == hex_digest(&volume.handle))
}

/// Where it is on this node, for this pod.
pub fn paths(
    config: &NodeConfig,
    uid: &PodUid,
    id: &VolumeId,
    spec_name: &str,
    block: bool,
) -> CsiVolumePaths {
    let plugin = format!("{}/plugins/{PLUGIN}", config.root_dir);
    let pod = config.pod_dir(uid);
    // Names of volumes that stand in a pod's definition may be paths.
    let spec_name = spec_name.replace('/', "~");
    if block {
        let devices = format!("{plugin}/volumeDevices");
        let record = format!("{devices}/{spec_name}/data/vol_data.json");
        return CsiVolumePaths {
            staging: format!("{devices}/staging/{spec_name}"),
            stage_record: record.clone(),
            target: format!("{devices}/publish/{spec_name}/{uid}"),
            record,
            device: Some(DevicePaths {
                link: format!("{pod}/volumeDevices/kubernetes.io~csi/{spec_name}"),
                map: format!("{devices}/{spec_name}/dev/{uid}"),
            }),
        };
    }
    let stage = format!("{plugin}/{}/{}", id.driver, hex_digest(&id.handle));
    let volume = format!("{pod}/volumes/kubernetes.io~csi/{spec_name}");
    CsiVolumePaths {
        staging: format!("{stage}/globalmount"),
        stage_record: format!("{stage}/vol_data.json"),
        target: format!("{volume}/mount"),
        record: format!("{volume}/vol_data.json"),
        device: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_to_be_asked_how_often() {
        let driver = |name: &str, seconds: Option<i64>| {
            let mut driver = CSIDriver::default();
            driver.metadata.name = Some(name.into());
            driver.spec.node_allocatable_update_period_seconds = seconds;
            Arc::new(driver)
        };
        let all = [driver("a", None), driver("b", Some(10)), driver("c", Some(0)), driver("d", Some(-1))];
        assert_eq!(allocatable_update_periods(&all), [("b".to_owned(), 10)].into());
    }

    #[test]
    fn a_device_may_not_be_called_like_what_all_devices_share() {
        let config = NodeConfig { root_dir: "/r".into(), ..NodeConfig::default() };
        let id = VolumeId { driver: "d.example".into(), handle: "h".into() };
        for (name, refused) in [("staging", true), ("publish", true), ("pv", false), ("staging-1", false)] {
            assert_eq!(reserved_device_name(name).is_some(), refused, "{name}");
        }
        // What would be taken for what.
        let path = |name| paths(&config, &PodUid::new("u"), &id, name, true);
        assert!(
            path("staging").record.starts_with(&format!("{}/", path("pv").staging.trim_end_matches("/pv")))
        );
    }

    #[test]
    fn the_path_of_a_record_tells_of_which_volume_it_may_be() {
        let config = NodeConfig { root_dir: "/r".into(), ..NodeConfig::default() };
        let id = |driver: &str, handle: &str| VolumeId { driver: driver.into(), handle: handle.into() };
        let check = |path: String, (pod, block): (Option<&str>, bool), volume: VolumeId, expect: bool| {
            let one = CsiVolumeOnDisk {
                pod: pod.map(PodUid::new),
                block,
                spec_name: "pv".into(),
                mount_dir: "/m".into(),
                record_path: path.clone(),
                record: Err("it is no JSON".into()),
                device: None,
            };
            assert_eq!(may_be_record_of(&one, &volume), expect, "{path} {volume}");
        };
        let paths = |block| paths(&config, &PodUid::new("u"), &id("d", "h"), "pv", block);
        let node = (None, false);
        check(paths(false).stage_record, node, id("d", "h"), true);
        check(paths(false).stage_record, node, id("d", "other"), false);
        check(paths(false).stage_record, node, id("other", "h"), false);
        check("/r/plugins/kubernetes.io/csi/d".into(), node, id("d", "any"), true);
        check("/r/plugins/kubernetes.io/csi/d".into(), node, id("other", "any"), false);
        check(paths(true).stage_record, (None, true), id("other", "any"), true);
        check(paths(false).record, (Some("u"), false), id("other", "any"), true);
        check("/elsewhere/vol_data.json".into(), node, id("d", "any"), true);
    }

    #[test]
    fn names_and_paths_are_upstreams() {
        let id = VolumeId { driver: "d.example".into(), handle: "h".into() };
        // sha256("hd.examplen") and sha256("h")
        let name = attachment_name(&id, "n");
        assert_eq!(name.len(), 68);
        assert_eq!(name, format!("csi-{}", hex_digest("hd.examplen")));
        let of_h = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(hex_digest("h"), of_h);
        assert_eq!(inline_handle(&PodUid::new("u"), "v"), format!("csi-{}", hex_digest("uv")));
        let config = NodeConfig { root_dir: "/r".into(), ..NodeConfig::default() };
        let uid = PodUid::new("u");
        let mount = paths(&config, &uid, &id, "pv", false);
        assert_eq!(mount.staging, format!("/r/plugins/kubernetes.io/csi/d.example/{of_h}/globalmount"));
        assert_eq!(mount.record, "/r/pods/u/volumes/kubernetes.io~csi/pv/vol_data.json");
        assert_eq!(mount.target, "/r/pods/u/volumes/kubernetes.io~csi/pv/mount");
        let block = paths(&config, &uid, &id, "pv", true);
        assert_eq!(block.staging, "/r/plugins/kubernetes.io/csi/volumeDevices/staging/pv");
        assert_eq!(block.target, "/r/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u");
        assert_eq!(block.record, "/r/plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json");
        let device = DevicePaths {
            link: "/r/pods/u/volumeDevices/kubernetes.io~csi/pv".into(),
            map: "/r/plugins/kubernetes.io/csi/volumeDevices/pv/dev/u".into(),
        };
        assert_eq!(device.global_map_dir(), "/r/plugins/kubernetes.io/csi/volumeDevices/pv/dev");
        assert_eq!(block.device, Some(device));
    }
}
