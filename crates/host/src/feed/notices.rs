//! Compares each snapshot with the last one and reports only what changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::k8s::Pod;
use model::local::LocalObjects;
use model::pod::Source;
use model::runtime_class::RuntimeClasses;
use ports::{FeedNotice, PodSet};

/// Namespace and name.
pub type PodName = (String, String);

pub fn pod_name(pod: &Pod) -> PodName {
    let (namespace, name) = super::key(pod);
    (namespace.to_owned(), name.to_owned())
}

/// The result of one read of the source.
#[derive(Clone, Debug, Default)]
pub struct SourceSnapshot {
    /// `None`: unknown now; what was reported before stays.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// Only valid together with pods.
    pub runtime_classes: RuntimeClasses,
    /// Only valid together with pods.
    pub objects: LocalObjects,
    /// All present problems, by origin.
    pub problems: BTreeMap<String, String>,
    /// Pods whose manifest was deleted and re-created between two reads. They are reported as removed first, so that
    /// they restart.
    pub deleted_meanwhile: BTreeSet<PodName>,
}

#[derive(Debug)]
pub struct NoticeQueue {
    source: Source,
    sent_pods: Option<Vec<Arc<Pod>>>,
    sent_runtime_classes: RuntimeClasses,
    sent_objects: LocalObjects,
    sent_problems: BTreeMap<String, String>,
    queue: VecDeque<FeedNotice>,
}

impl NoticeQueue {
    pub fn new(source: Source) -> Self {
        Self {
            source,
            sent_pods: None,
            sent_runtime_classes: RuntimeClasses::new(),
            sent_objects: LocalObjects::default(),
            sent_problems: BTreeMap::new(),
            queue: VecDeque::new(),
        }
    }

    pub fn next(&mut self) -> Option<FeedNotice> {
        self.queue.pop_front()
    }

    pub fn take(&mut self, reading: SourceSnapshot) {
        let source = self.source;
        if reading.pods.is_some() && self.sent_runtime_classes != reading.runtime_classes {
            let classes = reading.runtime_classes;
            self.queue.push_back(FeedNotice::RuntimeClasses { source, classes: classes.clone() });
            self.sent_runtime_classes = classes;
        }
        if reading.pods.is_some() && self.sent_objects != reading.objects {
            let objects = reading.objects;
            self.queue.push_back(FeedNotice::Objects { source, objects: objects.clone() });
            self.sent_objects = objects;
        }
        if let Some(pods) = reading.pods {
            if !reading.deleted_meanwhile.is_empty() {
                let others = pods.iter().filter(|pod| !reading.deleted_meanwhile.contains(&pod_name(pod)));
                self.tell_pods(others.cloned().collect());
            }
            self.tell_pods(pods);
        }
        let before = std::mem::replace(&mut self.sent_problems, reading.problems);
        for (origin, message) in &self.sent_problems {
            if before.get(origin) != Some(message) {
                let (origin, message) = (origin.clone(), message.clone());
                self.queue.push_back(FeedNotice::Problem { source, origin, message });
            }
        }
        for origin in before.into_keys() {
            if !self.sent_problems.contains_key(&origin) {
                self.queue.push_back(FeedNotice::Resolved { source, origin });
            }
        }
    }

    fn tell_pods(&mut self, pods: Vec<Arc<Pod>>) {
        if self.sent_pods.as_ref().is_some_and(|told| same(told, &pods)) {
            return;
        }
        self.queue.push_back(FeedNotice::Set(PodSet { source: self.source, pods: pods.clone() }));
        self.sent_pods = Some(pods);
    }
}

/// An unchanged file gives the very same objects, so only others are compared field by field.
fn same(told: &[Arc<Pod>], now: &[Arc<Pod>]) -> bool {
    told.len() == now.len() && told.iter().zip(now).all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::testing::{pod, show};

    #[test]
    fn tells_only_what_changed() {
        let mut notices = NoticeQueue::new(Source::File);
        let mut check = |pods: Option<&[&str]>, problems: &[(&str, &str)], expect: &[&str]| {
            let pods = pods.map(|names| names.iter().map(|name| Arc::new(pod("ns", name))).collect());
            let problems = problems.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            notices.take(SourceSnapshot { pods, problems, ..Default::default() });
            let told: Vec<String> =
                std::iter::from_fn(|| notices.next()).map(|notice| show(&notice)).collect();
            assert_eq!(told, expect);
        };
        check(None, &[("f", "bad")], &["problem f: bad"]);
        check(None, &[("f", "bad")], &[]);
        check(Some(&[]), &[("f", "bad")], &["set"]);
        check(Some(&[]), &[("f", "worse")], &["problem f: worse"]);
        check(Some(&["a"]), &[], &["set ns/a", "resolved f"]);
        check(Some(&["a"]), &[], &[]);
        check(None, &[], &[]);
        check(Some(&["b", "a"]), &[], &["set ns/b ns/a"]);
        check(
            Some(&["a", "b"]),
            &[("g", "x"), ("h", "y")],
            &["set ns/a ns/b", "problem g: x", "problem h: y"],
        );
    }
}
