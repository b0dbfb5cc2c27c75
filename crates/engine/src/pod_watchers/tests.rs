use std::sync::Arc;

use decide::{ActionResult, Event, step};
use futures::FutureExt;
use model::k8s::Pod;
use model::node::{HostFacts, NodeConfig};
use model::observed::{Observation, Scope};
use model::pod::Source;
use model::{Mono, Now, Wall};
use serde_json::json;

use super::*;

/// A node whose pods come from an API server, and its watchers.
struct Node {
    state: NodeState,
    watchers: PodWatchers,
    now: u64,
    cut: usize,
}

impl Node {
    fn new() -> Self {
        let features = [(decide::state::shown_pod::GATE.to_owned(), true)].into();
        let config = NodeConfig { sources: vec![Source::Api], features, ..NodeConfig::default() };
        let state = NodeState::new(config, HostFacts::default(), Wall(0));
        let mut node = Self { state, watchers: PodWatchers::default(), now: 0, cut: 0 };
        node.event(Event::Started);
        node.event(Event::PodSetDelivered { source: Source::Api, pods: Vec::new() });
        node
    }

    fn event(&mut self, event: Event) {
        self.now += 1_000_000_000;
        let now = Now { mono: Mono(self.now), wall: Wall(self.now as i64) };
        for effect in step(&mut self.state, now, event) {
            match effect {
                decide::Effect::PodChanged { uid } => {
                    self.watchers.pod_changed(&self.state, &uid, || self.cut += 1);
                }
                decide::Effect::ForgetPod { uid } => {
                    self.watchers.pod_forgotten(&uid, || self.cut += 1);
                }
                _ => {}
            }
        }
    }

    fn pod(&mut self, name: &str, label: &str) {
        self.event(Event::PodChanged { source: Source::Api, pod: pod(name, label) });
    }

    /// The runtime has nothing, so whatever is to end has ended.
    fn read(&mut self) {
        let at = Mono(self.now + 500_000_000);
        self.event(Event::Observed(Observation { scope: Scope::All, at, pods: Vec::new() }));
    }

    /// The plan that runs for the pod has worked.
    fn plan_works(&mut self, uid: &PodUid) {
        let plan = self.state.pods[uid].plan.clone().expect("a plan");
        for (stage, actions) in plan.stages.iter().enumerate() {
            for action in 0..actions.actions.len() {
                let (uid, epoch, result) = (uid.clone(), plan.epoch, ActionResult::Ok);
                self.event(Event::ActionDone { uid, epoch, stage, action, result });
            }
        }
        self.event(Event::PlanEnded { uid: uid.clone(), epoch: plan.epoch });
    }

    fn watch(&mut self) -> (Vec<String>, PodWatch) {
        let mut watch = self.watchers.add(&self.state);
        let names = std::mem::take(&mut watch.pods).iter().map(show).collect();
        (names, watch)
    }
}

fn pod(name: &str, label: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"state": label}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending"},
    });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn show(seen: &PodSnapshot) -> String {
    let meta = &seen.pod.metadata;
    let label = meta.labels.iter().flatten().next().map_or("", |(_, value)| value);
    format!("{} {label}", meta.name.as_deref().unwrap_or_default())
}

/// What waits for a watcher now.
fn waiting(watch: &mut PodWatch) -> Vec<String> {
    let next = || watch.events.next().now_or_never().flatten();
    std::iter::from_fn(next)
        .map(|event| match event {
            PodWatchEvent::Added(pod) => format!("added {}", show(&pod)),
            PodWatchEvent::Modified(pod) => format!("modified {}", show(&pod)),
            PodWatchEvent::Deleted { uid, full_name } => format!("deleted {uid} {full_name}"),
            PodWatchEvent::FellBehind => "fell behind".into(),
        })
        .collect()
}

#[test]
fn a_pod_is_added_modified_and_deleted_once() {
    let mut node = Node::new();
    node.pod("a", "first");
    let (names, mut watch) = node.watch();
    assert_eq!(names, ["a first"]);
    assert_eq!(waiting(&mut watch), [""; 0]);
    node.pod("b", "x");
    node.pod("a", "second");
    node.pod("a", "second");
    assert_eq!(waiting(&mut watch), ["added b x", "modified a second"]);
    node.event(Event::PodRemoved { source: Source::Api, uid: "b".into() });
    assert_eq!(waiting(&mut watch), ["modified b x"], "it may still run");
    assert_eq!(list(&node.state).iter().map(show).collect::<Vec<_>>(), ["a second"]);
    assert!(get(&node.state, &"b".into()).is_none() && get(&node.state, &"a".into()).is_some());
}

/// The end is told when nothing of the pod is left, and never twice.
#[test]
fn the_end_is_the_last_word() {
    let mut node = Node::new();
    node.read();
    node.pod("a", "x");
    let (_, mut watch) = node.watch();
    node.event(Event::PodRemoved { source: Source::Api, uid: "a".into() });
    for _ in 0..3 {
        node.read();
    }
    let uid = PodUid::from("a");
    // The engine would release the pod now.
    node.watchers.pod_forgotten(&uid, || {});
    let told = waiting(&mut watch);
    assert_eq!(told.last().map(String::as_str), Some("deleted a a_ns"), "{told:?}");
    assert_eq!(told.iter().filter(|line| line.starts_with("deleted")).count(), 1, "{told:?}");
    node.watchers.pod_forgotten(&uid, || {});
    assert_eq!(waiting(&mut watch), [""; 0]);
    let (names, mut late) = node.watch();
    assert_eq!(names, [""; 0], "a pod that ends is not listed");
    node.watchers.pod_forgotten(&uid, || {});
    assert_eq!(waiting(&mut late), [""; 0], "who never heard of it hears nothing of its end");
}

/// A pod that the node refuses has ended when it is heard of.
#[test]
fn a_pod_that_ended_before_is_told_of_until_its_source_removes_it() {
    let mut node = Node::new();
    node.read();
    let (_, mut early) = node.watch();
    let refused = |label: &str| {
        let mut pod = pod("a", label).as_ref().clone();
        let limits = json!({"requests": {"cpu": "100000"}});
        pod.spec.as_mut().expect("a spec").containers[0].resources = serde_json::from_value(limits).ok();
        Event::PodChanged { source: Source::Api, pod: Arc::new(pod) }
    };
    node.event(refused("x"));
    node.plan_works(&"a".into());
    assert!(has_finished(&node.state.pods[&"a".into()]));
    let (names, mut late) = node.watch();
    assert_eq!(names, ["a x"]);
    node.event(refused("y"));
    node.event(Event::PodRemoved { source: Source::Api, uid: "a".into() });
    assert_eq!(waiting(&mut early), ["added a x", "deleted a a_ns"], "it ended while it was watched");
    assert_eq!(waiting(&mut late), ["modified a y", "deleted a a_ns"]);
    node.watchers.pod_forgotten(&"a".into(), || {});
    assert_eq!([waiting(&mut early), waiting(&mut late)], [[""; 0]; 2], "nothing after the deletion");
}

#[test]
fn who_does_not_keep_up_is_cut_and_nobody_else() {
    let mut node = Node::new();
    let (_, mut slow) = node.watch();
    let (_, mut quick) = node.watch();
    let mut seen = 0;
    for round in 0..QUEUE + 50 {
        node.pod("a", &round.to_string());
        seen += waiting(&mut quick).len();
    }
    assert_eq!((seen, node.cut), (QUEUE + 50, 1));
    let told = waiting(&mut slow);
    assert_eq!(told.len(), QUEUE + 1);
    assert_eq!(told[0], "added a 0");
    assert_eq!(told[QUEUE - 1..], [format!("modified a {}", QUEUE - 1), "fell behind".into()]);
    assert!(slow.events.next().now_or_never().expect("its end").is_none());
    let (names, _) = node.watch();
    assert_eq!(names, [format!("a {}", QUEUE + 49)], "it may come back");
}

#[test]
fn who_is_gone_is_forgotten() {
    let mut node = Node::new();
    let (_, watch) = node.watch();
    drop(watch);
    let (_, watch) = node.watch();
    assert_eq!(node.watchers.0.len(), 1);
    drop(watch);
    node.pod("a", "x");
    assert_eq!((node.watchers.0.len(), node.cut), (0, 0));
}
