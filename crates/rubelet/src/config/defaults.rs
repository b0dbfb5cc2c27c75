//! The defaults of `KubeletConfiguration`, filled into a document before it gets its type, because only
//! there can an absent field be told from an explicit zero.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{entry_at, get};
use super::duration::GoDuration;
use super::gates::FeatureGates;
use super::types::KubeletConfiguration;

/// Which values of a field the default replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DefaultFor {
    /// Only a missing one: an explicit zero, `false` or empty text is a choice.
    Absent,
    /// A zero as well: upstream can't tell it from a missing one.
    Zero,
}

enum DefaultValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'static str),
    Duration(&'static str),
    List(&'static [&'static str]),
}

use DefaultFor::{Absent, Zero};
use DefaultValue::{Bool, Duration, Float, Int, List, Text};

#[rustfmt::skip]
const DEFAULTS: &[(&str, DefaultFor, DefaultValue)] = &[
    ("enableServer", Absent, Bool(true)),
    ("syncFrequency", Zero, Duration("1m0s")),
    ("fileCheckFrequency", Zero, Duration("20s")),
    ("httpCheckFrequency", Zero, Duration("20s")),
    ("address", Zero, Text("0.0.0.0")),
    ("port", Zero, Int(10250)),
    ("authentication.anonymous.enabled", Absent, Bool(false)),
    ("authentication.webhook.enabled", Absent, Bool(true)),
    ("authentication.webhook.cacheTTL", Zero, Duration("2m0s")),
    ("authorization.mode", Zero, Text("Webhook")),
    ("authorization.webhook.cacheAuthorizedTTL", Zero, Duration("5m0s")),
    ("authorization.webhook.cacheUnauthorizedTTL", Zero, Duration("30s")),
    ("registryPullQPS", Absent, Int(5)),
    ("registryBurst", Zero, Int(10)),
    ("eventRecordQPS", Absent, Int(50)),
    ("eventBurst", Zero, Int(100)),
    ("enableDebuggingHandlers", Absent, Bool(true)),
    ("healthzPort", Absent, Int(10248)),
    ("healthzBindAddress", Zero, Text("127.0.0.1")),
    ("oomScoreAdj", Absent, Int(-999)),
    ("streamingConnectionIdleTimeout", Zero, Duration("4h0m0s")),
    ("nodeStatusUpdateFrequency", Zero, Duration("10s")),
    ("nodeLeaseDurationSeconds", Zero, Int(40)),
    ("imageMinimumGCAge", Zero, Duration("2m0s")),
    ("imageGCHighThresholdPercent", Absent, Int(85)),
    ("imageGCLowThresholdPercent", Absent, Int(80)),
    ("volumeStatsAggPeriod", Zero, Duration("1m0s")),
    ("cgroupsPerQOS", Absent, Bool(true)),
    ("cgroupDriver", Zero, Text("cgroupfs")),
    ("cpuManagerPolicy", Zero, Text("none")),
    ("cpuManagerReconcilePeriod", Zero, Duration("10s")),
    ("memoryManagerPolicy", Zero, Text("None")),
    ("topologyManagerPolicy", Zero, Text("none")),
    ("topologyManagerScope", Zero, Text("container")),
    ("runtimeRequestTimeout", Zero, Duration("2m0s")),
    ("hairpinMode", Zero, Text("promiscuous-bridge")),
    ("maxPods", Zero, Int(110)),
    ("podPidsLimit", Absent, Int(-1)),
    ("resolvConf", Absent, Text("/etc/resolv.conf")),
    ("cpuCFSQuota", Absent, Bool(true)),
    ("cpuCFSQuotaPeriod", Absent, Duration("100ms")),
    ("nodeStatusMaxImages", Absent, Int(50)),
    ("maxOpenFiles", Zero, Int(1_000_000)),
    ("contentType", Zero, Text("application/vnd.kubernetes.protobuf")),
    ("kubeAPIQPS", Absent, Int(50)),
    ("kubeAPIBurst", Zero, Int(100)),
    ("evictionPressureTransitionPeriod", Zero, Duration("5m0s")),
    ("mergeDefaultEvictionSettings", Absent, Bool(false)),
    ("enableControllerAttachDetach", Absent, Bool(true)),
    ("makeIPTablesUtilChains", Absent, Bool(true)),
    ("iptablesMasqueradeBit", Absent, Int(14)),
    ("iptablesDropBit", Absent, Int(15)),
    ("failSwapOn", Absent, Bool(true)),
    ("containerLogMaxSize", Zero, Text("10Mi")),
    ("containerLogMaxFiles", Absent, Int(5)),
    ("containerLogMaxWorkers", Absent, Int(1)),
    ("containerLogMonitorInterval", Absent, Duration("10s")),
    ("configMapAndSecretChangeDetectionStrategy", Zero, Text("Watch")),
    ("enforceNodeAllocatable", Absent, List(&["pods"])),
    ("volumePluginDir", Zero, Text("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")),
    ("logging.format", Zero, Text("text")),
    ("logging.flushFrequency", Zero, Duration("5s")),
    ("enableSystemLogHandler", Absent, Bool(true)),
    ("enableSystemLogQuery", Absent, Bool(false)),
    ("enableProfilingHandler", Absent, Bool(true)),
    ("enableDebugFlagsHandler", Absent, Bool(true)),
    ("seccompDefault", Absent, Bool(false)),
    ("failCgroupV1", Absent, Bool(true)),
    ("memoryThrottlingFactor", Absent, Float(0.9)),
    ("memoryReservationPolicy", Zero, Text("None")),
    ("registerNode", Absent, Bool(true)),
    ("localStorageCapacityIsolation", Absent, Bool(true)),
    ("containerRuntimeEndpoint", Zero, Text("unix:///run/containerd/containerd.sock")),
    ("podLogsDir", Zero, Text("/var/log/pods")),
];

/// What a file that says nothing about hard eviction gets.
pub const DEFAULT_EVICTION_HARD: &[(&str, &str)] = &[
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

/// Fills every field that is unset. Values of a wrong type are left for the typed reading to refuse.
pub(super) fn fill(document: &mut Map<String, Value>, gates: &FeatureGates) {
    fill_dependent(document, gates);
    for (path, replaces, literal) in DEFAULTS {
        fill_one(document, path, *replaces, literal);
    }
}

/// The defaults that look at another field, which must see it before it gets its own.
fn fill_dependent(document: &mut Map<String, Value>, gates: &FeatureGates) {
    // A status update interval of one's own is also the report interval, unless that is given too.
    let five_minutes = Duration("5m0s");
    let update =
        document.get("nodeStatusUpdateFrequency").filter(|value| !is_zero(value, &five_minutes)).cloned();
    let report = document.get("nodeStatusReportFrequency");
    if report.is_none_or(|value| is_zero(value, &five_minutes)) {
        let default = update.unwrap_or_else(|| value_of(&five_minutes));
        document.insert("nodeStatusReportFrequency".to_owned(), default);
    }

    let parallel = get(document, "maxParallelImagePulls").and_then(Value::as_i64);
    fill_one(document, "serializeImagePulls", Absent, &Bool(parallel.is_none_or(|pulls| pulls < 2)));

    // This span alone may be a number, so its zero may be one too.
    if get(document, "logging.flushFrequency").and_then(Value::as_i64) == Some(0)
        && let Some(place) = entry_at(document, "logging.flushFrequency")
    {
        *place = json!("0s");
    }
    if get(document, "podPidsLimit").and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
        document.remove("podPidsLimit");
    }
    if gates.enabled("KubeletCrashLoopBackOffMax") {
        fill_one(document, "crashLoopBackOff.maxContainerRestartPeriod", Absent, &Duration("5m0s"));
    }
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        let policy = Text("NeverVerifyPreloadedImages");
        fill_one(document, "imagePullCredentialsVerificationPolicy", Zero, &policy);
    }
}

fn fill_one(document: &mut Map<String, Value>, path: &str, replaces: DefaultFor, literal: &DefaultValue) {
    let current = get(document, path);
    let unset = current.is_none_or(|value| replaces == Zero && is_zero(value, literal));
    if unset && let Some(place) = entry_at(document, path) {
        *place = value_of(literal);
    }
}

/// Whether `value` is the zero of the literal's type. A zero of another type is a mistake to be reported.
fn is_zero(value: &Value, literal: &DefaultValue) -> bool {
    match (literal, value) {
        (Int(_), Value::Number(number)) => number.as_i64() == Some(0),
        (Text(_), Value::String(text)) => text.is_empty(),
        (Duration(_), Value::String(text)) => text.parse() == Ok(GoDuration::ZERO),
        _ => false,
    }
}

fn value_of(literal: &DefaultValue) -> Value {
    match literal {
        Bool(value) => json!(value),
        Int(value) => json!(value),
        Float(value) => json!(value),
        Text(value) | Duration(value) => json!(value),
        List(values) => json!(values),
    }
}

impl Default for KubeletConfiguration {
    /// What an empty `--config` file means, apart from the hard eviction thresholds.
    fn default() -> Self {
        let mut document = Map::new();
        fill(&mut document, &FeatureGates::default());
        serde_json::from_value(Value::Object(document)).expect("the table of defaults fits the type")
    }
}

impl KubeletConfiguration {
    /// What no `--config` file at all means: the command line's older, more open defaults.
    pub fn without_file() -> Self {
        let mut config = Self::default();
        config.authentication.anonymous.enabled = true;
        config.authentication.webhook.enabled = false;
        config.authorization.mode = "AlwaysAllow".to_owned();
        config.read_only_port = 10255;
        config
    }
}

/// The default hard eviction thresholds as a configuration has them.
pub(super) fn eviction_hard() -> BTreeMap<String, String> {
    DEFAULT_EVICTION_HARD.iter().map(|(signal, limit)| ((*signal).to_owned(), (*limit).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(document: Value) -> Value {
        let mut document = document.as_object().expect("an object").clone();
        fill(&mut document, &FeatureGates::default());
        Value::Object(document)
    }

    fn check(document: Value, path: &str, expect: Value) {
        let result = filled(document.clone());
        assert_eq!(get(result.as_object().unwrap(), path), Some(&expect), "{path} of {document}");
    }

    #[test]
    fn an_explicit_zero_is_a_choice_only_where_upstream_can_see_it() {
        check(json!({"healthzPort": 0}), "healthzPort", json!(0));
        check(json!({"registryPullQPS": 0}), "registryPullQPS", json!(0));
        check(json!({"resolvConf": ""}), "resolvConf", json!(""));
        check(json!({"cpuCFSQuotaPeriod": "0s"}), "cpuCFSQuotaPeriod", json!("0s"));
        check(json!({"enforceNodeAllocatable": []}), "enforceNodeAllocatable", json!([]));
        check(json!({"maxPods": 0}), "maxPods", json!(110));
        check(json!({"syncFrequency": "0s"}), "syncFrequency", json!("1m0s"));
        check(json!({"address": ""}), "address", json!("0.0.0.0"));
        check(json!({"logging": {"flushFrequency": 0}}), "logging.flushFrequency", json!("5s"));
        check(json!({"logging": {"flushFrequency": 7}}), "logging.flushFrequency", json!(7));
        check(json!({"podPidsLimit": -5}), "podPidsLimit", json!(-1));
        check(json!({"podPidsLimit": 0}), "podPidsLimit", json!(0));
    }

    #[test]
    fn some_defaults_depend_on_other_fields() {
        check(json!({}), "nodeStatusReportFrequency", json!("5m0s"));
        check(json!({"nodeStatusUpdateFrequency": "10s"}), "nodeStatusReportFrequency", json!("10s"));
        check(json!({"nodeStatusUpdateFrequency": "0s"}), "nodeStatusReportFrequency", json!("5m0s"));
        check(
            json!({"nodeStatusUpdateFrequency": "10s", "nodeStatusReportFrequency": "1m"}),
            "nodeStatusReportFrequency",
            json!("1m"),
        );
        check(json!({}), "serializeImagePulls", json!(true));
        check(json!({"maxParallelImagePulls": 1}), "serializeImagePulls", json!(true));
        check(json!({"maxParallelImagePulls": 2}), "serializeImagePulls", json!(false));
        check(
            json!({"maxParallelImagePulls": 2, "serializeImagePulls": true}),
            "serializeImagePulls",
            json!(true),
        );
    }

    #[test]
    fn gates_decide_over_their_fields() {
        let off = BTreeMap::from([
            ("KubeletCrashLoopBackOffMax".to_owned(), false),
            ("KubeletEnsureSecretPulledImages".to_owned(), false),
        ]);
        let mut document = Map::new();
        fill(&mut document, &FeatureGates::resolve(&off).unwrap());
        assert_eq!(get(&document, "crashLoopBackOff.maxContainerRestartPeriod"), None);
        assert_eq!(get(&document, "imagePullCredentialsVerificationPolicy"), None);
        check(json!({}), "crashLoopBackOff.maxContainerRestartPeriod", json!("5m0s"));
    }

    #[test]
    fn wrong_types_are_not_papered_over() {
        check(json!({"authentication": "open"}), "authentication", json!("open"));
        check(json!({"maxPods": "many"}), "maxPods", json!("many"));
        check(json!({"syncFrequency": 0}), "syncFrequency", json!(0));
        check(json!({"containerLogMaxSize": "0"}), "containerLogMaxSize", json!("0"));
    }

    #[test]
    fn without_a_file_the_old_command_line_defaults_hold() {
        let config = KubeletConfiguration::without_file();
        assert!(config.authentication.anonymous.enabled && !config.authentication.webhook.enabled);
        assert_eq!((config.authorization.mode.as_str(), config.read_only_port), ("AlwaysAllow", 10255));
        assert!(config.eviction_hard.is_empty());
    }
}
