//! Who is killed first when memory runs out.

use model::k8s;
use model::pod::{ANNOTATION_MIRROR, PodView, QosClass, is_sidecar};

use super::amounts::MEMORY;
use super::totals::{container_requests, has_pod_level_requests, pod_requests, requests_of_containers};
use super::{Overhead, qos_class};

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
/// A burstable container never scores better than a guaranteed one that uses all memory.
const BURSTABLE_MIN: i64 = 1000 + GUARANTEED;
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";

/// Pods that are never evicted, and that may push others away: static ones, their mirrors, and the highest priorities.
pub fn is_critical(pod: &PodView) -> bool {
    let annotations = pod.pod.metadata.annotations.as_ref();
    pod.source.is_static()
        || annotations.is_some_and(|a| a.contains_key(ANNOTATION_MIRROR))
        || pod.spec().priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

fn is_node_critical(pod: &PodView) -> bool {
    is_critical(pod) && pod.spec().priority_class_name.as_deref() == Some(SYSTEM_NODE_CRITICAL)
}

/// The kernel's `oom_score_adj` for a container's processes.
pub fn oom_score_adj(pod: &PodView, container: &k8s::Container, node_memory: u64) -> i64 {
    if is_node_critical(pod) {
        return GUARANTEED;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(pod, container, node_memory),
    }
}

/// The larger the share of the node's memory that was asked for, the later the container is killed.
fn burstable(pod: &PodView, container: &k8s::Container, node_memory: u64) -> i64 {
    let spare = spare_pod_memory_per_container(pod);
    let score = |request: i64| {
        let request = i128::from(request.saturating_add(spare));
        let share = 1000 * request / i128::from(node_memory.max(1));
        i64::try_from(1000 - share).unwrap_or(i64::MIN)
    };
    let mut adjust = score(container_requests(container).memory_bytes());
    let is_init = pod.init_containers().iter().any(|c| c.name == container.name);
    if is_init && is_sidecar(container) {
        // a sidecar outlives the regular containers that need it
        let smallest = pod.containers().iter().map(|c| container_requests(c).memory_bytes()).min();
        adjust = adjust.min(score(smallest.unwrap_or(0)));
    }
    if adjust == BEST_EFFORT { BEST_EFFORT - 1 } else { adjust.max(BURSTABLE_MIN) }
}

/// Memory asked for at pod level that no container asked for is shared out evenly.
fn spare_pod_memory_per_container(pod: &PodView) -> i64 {
    let pod_level = pod_requests(pod, Overhead::Excluded);
    if !has_pod_level_requests(pod) || pod_level.amount(MEMORY).is_zero() {
        return 0;
    }
    let count = pod.containers().len() + pod.init_containers().len();
    let spare = pod_level.memory_bytes().saturating_sub(requests_of_containers(pod).memory_bytes());
    spare / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    const GIB: u64 = 1 << 30;

    fn adjust_of(spec: &Value, name: &str, node_memory: u64) -> i64 {
        let pod = sample::pod(spec.clone());
        let (_, container) = pod.container(name).unwrap();
        oom_score_adj(&pod, container, node_memory)
    }

    fn c(name: &str, memory: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"memory": memory}}})
    }

    #[test]
    fn classes_and_shares_of_memory() {
        let check = |spec: Value, expect: i64| assert_eq!(adjust_of(&spec, "c", 8 * GIB), expect, "{spec}");
        let resources = json!({"cpu": "1", "memory": "1Gi"});
        check(json!({"containers": [{"name": "c"}]}), 1000);
        check(
            json!({"containers": [{"name": "c", "resources": {"requests": resources, "limits": resources}}]}),
            -997,
        );
        check(json!({"containers": [c("c", "1Mi")]}), 999);
        check(json!({"containers": [c("c", "4Gi")]}), 500);
        check(json!({"containers": [c("c", "800Mi")]}), 1000 - 97);
        check(json!({"containers": [c("c", "8Gi")]}), 3);
        check(json!({"containers": [c("c", "80Gi")]}), 3);
        // a container without a request in a burstable pod
        check(json!({"containers": [{"name": "c"}, c("d", "4Gi")]}), 999);
        // spare pod-level memory: (6Gi - 2Gi) / 2 on top of the own request
        let level = json!({"requests": {"memory": "6Gi"}});
        check(json!({"containers": [c("c", "2Gi"), {"name": "d"}], "resources": level}), 500);
        check(
            json!({"containers": [{"name": "c"}, {"name": "d"}], "resources": {"requests": {"cpu": "1"}}}),
            999,
        );
    }

    #[test]
    fn sidecars_are_killed_no_earlier_than_what_they_serve() {
        let spec = |own: &str| {
            let mut side = c("side", own);
            side["restartPolicy"] = json!("Always");
            json!({"containers": [c("c", "4Gi"), c("d", "2Gi")], "initContainers": [side, c("i", "1Mi")]})
        };
        assert_eq!(adjust_of(&spec("1Gi"), "side", 8 * GIB), 750);
        assert_eq!(adjust_of(&spec("3Gi"), "side", 8 * GIB), 625);
        assert_eq!(adjust_of(&spec("1Gi"), "i", 8 * GIB), 999);
    }

    #[test]
    fn the_node_depends_on_some_pods() {
        let spec = |class: &str, priority: i64| json!({"containers": [c("c", "1Gi")], "priorityClassName": class, "priority": priority});
        assert_eq!(adjust_of(&spec("system-node-critical", 2_000_001_000), "c", 8 * GIB), -997);
        assert_eq!(adjust_of(&spec("system-cluster-critical", 2_000_000_000), "c", 8 * GIB), 875);
        assert_eq!(adjust_of(&spec("system-node-critical", 5), "c", 8 * GIB), 875);
        let static_pod = sample::static_pod(spec("system-node-critical", 5));
        assert_eq!(oom_score_adj(&static_pod, &static_pod.containers()[0], 8 * GIB), -997);
    }
}
