//! The whole object: against the recorded one, and through its life.

use model::cri::{Image, RuntimeCondition, RuntimeHandler, RuntimeStatus};
use model::k8s::Quantity;
use model::node::{HostAddresses, HostFacts};
use model::{Mono, Wall};
use serde_json::{Value, json};
use std::time::Duration;

use super::*;

fn now(secs: u64) -> Now {
    Now { mono: Mono::from_duration(Duration::from_secs(secs)), wall: Wall(secs as i64 * 1_000_000_000) }
}

fn setup() -> NodeObjectConfig {
    NodeObjectConfig {
        name: "vm".into(),
        hostname: "vm".into(),
        kubelet_version: "v1.36.4".into(),
        capacity: CapacityRules {
            eviction_memory: Some(ThresholdValue::Amount(Quantity("100Mi".into()))),
            eviction_storage: Some(ThresholdValue::Fraction(0.1)),
            ..CapacityRules::default()
        },
        declared_features: declared_features(|gate| gate != "UserNamespacesHostNetworkSupport"),
        ..NodeObjectConfig::default()
    }
}

fn facts() -> HostFacts {
    HostFacts {
        cpus: 2,
        memory_bytes: 24_682_416 * 1024,
        root_fs_bytes: 264_212_084 * 1024,
        huge_pages: [(2 << 20, 0), (1 << 30, 0)].into(),
        kernel_release: "6.18.44-fc-v445".into(),
        os_image: "Debian GNU/Linux 12 (bookworm)".into(),
        architecture: "amd64".into(),
        boot_id: "<uid>".into(),
        machine_id: "<uid>".into(),
        system_uuid: "<uid>".into(),
        addresses: HostAddresses { routed: vec!["192.0.2.1".parse().unwrap()], ..HostAddresses::default() },
        ..HostFacts::default()
    }
}

fn runtime() -> RuntimeSnapshot {
    let good =
        |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..RuntimeCondition::default() };
    RuntimeSnapshot {
        name: "containerd".into(),
        version: "1.6.20".into(),
        status: Some(RuntimeStatus {
            conditions: vec![good("RuntimeReady"), good("NetworkReady")],
            ..RuntimeStatus::default()
        }),
        answered_at: Some(Mono::ZERO),
        relisted_at: Some(Mono::ZERO),
        ..RuntimeSnapshot::default()
    }
}

/// What a test varies.
struct World {
    setup: NodeObjectConfig,
    facts: HostFacts,
    runtime: RuntimeSnapshot,
    images: Vec<Image>,
    told: ReportedEvents,
}

impl World {
    fn new() -> Self {
        Self {
            setup: setup(),
            facts: facts(),
            runtime: runtime(),
            images: vec![],
            told: ReportedEvents::default(),
        }
    }

    fn with<T>(&mut self, run: impl FnOnce(&NodeStatusInputs<'_>, &mut ReportedEvents) -> T) -> T {
        let inputs = NodeStatusInputs {
            setup: &self.setup,
            facts: &self.facts,
            runtime: &self.runtime,
            images: Some(&self.images),
            pressure: NodePressure::default(),
            not_ready_reasons: &[],
            volumes_in_use: None,
        };
        run(&inputs, &mut self.told)
    }

    fn initial(&mut self, secs: u64) -> (Node, Vec<String>) {
        let (node, outcome) = self.with(|inputs, told| initial_node(inputs, told, now(secs)));
        assert_eq!(outcome.log_messages, [""; 0]);
        (node, reasons(outcome))
    }

    fn update(&mut self, node: &mut Node, secs: u64) -> Vec<String> {
        reasons(self.with(|inputs, told| set_status(node, inputs, told, now(secs))))
    }
}

fn reasons(outcome: NodeStatusOutcome) -> Vec<String> {
    outcome.events.into_iter().map(|event| event.reason).collect()
}

fn recorded() -> Value {
    let mut node: Value = serde_json::from_str(include_str!("../../tests/fixtures/node.json")).unwrap();
    // Made by the API server.
    for key in ["creationTimestamp", "managedFields", "resourceVersion", "uid"] {
        node["metadata"].as_object_mut().unwrap().remove(key);
    }
    node
}

/// Images in the order of their ids, since the recording does not have those.
fn images(recorded: &Value) -> Vec<Image> {
    let all = recorded["status"]["images"].as_array().unwrap();
    let image = |(index, image): (usize, &Value)| Image {
        id: format!("{:03}", all.len() - index),
        repo_tags: serde_json::from_value(image["names"].clone()).unwrap(),
        size: image["sizeBytes"].as_u64().unwrap(),
        ..Image::default()
    };
    // In another order than they are shown in.
    all.iter().enumerate().map(image).rev().collect()
}

#[test]
fn the_recorded_node_comes_out() {
    let mut recorded = recorded();
    let mut world = World::new();
    world.images = images(&recorded);
    let (node, _) = world.initial(1);
    let mut made = serde_json::to_value(&node).unwrap();
    for condition in made["status"]["conditions"].as_array_mut().unwrap() {
        condition["lastHeartbeatTime"] = json!("<time>");
        condition["lastTransitionTime"] = json!("<time>");
    }
    // The recording's machine had no address that it could tell.
    let addresses = made["status"].as_object_mut().unwrap().remove("addresses");
    let expect =
        json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "vm"}]);
    assert_eq!(addresses, Some(expect));
    // It declares less: what this agent lacks.
    let features = |node: &mut Value| node["status"].as_object_mut().unwrap().remove("declaredFeatures");
    let ours = json!(["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]);
    assert_eq!(features(&mut made), Some(ours));
    let of_upstream = json!([
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ]);
    assert_eq!(features(&mut recorded), Some(of_upstream));
    assert_eq!(made, recorded);
}

#[test]
fn a_feature_of_the_runtime_is_declared_when_the_runtime_has_it() {
    const NAME: &str = "UserNamespacesHostNetworkSupport";
    let check = |gate: bool, runtime: Option<bool>, expect: bool| {
        let mut world = World::new();
        world.setup.declared_features = declared_features(|name| name != NAME || gate);
        world.runtime.status = runtime.map(|user_namespaces_host_network| RuntimeStatus {
            user_namespaces_host_network,
            ..RuntimeStatus::default()
        });
        let (node, _) = world.initial(1);
        let declared = node.status.unwrap().declared_features.unwrap_or_default();
        assert_eq!(declared.iter().any(|name| name == NAME), expect, "{gate} {runtime:?}");
    };
    check(true, Some(true), true);
    check(true, Some(false), false);
    check(true, None, false);
    check(false, Some(true), false);
}

#[test]
fn a_node_as_configured() {
    let mut world = World::new();
    world.setup.labels = [("zone", "a"), ("kubernetes.io/arch", "other")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    world.setup.taints = vec![serde_json::from_value(json!({"key": "k", "effect": "NoExecute"})).unwrap()];
    world.setup.provider_id = "cloud://1".into();
    world.setup.external_cloud = true;
    world.setup.attach_by_controller = false;
    let (node, _) = world.initial(1);
    let labels = node.metadata.labels.unwrap();
    assert_eq!((labels["zone"].as_str(), labels["kubernetes.io/arch"].as_str()), ("a", "other"));
    assert_eq!(node.metadata.annotations, None);
    let spec = serde_json::to_value(node.spec).unwrap();
    let expect = json!({"providerID": "cloud://1", "taints": [
        {"key": "k", "effect": "NoExecute"},
        {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
    ]});
    assert_eq!(spec, expect);
}

#[test]
fn events_through_a_life() {
    let mut world = World::new();
    world.runtime = RuntimeSnapshot::default();
    let (mut node, told) = world.initial(1);
    assert_eq!(told, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]);
    world.runtime = runtime();
    assert_eq!(world.update(&mut node, 2), ["NodeReady"]);
    assert_eq!(world.update(&mut node, 3), [""; 0]);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    assert_eq!(world.update(&mut node, 4), ["NodeNotSchedulable"]);
    node.spec.get_or_insert_default().unschedulable = None;
    assert_eq!(world.update(&mut node, 5), ["NodeSchedulable"]);
    world.facts.boot_id = "other".into();
    assert_eq!(world.update(&mut node, 6), ["Rebooted"]);
    assert_eq!(node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id, "other");
    world.facts.boot_id = "third".into();
    assert_eq!(world.update(&mut node, 7), [""; 0]);
    world.runtime.last_check_failed = true;
    assert_eq!(world.update(&mut node, 30), ["NodeNotReady"]);
}

#[test]
fn the_second_look_changes_nothing() {
    let mut world = World::new();
    world.setup.external_cloud = true;
    world.runtime.status.as_mut().unwrap().handlers = vec![RuntimeHandler::default()];
    let (node, _) = world.initial(1);
    // As the API server gives it back.
    let mut again: Node = serde_json::from_value(serde_json::to_value(&node).unwrap()).unwrap();
    world.update(&mut again, 5);
    assert!(!status_changed(&node, &again));
    let patch = patch(&node, &again).unwrap();
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 4);
    for condition in conditions {
        let keys: Vec<&String> = condition.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["lastHeartbeatTime", "type"]);
    }
    assert_eq!(patch["status"].as_object().unwrap().len(), 2, "{patch}");
}

#[test]
fn resources_come_and_go() {
    let mut world = World::new();
    let (mut node, _) = world.initial(1);
    let status = node.status.as_mut().unwrap();
    for list in [&mut status.capacity, &mut status.allocatable] {
        list.as_mut().unwrap().insert("example.com/gpu".into(), Quantity("2".into()));
    }
    status.allocatable.as_mut().unwrap().insert("example.com/gone".into(), Quantity("2".into()));
    world.facts.huge_pages = [(2 << 20, 4 << 30)].into();
    world.facts.cpus = 8;
    world.update(&mut node, 2);
    let status = node.status.unwrap();
    let names = |list: &Option<std::collections::BTreeMap<String, Quantity>>| {
        let text = |(name, amount): (&String, &Quantity)| format!("{name}={}", amount.0);
        list.iter().flatten().map(text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(&status.capacity),
        "cpu=8 ephemeral-storage=264212084Ki example.com/gpu=2 hugepages-2Mi=4Gi memory=24682416Ki pods=110"
    );
    assert_eq!(
        names(&status.allocatable),
        "cpu=8 ephemeral-storage=243497856212 example.com/gpu=2 hugepages-2Mi=4Gi memory=20385712Ki pods=110"
    );
}

#[test]
fn an_object_from_before_is_set_right() {
    let mut world = World::new();
    world.setup.labels = [("topology.kubernetes.io/zone", "a"), ("own", "x")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    world.setup.attach_by_controller = false;
    let (initial, _) = world.initial(1);
    let mut existing: Node = serde_json::from_value(json!({
        "metadata": {
            "name": "vm",
            "labels": {"kubernetes.io/hostname": "old", "theirs": "y", "topology.kubernetes.io/region": "r"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true", "keep": "me"},
        },
        "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"example.com/gpu": "4", "hugepages-64Ki": "0", "cpu": "1"},
            "allocatable": {"example.com/gpu": "4"},
        },
    }))
    .unwrap();
    let before = existing.clone();
    reconcile(&mut existing, &initial, true);
    assert_eq!(
        patch(&before, &existing),
        Some(json!({
            "metadata": {
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": null},
                "labels": {
                    "beta.kubernetes.io/arch": "amd64",
                    "beta.kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": "vm",
                    "kubernetes.io/os": "linux",
                    "topology.kubernetes.io/zone": "a",
                },
            },
            "status": {
                "capacity": {
                    "example.com/gpu": "0", "hugepages-64Ki": null, "hugepages-1Gi": "0", "hugepages-2Mi": "0",
                },
                "allocatable": {"example.com/gpu": "0", "hugepages-1Gi": "0", "hugepages-2Mi": "0"},
            },
        }))
    );
    let settled = existing.clone();
    reconcile(&mut existing, &initial, true);
    assert_eq!(patch(&settled, &existing), None);
}

#[test]
fn images_and_handlers_are_shown_in_order() {
    let mut world = World::new();
    world.setup.max_images = 2;
    let image = |id: &str, size: u64| Image {
        id: id.into(),
        size,
        repo_digests: vec![format!("{id}@1"), format!("{id}@2")],
        repo_tags: (0..5).map(|n| format!("{id}:{n}")).collect(),
        ..Image::default()
    };
    world.images = vec![image("a", 5), image("b", 9), image("c", 9)];
    // No registry has a name like this, and the API server would refuse the whole Node for it.
    world.images[2].repo_digests.insert(0, "x".repeat(1 << 20));
    let handler =
        |name: &str| RuntimeHandler { name: name.into(), user_namespaces: true, ..Default::default() };
    world.runtime.status.as_mut().unwrap().handlers = vec![handler("runc"), handler("")];
    world.facts.swap_bytes = 1 << 30;
    let (node, _) = world.initial(1);
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(
        status["images"],
        json!([
            {"names": ["c@1", "c@2", "c:0", "c:1", "c:2"], "sizeBytes": 9},
            {"names": ["b@1", "b@2", "b:0", "b:1", "b:2"], "sizeBytes": 9},
        ])
    );
    let features = json!({"recursiveReadOnlyMounts": false, "userNamespaces": true});
    assert_eq!(
        status["runtimeHandlers"],
        json!([{"features": features}, {"name": "runc", "features": features}])
    );
    assert_eq!(status["features"], json!({"supplementalGroupsPolicy": false}));
    assert_eq!(status["nodeInfo"]["swap"], json!({"capacity": 1 << 30}));
}

#[test]
fn what_is_missing_is_said() {
    let mut world = World::new();
    world.facts.root_fs_bytes = 0;
    let (node, _) = world.initial(1);
    let ready = node.status.unwrap().conditions.unwrap().pop().unwrap();
    assert_eq!(ready.message.as_deref(), Some("missing node capacity for resources: ephemeral-storage"));
    world.setup.capacity.local_storage = false;
    let (node, _) = world.initial(1);
    assert_eq!(node.status.unwrap().conditions.unwrap().pop().unwrap().status, "True");
}
