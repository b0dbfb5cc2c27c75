//! What a container's memory is held to beside its limit: swap, and on version 2 protection and throttling.

use model::cri::LinuxResources;
use model::k8s;
use model::node::CgroupVersion;
use model::pod::{PodView, QosClass};

use super::RenderContext;
use crate::resources::capacity::enforced_amounts;
use crate::resources::{Amounts, MEMORY, container_limits, container_requests, is_critical, qos_class};

/// What the container itself declares, without what it has from its pod.
struct DeclaredMemory {
    request: i64,
    limit: i64,
}

impl DeclaredMemory {
    fn of(container: &k8s::Container) -> Self {
        let limit = container_limits(container).memory_bytes();
        // A limit without a request is a request as well.
        let request = |requests: Amounts| requests.get(MEMORY).map_or(limit, |request| request.value());
        Self { request: request(container_requests(container)), limit }
    }
}

/// Containers don't swap, unless `LimitedSwap` is configured: then those of burstable pods get a share of the swap as
/// large as their share of the memory.
pub(super) fn limit_swap(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &k8s::Container,
    resources: &mut LinuxResources,
) {
    if !ctx.facts.swap_controller {
        return;
    }
    match ctx.facts.cgroup_version {
        // the limit there is of memory and swap together
        CgroupVersion::V1 => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        CgroupVersion::V2 => {
            let share = if ctx.config.allocatable.limited_swap { swap_share(ctx, pod, container) } else { 0 };
            resources.unified.insert("memory.swap.max".into(), share.to_string());
        }
    }
}

fn swap_share(ctx: &RenderContext<'_>, pod: &PodView, container: &k8s::Container) -> u64 {
    let DeclaredMemory { request, limit } = DeclaredMemory::of(container);
    let eligible = !is_critical(pod) && qos_class(pod) == QosClass::Burstable && request != limit;
    let memory = ctx.facts.memory_bytes;
    let fits = memory > 0 && u64::try_from(request).is_ok_and(|request| request <= memory);
    if !eligible || !fits {
        return 0;
    }
    // In floating point, as the reference: the rounding is seen in the cgroup.
    (request as f64 / memory as f64 * ctx.facts.swap_bytes as f64) as u64
}

/// The gate MemoryQoS: what is requested is protected (by policy), and what is used beyond it is slowed down before
/// the limit is hit.
pub(super) fn set_memory_qos(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &k8s::Container,
    resources: &mut LinuxResources,
) {
    let Some(qos) = ctx.config.allocatable.memory_qos.as_ref() else { return };
    if ctx.facts.cgroup_version != CgroupVersion::V2 {
        return;
    }
    let memory = DeclaredMemory::of(container);
    let request = memory.request.max(0);
    let mut set = |file: &str, bytes: i64| {
        resources.unified.insert(file.to_owned(), bytes.to_string());
    };
    match (qos.tiered && request > 0, qos_class(pod)) {
        (true, QosClass::Guaranteed) => set("memory.min", request),
        (true, QosClass::Burstable | QosClass::BestEffort) => set("memory.low", request),
        (false, _) => {
            set("memory.min", 0);
            set("memory.low", 0);
        }
    }
    if let Some(high) = throttled_from(ctx, &memory, qos.throttling_factor) {
        set("memory.high", high);
    }
}

/// From how much memory on the container is slowed down.
fn throttled_from(ctx: &RenderContext<'_>, memory: &DeclaredMemory, factor: f64) -> Option<i64> {
    let DeclaredMemory { request, limit } = *memory;
    if request == limit && limit != 0 {
        return None;
    }
    let most = match limit {
        0 => enforced_amounts(&ctx.config.node_object.capacity, ctx.facts, true).memory_bytes(),
        limit => limit,
    };
    if most <= 0 {
        return None;
    }
    let page = i64::try_from(ctx.facts.page_size).unwrap_or(4096).max(1);
    let high = (request as f64 + (most as f64 - request as f64) * factor).floor() as i64;
    let high = high / page * page;
    (high > 0 && high > request).then_some(high)
}

#[cfg(test)]
mod tests {
    use model::allocatable::{AllocatableConfig, MemoryQosConfig};
    use model::node::{HostFacts, NodeConfig};
    use serde_json::{Value, json};

    use super::*;
    use crate::render::container_resources;
    use crate::render::sample;

    fn facts() -> HostFacts {
        HostFacts {
            cgroup_version: CgroupVersion::V2,
            swap_controller: true,
            memory_bytes: 8 << 30,
            swap_bytes: 3 << 30,
            ..sample::facts()
        }
    }

    fn unified(
        allocatable: &AllocatableConfig,
        facts: &HostFacts,
        spec: Value,
        file: &str,
    ) -> Option<String> {
        let config = NodeConfig { allocatable: allocatable.clone(), ..sample::config() };
        let pod = sample::pod(spec);
        let resources = container_resources(&RenderContext::new(&config, facts), &pod, &pod.containers()[0]);
        resources.unified.get(file).cloned()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]})
    }

    #[test]
    fn swap_in_proportion_to_the_request() {
        let limited = AllocatableConfig { limited_swap: true, ..AllocatableConfig::default() };
        let check = |facts: &HostFacts, spec: Value, expect: &str| {
            let seen = unified(&limited, facts, spec.clone(), "memory.swap.max");
            assert_eq!(seen.as_deref(), Some(expect), "{spec}");
        };
        let eligible = || container(json!({"memory": "1Gi"}), json!({}));
        check(&facts(), eligible(), &((3u64 << 30) / 8).to_string());
        check(&facts(), container(json!({"memory": "1000000007"}), json!({"memory": "2Gi"})), "375000002");
        // guaranteed, best effort, without memory, with as much as its limit
        let full = || json!({"cpu": "1", "memory": "1Gi"});
        check(&facts(), container(full(), full()), "0");
        check(&facts(), container(json!({}), json!({})), "0");
        check(&facts(), container(json!({"cpu": "1"}), json!({})), "0");
        check(&facts(), container(json!({}), json!({"memory": "1Gi"})), "0");
        // more than there is
        check(&facts(), container(json!({"memory": "9Gi"}), json!({})), "0");
        check(&HostFacts { memory_bytes: 0, ..facts() }, eligible(), "0");
        let mut critical = eligible();
        critical["priority"] = json!(2_000_000_000);
        check(&facts(), critical, "0");
        let off = AllocatableConfig::default();
        assert_eq!(unified(&off, &facts(), eligible(), "memory.swap.max").as_deref(), Some("0"));
        let none = HostFacts { swap_controller: false, ..facts() };
        assert_eq!(unified(&limited, &none, eligible(), "memory.swap.max"), None);
    }

    #[test]
    fn memory_is_protected_by_policy_and_throttled_by_factor() {
        let qos = |tiered| AllocatableConfig {
            memory_qos: Some(MemoryQosConfig { throttling_factor: 0.9, tiered }),
            ..AllocatableConfig::default()
        };
        let check = |tiered, spec: Value, expect: [Option<&str>; 3]| {
            let seen = |file| unified(&qos(tiered), &facts(), spec.clone(), file);
            let seen = [seen("memory.min"), seen("memory.low"), seen("memory.high")];
            assert_eq!(seen.each_ref().map(Option::as_deref), expect, "{spec} {tiered}");
        };
        let burstable = || container(json!({"memory": "100Mi"}), json!({"memory": "200Mi"}));
        // 100Mi + 100Mi * 0.9, in whole pages
        check(false, burstable(), [Some("0"), Some("0"), Some("199229440")]);
        check(true, burstable(), [None, Some("104857600"), Some("199229440")]);
        let full = || json!({"cpu": "1", "memory": "100Mi"});
        check(true, container(full(), full()), [Some("104857600"), None, None]);
        check(false, container(full(), full()), [Some("0"), Some("0"), None]);
        // without a limit the node's memory counts
        let unlimited = container(json!({"memory": "2Gi"}), json!({}));
        check(true, unlimited, [None, Some("2147483648"), Some("7945687040")]);
        check(true, container(json!({}), json!({})), [Some("0"), Some("0"), Some("7730937856")]);
    }

    #[test]
    fn nothing_without_the_gate_or_on_version_1() {
        let spec = || container(json!({"memory": "100Mi"}), json!({"memory": "200Mi"}));
        for file in ["memory.min", "memory.low", "memory.high"] {
            assert_eq!(unified(&AllocatableConfig::default(), &facts(), spec(), file), None, "{file}");
        }
        let qos = AllocatableConfig {
            memory_qos: Some(MemoryQosConfig { throttling_factor: 0.9, tiered: true }),
            ..AllocatableConfig::default()
        };
        let v1 = HostFacts { cgroup_version: CgroupVersion::V1, ..facts() };
        assert_eq!(unified(&qos, &v1, spec(), "memory.low"), None);
    }
}
