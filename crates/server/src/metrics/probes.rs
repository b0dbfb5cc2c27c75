//! What `/metrics/probes` tells: how often each probe was asked, what it said, and how long that took.
//!
//! Every pod adds series, so they go with the pod. The histogram does not name the UID, as the kubelet's doesn't: it
//! goes with the last pod of that name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use model::PodUid;
use model::probe::ProbeOutcome;
use ports::ProbeOf;
use prometheus::{HistogramVec, IntCounterVec, Registry, TextEncoder};

use super::Registrar;
use crate::process;

/// Probe type, container, pod, namespace.
type Probe = [String; 4];

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

pub(crate) struct ProbeMetrics {
    registry: Registry,
    total: IntCounterVec,
    duration: HistogramVec,
    /// What was counted of whom: series are removed one by one.
    known: Mutex<BTreeMap<PodUid, BTreeSet<Probe>>>,
}

impl ProbeMetrics {
    pub fn new() -> Self {
        let registry = Registry::new();
        let add = Registrar(&registry);
        let total = add.counters(
            "prober_probe_total",
            "Attempts at startup, readiness and liveness probes, by what they said.",
            &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
        );
        let duration = add.histograms(
            "prober_probe_duration_seconds",
            "How long attempts at probes took that did not fail.",
            &["probe_type", "container", "pod", "namespace"],
            prometheus::DEFAULT_BUCKETS.to_vec(),
        );
        Self { total, duration, registry, known: Mutex::default() }
    }

    pub fn observe(&self, of: &ProbeOf<'_>, outcome: &ProbeOutcome, seconds: f64) {
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
        self.lock().entry(of.uid.clone()).or_default().insert(probe);
    }

    pub fn forget(&self, uid: &PodUid) {
        let mut known = self.lock();
        for probe in known.remove(uid).unwrap_or_default() {
            for result in RESULTS {
                // One that never came up is not there to be removed.
                let _ = self.total.remove_label_values(&labels(&probe, result, uid));
            }
            if !known.values().any(|others| others.contains(&probe)) {
                let _ = self.duration.remove_label_values(&probe.each_ref().map(String::as_str));
            }
        }
    }

    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        if let Some(figures) = process::figures() {
            let start = Registry::new();
            Registrar(&start).gauge(
                "process_start_time_seconds",
                "When this process was started.",
                figures.start_seconds,
            );
            families.extend(start.gather());
        }
        TextEncoder::new().encode_to_string(&families)
    }

    /// Whoever panicked with the lock left the map whole.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, BTreeSet<Probe>>> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The labels of the counter.
fn labels<'a>(probe: &'a Probe, result: &'a str, uid: &'a PodUid) -> [&'a str; 6] {
    let [kind, container, pod, namespace] = probe.each_ref().map(String::as_str);
    [kind, result, container, pod, namespace, uid.as_str()]
}
