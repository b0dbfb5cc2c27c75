//! How this node's drivers are published: the CSINode object, and an annotation and labels of the Node.

use std::collections::{BTreeMap, BTreeSet};

use model::csi::DriverNodeInfo;
use model::k8s::{
    CSINode, CSINodeDriver, CSINodeSpec, Node, ObjectMeta, OwnerReference, VolumeNodeResources,
};
use serde_json::{Map, Value, json};

/// Annotation with the node id of each driver, as JSON.
pub const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// In-tree plugins that are migrated to CSI, sorted.
const MIGRATED_PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];

/// The CSINode object of a node without drivers.
pub fn new_csi_node(node: &Node) -> CSINode {
    let name = node.metadata.name.clone().unwrap_or_default();
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some([(MIGRATED.to_owned(), MIGRATED_PLUGINS.join(","))].into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name,
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec::default(),
    }
}

/// The patch that corrects the annotation of migrated plugins. Returns `None` if the annotation is already right.
pub fn migrated_plugins_patch(object: &CSINode) -> Option<Value> {
    let annotations = object.metadata.annotations.as_ref();
    let said: BTreeSet<&str> = annotations
        .and_then(|all| all.get(MIGRATED))
        .map(|text| text.split(',').filter(|name| !name.is_empty()).collect())
        .unwrap_or_default();
    (said != MIGRATED_PLUGINS.into()).then(|| {
        json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version,
                "annotations": { MIGRATED: MIGRATED_PLUGINS.join(",") },
            },
        })
    })
}

/// Whether the CSINode belongs to this Node. A CSINode object of a deleted node with the same name has another owner
/// UID.
pub fn owned_by(object: &CSINode, node: &Node) -> bool {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut nodes = owners.filter(|owner| owner.kind == "Node");
    nodes.any(|owner| {
        Some(&owner.name) == node.metadata.name.as_ref() && Some(&owner.uid) == node.metadata.uid.as_ref()
    })
}

/// The patch that adds a driver or replaces its entry. `None`: the entry is already right.
pub fn add_driver_patch(object: &CSINode, driver: &str, found: &DriverNodeInfo) -> Option<Value> {
    let keys: BTreeSet<&String> = found.topology.keys().collect();
    let count = i32::try_from(found.max_volumes).unwrap_or(i32::MAX);
    let entry = CSINodeDriver {
        name: driver.to_owned(),
        node_id: found.node_id.clone(),
        topology_keys: (!keys.is_empty()).then(|| keys.into_iter().cloned().collect()),
        allocatable: (found.max_volumes > 0).then_some(VolumeNodeResources { count: Some(count) }),
    };
    if object.spec.drivers.contains(&entry) {
        return None;
    }
    let others = object.spec.drivers.iter().filter(|other| other.name != driver).cloned();
    Some(drivers_patch(object, others.chain([entry]).collect()))
}

/// The patch that removes a driver. `None`: it has no entry.
pub fn remove_driver_patch(object: &CSINode, driver: &str) -> Option<Value> {
    let others: Vec<_> = object.spec.drivers.iter().filter(|other| other.name != driver).cloned().collect();
    (others.len() != object.spec.drivers.len()).then(|| drivers_patch(object, others))
}

/// Replaces the list, and fails if the object changed in between.
fn drivers_patch(object: &CSINode, drivers: Vec<CSINodeDriver>) -> Value {
    let mut drivers: Vec<Value> = drivers.iter().map(|driver| json!(driver)).collect();
    drivers.push(json!({ "$patch": "replace" }));
    json!({
        "metadata": { "resourceVersion": object.metadata.resource_version },
        "spec": { "drivers": drivers },
    })
}

/// The patch that publishes a driver in the Node (`found`), or removes it. `Ok(None)`: nothing to change.
pub fn node_patch(
    node: &Node,
    driver: &str,
    found: Option<&DriverNodeInfo>,
) -> Result<Option<Value>, String> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(NODE_ID)).map(String::as_str).unwrap_or_default();
    let mut ids: BTreeMap<String, String> = match text {
        "" => BTreeMap::new(),
        text => serde_json::from_str(text).map_err(|error| {
            format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={error}")
        })?,
    };
    let before = ids.clone();
    let mut labels = Map::new();
    match found {
        Some(found) => {
            ids.insert(driver.to_owned(), found.node_id.clone());
            for (key, value) in &found.topology {
                match node.metadata.labels.as_ref().and_then(|all| all.get(key)) {
                    Some(there) if there != value => {
                        return Err(format!(
                            "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                             {key:?}:{there:?}"
                        ));
                    }
                    Some(_) => {}
                    None => drop(labels.insert(key.clone(), json!(value))),
                }
            }
        }
        None => drop(ids.remove(driver)),
    }
    let mut metadata = Map::new();
    if ids != before {
        let value = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
        metadata.insert("annotations".into(), json!({ NODE_ID: value }));
    }
    if !labels.is_empty() {
        metadata.insert("labels".into(), Value::Object(labels));
    }
    Ok((!metadata.is_empty()).then(|| json!({ "metadata": metadata })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(json!({ "metadata": value })).expect("a node")
    }

    fn found(id: &str, max_volumes: i64, topology: &[(&str, &str)]) -> DriverNodeInfo {
        let topology = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        DriverNodeInfo { node_id: id.into(), max_volumes, topology }
    }

    #[test]
    fn the_object_is_owned_by_its_node() {
        let ours = node(json!({"name": "n", "uid": "1"}));
        let object = new_csi_node(&ours);
        assert!(owned_by(&object, &ours));
        assert!(!owned_by(&object, &node(json!({"name": "n", "uid": "2"}))));
        assert!(!owned_by(&CSINode::default(), &ours));
    }

    #[test]
    fn migrated_plugins_are_told_where_they_are_not() {
        let mut object = new_csi_node(&node(json!({"name": "n", "uid": "1"})));
        assert_eq!(migrated_plugins_patch(&object), None);
        let all = object.metadata.annotations.clone().unwrap().remove(MIGRATED).unwrap();
        for said in [None, Some("kubernetes.io/aws-ebs"), Some("kubernetes.io/aws-ebs,other")] {
            let annotations = said.map(|text| [(MIGRATED.to_owned(), text.to_owned())].into());
            object.metadata.annotations = annotations;
            let patch = migrated_plugins_patch(&object).unwrap();
            assert_eq!(patch["metadata"]["annotations"][MIGRATED], all.as_str(), "{said:?}");
        }
        let shuffled = all.split(',').rev().collect::<Vec<_>>().join(",");
        object.metadata.annotations = Some([(MIGRATED.to_owned(), shuffled)].into());
        assert_eq!(migrated_plugins_patch(&object), None);
    }

    #[test]
    fn drivers_come_change_and_go() {
        let mut object = new_csi_node(&node(json!({"name": "n", "uid": "1"})));
        object.metadata.resource_version = Some("5".into());
        let drivers = |patch: &Value| -> Vec<CSINodeDriver> {
            let list = patch["spec"]["drivers"].as_array().unwrap();
            let (mark, list) = list.split_last().unwrap();
            assert_eq!(*mark, json!({"$patch": "replace"}));
            list.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect()
        };
        let patch = add_driver_patch(&object, "a", &found("id-a", 7, &[("zone", "x")])).unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"resourceVersion": "5"}, "spec": {"drivers": [
                {"name": "a", "nodeID": "id-a", "topologyKeys": ["zone"], "allocatable": {"count": 7}},
                {"$patch": "replace"},
            ]}})
        );
        object.spec.drivers = drivers(&patch);
        assert_eq!(
            add_driver_patch(&object, "a", &found("id-a", 7, &[("zone", "other")])),
            None,
            "keys only"
        );
        let patch = add_driver_patch(&object, "b", &found("id-b", 0, &[])).unwrap();
        object.spec.drivers = drivers(&patch);
        let patch = add_driver_patch(&object, "a", &found("id-a", i64::MAX, &[])).unwrap();
        assert_eq!(patch["spec"]["drivers"][1]["allocatable"]["count"], json!(i32::MAX));
        assert_eq!(remove_driver_patch(&object, "c"), None);
        let patch = remove_driver_patch(&object, "a").unwrap();
        assert_eq!(patch["spec"]["drivers"], json!([{"name": "b", "nodeID": "id-b"}, {"$patch": "replace"}]));
    }

    #[test]
    fn the_node_tells_ids_and_topology() {
        let check = |before: Value, found: Option<DriverNodeInfo>, expect: Result<Option<Value>, &str>| match (
            node_patch(&node(before.clone()), "d", found.as_ref()),
            expect,
        ) {
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{got}"),
            (got, expect) => assert_eq!(got, expect.map_err(str::to_owned), "{before}"),
        };
        let one = || Some(found("i", 0, &[]));
        check(json!({}), one(), Ok(Some(json!({"metadata": {"annotations": {NODE_ID: r#"{"d":"i"}"#}}}))));
        check(json!({"annotations": {NODE_ID: r#"{"d":"i"}"#}}), one(), Ok(None));
        check(
            json!({"annotations": {NODE_ID: r#"{"a":"x","d":"old"}"#}}),
            one(),
            Ok(Some(json!({"metadata": {"annotations": {NODE_ID: r#"{"a":"x","d":"i"}"#}}}))),
        );
        check(
            json!({"annotations": {NODE_ID: r#"{"d":"i"}"#}}),
            None,
            Ok(Some(json!({"metadata": {"annotations": {NODE_ID: null}}}))),
        );
        check(json!({}), None, Ok(None));
        check(json!({"annotations": {NODE_ID: "no json"}}), one(), Err("failed to parse"));
        let zoned = || Some(found("i", 0, &[("zone", "a")]));
        check(
            json!({"annotations": {NODE_ID: r#"{"d":"i"}"#}}),
            zoned(),
            Ok(Some(json!({"metadata": {"labels": {"zone": "a"}}}))),
        );
        check(json!({"labels": {"zone": "b"}}), zoned(), Err("topology value collision"));
        check(json!({"annotations": {NODE_ID: r#"{"d":"i"}"#}, "labels": {"zone": "a"}}), zoned(), Ok(None));
    }
}
