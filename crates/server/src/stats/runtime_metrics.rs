//! Metrics of pods and containers from the runtime, on `/metrics/cadvisor` with the gate
//! `PodAndContainerStatsFromCRI`. The runtime describes them first; a sample that does not fit its description is left out.

use std::collections::{BTreeMap, BTreeSet};

use model::Wall;
use model::cri::{Metric, MetricDescriptor};
use ports::Runtime;

use super::StatsError;
use super::family::{Family, Labels};

pub(super) struct RuntimeMetrics {
    descriptors: Vec<MetricDescriptor>,
    metrics: Vec<Metric>,
}

impl RuntimeMetrics {
    /// The descriptions are read each time: another version of the runtime may have others.
    pub async fn read(runtime: &dyn Runtime) -> Result<Self, StatsError> {
        let descriptors = runtime.list_metric_descriptors().await.map_err(StatsError::RuntimeMetrics)?;
        let metrics = runtime.list_pod_sandbox_metrics().await.map_err(StatsError::RuntimeMetrics)?;
        Ok(Self { descriptors, metrics })
    }

    /// In the order of the descriptions, without names that are `taken` already.
    pub fn families(&self, taken: &BTreeSet<String>) -> Vec<Family> {
        let mut described: Vec<Described<'_>> = Vec::new();
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for descriptor in self.descriptors.iter().filter(|one| is_sound(one) && !taken.contains(&one.name)) {
            places.entry(&descriptor.name).or_insert_with(|| {
                described.push(Described::new(descriptor));
                described.len() - 1
            });
        }
        for metric in &self.metrics {
            if let Some(place) = places.get(metric.name.as_str()) {
                described[*place].add(metric);
            }
        }
        described.into_iter().filter_map(|one| one.family).collect()
    }
}

/// A description, and the samples that fit it so far.
struct Described<'a> {
    descriptor: &'a MetricDescriptor,
    is_gauge: bool,
    /// Present from the first sample on, which tells the type.
    family: Option<Family>,
    series: BTreeSet<String>,
}

impl<'a> Described<'a> {
    fn new(descriptor: &'a MetricDescriptor) -> Self {
        Self { descriptor, is_gauge: false, family: None, series: BTreeSet::new() }
    }

    fn add(&mut self, metric: &Metric) {
        let keys = &self.descriptor.label_keys;
        let is_other_type = self.family.is_some() && self.is_gauge != metric.is_gauge;
        if keys.len() != metric.label_values.len() || is_other_type {
            return;
        }
        let pairs: Vec<(&str, &str)> =
            keys.iter().map(String::as_str).zip(metric.label_values.iter().map(String::as_str)).collect();
        let labels = match pairs.is_empty() {
            true => String::new(),
            false => Labels::new(&pairs).text().to_owned(),
        };
        // A reader refuses the whole page if a series is in it twice.
        if !self.series.insert(labels.clone()) {
            return;
        }
        self.is_gauge = metric.is_gauge;
        let family = self.family.get_or_insert_with(|| {
            let kind = if metric.is_gauge { "gauge" } else { "counter" };
            Family::new(self.descriptor.name.clone(), kind, help(&self.descriptor.help))
        });
        let at = (metric.timestamp != 0).then_some(Wall(metric.timestamp));
        family.add(&labels, Some(metric.value as f64), at);
    }
}

fn help(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Names as the text format wants them, each label once, and none of those that are reserved (`__name__`).
fn is_sound(descriptor: &MetricDescriptor) -> bool {
    let is_name = |name: &str, more: &[char]| {
        let may_begin = |one: char| one.is_ascii_alphabetic() || one == '_' || more.contains(&one);
        name.starts_with(may_begin) && name.chars().all(|one| may_begin(one) || one.is_ascii_digit())
    };
    let keys = &descriptor.label_keys;
    let once: BTreeSet<&String> = keys.iter().collect();
    is_name(&descriptor.name, &[':'])
        && keys.iter().all(|key| is_name(key, &[]) && !key.starts_with("__"))
        && once.len() == keys.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(name: &str, help: &str, keys: &[&str]) -> MetricDescriptor {
        let label_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        MetricDescriptor { name: name.into(), help: help.into(), label_keys }
    }

    fn metric(name: &str, values: &[&str], value: u64) -> Metric {
        let label_values = values.iter().map(|value| (*value).to_owned()).collect();
        Metric { name: name.into(), label_values, value, ..Default::default() }
    }

    fn text(descriptors: Vec<MetricDescriptor>, metrics: Vec<Metric>) -> String {
        let taken = ["machine_cpu_cores".to_owned()].into();
        Family::all_text(&RuntimeMetrics { descriptors, metrics }.families(&taken))
    }

    #[test]
    fn samples_have_the_names_of_labels_from_the_description() {
        let descriptors =
            vec![descriptor("b_total", "Of\nb \\.", &["pod", "name"]), descriptor("a", "Of a.", &[])];
        let cached =
            Metric { timestamp: 1_700_000_000_500_000_000, ..metric("b_total", &["web", "\"1\""], 7) };
        let gauge = Metric { is_gauge: true, ..metric("a", &[], 3) };
        let expect = "# HELP b_total Of\\nb \\\\.\n# TYPE b_total counter\n\
                      b_total{pod=\"web\",name=\"\\\"1\\\"\"} 7 1700000000500\n\
                      b_total{pod=\"web\",name=\"2\"} 8\n# HELP a Of a.\n# TYPE a gauge\na 3\n";
        assert_eq!(text(descriptors, vec![gauge, cached, metric("b_total", &["web", "2"], 8)]), expect);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let descriptors = vec![
            descriptor("good", "", &["pod"]),
            descriptor("good", "again", &["pod", "name"]),
            descriptor("9bad", "", &[]),
            descriptor("bad_label", "", &["a:b"]),
            descriptor("twice", "", &["a", "a"]),
            descriptor("machine_cpu_cores", "", &[]),
            descriptor("silent", "", &[]),
            descriptor("", "", &[]),
        ];
        let metrics = vec![
            metric("good", &["web"], 1),
            metric("good", &["web"], 2),
            metric("good", &["web", "more"], 3),
            metric("good", &[], 4),
            Metric { is_gauge: true, ..metric("good", &["other"], 5) },
            metric("not_described", &[], 6),
            metric("9bad", &[], 7),
            metric("bad_label", &["x"], 8),
            metric("twice", &["x", "y"], 9),
            metric("machine_cpu_cores", &[], 10),
        ];
        assert_eq!(text(descriptors, metrics), "# HELP good \n# TYPE good counter\ngood{pod=\"web\"} 1\n");
    }
}
