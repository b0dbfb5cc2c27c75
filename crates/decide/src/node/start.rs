//! Events about the node that are recorded once, when the agent starts.

use model::ApiEvent;
use model::node::{CgroupVersion, HostFacts, NodeConfig};

use crate::render::resolv_conf_problem;

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
    Please migrate to cgroup v2. More information at \
    https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
const SWAPPED_TO_DISK: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, \
    emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.";
/// The first kernel whose tmpfs supports the option.
const NO_SWAP_SINCE: (u32, u32) = (6, 4);

/// What users of this node should know about it. `swap_on`: the host has swap space in use.
pub fn events_at_start(config: &NodeConfig, facts: &HostFacts, swap_on: bool) -> Vec<ApiEvent> {
    let mut events = Vec::new();
    if facts.cgroup_version == CgroupVersion::V1 {
        events.push(ApiEvent::warning("CgroupV1", CGROUP_V1));
    }
    let no_swap = kernel_version(&facts.kernel_release).is_some_and(|version| version >= NO_SWAP_SINCE);
    if swap_on && !no_swap {
        events.push(ApiEvent::warning("PossibleMemoryBackedVolumesOnDisk", SWAPPED_TO_DISK));
    }
    let fault = resolv_conf_problem(config, facts);
    events.extend(fault.map(|text| ApiEvent::warning("CheckLimitsForResolvConf", text)));
    events
}

/// The first two numbers of `6.4.0-generic`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_when_it_holds() {
        let config = NodeConfig { cluster_domain: "cluster.local".into(), ..Default::default() };
        let facts = |version, release: &str, resolver: &str| HostFacts {
            cgroup_version: version,
            kernel_release: release.into(),
            resolv_conf: resolver.into(),
            ..Default::default()
        };
        let check = |facts: &HostFacts, swap_on: bool, expect: &[&str]| {
            let events = events_at_start(&config, facts, swap_on);
            let reasons: Vec<_> = events.iter().map(|event| event.reason.as_str()).collect();
            assert_eq!(reasons, expect, "{facts:?} {swap_on}");
        };
        let domains = |count: usize| {
            let names: Vec<_> = (0..count).map(|n| format!("d{n}")).collect();
            format!("search {}", names.join(" "))
        };
        check(&facts(CgroupVersion::V2, "6.1.0", ""), false, &[]);
        check(&facts(CgroupVersion::V1, "6.1.0", ""), false, &["CgroupV1"]);
        check(&facts(CgroupVersion::V2, "6.3.9-x", ""), true, &["PossibleMemoryBackedVolumesOnDisk"]);
        check(&facts(CgroupVersion::V2, "", ""), true, &["PossibleMemoryBackedVolumesOnDisk"]);
        check(&facts(CgroupVersion::V2, "6.4.0-x", ""), true, &[]);
        check(&facts(CgroupVersion::V2, "10.0", ""), true, &[]);
        check(&facts(CgroupVersion::V2, "6.1.0", &domains(29)), false, &[]);
        check(&facts(CgroupVersion::V2, "6.1.0", &domains(30)), false, &["CheckLimitsForResolvConf"]);
    }
}
