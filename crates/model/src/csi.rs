//! CSI volumes, and the requests to and answers of CSI drivers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PodUid;
use crate::device_paths::DevicePaths;

/// Name of the plugin in paths, messages and unique names.
pub const PLUGIN: &str = "kubernetes.io/csi";

/// Driver and volume handle. Identifies a volume on this node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    /// The name of the volume in `volumesInUse` and `volumesAttached` of a Node.
    pub fn unique_name(&self) -> String {
        format!("{PLUGIN}/{}^{}", self.driver, self.handle)
    }

    /// The volume of such a name. `None`: it is of no CSI driver.
    pub fn of_unique_name(name: &str) -> Option<Self> {
        let (driver, handle) = name.strip_prefix(PLUGIN)?.strip_prefix('/')?.split_once('^')?;
        Some(Self { driver: driver.to_owned(), handle: handle.to_owned() })
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}^{}", self.driver, self.handle)
    }
}

/// Secret texts by name. Their `Debug` form does not show them.
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

/// How containers access the volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeAccessType {
    Mount {
        /// Empty: the driver's own choice.
        fs_type: String,
        flags: Vec<String>,
    },
    Block,
}

/// The fsGroup of a volume, and who applies it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsGroup {
    pub id: i64,
    /// Whether the agent applies it when the driver can't.
    pub by_agent: bool,
    /// Files are changed only if the ownership or mode of the volume's root is wrong.
    pub on_root_mismatch: bool,
}

/// A volume to be staged and published for one pod. It contains everything that the set-up needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CsiVolume {
    pub id: VolumeId,
    /// Name of the PersistentVolume, or of the pod's volume. Paths and messages use it.
    pub spec_name: String,
    /// An inline volume of the pod's definition. It is never staged.
    pub ephemeral: bool,
    pub access: VolumeAccessType,
    pub access_mode: AccessMode,
    pub read_only: bool,
    pub node_name: String,
    pub attachment_name: String,
    /// The metadata of the VolumeAttachment.
    pub publish_context: BTreeMap<String, String>,
    /// The volume's own attributes.
    pub volume_attributes: BTreeMap<String, String>,
    /// Attributes of this pod: its name, its tokens. The `Debug` form does not show them.
    pub pod_attributes: SecretMap,
    pub stage_secrets: SecretMap,
    pub publish_secrets: SecretMap,
    pub fs_group: Option<FsGroup>,
    /// The SELinux label of all files, set by a mount option among the flags. Empty: each file has its own label.
    #[serde(default)]
    pub selinux_context: String,
    pub paths: CsiVolumePaths,
    /// The driver has requiresRepublish: the volume is published again periodically.
    pub requires_republish: bool,
}

/// The paths of a volume on the node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CsiVolumePaths {
    /// The staging path, one for the node. The record is beside it.
    pub staging: String,
    pub stage_record: String,
    /// The target path for this pod. The driver creates it.
    pub target: String,
    pub record: String,
    /// Block only: where the published device is mapped for this pod.
    pub device: Option<DevicePaths>,
}

/// `vol_data.json`: what is needed to remove a volume. Keys and values are upstream's.
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
    pub fn is_of(&self, volume: &VolumeId) -> bool {
        self.driver_name == volume.driver && self.volume_handle == volume.handle
    }

    pub fn id(&self) -> VolumeId {
        VolumeId { driver: self.driver_name.clone(), handle: self.volume_handle.clone() }
    }
}

/// One volume that is on disk, with its record or what is wrong with that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CsiVolumeOnDisk {
    /// `None`: the staged (node-wide) mount.
    pub pod: Option<PodUid>,
    pub block: bool,
    pub spec_name: String,
    /// The staging or target path.
    pub mount_dir: String,
    /// The path and content of the record. `Ok(None)`: there is no record, so no driver was called.
    pub record_path: String,
    pub record: Result<Option<VolumeRecord>, String>,
    /// Block: where the published device is mapped for the pod.
    pub device: Option<DevicePaths>,
}

impl CsiVolumeOnDisk {
    /// The id of the volume. `None`: the record is missing or can't be read.
    pub fn id(&self) -> Option<VolumeId> {
        self.record.as_ref().ok()?.as_ref().map(VolumeRecord::id)
    }

    /// Whether it is an inline volume, which exists only for its pod.
    pub fn is_ephemeral(&self) -> bool {
        matches!(&self.record, Ok(Some(record)) if record.volume_lifecycle_mode == "Ephemeral")
    }

    /// A message about the error of the record, and what to do about it.
    pub fn unreadable_message(&self) -> String {
        let cause = self.record.as_ref().err().map(String::as_str).unwrap_or_default();
        format!(
            "{} can't be read ({cause}), so its driver is not known: write it anew, or unmount {} and remove both",
            self.record_path, self.mount_dir
        )
    }
}

/// Capabilities of a driver's node service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeServiceCapabilities {
    pub stage_unstage_volume: bool,
    pub single_node_multi_writer: bool,
    pub volume_mount_group: bool,
    pub expand_volume: bool,
    pub get_volume_stats: bool,
    pub volume_condition: bool,
}

/// The answer of NodeGetInfo.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriverNodeInfo {
    pub node_id: String,
    pub max_volumes: i64,
    pub topology: BTreeMap<String, String>,
}

/// The answer of GetInfo of a plugin's registration socket.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PluginInfo {
    pub kind: String,
    pub name: String,
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// The access modes in CSI calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CsiAccessMode {
    SingleNodeWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

/// The volume capability in CSI calls.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCapability {
    pub access: VolumeAccessType,
    pub mode: CsiAccessMode,
    /// The fsGroup that the driver is to apply.
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
    /// Empty if the volume is not staged.
    pub staging: String,
    pub target: String,
    pub capability: VolumeCapability,
    pub read_only: bool,
    pub secrets: SecretMap,
    /// May contain tokens.
    pub attributes: SecretMap,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeExpandCall {
    pub handle: String,
    /// The target path.
    pub target: String,
    pub staging: String,
    pub bytes: i64,
    pub capability: VolumeCapability,
    pub secrets: SecretMap,
}

/// The answer of NodeGetVolumeStats.
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

/// Reported only by drivers with the VOLUME_CONDITION capability. The default stands for no report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeCondition {
    pub abnormal: bool,
    pub message: String,
}

/// An expansion: the PersistentVolume is larger than the filesystem on this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Expansion {
    pub claim: ClaimObject,
    /// The size of the PersistentVolume, as a quantity.
    pub size: String,
    pub secrets: SecretMap,
    /// The resource version of the claim that this was decided from.
    pub version: String,
    /// The pod's containers may run already.
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
        // Unknown keys of other agents are ignored.
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
