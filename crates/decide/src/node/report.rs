//! When the node status is sent: at once if it changed, and periodically if it did not.

use std::time::Duration;

use model::Mono;
use model::k8s::{Node, NodeStatus};

use crate::jitter::JitterSeed;

/// When the last report went out, and how long the next one may wait.
#[derive(Clone, PartialEq, Debug)]
pub struct StatusReportSchedule {
    last: Option<Mono>,
    wait: Duration,
}

impl StatusReportSchedule {
    pub fn new(period: Duration) -> Self {
        Self { last: None, wait: period }
    }

    /// `None`: now.
    pub fn next_at(&self) -> Option<Mono> {
        self.last.map(|last| last.plus(self.wait))
    }

    pub fn is_due(&self, now: Mono) -> bool {
        self.next_at().is_none_or(|due| now >= due)
    }

    /// After a change the next periodic report is jittered by 50 %, because the change may have hit many nodes at once.
    pub fn record_sent(&mut self, changed: bool, period: Duration, seed: &mut JitterSeed, now: Mono) {
        let spread = if changed || self.last.is_none() { seed.fraction() - 0.5 } else { 0.0 };
        self.wait = period.mul_f64(1.0 + spread);
        self.last = Some(now);
    }
}

/// Whether anything but the heartbeat times of the conditions differs.
pub fn status_changed(before: &Node, after: &Node) -> bool {
    let plain = |node: &Node| {
        let mut status = node.status.clone().unwrap_or_default();
        strip_heartbeats(&mut status);
        let conditions = status.conditions.get_or_insert_default();
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        status
    };
    plain(before) != plain(after)
        || before.metadata.labels != after.metadata.labels
        || before.metadata.annotations != after.metadata.annotations
}

fn strip_heartbeats(status: &mut NodeStatus) {
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
}

/// Whether the difference can matter to pods. Heartbeats, images and managedFields don't.
pub fn changed_for_pods(before: Option<&Node>, after: Option<&Node>) -> bool {
    let plain = |node: &Node| {
        let mut node = node.clone();
        node.metadata.resource_version = None;
        node.metadata.managed_fields = None;
        if let Some(status) = &mut node.status {
            status.conditions = None;
            status.images = None;
        }
        node
    };
    before.map(plain) != after.map(plain)
}

/// The ranges of pod addresses that the cluster gave this node, as the runtime takes them.
pub fn pod_cidrs(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.clone().filter(|cidrs| !cidrs.is_empty());
    let joined = all.map(|cidrs| cidrs.join(",")).or_else(|| spec.pod_cidr.clone())?;
    (!joined.is_empty()).then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(secs: u64) -> Mono {
        Mono::from_duration(Duration::from_secs(secs))
    }

    #[test]
    fn the_first_at_once_and_the_others_spread() {
        let period = Duration::from_secs(300);
        let mut waits = Vec::new();
        for number in 0..100 {
            let mut seed = JitterSeed(number);
            let mut reports = StatusReportSchedule::new(period);
            assert!(reports.is_due(at(0)));
            reports.record_sent(true, period, &mut seed, at(0));
            let due = reports.next_at().unwrap();
            assert!(due >= at(150) && due <= at(450), "{due:?}");
            assert!(!reports.is_due(at(149)) && reports.is_due(at(450)));
            waits.push(due);
            reports.record_sent(false, period, &mut seed, at(1000));
            assert_eq!(reports.next_at(), Some(at(1300)));
        }
        waits.sort();
        waits.dedup();
        assert!(waits.len() > 90);
    }

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).expect("a node")
    }

    #[test]
    fn heartbeats_are_no_change() {
        let with = |beat: &str, status: &str| {
            node(json!({"metadata": {}, "status": {"conditions": [
                {"type": "Ready", "status": status, "lastHeartbeatTime": beat},
            ]}}))
        };
        let (one, two) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        assert!(!status_changed(&with(one, "True"), &with(two, "True")));
        assert!(status_changed(&with(one, "True"), &with(one, "False")));
        assert!(!changed_for_pods(Some(&with(one, "True")), Some(&with(two, "False"))));
        let labelled = node(json!({"metadata": {"labels": {"a": "b"}}}));
        assert!(changed_for_pods(Some(&with(one, "True")), Some(&labelled)));
        assert!(changed_for_pods(None, Some(&labelled)));
        assert!(!changed_for_pods(None, None));
    }

    #[test]
    fn ranges_of_pods() {
        let check = |spec: serde_json::Value, expect: Option<&str>| {
            assert_eq!(pod_cidrs(&node(json!({"metadata": {}, "spec": spec}))).as_deref(), expect);
        };
        check(json!({}), None);
        check(json!({"podCIDR": "10.1.0.0/24"}), Some("10.1.0.0/24"));
        check(
            json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}),
            Some("10.1.0.0/24,fd00::/64"),
        );
    }
}
