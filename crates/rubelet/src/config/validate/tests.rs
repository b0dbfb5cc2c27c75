//! Every rule, by the field that its message names.

use serde_json::{Value, json};

use super::*;
use crate::config::document::{drop_nulls, merge_patch};

/// The defaults with `patch` merged in, and the gates it asks for.
fn configured(patch: Value) -> (KubeletConfiguration, FeatureGates) {
    let mut document =
        serde_json::to_value(KubeletConfiguration::default()).unwrap().as_object().unwrap().clone();
    merge_patch(&mut document, patch.as_object().unwrap().clone());
    drop_nulls(&mut document);
    let config: KubeletConfiguration = serde_json::from_value(Value::Object(document)).unwrap();
    let gates = FeatureGates::resolve(&config.feature_gates).unwrap();
    (config, gates)
}

fn faults(patch: Value, host: Host) -> Vec<FieldError> {
    let (config, gates) = configured(patch);
    validate(&config, &gates, host).err().unwrap_or_default()
}

/// The patch breaks exactly these fields, in any order.
fn refuses(patch: Value, fields: &[&str]) {
    let found = faults(patch.clone(), Host::default());
    let mut named: Vec<&str> = found.iter().map(|fault| fault.field.as_str()).collect();
    named.sort_unstable();
    let mut expected = fields.to_vec();
    expected.sort_unstable();
    assert_eq!(named, expected, "{patch}: {found:?}");
    for fault in found {
        let text = fault.to_string();
        assert!(text.starts_with(&format!("invalid configuration: {}: ", fault.field)), "{text}");
    }
}

fn accepts(patch: Value) {
    refuses(patch, &[]);
}

#[test]
fn the_defaults_are_valid() {
    accepts(json!({}));
    let config = KubeletConfiguration::without_file();
    assert_eq!(validate(&config, &FeatureGates::default(), Host::default()), Ok(()));
}

#[test]
fn only_namespaced_sysctls_can_be_allowed() {
    accepts(json!({"allowedUnsafeSysctls": ["net.core.somaxconn", "kernel.msg*"]}));
    refuses(json!({"allowedUnsafeSysctls": ["vm.*", "net.*"]}), &["allowedUnsafeSysctls"]);
}

#[test]
fn numbers_stay_in_their_ranges() {
    for field in [
        "eventBurst",
        "eventRecordQPS",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "maxOpenFiles",
        "maxPods",
        "podsPerCore",
        "registryBurst",
        "registryPullQPS",
    ] {
        refuses(json!({field: -1}), &[field]);
        accepts(json!({field: 0}));
    }
    refuses(json!({"iptablesMasqueradeBit": 32}), &["iptablesMasqueradeBit"]);
    refuses(json!({"iptablesMasqueradeBit": -1}), &["iptablesMasqueradeBit"]);
    refuses(json!({"iptablesDropBit": 32}), &["iptablesDropBit"]);
    refuses(json!({"oomScoreAdj": -1001}), &["oomScoreAdj"]);
    refuses(json!({"oomScoreAdj": 1001}), &["oomScoreAdj"]);
    accepts(json!({"oomScoreAdj": 1000}));
    refuses(json!({"nodeLeaseDurationSeconds": -1}), &["nodeLeaseDurationSeconds"]);
    refuses(json!({"nodeStatusMaxImages": -2}), &["nodeStatusMaxImages"]);
    accepts(json!({"nodeStatusMaxImages": -1}));
    refuses(json!({"memoryThrottlingFactor": 0.0}), &["memoryThrottlingFactor"]);
    refuses(json!({"memoryThrottlingFactor": 1.1}), &["memoryThrottlingFactor"]);
    accepts(json!({"memoryThrottlingFactor": 1.0}));
}

#[test]
fn ports_are_ports() {
    for field in ["healthzPort", "readOnlyPort"] {
        accepts(json!({field: 0}));
        refuses(json!({field: 65536}), &[field]);
        refuses(json!({field: -1}), &[field]);
    }
    refuses(json!({"port": 0}), &["port"]);
    refuses(json!({"port": 65536}), &["port"]);
    accepts(json!({"port": 65535}));
}

#[test]
fn image_settings_agree_with_each_other() {
    refuses(json!({"imageGCHighThresholdPercent": 101}), &["imageGCHighThresholdPercent"]);
    refuses(json!({"imageGCLowThresholdPercent": -1}), &["imageGCLowThresholdPercent"]);
    refuses(json!({"imageGCLowThresholdPercent": 85}), &["imageGCLowThresholdPercent"]);
    refuses(json!({"imageMinimumGCAge": "-1ns"}), &["imageMinimumGCAge"]);
    refuses(json!({"imageMaximumGCAge": "-1ns"}), &["imageMaximumGCAge"]);
    refuses(json!({"imageMaximumGCAge": "2m"}), &["imageMaximumGCAge"]);
    accepts(json!({"imageMaximumGCAge": "2m1s"}));
    refuses(json!({"maxParallelImagePulls": 0}), &["maxParallelImagePulls"]);
    refuses(json!({"maxParallelImagePulls": 2}), &["maxParallelImagePulls"]);
    accepts(json!({"maxParallelImagePulls": 2, "serializeImagePulls": false}));
    accepts(json!({"maxParallelImagePulls": 1}));
}

#[test]
fn pull_credentials_follow_their_gate() {
    let policy = "imagePullCredentialsVerificationPolicy";
    let list = "preloadedImagesVerificationAllowlist";
    let off = json!({"KubeletEnsureSecretPulledImages": false});
    refuses(json!({policy: "Sometimes"}), &[policy]);
    refuses(json!({policy: null}), &[policy]);
    refuses(json!({list: ["a.example/b"]}), &[list]);
    refuses(json!({"featureGates": off}), &[policy]);
    refuses(json!({"featureGates": off, policy: null, list: ["a.example/b"]}), &[list]);
    accepts(json!({"featureGates": off, policy: null}));
    let listed = |patterns: Value| json!({policy: "NeverVerifyAllowlistedImages", list: patterns});
    accepts(listed(json!(["a.example/b", "a.example:5000/b", "a.example/*"])));
    for bad in [" a.example/b", "", "/*", "a.*/b", "a.example/b*", "a.example/b:1", "a.example/b@sha256:0"] {
        refuses(listed(json!([bad])), &[list]);
    }
}

#[test]
fn container_logs_rotate_sanely() {
    for bad in ["10MB", "0.5", "100m", "100E"] {
        refuses(json!({"containerLogMaxSize": bad}), &["containerLogMaxSize"]);
    }
    accepts(json!({"containerLogMaxSize": "-1"}));
    refuses(json!({"containerLogMaxFiles": 1}), &["containerLogMaxFiles"]);
    refuses(json!({"containerLogMaxWorkers": 0}), &["containerLogMaxWorkers"]);
    refuses(json!({"containerLogMonitorInterval": "2.9s"}), &["containerLogMonitorInterval"]);
    refuses(json!({"containerLogMonitorInterval": "-10s"}), &["containerLogMonitorInterval"]);
    accepts(json!({"containerLogMonitorInterval": "3s"}));
    for bad in ["", "./logs", "logs"] {
        assert!(
            faults(json!({"podLogsDir": bad}), Host::default())
                .iter()
                .all(|fault| fault.field == "podLogsDir")
        );
        assert!(!faults(json!({"podLogsDir": bad}), Host::default()).is_empty(), "{bad:?}");
    }
    refuses(json!({"podLogsDir": "/path/../"}), &["podLogsDir"]);
    refuses(json!({"podLogsDir": "/l\u{f6}gs"}), &["podLogsDir"]);
}

#[test]
fn shutdown_periods_are_possible() {
    refuses(json!({"shutdownGracePeriod": "500ms"}), &["shutdownGracePeriod"]);
    refuses(json!({"shutdownGracePeriodCriticalPods": "10s"}), &["shutdownGracePeriodCriticalPods"]);
    refuses(
        json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "1ms"}),
        &["shutdownGracePeriodCriticalPods"],
    );
    accepts(json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s"}));
    let list = json!([{"priority": 0, "shutdownGracePeriodSeconds": 10}]);
    accepts(json!({"shutdownGracePeriodByPodPriority": list}));
    refuses(
        json!({"shutdownGracePeriodByPodPriority": list, "shutdownGracePeriod": "20s"}),
        &["shutdownGracePeriodByPodPriority"],
    );
    let by_priority_off = json!({"GracefulNodeShutdownBasedOnPodPriority": false});
    refuses(
        json!({"shutdownGracePeriodByPodPriority": list, "featureGates": by_priority_off}),
        &["shutdownGracePeriodByPodPriority"],
    );
    let off = json!({
        "GracefulNodeShutdown": false,
        "GracefulNodeShutdownBasedOnPodPriority": false,
        "WindowsGracefulNodeShutdown": false,
    });
    refuses(json!({"shutdownGracePeriod": "20s", "featureGates": off}), &["shutdownGracePeriod"]);
}

#[test]
fn choices_come_from_their_lists() {
    for (field, good) in [
        ("topologyManagerPolicy", "best-effort"),
        ("topologyManagerScope", "pod"),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "Static"),
        ("hairpinMode", "hairpin-veth"),
        ("cgroupDriver", "systemd"),
        ("configMapAndSecretChangeDetectionStrategy", "Cache"),
        ("tlsMinVersion", "VersionTLS13"),
        ("showHiddenMetricsForVersion", "1.35"),
    ] {
        accepts(json!({field: good}));
        refuses(json!({field: "whatever"}), &[field]);
    }
    refuses(json!({"authorization": {"mode": "RBAC"}}), &["authorization.mode"]);
    accepts(json!({"tlsCipherSuites": ["TLS_AES_128_GCM_SHA256"]}));
    refuses(json!({"tlsCipherSuites": ["TLS_NULL"]}), &["tlsCipherSuites"]);
    refuses(json!({"memorySwap": {"swapBehavior": "UnlimitedSwap"}}), &["memorySwap.swapBehavior"]);
    accepts(json!({"memorySwap": {"swapBehavior": "LimitedSwap"}}));
    refuses(json!({"memoryReservationPolicy": "TieredReservation"}), &["memoryReservationPolicy"]);
    accepts(json!({"memoryReservationPolicy": "TieredReservation", "featureGates": {"MemoryQoS": true}}));
    refuses(json!({"memoryReservationPolicy": "Some"}), &["memoryReservationPolicy"]);
}

#[test]
fn pods_can_run_with_it() {
    refuses(json!({"systemCgroups": "/system"}), &["systemCgroups"]);
    accepts(json!({"systemCgroups": "/system", "cgroupRoot": "/"}));
    accepts(json!({"cpuCFSQuotaPeriod": "1ms"}));
    refuses(json!({"cpuCFSQuotaPeriod": "999us"}), &["cpuCFSQuotaPeriod"]);
    refuses(json!({"cpuCFSQuotaPeriod": "1.1s"}), &["cpuCFSQuotaPeriod"]);
    let no_period = json!({"CustomCPUCFSQuotaPeriod": false});
    refuses(json!({"cpuCFSQuotaPeriod": "50ms", "featureGates": no_period}), &["cpuCFSQuotaPeriod"]);
    accepts(json!({"cpuCFSQuotaPeriod": "100ms", "featureGates": no_period}));
    let longest = "crashLoopBackOff.maxContainerRestartPeriod";
    refuses(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "999ms"}}), &[longest]);
    refuses(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "301s"}}), &[longest]);
    refuses(json!({"crashLoopBackOff": null}), &[longest]);
    let no_limit = json!({"KubeletCrashLoopBackOffMax": false});
    refuses(json!({"featureGates": no_limit}), &[longest]);
    accepts(json!({"featureGates": no_limit, "crashLoopBackOff": null}));
    for ids in [1, 65535, 65537, 1_i64 << 33] {
        refuses(json!({"userNamespaces": {"idsPerPod": ids}}), &["userNamespaces.idsPerPod"]);
    }
    accepts(json!({"userNamespaces": {"idsPerPod": 131072}}));
    refuses(json!({"containerRuntimeEndpoint": ""}), &["containerRuntimeEndpoint"]);
    refuses(json!({"runOnce": true}), &["runOnce"]);
    refuses(
        json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}),
        &["enableSystemLogQuery"],
    );
    let no_rotation = json!({"RotateKubeletServerCertificate": false});
    refuses(json!({"serverTLSBootstrap": true, "featureGates": no_rotation}), &["serverTLSBootstrap"]);
}

#[test]
fn cgroup_v1_needs_consent() {
    let v1 = Host { cgroup_v1: true };
    let refused = faults(json!({}), v1);
    assert_eq!(refused.len(), 1);
    assert!(refused[0].to_string().contains(
        "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release"
    ));
    assert_eq!(faults(json!({"failCgroupV1": false}), v1), []);
    let single = faults(json!({"failCgroupV1": false, "singleProcessOOMKill": false}), v1);
    assert_eq!(single.len(), 1);
    assert_eq!(single[0].field, "singleProcessOOMKill");
    accepts(json!({"singleProcessOOMKill": false}));
}

#[test]
fn enforced_levels_fit_together() {
    let field = "enforceNodeAllocatable";
    accepts(json!({field: ["none"]}));
    refuses(json!({field: ["none", "pods"]}), &[field]);
    refuses(json!({field: ["pods", "pods"]}), &[field]);
    refuses(json!({field: ["everything"]}), &[field]);
    refuses(json!({field: ["system-reserved"]}), &["systemReservedCgroup"]);
    refuses(json!({field: ["kube-reserved-compressible"]}), &["kubeReservedCgroup"]);
    accepts(json!({field: ["pods", "system-reserved"], "systemReservedCgroup": "/s"}));
    refuses(
        json!({field: ["kube-reserved", "kube-reserved-compressible"], "kubeReservedCgroup": "/k"}),
        &[field],
    );
    refuses(json!({"cgroupsPerQOS": false}), &["cgroupsPerQOS"]);
    accepts(json!({"cgroupsPerQOS": false, field: ["none"]}));
    accepts(json!({"cgroupsPerQOS": false, field: []}));
}

#[test]
fn reservations_are_amounts_of_what_exists() {
    accepts(json!({"reservedSystemCPUs": "0-3,6,8-8"}));
    for bad in ["a", "3-1", "1,", "-1"] {
        refuses(json!({"reservedSystemCPUs": bad}), &["reservedSystemCPUs"]);
    }
    refuses(json!({"reservedSystemCPUs": "0", "systemReservedCgroup": "/s"}), &["reservedSystemCPUs"]);
    let memory = |limits: Value| json!({"reservedMemory": [{"numaNode": 0, "limits": limits}]});
    accepts(memory(json!({"memory": "1Gi", "hugepages-2Mi": "2Gi"})));
    refuses(memory(json!({"cpu": "1"})), &["reservedMemory[0].limits"]);
    refuses(memory(json!({"memory": "0"})), &["reservedMemory[0].limits"]);
    refuses(
        json!({"reservedMemory": [
            {"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "2Gi"}}
        ]}),
        &["reservedMemory[1].limits"],
    );
    accepts(
        json!({"systemReserved": {"cpu": "100m", "memory": "1Gi", "pid": "1000", "ephemeral-storage": "0"}}),
    );
    refuses(json!({"systemReserved": {"gpu": "1"}}), &["systemReserved"]);
    refuses(json!({"kubeReserved": {"cpu": "-1"}}), &["kubeReserved"]);
    refuses(json!({"kubeReserved": {"cpu": "lots"}}), &["kubeReserved"]);
}

#[test]
fn eviction_thresholds_are_readable() {
    accepts(
        json!({"evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "pid.available": "10%"}}),
    );
    for bad in ["0", "-1Mi", "101%", "-1%", "x%", "lots", ""] {
        refuses(json!({"evictionHard": {"memory.available": bad}}), &["evictionHard"]);
    }
    refuses(json!({"evictionHard": {"memory": "1Mi"}}), &["evictionHard"]);
    refuses(json!({"evictionSoft": {"memory.available": "1Gi"}}), &["evictionSoftGracePeriod"]);
    let soft = |span: &str| json!({"evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": span}});
    accepts(soft("1m"));
    refuses(soft("-1m"), &["evictionSoftGracePeriod"]);
    refuses(soft("soon"), &["evictionSoftGracePeriod"]);
    accepts(json!({"evictionMinimumReclaim": {"imagefs.available": "2Gi", "nodefs.available": "5%"}}));
    refuses(json!({"evictionMinimumReclaim": {"imagefs.available": "0%"}}), &["evictionMinimumReclaim"]);
    refuses(json!({"evictionMinimumReclaim": {"imagefs.available": "-1"}}), &["evictionMinimumReclaim"]);
}

#[test]
fn taints_are_well_formed() {
    let taint = |taint: Value| json!({"registerWithTaints": [taint]});
    accepts(taint(json!({"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"})));
    refuses(taint(json!({"key": "", "effect": "NoSchedule"})), &["registerWithTaints[0].key"]);
    refuses(
        taint(json!({"key": "a", "value": "b c", "effect": "NoSchedule"})),
        &["registerWithTaints[0].value"],
    );
    refuses(taint(json!({"key": "a", "effect": "Never"})), &["registerWithTaints[0].effect"]);
    refuses(
        taint(json!({"key": "a", "effect": "NoExecute", "timeAdded": "2020-01-01T00:00:00Z"})),
        &["registerWithTaints[0].timeAdded"],
    );
}

#[test]
fn logging_and_tracing_settings_work_together() {
    let logging = |logging: Value| json!({"logging": logging});
    refuses(logging(json!({"flushFrequency": "0s"})), &["logging.flushFrequency"]);
    refuses(logging(json!({"format": "xml"})), &["logging.format"]);
    accepts(logging(json!({"format": "json"})));
    refuses(
        json!({"logging": {"format": "json"}, "featureGates": {"LoggingBetaOptions": false}}),
        &["logging.format"],
    );
    refuses(logging(json!({"verbosity": 2_147_483_648_u32})), &["logging.verbosity"]);
    let module = json!([{"filePattern": "sync", "verbosity": 5}]);
    accepts(logging(json!({"vmodule": module})));
    refuses(logging(json!({"format": "json", "vmodule": module})), &["logging.vmodule"]);
    refuses(logging(json!({"vmodule": [{"verbosity": 5}]})), &["logging.vmodule[0]"]);
    refuses(logging(json!({"vmodule": [{"filePattern": "a=b"}]})), &["logging.vmodule[0]"]);
    for format in ["text", "json"] {
        let split = json!({"logging": {"options": {format: {"splitStream": true}}}});
        refuses(split, &[&format!("logging.options.{format}.splitStream")]);
        let buffer = json!({"logging": {"options": {format: {"infoBufferSize": "1Ki"}}}});
        refuses(buffer, &[&format!("logging.options.{format}.infoBufferSize")]);
    }
    accepts(json!({
        "logging": {"options": {"text": {"splitStream": true}}}, "featureGates": {"LoggingAlphaOptions": true}
    }));
    refuses(json!({"tracing": {"samplingRatePerMillion": -1}}), &["tracing.samplingRatePerMillion"]);
    refuses(json!({"tracing": {"samplingRatePerMillion": 1_000_001}}), &["tracing.samplingRatePerMillion"]);
    refuses(json!({"tracing": {"endpoint": "http://collector:4317"}}), &["tracing.endpoint"]);
    for good in ["collector:4317", "unix:///run/otel.sock", "dns://1.1.1.1/collector:4317"] {
        accepts(json!({"tracing": {"endpoint": good}}));
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    refuses(
        json!({"port": 0, "maxPods": -1, "hairpinMode": "x", "logging": {"format": "xml"}}),
        &["port", "maxPods", "hairpinMode", "logging.format"],
    );
}
