//! Numbers that the kernel holds containers and sandboxes to.

use std::collections::BTreeMap;

use model::cri::{HugepageLimit, LinuxResources};
use model::k8s;
use model::node::CgroupVersion;
use model::pod::PodView;

use super::{RenderContext, memory};
use crate::resources::{
    Amounts, CPU, MEMORY, Overhead, container_limits, container_requests, cpu_quota, cpu_shares,
    has_pod_level_resources, limits_by_page_size, oom_score_adj, page_size_of_resource, pod_level_limits,
    pod_limits, pod_requests, quota_period_micros,
};

/// A container's resources, also for an update of a running one.
pub fn container_resources(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &k8s::Container,
) -> LinuxResources {
    let limits = effective_limits(pod, container);
    let mut resources = cgroup_limits(ctx, &container_requests(container), &limits);
    resources.oom_score_adj = oom_score_adj(pod, container, ctx.facts.memory_bytes);
    let by_size = limits_by_page_size(&limits, &ctx.facts.hugepage_sizes);
    resources.hugepage_limits = ctx
        .facts
        .hugepage_sizes
        .iter()
        .map(|size| HugepageLimit { page_size: size.clone(), limit: by_size[size] })
        .collect();
    memory::limit_swap(ctx, pod, container, &mut resources);
    memory::set_memory_qos(ctx, pod, container, &mut resources);
    resources
}

/// What the sandbox as a whole may use, without what the runtime itself costs.
pub(super) fn sandbox_resources(ctx: &RenderContext<'_>, pod: &PodView) -> LinuxResources {
    cgroup_limits(ctx, &pod_requests(pod, Overhead::Excluded), &pod_limits(pod, Overhead::Excluded))
}

/// What the runtime itself costs: asked for and limited alike.
pub(super) fn overhead(ctx: &RenderContext<'_>, pod: &PodView) -> LinuxResources {
    let Some(overhead) = &pod.spec().overhead else {
        return LinuxResources::default();
    };
    let overhead = Amounts::from_api(Some(overhead));
    cgroup_limits(ctx, &overhead, &overhead)
}

/// Where a pod-level limit is given, a container without its own is held to that one.
fn effective_limits(pod: &PodView, container: &k8s::Container) -> Amounts {
    let mut limits = container_limits(container);
    if !has_pod_level_resources(pod) {
        return limits;
    }
    for (name, amount) in pod_level_limits(pod).iter() {
        let unset = match name {
            CPU | MEMORY => limits.amount(name).is_zero(),
            _ => page_size_of_resource(name).is_some() && limits.get(name).is_none(),
        };
        if unset {
            limits.set(name, amount);
        }
    }
    limits
}

fn cgroup_limits(ctx: &RenderContext<'_>, requests: &Amounts, limits: &Amounts) -> LinuxResources {
    // a limit without a request is a request as well
    let request = requests.get(CPU).map_or(limits.cpu_millis(), |request| request.milli_value());
    let mut resources = LinuxResources {
        cpu_shares: i64::try_from(cpu_shares(request)).unwrap_or(i64::MAX),
        memory_limit_in_bytes: limits.memory_bytes(),
        ..LinuxResources::default()
    };
    if ctx.config.cpu_cfs_quota {
        resources.cpu_period = quota_period_micros(ctx.config);
        resources.cpu_quota = cpu_quota(limits.cpu_millis(), resources.cpu_period);
    }
    if ctx.facts.cgroup_version == CgroupVersion::V2 && !ctx.config.single_process_oom_kill {
        // out of memory ends the whole container, not just one of its processes
        resources.unified = BTreeMap::from([("memory.oom.group".into(), "1".into())]);
    }
    resources
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::node::{HostFacts, NodeConfig};
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn resources_of(config: &NodeConfig, facts: &HostFacts, spec: Value) -> LinuxResources {
        let pod = sample::pod(spec);
        container_resources(&RenderContext::new(config, facts), &pod, &pod.containers()[0])
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]})
    }

    #[test]
    fn cpu_and_memory() {
        let check = |spec: Value, shares: i64, quota: i64, memory: i64| {
            let got = resources_of(&sample::config(), &sample::facts(), spec.clone());
            let seen = (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes, got.cpu_period);
            assert_eq!(seen, (shares, quota, memory, 100_000), "{spec}");
        };
        check(container(json!({}), json!({})), 2, 0, 0);
        check(container(json!({"cpu": "250m"}), json!({})), 256, 0, 0);
        check(container(json!({}), json!({"cpu": "2", "memory": "1Mi"})), 2048, 200_000, 1 << 20);
        check(container(json!({"cpu": "0"}), json!({"cpu": "2"})), 2, 200_000, 0);
        check(container(json!({"cpu": "1"}), json!({"cpu": "5m"})), 1024, 1000, 0);
        let mut level = container(json!({"cpu": "1"}), json!({"memory": "1Mi"}));
        level["resources"] = json!({"limits": {"cpu": "2", "memory": "1Gi"}});
        check(level, 1024, 200_000, 1 << 20);
        let mut level = container(json!({}), json!({}));
        level["resources"] =
            json!({"limits": {"cpu": "200m", "memory": "64Mi"}, "requests": {"cpu": "100m"}});
        check(level, 204, 20_000, 64 << 20);
    }

    #[test]
    fn configured_periods() {
        let spec = || container(json!({}), json!({"cpu": "1"}));
        let config = NodeConfig { cpu_cfs_quota_period: Duration::from_millis(5), ..sample::config() };
        let got = resources_of(&config, &sample::facts(), spec());
        assert_eq!((got.cpu_period, got.cpu_quota), (5000, 5000));
        let config = NodeConfig { cpu_cfs_quota: false, ..sample::config() };
        let got = resources_of(&config, &sample::facts(), spec());
        assert_eq!((got.cpu_period, got.cpu_quota, got.cpu_shares), (0, 0, 1024));
    }

    #[test]
    fn huge_pages() {
        let check = |spec: Value, expect: [(&str, u64); 2]| {
            let got = resources_of(&sample::config(), &sample::facts(), spec.clone());
            let seen: Vec<(&str, u64)> =
                got.hugepage_limits.iter().map(|limit| (limit.page_size.as_str(), limit.limit)).collect();
            assert_eq!(seen, expect, "{spec}");
        };
        check(container(json!({}), json!({})), [("2MB", 0), ("1GB", 0)]);
        let own = || container(json!({}), json!({"hugepages-2Mi": "4Mi", "hugepages-64Ki": "1Mi"}));
        check(own(), [("2MB", 4 << 20), ("1GB", 0)]);
        let mut level = own();
        level["resources"] = json!({"limits": {"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"}});
        check(level, [("2MB", 4 << 20), ("1GB", 1 << 30)]);
    }

    #[test]
    fn swap_and_oom_by_cgroup_version() {
        let check = |version, swap_controller, single, unified: &[(&str, &str)], v1_swap: i64| {
            let facts = HostFacts { cgroup_version: version, swap_controller, ..sample::facts() };
            let config = NodeConfig { single_process_oom_kill: single, ..sample::config() };
            let got = resources_of(&config, &facts, container(json!({}), json!({"memory": "1Mi"})));
            let seen: Vec<(&str, &str)> =
                got.unified.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!((seen.as_slice(), got.memory_swap_limit_in_bytes), (unified, v1_swap));
        };
        use CgroupVersion::{V1, V2};
        check(V2, true, false, &[("memory.oom.group", "1"), ("memory.swap.max", "0")], 0);
        check(V2, false, false, &[("memory.oom.group", "1")], 0);
        check(V2, true, true, &[("memory.swap.max", "0")], 0);
        check(V1, true, false, &[], 1 << 20);
        check(V1, false, false, &[], 0);
    }

    #[test]
    fn sandboxes_and_overhead() {
        let (config, facts) = (sample::config(), sample::facts());
        let ctx = RenderContext::new(&config, &facts);
        let mut spec = container(json!({"cpu": "1"}), json!({"cpu": "2", "memory": "2Mi"}));
        assert_eq!(overhead(&ctx, &sample::pod(spec.clone())), LinuxResources::default());
        spec["overhead"] = json!({"cpu": "250m", "memory": "1Mi"});
        let pod = sample::pod(spec);
        let own = sandbox_resources(&ctx, &pod);
        assert_eq!((own.cpu_shares, own.cpu_quota, own.memory_limit_in_bytes), (1024, 200_000, 2 << 20));
        assert_eq!((own.oom_score_adj, own.hugepage_limits.len()), (0, 0));
        let cost = overhead(&ctx, &pod);
        assert_eq!((cost.cpu_shares, cost.cpu_quota, cost.memory_limit_in_bytes), (256, 25_000, 1 << 20));
    }
}
