//! Pods with claims: read when they are needed, asked for again while they are not bound, and one volume at a time.

use std::sync::Arc;

use model::node::NodeConfig;
use model::pod::Source;
use model::storage::{StorageKey, StorageObject, StorageState};
use serde_json::{Value, json};

use super::script::{Script, check_on};
use crate::Event;
use crate::plan::tests::words::yaml;

pub fn key(name: &str) -> StorageKey {
    StorageKey::Claim { namespace: "ns".into(), name: name.into() }
}

pub fn word(key: &StorageKey) -> &'static str {
    match key {
        StorageKey::Claim { .. } => "claim",
        StorageKey::Volume { .. } => "pv",
        StorageKey::Attachment { .. } => "attachment",
    }
}

/// `<name>: bound <pv>`, `<name>: bound-for-one <pv>`, `<name>: owned <uid of a pod> <pv>`, `<name>: pending`, or as a [`read`].
pub fn claim(rest: &str) -> Event {
    let (name, text) = rest.split_once(": ").expect("claim <name>: <what>");
    let words: Vec<&str> = text.split(' ').collect();
    let modes = if words[0] == "bound-for-one" { json!(["ReadWriteOncePod"]) } else { Value::Null };
    let object = |phase: &str, volume: Value, owners: Value| {
        let claim = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "ownerReferences": owners},
            "spec": {"volumeName": volume, "accessModes": modes},
            "status": {"phase": phase},
        });
        StorageState::Present(StorageObject::Claim(Arc::new(serde_json::from_value(claim).expect("a claim"))))
    };
    let state = match words[..] {
        ["bound" | "bound-for-one", volume] => object("Bound", json!(volume), Value::Null),
        ["owned", owner, volume] => {
            let owner =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner, "controller": true}]);
            object("Bound", json!(volume), owner)
        }
        ["pending"] => object("Pending", Value::Null, Value::Null),
        _ => read(&format!("persistentvolumeclaims {name:?}"), text),
    };
    Event::StorageRead { key: key(name), state }
}

/// `<name>: of <claim> {spec}`, or as a [`read`].
pub fn volume(rest: &str) -> Event {
    let (name, text) = rest.split_once(": ").expect("pv <name>: <what>");
    let state = match text.strip_prefix("of ").and_then(|text| text.split_once(' ')) {
        Some((claim, spec)) => {
            let mut spec = yaml(spec);
            spec["claimRef"] = json!({"namespace": "ns", "name": claim, "uid": format!("uid-{claim}")});
            let volume = json!({"metadata": {"name": name}, "spec": spec});
            let volume = serde_json::from_value(volume).expect("a volume");
            StorageState::Present(StorageObject::Volume(Arc::new(volume)))
        }
        None => read(&format!("persistentvolumes {name:?}"), text),
    };
    Event::StorageRead { key: StorageKey::Volume { name: name.into() }, state }
}

/// `gone`, `denied <why>`, `away <why>`.
fn read(what: &str, text: &str) -> StorageState {
    let (word, message) = text.split_once(' ').unwrap_or((text, ""));
    let message = message.to_owned();
    match word {
        "gone" => StorageState::Absent { message: format!("{what} not found") },
        "denied" => StorageState::Denied { message },
        "away" => StorageState::Unreachable { message },
        other => panic!("nobody knows {other}"),
    }
}

#[track_caller]
fn check(script: &str) -> Script {
    check_on(NodeConfig { sources: vec![Source::Api], ..Default::default() }, script)
}

const POD: &str = "
    pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]}
";

#[test]
fn a_claim_leads_to_its_volume_and_to_the_start() {
    check(&format!(
        "
        show events
        {POD}
        up
        api a => ask claim x | look img-c:1
        looked img-c:1: yes
        why a => waits for volume v of x (persistentvolumeclaim \"x\" was not read yet)
        claim x: bound p => ask pv p
        why a => waits for volume v of x (persistentvolume \"p\" was not read yet)
        pv p: of x {{hostPath: {{path: /data}}}} => run a: dirs + cgroup > volume v > sandbox#0
        done a
        read a: s0 ready => run a: start c#0?
        done a
        read a: s0 ready; c#0 running => -
        "
    ));
}

#[test]
fn a_claim_that_is_not_bound_is_asked_for_again_and_told_once() {
    check(&format!(
        "
        show events clocks
        {POD}
        up
        api a => ask claim x | look img-c:1
        looked img-c:1: yes
        claim x: gone => timer claim x @0.5s
        => W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC ns/x: failed to fetch PVC from API server: persistentvolumeclaims \"x\" not found
        due claim x @0.5s => ask claim x
        claim x: gone => timer claim x @1.5s
        due claim x @1.5s => ask claim x
        claim x: pending => timer claim x @3.5s
        => W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC ns/x: PVC is not bound
        why a => waits for volume v of x (error processing PVC ns/x: PVC is not bound)
        due claim x @3.5s => ask claim x
        claim x: away no route => timer claim x @7.5s
        due claim x @7.5s => ask claim x
        claim x: bound p => ask pv p
        pv p: of x {{hostPath: {{path: /data}}}} => run a: dirs + cgroup > volume v > sandbox#0
        "
    ));
}

#[test]
fn a_refusal_is_told_when_it_lasts() {
    check(&format!(
        "
        show events
        {POD}
        up
        api a
        looked img-c:1: yes
        claim x: denied no relationship
        why a => waits for volume v of x (persistentvolumeclaim \"x\" can't be read: no relationship)
        due claim x
        claim x: denied no relationship => -
        due claim x
        claim x: denied no relationship => -
        due claim x
        claim x: denied no relationship
        => W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC ns/x: failed to fetch PVC from API server: no relationship
        "
    ));
}

#[test]
fn whoever_waits_long_is_told_again_and_again() {
    check(&format!(
        "
        show events
        {POD}
        up
        api a
        looked img-c:1: yes
        claim x: pending
        due pod a @123s
        => W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[]: context deadline exceeded
        due pod a @246s
        => W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[]: context deadline exceeded
        "
    ));
}

#[test]
fn one_volume_that_fails_does_not_hold_up_the_others() {
    check(
        "
        show events
        pod a = c: {volumeMounts: [{name: d, mountPath: /d}, {name: e, mountPath: /e}, {name: v, mountPath: /v}]}; spec: {volumes: [{name: d, emptyDir: {}}, {name: e, hostPath: {path: /e}}, {name: v, persistentVolumeClaim: {claimName: x}}]}
        up
        api a => ask claim x | run a: dirs + cgroup > volume d + volume e | look img-c:1
        looked img-c:1: yes
        fail a: volume e = no => W a FailedMount: MountVolume.SetUp failed for volume \"e\" : no
        claim x: bound p => ask pv p
        pv p: of x {hostPath: {path: /data}} => run a: dirs + cgroup > volume v
        done a
        due pod a @0.5s => run a: dirs + cgroup > volume e > sandbox#0
        done a => read a
        read a: s0 ready => run a: start c#0?
        ",
    );
}

#[test]
fn a_pod_sees_no_reading_that_is_older_than_itself() {
    check(
        "
        pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]}
        pod b = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]}
        up
        api a => ask claim x | look img-c:1
        looked img-c:1: yes
        api a b => look img-c:1
        looked img-c:1: yes
        claim x: bound p => ask claim x | ask pv p
        pv p: of x {hostPath: {path: /data}} => run a: dirs + cgroup > volume v > sandbox#0
        why b => waits for volume v of x (persistentvolumeclaim \"x\" was not read yet)
        claim x: bound p => ask pv p
        pv p: of x {hostPath: {path: /data}} => run b: dirs + cgroup > volume v > sandbox#0
        ",
    );
}

#[test]
fn what_is_for_one_pod_only_waits_until_that_pod_has_gone() {
    let pod = |name: &str| {
        format!(
            "pod {name} = c: {{volumeMounts: [{{name: v, mountPath: /v}}]}}; spec: {{volumes: [{{name: v, persistentVolumeClaim: {{claimName: x}}}}]}}"
        )
    };
    let (a, b) = (pod("a"), pod("b"));
    check(&format!(
        "
        show events
        {a}
        {b}
        up
        api a => ask claim x | look img-c:1
        looked img-c:1: yes
        claim x: bound p => ask pv p
        pv p: of x {{accessModes: [ReadWriteOncePod], hostPath: {{path: /data}}}} => run a: dirs + cgroup > volume v > sandbox#0
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running
        api a b => ask claim x | look img-c:1
        looked img-c:1: yes
        claim x: bound p => ask pv p
        pv p: of x {{accessModes: [ReadWriteOncePod], hostPath: {{path: /data}}}}
        => W b FailedMount: MountVolume.SetUp failed for volume \"p\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod
        api b => N a/c Killing: Stopping container c | run a: stop c#0 30s > stop-sandbox s0
        done a
        read a: s0 dead; c#0 exit(0) => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        done a
        why b => creating sandbox#0
        "
    ));
}

#[test]
fn what_an_earlier_agent_mounted_for_one_pod_is_still_that_pods() {
    let pod = |name: &str| {
        format!(
            "pod {name} = c: {{volumeMounts: [{{name: v, mountPath: /v}}]}}; spec: {{volumes: [{{name: v, persistentVolumeClaim: {{claimName: x}}}}]}}"
        )
    };
    let (a, z) = (pod("a"), pod("z"));
    check(&format!(
        "
        show events
        {a}
        {z}
        started
        ready
        services
        api a z => ask claim x
        claim x: bound-for-one p
        pv p: of x {{accessModes: [ReadWriteOncePod], hostPath: {{path: /data}}}}
        claim x: bound-for-one p
        pv p: of x {{accessModes: [ReadWriteOncePod], hostPath: {{path: /data}}}}
        read all: z = s0 ready; c#0 running
        => W a FailedMount: MountVolume.SetUp failed for volume \"p\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod | look img-c:1
        "
    ));
}

#[test]
fn a_claim_made_for_a_pod_belongs_to_it() {
    let pod = "pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]}";
    check(&format!(
        "
        show events
        {pod}
        up
        api a => ask claim a-v | look img-c:1
        looked img-c:1: yes
        claim a-v: bound p
        => ask pv p | W a FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: PVC ns/a-v was not created for pod ns/a (pod is not owner)
        "
    ));
    check(&format!(
        "
        {pod}
        up
        api a => ask claim a-v | look img-c:1
        looked img-c:1: yes
        claim a-v: owned a p => ask pv p
        pv p: of a-v {{hostPath: {{path: /data}}}} => run a: dirs + cgroup > volume v > sandbox#0
        "
    ));
}

/// One Event for each of the two maps of a device.
#[test]
fn a_device_has_events_when_it_is_mapped() {
    check(
        "
        show events
        pod a = c: {volumeDevices: [{name: v, devicePath: /dev/x}]}; spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]}
        up
        api a => ask claim x | look img-c:1
        looked img-c:1: yes
        claim x: bound p => ask pv p
        pv p: of x {volumeMode: Block, local: {path: /dev/sdx}} => run a: dirs + cgroup > volume v > sandbox#0
        fail a: sandbox#0 = no
        => N a SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"p\" globalMapPath \"/var/lib/kubelet/plugins/kubernetes.io~local-volume/volumeDevices/p\"
        => N a SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"p\" volumeMapPath \"/var/lib/kubelet/pods/a/volumeDevices/kubernetes.io~local-volume\"
        => W a FailedCreatePodSandBox: Failed to create pod sandbox: no | read a
        read a:
        due pod a => run a: dirs + cgroup > sandbox#0
        done a => read a
        ",
    );
}
