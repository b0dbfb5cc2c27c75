//! Pods that the API accepts, with numbers, strings and times as extreme as it allows, extreme states of their containers
//! and sandboxes, and extreme objects beside them. The only check on such a pod is that other pods are unaffected.

use std::sync::Arc;

use model::Wall;
use model::cri::{Image, RuntimeCondition, RuntimeHandler, RuntimeStatus};
use model::k8s::{CSIDriver, Pod, Service};
use model::observed::{ContainerState, ObservedPod};
use model::pod::Source;
use model::storage::{StorageKey, StorageObject};
use serde_json::{Value, json};

use super::pods::SimulatedPod;
use super::{Task, Workload};
use crate::rng::{Rng, mix};
use crate::time::{MILLI, SECOND};

/// The UIDs of such pods start with this.
const EXTREME_UID_PREFIX: &str = "x";

/// Beyond this many seconds a queue of timers once panicked (2^36 milliseconds).
const OLD_TIMER_LIMIT_SECS: i64 = 68_719_477;

const TIMES: [&str; 6] = [
    "0001-01-01T00:00:00Z",
    "1677-09-21T00:12:43Z",
    "1970-01-01T00:00:00Z",
    "2262-04-11T23:47:17Z",
    "2554-07-21T23:34:34Z",
    "9999-12-30T00:00:00Z",
];
const AMOUNTS: [&str; 8] =
    ["0", "1n", "1m", "0.000000001", "9223372036854775807", "9223372036854775807m", "8Ei", "1e-9"];
/// Huge pages of one size under two names: the largest amount that the API accepts of each, a little, and none.
const HUGE_PAGES: [&str; 3] = ["9223372036852678656", "2Mi", "0"];
/// Bound to each other.
const EXTREME_CLAIM: &str = "x-claim";
const EXTREME_VOLUME: &str = "x-volume";
const EXTREME_STRINGS: [&str; 7] =
    ["", "é", "\u{10ffff}\u{10ffff}", "$($(é", "$$$(", "%\u{0}%zz", "\u{feff}\n\r\t"];

pub fn is_extreme(uid: &model::PodUid) -> bool {
    uid.as_str().starts_with(EXTREME_UID_PREFIX)
}

impl Workload {
    /// Simple pods that must run, among extreme ones that are added, changed and removed.
    pub fn extreme(rng: &mut Rng) -> Self {
        let mut workload = Self::plain(rng, 3);
        let sources = workload.config.sources.clone();
        for number in 0..rng.between(1, 5) {
            let name = format!("{EXTREME_UID_PREFIX}{number}");
            let source = *rng.pick(&sources);
            let mut at = SECOND + rng.below(5 * SECOND);
            for version in 1..=rng.between(1, 3) {
                let template = SimulatedPod::plain(&name, &format!("{name}-{version}"));
                let Task::Put { source, pod, scripts } = template.put(source) else { continue };
                let pod = Arc::new(extreme(rng, &pod, source));
                workload.tasks.push((at, Task::Put { source, pod, scripts }));
                at += rng.between(10 * MILLI, 20 * SECOND);
            }
            if rng.coin() {
                workload.tasks.push((at, Task::Remove { source, name }));
            }
        }
        workload
    }
}

/// The same pod with extreme numbers, strings and times.
fn extreme(rng: &mut Rng, pod: &Pod, source: Source) -> Pod {
    let mut value = serde_json::to_value(pod).unwrap_or_default();
    let spec = &mut value["spec"];
    if rng.coin() {
        spec["activeDeadlineSeconds"] =
            (*rng.pick(&[1, 7, OLD_TIMER_LIMIT_SECS, 70_000_000, i64::from(i32::MAX)])).into();
    }
    let graces = [0, 1, OLD_TIMER_LIMIT_SECS, i64::from(i32::MAX), i64::MAX / 1_000_000_000, i64::MAX];
    let grace = *rng.pick(&graces);
    spec["terminationGracePeriodSeconds"] = grace.into();
    spec["priority"] = (*rng.pick(&[i32::MIN, -1, i32::MAX])).into();
    spec["tolerations"] =
        json!([{"operator": "Exists", "tolerationSeconds": *rng.pick(&[i64::MIN, i64::MAX])}]);
    let ids = [0, i64::from(i32::MAX)];
    spec["securityContext"] = json!({"runAsUser": *rng.pick(&ids), "fsGroup": *rng.pick(&ids)});
    let container = &mut spec["containers"][0];
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if rng.coin() {
            container[kind] = probe(rng, kind == "readinessProbe");
        }
    }
    container["resources"] = resources(rng);
    container["env"] = json!([{"name": "WORD", "value": *rng.pick(&EXTREME_STRINGS)},
        {"name": "AGAIN", "value": format!("$(WORD){}", rng.pick(&EXTREME_STRINGS))}]);
    container["terminationMessagePath"] = json!("/dev/é");
    if rng.coin() {
        // A hook that may take years is waited for.
        let longest = if grace <= 1 { i64::MAX } else { 1 };
        let seconds = (*rng.pick(&[1, OLD_TIMER_LIMIT_SECS, i64::MAX])).min(longest);
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
    }
    if rng.coin() {
        // An API server that admits RuntimeClasses writes it.
        spec["overhead"] = json!({"cpu": *rng.pick(&AMOUNTS), "memory": *rng.pick(&AMOUNTS)});
    }
    add_volumes(rng, spec, source);
    let meta = &mut value["metadata"];
    meta["annotations"]["word"] = (*rng.pick(&EXTREME_STRINGS)).into();
    meta["labels"] = json!({"a": "b"});
    meta["generation"] = (*rng.pick(&[0, i64::MAX])).into();
    meta["creationTimestamp"] = (*rng.pick(&TIMES)).into();
    if source == Source::Api && rng.coin() {
        let containers: Value =
            ["c0", "other", "third"].into_iter().map(|name| container_status(rng, name)).collect();
        value["status"] = json!({"phase": "Pending", "startTime": *rng.pick(&TIMES), "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": *rng.pick(&TIMES)},
        ], "containerStatuses": containers});
    }
    serde_json::from_value(value).expect("the simulation made a bad pod")
}

/// What somebody else wrote into the status.
fn container_status(rng: &mut Rng, name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": EXTREME_STRINGS[2], "ready": true,
        "restartCount": *rng.pick(&[i32::MIN, i32::MAX]),
        "allocatedResources": {"cpu": *rng.pick(&AMOUNTS)},
        "resources": {"limits": {"memory": *rng.pick(&AMOUNTS)}},
        "lastState": {"terminated": {"exitCode": i32::MIN, "startedAt": TIMES[0], "finishedAt": TIMES[5]}}})
}

/// Limits without requests, requests without limits, or both alike; sometimes with huge pages.
fn resources(rng: &mut Rng) -> Value {
    let mut amounts = json!({
        "cpu": *rng.pick(&AMOUNTS), "memory": *rng.pick(&AMOUNTS), "ephemeral-storage": *rng.pick(&AMOUNTS),
    });
    match rng.below(4) {
        0 => json!({"limits": amounts, "requests": {"cpu": "0", "memory": "0", "ephemeral-storage": "0"}}),
        1 => json!({"requests": amounts}),
        2 => json!({"limits": amounts.clone(), "requests": amounts}),
        _ => {
            amounts["hugepages-2Mi"] = (*rng.pick(&HUGE_PAGES)).into();
            amounts["hugepages-2048Ki"] = (*rng.pick(&HUGE_PAGES)).into();
            json!({"limits": amounts.clone(), "requests": amounts})
        }
    }
}

fn add_volumes(rng: &mut Rng, spec: &mut Value, source: Source) {
    let mut volumes = Vec::new();
    for medium in ["", "Memory", "HugePages", "HugePages-2Mi"] {
        if rng.per_mille(250) {
            let name = format!("v{}", volumes.len());
            volumes.push(
                json!({"name": name, "emptyDir": {"medium": medium, "sizeLimit": *rng.pick(&AMOUNTS)}}),
            );
        }
    }
    if source == Source::Api && rng.per_mille(300) {
        let seconds = *rng.pick(&[600, 1_i64 << 32]);
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}});
        volumes.push(json!({"name": "token", "projected": {"sources": [token]}}));
    }
    if source == Source::Api && rng.per_mille(200) {
        volumes.push(json!({"name": "claim", "persistentVolumeClaim": {"claimName": EXTREME_CLAIM}}));
    }
    let mounts = volumes.iter().map(|volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap_or_default())}));
    spec["containers"][0]["volumeMounts"] = mounts.collect();
    spec["volumes"] = volumes.into();
}

fn probe(rng: &mut Rng, may_succeed_often: bool) -> Value {
    let mut number = |least: i64| *rng.pick(&[least, 1, OLD_TIMER_LIMIT_SECS, i64::from(i32::MAX)]);
    json!({
        "exec": {"command": ["true"]},
        "initialDelaySeconds": number(0),
        "periodSeconds": number(1),
        "timeoutSeconds": number(1),
        "failureThreshold": number(1),
        "successThreshold": if may_succeed_often { number(1) } else { 1 },
    })
}

/// The part of the Node's status besides addresses and volumes.
pub fn make_node_status_extreme(status: &mut Value) {
    let amounts = json!({"pods": "9223372036854775807", "cpu": "8Ei", "memory": "9223372036854775807",
        "hugepages-2Mi": "0", "example.com/é": "1n"});
    status["capacity"] = amounts.clone();
    status["allocatable"] = amounts;
    let condition = |at: &&str| {
        json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": at, "lastHeartbeatTime": at,
            "reason": EXTREME_STRINGS[2], "message": EXTREME_STRINGS[2].repeat(5_000)})
    };
    status["conditions"] = TIMES.iter().map(condition).collect();
    status["images"] =
        json!([{"names": EXTREME_STRINGS, "sizeBytes": i64::MIN}, {"names": [], "sizeBytes": i64::MAX}]);
    let word = json!({"type": "InternalDNS", "address": EXTREME_STRINGS[2]});
    if let Some(addresses) = status["addresses"].as_array_mut() {
        addresses.push(word);
    }
}

/// When a token expires: before the world began, or far beyond its end.
pub fn extreme_expiry(rng: &mut Rng) -> Wall {
    Wall(*rng.pick(&[i64::MIN, -1, 0, i64::MAX]))
}

/// Services with ports, addresses and names that no server would accept, and with all that one does.
pub fn extreme_services() -> Vec<Arc<Service>> {
    let service = |(number, text): (usize, &&str)| {
        let port = |number: i64, name: &str| json!({"name": name, "port": number, "targetPort": number, "nodePort": number});
        let ports =
            [i64::from(i32::MIN), -1, 0, 65_535, i64::from(i32::MAX)].map(|number| port(number, text));
        let meta = json!({"name": format!("s{number}{text}"), "namespace": "sim", "creationTimestamp": TIMES[number % TIMES.len()]});
        let spec = json!({"clusterIP": text, "clusterIPs": [text, "10.0.0.1"], "ports": ports,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": i32::MAX}}});
        Arc::new(made(json!({"metadata": meta, "spec": spec})))
    };
    EXTREME_STRINGS.iter().enumerate().map(service).collect()
}

/// The drivers as they are, with the longest and the shortest period, and one that nobody has.
pub fn make_drivers_extreme(drivers: Vec<Arc<CSIDriver>>) -> Vec<Arc<CSIDriver>> {
    let slow = drivers.into_iter().map(|driver| {
        let mut driver = CSIDriver::clone(&driver);
        driver.spec.node_allocatable_update_period_seconds = Some(i64::MAX);
        Arc::new(driver)
    });
    let odd = json!({"metadata": {"name": EXTREME_STRINGS[2]}, "spec": {
        "attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": i64::MIN, "fsGroupPolicy": EXTREME_STRINGS[5],
        "tokenRequests": [{"audience": EXTREME_STRINGS[4], "expirationSeconds": i64::MAX}],
    }});
    slow.chain([Arc::new(made(odd))]).collect()
}

/// The claim and the volume of extreme pods.
pub fn extreme_storage_object(key: &StorageKey) -> Option<StorageObject> {
    match key {
        StorageKey::Claim { namespace, name } if name == EXTREME_CLAIM => {
            let claim = json!({
                "metadata": {"name": name, "namespace": namespace, "uid": "x", "creationTimestamp": TIMES[0]},
                "spec": {"volumeName": EXTREME_VOLUME, "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": AMOUNTS[4]}}},
                "status": {"phase": "Bound", "capacity": {"storage": AMOUNTS[1]},
                    "allocatedResources": {"storage": AMOUNTS[6]},
                    "conditions": [{"type": "Resizing", "status": "True", "lastTransitionTime": TIMES[5]}]},
            });
            Some(StorageObject::Claim(Arc::new(made(claim))))
        }
        StorageKey::Volume { name } if name == EXTREME_VOLUME => {
            let attributes = json!({"word": EXTREME_STRINGS[3], "other": EXTREME_STRINGS[6]});
            let volume = json!({
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": AMOUNTS[6]},
                    "claimRef": {"namespace": "sim", "name": EXTREME_CLAIM, "uid": "x"},
                    "csi": {"driver": "nobody.example", "volumeHandle": EXTREME_STRINGS[2].repeat(500),
                        "volumeAttributes": attributes}},
            });
            Some(StorageObject::Volume(Arc::new(made(volume))))
        }
        _ => None,
    }
}

fn made<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the simulation made a bad object")
}

/// What the runtime tells about itself, with texts far longer than they should be.
pub fn make_runtime_status_extreme(status: &mut RuntimeStatus) {
    let long = EXTREME_STRINGS[2].repeat(20_000);
    for condition in &mut status.conditions {
        condition.reason.clone_from(&long);
        condition.message.clone_from(&long);
    }
    status.conditions.push(RuntimeCondition {
        r#type: long.clone(),
        status: false,
        reason: long.clone(),
        message: String::new(),
    });
    for name in EXTREME_STRINGS.into_iter().filter(|name| !name.is_empty()).chain([long.as_str()]) {
        status.handlers.push(RuntimeHandler { name: name.to_owned(), ..Default::default() });
    }
}

/// A text that the runtime gives as its name or version.
pub fn extreme_text() -> String {
    EXTREME_STRINGS[2].repeat(20_000)
}

/// An image as the runtime describes it, under its own name.
pub fn make_image_extreme(image: &mut Image) {
    image.size = u64::MAX;
    image.repo_tags.extend(EXTREME_STRINGS.map(str::to_owned));
    image.repo_digests.push(extreme_text());
}

/// Extreme numbers of list entries. What orders the entries of one pod stays: the time of creation or the attempt.
#[derive(Clone, Copy, Debug)]
pub struct ExtremeListEntry {
    /// In place of every time of creation.
    pub created_at: Option<i64>,
    /// In place of every number of an attempt or restart.
    pub attempt: Option<u32>,
    /// The texts of annotations that hold numbers.
    pub restart_count: &'static str,
    pub grace: &'static str,
}

impl ExtremeListEntry {
    /// The same for all entries of a pod.
    pub fn of(uid: &model::PodUid) -> Self {
        let number = uid.as_str().bytes().fold(5, |sum, byte| mix(sum ^ u64::from(byte)));
        let mut rng = Rng::new(number);
        let created_at = *rng.pick(&[i64::MIN, -1, 0, i64::MAX]);
        let attempt = *rng.pick(&[0, i32::MAX as u32, u32::MAX]);
        let by_time = rng.coin();
        Self {
            created_at: (!by_time).then_some(created_at),
            attempt: by_time.then_some(attempt),
            restart_count: *rng.pick(&["2147483647", "4294967295", "99999999999999999999", "-1", "é", ""]),
            grace: *rng.pick(&["9223372036854775807", "-9223372036854775808", "1e9", "é"]),
        }
    }
}

/// The state that the runtime reports of an extreme pod's containers and sandboxes: the same at every reading.
pub fn make_observed_extreme(pod: &mut ObservedPod) {
    if !is_extreme(&pod.uid) {
        return;
    }
    let entry = ExtremeListEntry::of(&pod.uid);
    for sandbox in &mut pod.sandboxes {
        sandbox.created_at = entry.created_at.map_or(sandbox.created_at, Wall);
        sandbox.attempt = entry.attempt.unwrap_or(sandbox.attempt);
        sandbox.runtime_handler = EXTREME_STRINGS[2].into();
        sandbox.ips.extend(EXTREME_STRINGS.map(str::to_owned));
    }
    for container in &mut pod.containers {
        container.created_at = entry.created_at.map_or(container.created_at, Wall);
        container.restart_count = entry.attempt.unwrap_or(container.restart_count);
        container.pod_grace = entry.grace.parse().ok();
        let number = container.id.as_str().bytes().fold(7, |sum, byte| mix(sum ^ u64::from(byte)));
        let mut rng = Rng::new(number);
        let walls = [i64::MIN, -1, 0, 1, i64::MAX - 1, i64::MAX].map(Wall);
        let ended = container.state == ContainerState::Exited;
        let (started, finished) = (*rng.pick(&walls), *rng.pick(&walls));
        let code = *rng.pick(&[i32::MIN, -1, 0, 1, i32::MAX]);
        container.started_at = started;
        container.finished_at = if ended { finished } else { Wall(0) };
        container.exit_code = if ended { code } else { 0 };
        container.message = rng.pick(&EXTREME_STRINGS).repeat(3_000);
        container.stop_signal = *rng.pick(&[i32::MIN, -1, 0, i32::MAX]);
        container.resources = Some(model::cri::LinuxResources {
            cpu_period: *rng.pick(&[i64::MIN, 0, 1, i64::MAX]),
            cpu_quota: *rng.pick(&[i64::MIN, 0, i64::MAX]),
            cpu_shares: *rng.pick(&[i64::MIN, 0, i64::MAX]),
            memory_limit_in_bytes: *rng.pick(&[i64::MIN, 0, i64::MAX]),
            ..Default::default()
        });
    }
}
