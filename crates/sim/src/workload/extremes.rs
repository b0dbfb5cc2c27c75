//! Pods that the API accepts, with numbers, strings and times as extreme as it allows, and extreme states of their
//! containers. The only check on such a pod is that other pods are unaffected.

use std::sync::Arc;

use model::Wall;
use model::k8s::Pod;
use model::observed::{ContainerState, ObservedPod};
use model::pod::Source;
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
    container["resources"] = json!({"limits": {
        "cpu": *rng.pick(&AMOUNTS), "memory": *rng.pick(&AMOUNTS), "ephemeral-storage": *rng.pick(&AMOUNTS),
    }, "requests": {"cpu": "0", "memory": "0", "ephemeral-storage": "0"}});
    container["env"] = json!([{"name": "WORD", "value": *rng.pick(&EXTREME_STRINGS)},
        {"name": "AGAIN", "value": format!("$(WORD){}", rng.pick(&EXTREME_STRINGS))}]);
    container["terminationMessagePath"] = json!("/dev/é");
    if rng.coin() {
        // A hook that may take years is waited for.
        let longest = if grace <= 1 { i64::MAX } else { 1 };
        let seconds = (*rng.pick(&[1, OLD_TIMER_LIMIT_SECS, i64::MAX])).min(longest);
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
    }
    let meta = &mut value["metadata"];
    meta["annotations"]["word"] = (*rng.pick(&EXTREME_STRINGS)).into();
    meta["labels"] = json!({"a": "b"});
    meta["generation"] = (*rng.pick(&[0, i64::MAX])).into();
    meta["creationTimestamp"] = (*rng.pick(&TIMES)).into();
    if source == Source::Api && rng.coin() {
        value["status"] = json!({"phase": "Pending", "startTime": *rng.pick(&TIMES), "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": *rng.pick(&TIMES)},
        ]});
    }
    serde_json::from_value(value).expect("the simulation made a bad pod")
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

/// The state that the runtime reports of an extreme pod's containers: the same at every reading.
pub fn make_observed_extreme(pod: &mut ObservedPod) {
    if !is_extreme(&pod.uid) {
        return;
    }
    for container in &mut pod.containers {
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
