//! User and group ids of the host that are set aside for pods with users of their own.

use serde::{Deserialize, Serialize};

use crate::PodUid;
use crate::cri::IdMapping;

/// What one block is: ids of a pod. Also the least that may be configured.
pub const DEFAULT_IDS_PER_POD: u32 = 65536;

/// Ids that may be given to pods. Sixty-four bits, because the last id is the last of thirty-two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IdRange {
    pub first: u64,
    pub count: u64,
}

/// What `<pod>/userns` holds: upstream's form, so that either agent can take over from the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserNamespaceFile {
    pub uid_mappings: Vec<FileMapping>,
    pub gid_mappings: Vec<FileMapping>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileMapping {
    pub host_id: u32,
    pub container_id: u32,
    pub length: u32,
}

impl UserNamespaceFile {
    pub fn of(ids: &IdMapping) -> Self {
        let mapping =
            || FileMapping { host_id: ids.host_id, container_id: ids.container_id, length: ids.length };
        Self { uid_mappings: vec![mapping()], gid_mappings: vec![mapping()] }
    }

    /// The one mapping that both lists hold; anything else was not written by a kubelet.
    pub fn ids(&self) -> Option<IdMapping> {
        let [mapping] = self.uid_mappings.as_slice() else { return None };
        let known = self.gid_mappings == self.uid_mappings && mapping.container_id == 0 && mapping.length > 0;
        known.then_some(IdMapping { host_id: mapping.host_id, container_id: 0, length: mapping.length })
    }
}

/// What was found on disk of all pods.
#[derive(Clone, Debug, Default)]
pub struct UserNamespaceScan {
    /// `None`: the pod has a record that can't be read. Which ids are its own is not known, but some are.
    pub ids: Vec<(PodUid, Option<IdMapping>)>,
    /// The directories of pods could not be listed: any id may be in use.
    pub unlisted: bool,
    /// One line each.
    pub problems: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_upstreams() {
        let ids = IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
        let text = serde_json::to_string(&UserNamespaceFile::of(&ids)).unwrap();
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#
        );
        let back: UserNamespaceFile = serde_json::from_str(&text).unwrap();
        assert_eq!(back.ids(), Some(ids));
    }

    #[test]
    fn only_one_mapping_for_both_is_understood() {
        let check = |text: &str, expect: Option<u32>| {
            let file: UserNamespaceFile = serde_json::from_str(text).unwrap();
            assert_eq!(file.ids().map(|ids| ids.host_id), expect, "{text}");
        };
        let one = r#"{"hostId":65536,"containerId":0,"length":65536}"#;
        let other = r#"{"hostId":131072,"containerId":0,"length":65536}"#;
        let shifted = r#"{"hostId":65536,"containerId":1,"length":65536}"#;
        check(&format!(r#"{{"uidMappings":[{one}],"gidMappings":[{one}]}}"#), Some(65536));
        check(&format!(r#"{{"uidMappings":[{one}],"gidMappings":[{other}]}}"#), None);
        check(&format!(r#"{{"uidMappings":[{one},{other}],"gidMappings":[{one},{other}]}}"#), None);
        check(&format!(r#"{{"uidMappings":[{shifted}],"gidMappings":[{shifted}]}}"#), None);
        check(r#"{"uidMappings":[],"gidMappings":[]}"#, None);
    }
}
