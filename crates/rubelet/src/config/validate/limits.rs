//! Numbers and spans that have a range, and choices from a fixed list.

use model::quantity::Quantity;

use super::{FeatureGates, FieldErrors, KubeletConfiguration};
use crate::config::GoDuration;

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    ranges(config, faults);
    ports(config, faults);
    images(config, gates, faults);
    container_logs(config, faults);
    shutdown(config, gates, faults);
    choices(config, faults);
    tls(config, faults);
}

fn ranges(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let not_negative = [
        ("eventBurst", i64::from(config.event_burst)),
        ("eventRecordQPS", i64::from(config.event_record_qps)),
        ("kubeAPIBurst", i64::from(config.kube_api_burst)),
        ("kubeAPIQPS", i64::from(config.kube_api_qps)),
        ("maxOpenFiles", config.max_open_files),
        ("maxPods", i64::from(config.max_pods)),
        ("podsPerCore", i64::from(config.pods_per_core)),
        ("registryBurst", i64::from(config.registry_burst)),
        ("registryPullQPS", i64::from(config.registry_pull_qps)),
    ];
    for (field, value) in not_negative {
        faults.require(value >= 0, field, || format!("{value} must not be negative"));
    }
    let within = [
        ("imageGCHighThresholdPercent", config.image_gc_high_threshold_percent, 0, 100),
        ("imageGCLowThresholdPercent", config.image_gc_low_threshold_percent, 0, 100),
        ("iptablesDropBit", config.iptables_drop_bit, 0, 31),
        ("iptablesMasqueradeBit", config.iptables_masquerade_bit, 0, 31),
        ("oomScoreAdj", config.oom_score_adj, -1000, 1000),
    ];
    for (field, value, low, high) in within {
        faults.require((low..=high).contains(&value), field, || {
            format!("{value} must be from {low} to {high}")
        });
    }
    let lease = config.node_lease_duration_seconds;
    faults.require(lease > 0, "nodeLeaseDurationSeconds", || format!("{lease} must be greater than 0"));
    let images = config.node_status_max_images;
    faults.require(images >= -1, "nodeStatusMaxImages", || format!("{images} must be -1 (no limit) or more"));
    let factor = config.memory_throttling_factor;
    faults.require(factor > 0.0 && factor <= 1.0, "memoryThrottlingFactor", || {
        format!("{factor} must be greater than 0 and at most 1")
    });
}

fn ports(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    for (field, port, may_be_off) in [
        ("healthzPort", config.healthz_port, true),
        ("port", config.port, false),
        ("readOnlyPort", config.read_only_port, true),
    ] {
        let fine = (1..=65535).contains(&port) || may_be_off && port == 0;
        let off = if may_be_off { ", or 0 for none" } else { "" };
        faults.require(fine, field, || format!("{port} is not a port: it must be from 1 to 65535{off}"));
    }
}

fn images(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    let (low, high) = (config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent);
    faults.require(low < high, "imageGCLowThresholdPercent", || {
        format!("{low} must be less than imageGCHighThresholdPercent, which is {high}")
    });
    let (youngest, oldest) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
    faults
        .require(!youngest.is_negative(), "imageMinimumGCAge", || format!("{youngest} must not be negative"));
    faults.require(!oldest.is_negative(), "imageMaximumGCAge", || format!("{oldest} must not be negative"));
    let no_oldest = oldest <= GoDuration::ZERO;
    faults.require(no_oldest || oldest > youngest, "imageMaximumGCAge", || {
        format!("{oldest} must be greater than imageMinimumGCAge, which is {youngest}")
    });
    if let Some(pulls) = config.max_parallel_image_pulls {
        faults.require(pulls >= 1, "maxParallelImagePulls", || format!("{pulls} must be at least 1"));
        faults.require(pulls <= 1 || !config.serialize_image_pulls, "maxParallelImagePulls", || {
            format!("{pulls} needs serializeImagePulls to be false")
        });
    }
    pull_credentials(config, gates, faults);
}

fn pull_credentials(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    const GATE: &str = "KubeletEnsureSecretPulledImages";
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const LIST: &str = "preloadedImagesVerificationAllowlist";
    const LIST_POLICY: &str = "NeverVerifyAllowlistedImages";
    let (policy, list) =
        (&config.image_pull_credentials_verification_policy, &config.preloaded_images_verification_allowlist);
    if !gates.enabled(GATE) {
        faults.require(policy.is_empty(), POLICY, || format!("needs feature gate {GATE}"));
        faults.require(list.is_empty(), LIST, || format!("needs feature gate {GATE}"));
        return;
    }
    faults.one_of(
        POLICY,
        policy,
        &["NeverVerify", "NeverVerifyPreloadedImages", LIST_POLICY, "AlwaysVerify"],
    );
    faults.require(list.is_empty() || policy == LIST_POLICY, LIST, || {
        format!("needs {POLICY} to be {LIST_POLICY}")
    });
    for pattern in list {
        if let Some(fault) = image_pattern_fault(pattern) {
            faults.add(LIST, format!("{pattern:?} {fault}"));
        }
    }
}

/// A pattern is an image without tag and digest, or the front part of one that ends in `/*`.
fn image_pattern_fault(pattern: &str) -> Option<&'static str> {
    if pattern != pattern.trim() {
        return Some("has blanks around it");
    }
    let (name, wildcard) = match pattern.strip_suffix('*') {
        Some(front) if front.ends_with('/') => (front, true),
        _ => (pattern, false),
    };
    if name.contains('*') {
        return Some("has a '*' that is not a final '/*'");
    }
    if name.is_empty() || wildcard && name == "/" {
        return Some("names no registry");
    }
    let last_part = name.rsplit('/').next().unwrap_or(name);
    (!wildcard && (name.contains('@') || last_part.contains(':'))).then_some("has a tag or a digest")
}

fn container_logs(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let size = &config.container_log_max_size;
    let is_whole = |size: Quantity| {
        size.nanos() % 1_000_000_000 == 0 && i64::try_from(size.nanos() / 1_000_000_000).is_ok()
    };
    faults.require(size.parse().is_ok_and(is_whole), "containerLogMaxSize", || {
        format!("{size:?} is not a whole number of bytes such as 10Mi")
    });
    let files = config.container_log_max_files;
    faults.require(files > 1, "containerLogMaxFiles", || format!("{files} must be greater than 1"));
    let workers = config.container_log_max_workers;
    faults.require(workers >= 1, "containerLogMaxWorkers", || format!("{workers} must be at least 1"));
    let interval = config.container_log_monitor_interval;
    faults.require(interval >= GoDuration::from_secs(3), "containerLogMonitorInterval", || {
        format!("{interval} must be at least 3s")
    });
}

fn shutdown(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    const GATE: &str = "GracefulNodeShutdown";
    const PRIORITY_GATE: &str = "GracefulNodeShutdownBasedOnPodPriority";
    let (all, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    let by_priority = !config.shutdown_grace_period_by_pod_priority.is_empty();
    for (field, span) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
        if gates.enabled(GATE) {
            let fine = span.is_zero() || span >= GoDuration::from_secs(1);
            faults.require(fine, field, || format!("{span} must be zero or at least 1s"));
        } else {
            faults.require(span <= GoDuration::ZERO, field, || format!("{span} needs feature gate {GATE}"));
        }
    }
    if gates.enabled(GATE) {
        faults.require(critical <= all, "shutdownGracePeriodCriticalPods", || {
            format!("{critical} must not exceed shutdownGracePeriod, which is {all}")
        });
    }
    if by_priority && !gates.enabled(PRIORITY_GATE) {
        faults.add("shutdownGracePeriodByPodPriority", format!("needs feature gate {PRIORITY_GATE}"));
    } else if by_priority && (all > GoDuration::ZERO || critical > GoDuration::ZERO) {
        faults.add("shutdownGracePeriodByPodPriority", "can't be used together with shutdownGracePeriod");
    }
}

fn choices(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let topologies = ["none", "best-effort", "restricted", "single-numa-node"];
    faults.one_of("topologyManagerPolicy", &config.topology_manager_policy, &topologies);
    faults.one_of("topologyManagerScope", &config.topology_manager_scope, &["container", "pod"]);
    faults.one_of("cpuManagerPolicy", &config.cpu_manager_policy, &["none", "static"]);
    faults.one_of("memoryManagerPolicy", &config.memory_manager_policy, &["None", "Static"]);
    faults.one_of("hairpinMode", &config.hairpin_mode, &["none", "hairpin-veth", "promiscuous-bridge"]);
    faults.one_of("cgroupDriver", &config.cgroup_driver, &["cgroupfs", "systemd"]);
    faults.one_of("authorization.mode", &config.authorization.mode, &["AlwaysAllow", "Webhook"]);
    let strategies = ["Get", "Cache", "Watch"];
    let strategy = &config.config_map_and_secret_change_detection_strategy;
    faults.one_of("configMapAndSecretChangeDetectionStrategy", strategy, &strategies);
}

fn tls(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let version = config.tls_min_version.as_str();
    if !version.is_empty() {
        let known = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
        faults.one_of("tlsMinVersion", version, &known);
    }
    for suite in &config.tls_cipher_suites {
        faults.require(CIPHER_SUITES.contains(&suite.as_str()), "tlsCipherSuites", || {
            format!("{suite:?} is not a known cipher suite")
        });
    }
}

/// Every suite name a kubelet takes, the weak ones included: whether we offer it is another question.
const CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
