//! Volumes that a storage driver of the node (CSI) sets up, and what is said to and by such a driver.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PodUid;

/// Name of the plugin in paths, messages and unique names.
pub const PLUGIN: &str = "kubernetes.io/csi";

/// The same for the whole node: which driver, and what it calls the volume.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    /// As `volumesInUse` and `volumesAttached` of a node have it.
    pub fn unique_name(&self) -> String {
        format!("{PLUGIN}/{}^{}", self.driver, self.handle)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}^{}", self.driver, self.handle)
    }
}

/// Texts by name that are never shown.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SecretMap(pub BTreeMap<String, String>);

impl fmt::Debug for SecretMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

/// How containers see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeAccessType {
    Mount {
        /// Empty: the driver's own choice.
        fs_type: String,
        flags: Vec<String>,
    },
    Block,
}

/// Who says what group the files have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsGroup {
    pub id: i64,
    /// Whether the agent applies it when the driver can't.
    pub by_agent: bool,
    /// Files are looked at only when the volume's root is not as it should be.
    pub on_root_mismatch: bool,
}

/// A volume to be staged and published for one pod. Everything is known: nothing is looked up while it is set up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CsiVolume {
    pub id: VolumeId,
    /// Name of the PersistentVolume, or of the pod's volume: paths and messages have it.
    pub spec_name: String,
    /// Part of the pod's definition: made for it, never staged.
    pub ephemeral: bool,
    pub access: VolumeAccessType,
    pub access_mode: AccessMode,
    pub read_only: bool,
    pub node_name: String,
    pub attachment_name: String,
    /// What the attachment told.
    pub publish_context: BTreeMap<String, String>,
    /// The volume's own attributes.
    pub volume_attributes: BTreeMap<String, String>,
    /// Attributes of this one pod: its name, its tokens. Tokens don't show.
    pub pod_attributes: SecretMap,
    pub stage_secrets: SecretMap,
    pub publish_secrets: SecretMap,
    pub fs_group: Option<FsGroup>,
    /// SELinux: what all its files show, by a mount option that is among the flags. Empty: what each file has.
    #[serde(default)]
    pub selinux_context: String,
    pub paths: CsiVolumePaths,
    /// The driver wants to be asked again now and then.
    pub requires_republish: bool,
}

/// Where a volume is on the node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CsiVolumePaths {
    /// Once for the node. Its record is beside it.
    pub staging: String,
    pub stage_record: String,
    /// For this pod. The driver makes it.
    pub target: String,
    pub record: String,
    /// Block only: the pod's link to the device.
    pub link: Option<String>,
}

/// `vol_data.json`: what has to be known in order to take a volume away. Keys and values are upstream's.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRecord {
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub spec_vol_id: String,
    pub volume_handle: String,
    pub driver_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
    #[serde(rename = "seLinuxMountContext", skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
}

impl VolumeRecord {
    pub fn id(&self) -> VolumeId {
        VolumeId { driver: self.driver_name.clone(), handle: self.volume_handle.clone() }
    }
}

/// One volume that is on disk, with its record or what is wrong with that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CsiVolumeOnDisk {
    /// `None`: of the whole node.
    pub pod: Option<PodUid>,
    pub block: bool,
    pub spec_name: String,
    /// Where it is staged or published.
    pub mount_dir: String,
    /// The record's path, and what is in it. `Ok(None)`: there is none, so no driver was asked for anything.
    pub record_path: String,
    pub record: Result<Option<VolumeRecord>, String>,
    /// Block: the pod's link.
    pub link: Option<String>,
}

impl CsiVolumeOnDisk {
    /// Which volume it is. `None`: its record is missing or can't be read.
    pub fn id(&self) -> Option<VolumeId> {
        self.record.as_ref().ok()?.as_ref().map(VolumeRecord::id)
    }

    /// It was made for one pod, and is not on the node beyond it.
    pub fn is_ephemeral(&self) -> bool {
        matches!(&self.record, Ok(Some(record)) if record.volume_lifecycle_mode == "Ephemeral")
    }

    /// What is wrong with its record, and what to do about it.
    pub fn unreadable_message(&self) -> String {
        let cause = self.record.as_ref().err().map(String::as_str).unwrap_or_default();
        format!(
            "{} can't be read ({cause}), so its driver is not known: write it anew, or unmount {} and remove both",
            self.record_path, self.mount_dir
        )
    }
}

/// What a driver's node service can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeServiceCapabilities {
    pub stage_unstage_volume: bool,
    pub single_node_multi_writer: bool,
    pub volume_mount_group: bool,
    pub expand_volume: bool,
    pub get_volume_stats: bool,
    pub volume_condition: bool,
}

/// What a driver says about itself and this node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriverNodeInfo {
    pub node_id: String,
    pub max_volumes: i64,
    pub topology: BTreeMap<String, String>,
}

/// What a plugin says when it makes itself known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PluginInfo {
    pub kind: String,
    pub name: String,
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// The access modes that drivers are told of, by their names in the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CsiAccessMode {
    SingleNodeWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

/// What is asked of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCapability {
    pub access: VolumeAccessType,
    pub mode: CsiAccessMode,
    /// The driver is to give the files this group.
    pub mount_group: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStageCall {
    pub handle: String,
    pub publish_context: BTreeMap<String, String>,
    pub staging: String,
    pub capability: VolumeCapability,
    pub secrets: SecretMap,
    pub attributes: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePublishCall {
    pub handle: String,
    pub publish_context: BTreeMap<String, String>,
    /// Empty: it is not staged.
    pub staging: String,
    pub target: String,
    pub capability: VolumeCapability,
    pub read_only: bool,
    pub secrets: SecretMap,
    /// Tokens may be among them.
    pub attributes: SecretMap,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeExpandCall {
    pub handle: String,
    /// Where it is published.
    pub target: String,
    pub staging: String,
    pub bytes: i64,
    pub capability: VolumeCapability,
    pub secrets: SecretMap,
}

/// What a driver tells of a published volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeVolumeStats {
    pub bytes: Option<VolumeUsage>,
    pub inodes: Option<VolumeUsage>,
    pub condition: VolumeCondition,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeUsage {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}

/// Only of drivers that can tell. The default is what it means when they don't say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeCondition {
    pub abnormal: bool,
    pub message: String,
}

/// What stands behind a claim is larger than the volume is on this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Expansion {
    pub claim: ClaimObject,
    /// Of what stands behind the claim, as a quantity.
    pub size: String,
    pub secrets: SecretMap,
    /// The version of the claim that this was decided from.
    pub version: String,
    /// The pod has it mounted and is not waiting for it.
    pub online: bool,
}

/// A claim in the API.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ClaimObject {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_upstreams_keys() {
        let record = VolumeRecord {
            spec_vol_id: "pv".into(),
            volume_handle: "h".into(),
            driver_name: "d".into(),
            node_name: "n".into(),
            attachment_id: "csi-1".into(),
            volume_lifecycle_mode: "Persistent".into(),
            se_linux_mount_context: String::new(),
        };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"specVolID":"pv","volumeHandle":"h","driverName":"d","nodeName":"n","attachmentID":"csi-1","volumeLifecycleMode":"Persistent"}"#
        );
        assert_eq!(serde_json::from_str::<VolumeRecord>(&text).unwrap(), record);
        let stage = VolumeRecord { volume_handle: "h".into(), driver_name: "d".into(), ..Default::default() };
        assert_eq!(serde_json::to_string(&stage).unwrap(), r#"{"volumeHandle":"h","driverName":"d"}"#);
        // Whatever another agent adds is no obstacle.
        let more = r#"{"driverName":"d","volumeHandle":"h","new":"x","volumeLifecycleMode":"Ephemeral"}"#;
        assert_eq!(serde_json::from_str::<VolumeRecord>(more).unwrap().id(), stage.id());
    }

    #[test]
    fn secrets_do_not_show() {
        let secrets = SecretMap([("user".to_owned(), "hidden".to_owned())].into());
        assert_eq!(format!("{secrets:?}"), "{\"user\"}");
        let id = VolumeId { driver: "d.example".into(), handle: "h^1".into() };
        assert_eq!(id.unique_name(), "kubernetes.io/csi/d.example^h^1");
    }
}
