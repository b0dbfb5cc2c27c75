//! Every field of `KubeletConfiguration`, and whether setting it changes anything yet.
//!
//! This table is the one place to edit when a field starts to matter: flags that stand for a field look
//! their effect up here, the warnings about fields without effect come from here, and a field of a file
//! that is not listed here is unknown.

use serde_json::{Map, Value};

/// What setting a flag or a field does in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what it does upstream.
    Honoured,
    /// It does this, and not yet all that it does upstream.
    Partly(&'static str),
    /// It is read, checked and shown, but nothing acts on it.
    NoEffectYet,
}

use Support::{Honoured, NoEffectYet, Partly};

/// Leaf fields by their path. A map or a list is one leaf.
#[rustfmt::skip]
pub const FIELDS: &[(&str, Support)] = &[
    ("enableServer", Honoured),
    ("staticPodPath", Honoured),
    ("podLogsDir", Honoured),
    ("syncFrequency", Honoured),
    ("fileCheckFrequency", Honoured),
    ("httpCheckFrequency", Honoured),
    ("staticPodURL", Honoured),
    ("staticPodURLHeader", Honoured),
    ("address", Honoured),
    ("port", Honoured),
    ("readOnlyPort", Honoured),
    ("tlsCertFile", Honoured),
    ("tlsPrivateKeyFile", Honoured),
    ("tlsCipherSuites", Honoured),
    ("tlsCurvePreferences", Honoured),
    ("tlsMinVersion", Honoured),
    ("rotateCertificates", Honoured),
    ("serverTLSBootstrap", Honoured),
    ("authentication.x509.clientCAFile", Honoured),
    ("authentication.webhook.enabled", Honoured),
    ("authentication.webhook.cacheTTL", Honoured),
    ("authentication.anonymous.enabled", Honoured),
    ("authorization.mode", Honoured),
    ("authorization.webhook.cacheAuthorizedTTL", Honoured),
    ("authorization.webhook.cacheUnauthorizedTTL", Honoured),
    ("registryPullQPS", Honoured),
    ("registryBurst", Honoured),
    ("imagePullCredentialsVerificationPolicy", Honoured),
    ("preloadedImagesVerificationAllowlist", Honoured),
    ("eventRecordQPS", Honoured),
    ("eventBurst", Honoured),
    ("enableDebuggingHandlers", Honoured),
    ("enableContentionProfiling", NoEffectYet),
    ("healthzPort", Honoured),
    ("healthzBindAddress", Honoured),
    ("oomScoreAdj", Honoured),
    ("clusterDomain", Honoured),
    ("clusterDNS", Honoured),
    ("streamingConnectionIdleTimeout", Honoured),
    ("nodeStatusUpdateFrequency", Honoured),
    ("nodeStatusReportFrequency", Honoured),
    ("nodeLeaseDurationSeconds", Honoured),
    ("imageMinimumGCAge", Honoured),
    ("imageMaximumGCAge", Honoured),
    ("imageGCHighThresholdPercent", Honoured),
    ("imageGCLowThresholdPercent", Honoured),
    ("volumeStatsAggPeriod", Honoured),
    ("kubeletCgroups", Honoured),
    ("systemCgroups", Honoured),
    ("cgroupRoot", Honoured),
    ("cgroupsPerQOS", Honoured),
    ("cgroupDriver", Honoured),
    ("cpuManagerPolicy", NoEffectYet),
    ("singleProcessOOMKill", Honoured),
    ("cpuManagerPolicyOptions", NoEffectYet),
    ("cpuManagerReconcilePeriod", NoEffectYet),
    ("memoryManagerPolicy", NoEffectYet),
    ("topologyManagerPolicy", NoEffectYet),
    ("topologyManagerScope", NoEffectYet),
    ("topologyManagerPolicyOptions", NoEffectYet),
    ("qosReserved", Honoured),
    ("runtimeRequestTimeout", Honoured),
    ("hairpinMode", Honoured),
    ("maxPods", Honoured),
    ("podCIDR", Honoured),
    ("podPidsLimit", Honoured),
    ("resolvConf", Honoured),
    ("runOnce", Honoured),
    ("cpuCFSQuota", Honoured),
    ("cpuCFSQuotaPeriod", Honoured),
    ("nodeStatusMaxImages", Honoured),
    ("maxOpenFiles", Honoured),
    ("contentType", NoEffectYet),
    ("kubeAPIQPS", Honoured),
    ("kubeAPIBurst", Honoured),
    ("serializeImagePulls", Honoured),
    ("maxParallelImagePulls", Honoured),
    ("evictionHard", Honoured),
    ("evictionSoft", Honoured),
    ("evictionSoftGracePeriod", Honoured),
    ("evictionPressureTransitionPeriod", Honoured),
    ("evictionMaxPodGracePeriod", Honoured),
    ("evictionMinimumReclaim", Honoured),
    ("mergeDefaultEvictionSettings", Honoured),
    ("podsPerCore", Honoured),
    ("enableControllerAttachDetach", Partly("true only; false is refused in a cluster")),
    ("protectKernelDefaults", Honoured),
    ("makeIPTablesUtilChains", Honoured),
    ("iptablesMasqueradeBit", Honoured),
    ("iptablesDropBit", Honoured),
    ("featureGates", Honoured),
    ("failSwapOn", Honoured),
    ("memorySwap.swapBehavior", Honoured),
    ("containerLogMaxSize", Honoured),
    ("containerLogMaxFiles", Honoured),
    ("containerLogMaxWorkers", Honoured),
    ("containerLogMonitorInterval", Honoured),
    ("configMapAndSecretChangeDetectionStrategy", Honoured),
    ("systemReserved", Honoured),
    ("kubeReserved", Honoured),
    ("reservedSystemCPUs", Honoured),
    ("showHiddenMetricsForVersion", NoEffectYet),
    ("systemReservedCgroup", Honoured),
    ("kubeReservedCgroup", Honoured),
    ("enforceNodeAllocatable", Honoured),
    ("allowedUnsafeSysctls", Honoured),
    ("volumePluginDir", NoEffectYet),
    ("providerID", Honoured),
    ("kernelMemcgNotification", Partly("the kernel's notices are used where it has them, whatever this says")),
    ("logging.format", Honoured),
    ("logging.flushFrequency", Honoured),
    ("logging.verbosity", Honoured),
    ("logging.vmodule", Honoured),
    ("logging.options.text.splitStream", Honoured),
    ("logging.options.text.infoBufferSize", NoEffectYet),
    ("logging.options.json.splitStream", Honoured),
    ("logging.options.json.infoBufferSize", NoEffectYet),
    ("enableSystemLogHandler", Honoured),
    ("enableSystemLogQuery", Honoured),
    ("shutdownGracePeriod", NoEffectYet),
    ("shutdownGracePeriodCriticalPods", NoEffectYet),
    ("shutdownGracePeriodByPodPriority", NoEffectYet),
    ("crashLoopBackOff.maxContainerRestartPeriod", Honoured),
    ("reservedMemory", NoEffectYet),
    ("enableProfilingHandler", Honoured),
    ("enableDebugFlagsHandler", Honoured),
    ("seccompDefault", Honoured),
    ("memoryThrottlingFactor", Honoured),
    ("memoryReservationPolicy", Honoured),
    ("registerWithTaints", Honoured),
    ("registerNode", Honoured),
    ("tracing.endpoint", Honoured),
    ("tracing.samplingRatePerMillion", Honoured),
    ("localStorageCapacityIsolation", Honoured),
    ("containerRuntimeEndpoint", Honoured),
    ("imageServiceEndpoint", Honoured),
    ("failCgroupV1", Honoured),
    ("userNamespaces.idsPerPod", Honoured),
];

/// The keys of the objects in those leaves that are lists of objects.
const ITEM_KEYS: &[(&str, &[&str])] = &[
    ("logging.vmodule", &["filePattern", "verbosity"]),
    ("registerWithTaints", &["key", "value", "effect", "timeAdded"]),
    ("reservedMemory", &["numaNode", "limits"]),
    ("shutdownGracePeriodByPodPriority", &["priority", "shutdownGracePeriodSeconds"]),
];

/// The effect of a field, `None` if there is no such field.
pub fn support(path: &str) -> Option<Support> {
    FIELDS.iter().find(|(name, _)| *name == path).map(|(_, effect)| *effect)
}

/// What a document contains, seen through the table: paths in document order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FieldUsage {
    pub known: Vec<&'static str>,
    pub unknown: Vec<String>,
}

/// Sorts the fields of a parsed file into known leaves and unknown paths.
pub(super) fn classify_fields(document: &Map<String, Value>) -> FieldUsage {
    let mut found = FieldUsage::default();
    for (key, value) in document {
        if key != "apiVersion" && key != "kind" {
            visit(key.clone(), value, &mut found);
        }
    }
    found
}

fn visit(path: String, value: &Value, found: &mut FieldUsage) {
    if let Some((leaf, _)) = FIELDS.iter().find(|(name, _)| *name == path) {
        found.known.push(leaf);
        visit_items(leaf, value, found);
        return;
    }
    let inner = format!("{path}.");
    if !FIELDS.iter().any(|(name, _)| name.starts_with(&inner)) {
        found.unknown.push(path);
        return;
    }
    // A wrong type here is left to the typed reading, which names the field.
    for (key, value) in value.as_object().into_iter().flatten() {
        visit(format!("{inner}{key}"), value, found);
    }
}

fn visit_items(leaf: &str, value: &Value, found: &mut FieldUsage) {
    let Some((_, keys)) = ITEM_KEYS.iter().find(|(name, _)| *name == leaf) else { return };
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        for key in item.as_object().into_iter().flat_map(Map::keys) {
            if !keys.contains(&key.as_str()) {
                found.unknown.push(format!("{leaf}[{index}].{key}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parts::{MemoryReservation, ShutdownGracePeriodByPodPriority, Taint, VmoduleItem};
    use crate::config::{KubeletConfiguration, parts};
    use serde_json::json;
    use std::collections::BTreeMap;

    /// A configuration in which no field is left out of the JSON.
    fn everything_set() -> KubeletConfiguration {
        let mut document = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        for (path, _) in FIELDS {
            let slot = crate::config::document::entry_at(document.as_object_mut().unwrap(), path).unwrap();
            if slot.is_null() {
                *slot = fitting_value(path);
            }
        }
        serde_json::from_value(document).unwrap()
    }

    /// Some value that the field takes, found by trying.
    fn fitting_value(path: &str) -> Value {
        let candidates = [
            json!(true),
            json!(7),
            json!("text"),
            json!(["text"]),
            json!([7]),
            json!({"key": "text"}),
            json!({"key": true}),
            json!({"key": ["text"]}),
            serde_json::to_value(vec![Taint {
                value: "v".into(),
                time_added: Some("t".into()),
                ..Taint::default()
            }])
            .unwrap(),
            serde_json::to_value(vec![MemoryReservation {
                numa_node: 1,
                limits: BTreeMap::from([("memory".to_owned(), parts::QuantityText::default())]),
            }])
            .unwrap(),
            serde_json::to_value(vec![ShutdownGracePeriodByPodPriority::default()]).unwrap(),
            serde_json::to_value(vec![VmoduleItem::default()]).unwrap(),
        ];
        let fits = |value: &Value| {
            let mut document = Map::new();
            *crate::config::document::entry_at(&mut document, path).unwrap() = value.clone();
            let Ok(config) = serde_json::from_value::<KubeletConfiguration>(Value::Object(document)) else {
                return false;
            };
            let mut written = serde_json::to_value(config).unwrap();
            !crate::config::document::entry_at(written.as_object_mut().unwrap(), path).unwrap().is_null()
        };
        candidates.into_iter().find(fits).unwrap_or_else(|| panic!("nothing fits {path}"))
    }

    #[test]
    fn the_table_lists_exactly_the_fields_of_the_type() {
        let document = serde_json::to_value(everything_set()).unwrap();
        let found = classify_fields(document.as_object().unwrap());
        assert_eq!(found.unknown, Vec::<String>::new());
        let mut listed: Vec<&str> = FIELDS.iter().map(|(path, _)| *path).collect();
        let mut written = found.known;
        listed.sort_unstable();
        written.sort_unstable();
        assert_eq!(listed, written);
    }

    #[test]
    fn unknown_fields_are_named_by_their_path() {
        let document = json!({
            "kind": "KubeletConfiguration",
            "staticPodPat": "/x",
            "authentication": {"webhook": {"enabled": true, "cachedTTL": "1s"}, "x510": {}},
            "evictionHard": {"any.key": "is fine here"},
            "registerWithTaints": [{"key": "a", "effect": "NoSchedule"}, {"kee": "b"}],
        });
        let found = classify_fields(document.as_object().unwrap());
        assert_eq!(
            found.unknown,
            [
                "authentication.webhook.cachedTTL",
                "authentication.x510",
                "registerWithTaints[1].kee",
                "staticPodPat"
            ]
        );
        assert_eq!(found.known, ["authentication.webhook.enabled", "evictionHard", "registerWithTaints"]);
    }
}
