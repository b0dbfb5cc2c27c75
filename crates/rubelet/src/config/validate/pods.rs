//! How pods run: cgroups, CPU periods, swap, back-off, user namespaces, the runtime and its logs.

use decide::render::sysctls::check_pattern;

use super::{FeatureGates, FieldErrors, Host, KubeletConfiguration};
use crate::config::GoDuration;
use crate::config::path::clean;

/// User namespaces are handed out in blocks of this many ids.
const ID_BLOCK: i64 = 65536;

pub(super) fn check(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    host: Host,
    faults: &mut FieldErrors,
) {
    cgroups(config, host, faults);
    cpu_period(config, gates, faults);
    memory(config, gates, faults);
    back_off(config, gates, faults);
    user_namespaces(config, faults);
    pod_logs(config, faults);
    for pattern in &config.allowed_unsafe_sysctls {
        if let Err(problem) = check_pattern(pattern) {
            faults.add("allowedUnsafeSysctls", problem);
        }
    }
    faults.require(!config.container_runtime_endpoint.is_empty(), "containerRuntimeEndpoint", || {
        "must not be empty".to_owned()
    });
    faults.require(!config.run_once, "runOnce", || "run-once mode no longer exists".to_owned());
    faults.require(
        !config.server_tls_bootstrap || gates.enabled("RotateKubeletServerCertificate"),
        "serverTLSBootstrap",
        || "needs feature gate RotateKubeletServerCertificate".to_owned(),
    );
    faults.require(
        !config.enable_system_log_query || config.enable_system_log_handler,
        "enableSystemLogQuery",
        || "needs enableSystemLogHandler".to_owned(),
    );
}

fn cgroups(config: &KubeletConfiguration, host: Host, faults: &mut FieldErrors) {
    faults.require(
        config.system_cgroups.is_empty() || !config.cgroup_root.is_empty(),
        "systemCgroups",
        || "needs cgroupRoot as well".to_owned(),
    );
    if host.cgroup_v1 {
        faults.require(!config.fail_cgroup_v1, "failCgroupV1", || {
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be \
             removed in a future release"
                .to_owned()
        });
        faults.require(config.single_process_oom_kill != Some(false), "singleProcessOOMKill", || {
            "can't be false on cgroup v1".to_owned()
        });
    }
}

fn cpu_period(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    const GATE: &str = "CustomCPUCFSQuotaPeriod";
    let period = config.cpu_cfs_quota_period;
    if gates.enabled(GATE) {
        let fine = (GoDuration::from_millis(1)..=GoDuration::from_secs(1)).contains(&period);
        faults.require(fine, "cpuCFSQuotaPeriod", || format!("{period} must be from 1ms to 1s"));
    } else {
        let fine = period == GoDuration::from_millis(100);
        faults.require(fine, "cpuCFSQuotaPeriod", || format!("{period} needs feature gate {GATE}"));
    }
}

fn memory(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    faults.one_of(
        "memorySwap.swapBehavior",
        &config.memory_swap.swap_behavior,
        &["", "NoSwap", "LimitedSwap"],
    );
    let policy = config.memory_reservation_policy.as_str();
    faults.one_of("memoryReservationPolicy", policy, &["None", "TieredReservation"]);
    faults.require(
        policy != "TieredReservation" || gates.enabled("MemoryQoS"),
        "memoryReservationPolicy",
        || format!("{policy:?} needs feature gate MemoryQoS"),
    );
}

fn back_off(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    const GATE: &str = "KubeletCrashLoopBackOffMax";
    const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    match (gates.enabled(GATE), config.crash_loop_back_off.max_container_restart_period) {
        (true, None) => faults.add(FIELD, format!("must be set while feature gate {GATE} is on")),
        (true, Some(longest)) => {
            let fine = (GoDuration::from_secs(1)..=GoDuration::from_secs(300)).contains(&longest);
            faults.require(fine, FIELD, || format!("{longest} must be from 1s to 300s"));
        }
        (false, Some(_)) => faults.add(FIELD, format!("needs feature gate {GATE}")),
        (false, None) => {}
    }
}

fn user_namespaces(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let Some(ids) = config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod) else {
        return;
    };
    let fine = ids >= ID_BLOCK && ids % ID_BLOCK == 0 && ids <= i64::from(u32::MAX);
    faults.require(fine, "userNamespaces.idsPerPod", || {
        format!("{ids} must be a multiple of {ID_BLOCK}, at least that and at most {}", u32::MAX)
    });
}

fn pod_logs(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    const FIELD: &str = "podLogsDir";
    let directory = config.pod_logs_dir.as_str();
    if directory.is_empty() {
        return faults.add(FIELD, "must not be empty");
    }
    faults.require(directory.starts_with('/'), FIELD, || format!("{directory:?} must be absolute"));
    faults.require(clean(directory) == directory, FIELD, || format!("{directory:?} must be normalized"));
    // It shows in metrics.
    faults.require(directory.is_ascii(), FIELD, || format!("{directory:?} must be ASCII"));
}
