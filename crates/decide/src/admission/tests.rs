//! Every refusal with its exact words.

use std::sync::Arc;

use model::k8s;
use model::pod::Source;
use serde_json::{Value, json};

use super::*;
use crate::resources::{Overhead, pod_requests};

struct World {
    config: NodeConfig,
    facts: HostFacts,
    node: Option<Node>,
    runtime: RuntimeHealth,
    others: Vec<PodView>,
    pressure: NodePressure,
}

impl World {
    fn new() -> Self {
        let mut config = NodeConfig { node_name: "here".into(), ..NodeConfig::default() };
        config.node_object.capacity.max_pods = 3;
        let facts = HostFacts {
            cpus: 2,
            memory_bytes: 4 << 30,
            root_fs_bytes: 10 << 30,
            huge_pages: [(2 << 20, 1 << 30)].into(),
            architecture: "amd64".into(),
            ..HostFacts::default()
        };
        let runtime = RuntimeHealth { last_ok: Some(model::Mono::ZERO), ..RuntimeHealth::default() };
        Self { config, facts, node: None, runtime, others: Vec::new(), pressure: NodePressure::default() }
    }

    fn with_other_pod(mut self, spec: Value) -> Self {
        self.others.push(view(json!({ "spec": spec }), Source::Api));
        self
    }

    fn verdict(&self, pod: Value, source: Source) -> String {
        let mut others = RequestedByOthers::default();
        for other in &self.others {
            others.add(&pod_requests(other, Overhead::Included), &host_ports(other));
        }
        let place = AdmissionInputs {
            config: &self.config,
            facts: &self.facts,
            node: self.node.as_ref(),
            runtime: &self.runtime,
            others: &others,
            pressure: self.pressure,
        };
        match admit(&view(pod, source), &place) {
            Ok(()) => "fine".into(),
            Err(AdmissionFailure::Refused(refusal) | AdmissionFailure::OnlyNodeAffinity(refusal)) => {
                format!("{}: {}", refusal.reason, refusal.message)
            }
            Err(AdmissionFailure::NeedsRoom(shortages)) => {
                let lacking = shortages.iter().map(|short| format!("{}={}", short.name, short.lacking()));
                format!("needs {}", lacking.collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[track_caller]
    fn check(&self, spec: Value, expect: &str) {
        assert_eq!(self.verdict(json!({ "spec": spec.clone() }), Source::Api), expect, "{spec}");
    }
}

fn view(pod: Value, source: Source) -> PodView {
    let pod: k8s::Pod = serde_json::from_value(pod).expect("a pod");
    PodView::new(Arc::new(pod), source)
}

fn asks(requests: Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
}

fn plain() -> Value {
    json!({"containers": [{"name": "c"}]})
}

#[test]
fn words_of_the_pod_itself() {
    let world = World::new();
    world.check(plain(), "fine");
    world.check(
        json!({"os": {"name": "windows"}, "containers": []}),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
    );
    let labelled = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}, "spec": plain()});
    assert_eq!(
        world.verdict(labelled, Source::File),
        "PodOSSelectorNodeLabelDoesNotMatch: \
         Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
    );
    let app_armor = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
    world.check(json!({"securityContext": profile("RuntimeDefault"), "containers": []}), app_armor);
    let unconfined = json!([{"name": "c", "securityContext": profile("Unconfined")}]);
    world.check(json!({ "containers": unconfined }), "fine");
    world.check(
        json!({"securityContext": {"sysctls": [{"name": "kernel.panic", "value": "1"}]}, "containers": []}),
        "SysctlForbidden: forbidden sysctl: \"kernel.panic\" not allowlisted",
    );
}

#[test]
fn room() {
    let world = World::new().with_other_pod(asks(json!({"cpu": "250m", "memory": "1Gi"})));
    world.check(
        asks(json!({"cpu": "1000"})),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000000, used: 250, capacity: 2000",
    );
    world.check(asks(json!({"cpu": "1750m", "memory": "2Gi"})), "fine");
    world.check(
        asks(json!({"cpu": "1751m"})),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 1751, used: 250, capacity: 2000",
    );
    // A gigabyte of it is huge pages.
    world.check(
        asks(json!({"memory": "2049Mi"})),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 2148532224, used: 1073741824, \
         capacity: 3221225472",
    );
    world.check(
        asks(json!({"ephemeral-storage": "11Gi"})),
        "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 11811160064, \
         used: 0, capacity: 10737418240",
    );
    world.check(asks(json!({"hugepages-2Mi": "1Gi"})), "fine");
    world.check(
        asks(json!({"hugepages-1Gi": "1Gi"})),
        "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, \
         capacity: 0",
    );
    // What the node does not show is not ours to count.
    world.check(asks(json!({"example.com/gpu": "1"})), "fine");
    let full = world.with_other_pod(plain()).with_other_pod(plain());
    full.check(
        asks(json!({"cpu": "1000"})),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
    );
}

#[test]
fn reservations_are_not_for_pods() {
    let mut world = World::new();
    world.config.node_object.capacity.kube_reserved =
        [("cpu".to_owned(), k8s::Quantity("500m".into()))].into();
    world.check(asks(json!({"cpu": "1500m"})), "fine");
    world.check(
        asks(json!({"cpu": "1501m"})),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 1501, used: 0, capacity: 1500",
    );
}

#[test]
fn places() {
    let mut world = World::new();
    let affinity =
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let selecting = |key: &str, value: &str| json!({"nodeSelector": {key: value}, "containers": []});
    world.check(selecting("no", "such"), affinity);
    world.check(selecting("kubernetes.io/arch", "amd64"), "fine");
    world.config.node_object.labels = [("no".to_owned(), "such".to_owned())].into();
    world.check(selecting("no", "such"), "fine");
    world.check(json!({"nodeName": "here", "containers": []}), "fine");
    world.check(
        json!({"nodeName": "there", "containers": []}),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
    );
    // The object in the cluster counts more than what was configured.
    let node = json!({"metadata": {"labels": {"a": "b"}}, "status": {"allocatable": {
        "cpu": "1", "memory": "1Gi", "pods": "5", "example.com/gpu": "1",
    }}});
    world.node = Some(serde_json::from_value(node).unwrap());
    world.check(selecting("no", "such"), affinity);
    world.check(selecting("a", "b"), "fine");
    world.check(asks(json!({"example.com/gpu": "1"})), "fine");
    world.check(
        asks(json!({"example.com/gpu": "2"})),
        "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1",
    );
}

#[test]
fn ports() {
    let port = |port: Value| json!({"containers": [{"name": "c", "ports": [port]}]});
    let world = World::new()
        .with_other_pod(port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1"})));
    let taken =
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    world.check(port(json!({"containerPort": 80, "hostPort": 8080})), taken);
    world.check(port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1"})), taken);
    world.check(port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.2"})), "fine");
    world.check(port(json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"})), "fine");
    world.check(port(json!({"containerPort": 8080})), "fine");
    let sidecar = json!({"containers": [], "initContainers": [
        {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 8080}]},
    ]});
    world.check(sidecar, taken);
}

#[test]
fn taints() {
    let mut world = World::new();
    world.config.node_object.taints = serde_json::from_value(json!([
        {"key": "soft", "effect": "NoSchedule"},
        {"key": "hard", "value": "1", "effect": "NoExecute"},
    ]))
    .unwrap();
    let away =
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let tolerating = |toleration: Value| json!({"tolerations": [toleration], "containers": []});
    world.check(plain(), away);
    world.check(tolerating(json!({"operator": "Exists"})), "fine");
    world.check(tolerating(json!({"key": "hard", "value": "1", "effect": "NoExecute"})), "fine");
    world.check(tolerating(json!({"key": "hard", "value": "2"})), away);
    world.check(tolerating(json!({"key": "hard", "operator": "Exists", "effect": "NoSchedule"})), away);
    world.check(tolerating(json!({"key": "hard", "operator": "Gt", "value": "0"})), "fine");
    assert_eq!(world.verdict(json!({ "spec": plain() }), Source::File), "fine");
}

#[test]
fn a_critical_pod_is_told_what_room_would_not_mend() {
    let world = World::new();
    let mut spec = asks(json!({"cpu": "1000"}));
    spec["nodeSelector"] = json!({"no": "such"});
    assert!(world.verdict(json!({"spec": spec.clone()}), Source::Api).starts_with("OutOfcpu"));
    spec["priority"] = json!(2_000_000_000);
    assert!(world.verdict(json!({ "spec": spec.clone() }), Source::Api).starts_with("NodeAffinity"));
    // Room is made for it only if nothing else is in its way.
    spec["nodeSelector"] = json!({});
    assert_eq!(world.verdict(json!({ "spec": spec.clone() }), Source::Api), "needs cpu=998000");
    spec["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    assert!(world.verdict(json!({ "spec": spec }), Source::Api).starts_with("AppArmor"));
    let full = World::new()
        .with_other_pod(plain())
        .with_other_pod(plain())
        .with_other_pod(asks(json!({"cpu": "1500m"})));
    let static_pod = json!({"spec": asks(json!({"cpu": "1", "memory": "1Gi"}))});
    assert_eq!(full.verdict(static_pod, Source::File), "needs pods=1 cpu=500");
}

#[test]
fn features_of_the_node() {
    let mut world = World::new();
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}, "containers": []});
    let unsupported = "SupplementalGroupsPolicyNotSupported: \
                       SupplementalGroupsPolicy=Strict is not supported in this node";
    world.check(strict.clone(), unsupported);
    world.runtime.supplemental_groups_policy = true;
    world.check(strict.clone(), "fine");
    world.runtime = RuntimeHealth::default();
    world.check(strict.clone(), "fine");
    let node = json!({"metadata": {}, "status": {"features": {"supplementalGroupsPolicy": false}}});
    world.node = Some(serde_json::from_value(node).unwrap());
    world.check(strict, unsupported);

    let both = json!({"hostNetwork": true, "hostUsers": false, "containers": [
        {"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]},
    ]});
    world.check(both.clone(), "fine");
    world.config.features = [("NodeDeclaredFeatures".to_owned(), true)].into();
    world.check(
        both.clone(),
        "PodFeatureUnsupported: Pod requires node features that are not available: \
         RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport",
    );
    world.config.node_object.declared_features =
        ["RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"]
            .map(str::to_owned)
            .into();
    world.check(
        both.clone(),
        "PodFeatureUnsupported: Pod requires node features that are not available: \
         UserNamespacesHostNetworkSupport",
    );
    world.runtime.user_namespaces_host_network = true;
    world.check(both, "fine");
    let claims = "PodFeatureUnsupported: Pod uses resource claims, \
                  and this node does not support dynamic resource allocation yet";
    world.check(json!({"resourceClaims": [], "containers": []}), "fine");
    world.check(json!({"resourceClaims": [{"name": "gpu"}], "containers": []}), claims);
    let made = json!({"spec": {"containers": []}, "status": {
        "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []},
    }});
    assert_eq!(world.verdict(made, Source::Api), claims);
    world.config.features.insert("PodLevelResources".into(), false);
    let pod_level = json!({"resources": {"requests": {"cpu": "1"}}, "containers": []});
    assert!(
        world.verdict(json!({ "spec": pod_level }), Source::Api).starts_with("PodLevelResourcesNotSupported")
    );
}

#[test]
fn a_node_under_pressure_takes_what_it_can_bear() {
    let mut world = World::new();
    let of = |memory, disk| NodePressure { memory, disk, pid: false };
    let tolerating = json!({
        "containers": [{"name": "c"}],
        "tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}],
    });
    let best_effort = json!({"containers": [{"name": "c"}]});
    let burstable = asks(json!({"memory": "1Mi"}));
    let mut critical = best_effort.clone();
    critical["priority"] = json!(2_000_000_000);
    world.pressure = of(true, false);
    world.check(best_effort.clone(), "Evicted: The node had condition: [MemoryPressure]. ");
    world.check(burstable.clone(), "fine");
    world.check(tolerating.clone(), "fine");
    world.check(critical.clone(), "fine");
    world.pressure = of(true, true);
    let both = "Evicted: The node had condition: [MemoryPressure DiskPressure]. ";
    for pod in [best_effort.clone(), burstable, tolerating] {
        world.check(pod, both);
    }
    world.check(critical, "fine");
    assert_eq!(world.verdict(json!({ "spec": best_effort }), Source::File), "fine");
}
