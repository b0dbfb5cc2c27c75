//! Making families.

use prometheus::core::Collector;
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Makes a family and registers it. Names are constants of these modules, and a test registers them all.
pub(super) struct Registrar<'a>(pub &'a Registry);

impl Registrar<'_> {
    pub fn register<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect("a well-formed name");
        self.0.register(Box::new(made.clone())).expect("a name that is used once");
        made
    }
    pub fn counter(&self, name: &str, about: &str) -> IntCounter {
        self.register(IntCounter::new(name, about))
    }
    pub fn float_counter(&self, name: &str, about: &str) -> prometheus::Counter {
        self.register(prometheus::Counter::new(name, about))
    }
    pub fn counters(&self, name: &str, about: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, about), labels))
    }
    pub fn gauge(&self, name: &str, about: &str, value: f64) {
        self.register(Gauge::new(name, about)).set(value);
    }
    pub fn gauges(&self, name: &str, about: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(Opts::new(name, about), labels))
    }
    pub fn histograms(&self, name: &str, about: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
        self.register(HistogramVec::new(HistogramOpts::new(name, about).buckets(buckets), labels))
    }
}
