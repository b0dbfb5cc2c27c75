//! `/metrics/probes`: how often each probe was made, with which results, and how long it took.
//!
//! Every pod adds series, so they go with the pod. The histogram does not name the UID, as the kubelet's doesn't: it
//! goes with the last pod of that name.

use std::collections::BTreeSet;

use model::PodUid;
use model::probe::ProbeOutcome;
use ports::ProbeIdentity;
use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{HistogramVec, IntCounterVec, Registry, TextEncoder};

use super::Registrar;
use crate::process;

/// The values of [`PROBE_LABELS`].
type Probe = [String; 4];

const PROBE_LABELS: [&str; 4] = ["probe_type", "container", "pod", "namespace"];

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

pub(crate) struct ProbeMetrics {
    registry: Registry,
    total: IntCounterVec,
    duration: HistogramVec,
}

impl ProbeMetrics {
    pub fn new() -> Self {
        let registry = Registry::new();
        let add = Registrar(&registry);
        let total = add.counters(
            "prober_probe_total",
            "Startup, readiness and liveness probe attempts, by result.",
            &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
        );
        let duration = add.histograms(
            "prober_probe_duration_seconds",
            "How long probe attempts took that did not fail.",
            &PROBE_LABELS,
            prometheus::DEFAULT_BUCKETS.to_vec(),
        );
        Self { total, duration, registry }
    }

    pub fn observe(&self, of: &ProbeIdentity<'_>, outcome: &ProbeOutcome, seconds: f64) {
        let result = match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning { .. } => "successful",
            ProbeOutcome::Failure { .. } => "failed",
            ProbeOutcome::Errored { .. } => "unknown",
        };
        let probe = [of.kind.as_str(), of.container, &of.pod.name, &of.pod.namespace].map(str::to_owned);
        self.total.with_label_values(&labels(&probe, result, of.uid)).inc();
        if result != "failed" {
            self.duration.with_label_values(&probe).observe(seconds);
        }
    }

    /// Goes through the series of all pods. Pods are forgotten rarely enough for that.
    pub fn forget(&self, uid: &PodUid) {
        let (gone, left): (Vec<_>, Vec<_>) =
            self.counted().into_iter().partition(|(_, pod_uid)| pod_uid.as_str() == uid.as_str());
        for (probe, _) in &gone {
            for result in RESULTS {
                // One that never came up is not there to be removed.
                let _ = self.total.remove_label_values(&labels(probe, result, uid));
            }
            if !left.iter().any(|(other, _)| other == probe) {
                let _ = self.duration.remove_label_values(&probe.each_ref().map(String::as_str));
            }
        }
    }

    /// Whose probes were counted, with the UID of their pod.
    fn counted(&self) -> BTreeSet<(Probe, String)> {
        let value = |metric: &Metric, name: &str| {
            let label = metric.get_label().iter().find(|label| label.name() == name);
            label.map(|label| label.value().to_owned()).unwrap_or_default()
        };
        let families = self.total.collect();
        let series = families.iter().flat_map(|family| family.get_metric());
        let probe = |metric: &Metric| PROBE_LABELS.map(|name| value(metric, name));
        series.map(|metric| (probe(metric), value(metric, "pod_uid"))).collect()
    }

    pub fn text(&self) -> Result<String, prometheus::Error> {
        with_start(self.registry.gather())
    }
}

/// These families, and when the process was started.
pub(super) fn with_start(mut families: Vec<MetricFamily>) -> Result<String, prometheus::Error> {
    if let Some(start) = process::start() {
        let registry = Registry::new();
        let (about, seconds) =
            ("When this process was started, in seconds since the Unix epoch.", start.0 as f64 / 1e9);
        Registrar(&registry).gauge("process_start_time_seconds", about, seconds);
        families.extend(registry.gather());
    }
    TextEncoder::new().encode_to_string(&families)
}

/// The labels of the counter.
fn labels<'a>(probe: &'a Probe, result: &'a str, uid: &'a PodUid) -> [&'a str; 6] {
    let [kind, container, pod, namespace] = probe.each_ref().map(String::as_str);
    [kind, result, container, pod, namespace, uid.as_str()]
}
