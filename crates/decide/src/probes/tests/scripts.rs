//! Whole steps: events in, effects out.

use std::sync::Arc;
use std::time::Duration;

use model::cri::{RuntimeCondition, RuntimeStatus};
use model::node::{HostFacts, NodeConfig};
use model::observed::{ContainerState, Observation, ObservedContainer, Scope};
use model::pod::Source;
use model::probe::{ContainerProbeRecord, ProbeKind, ProbeOutcome, ProbeRecord};
use model::{ContainerId, Mono, Now, PodUid};
use serde_json::{Value, json};

use super::{container, failure, running};
use crate::action::Action;
use crate::effect::TimerKey;
use crate::event::RuntimeCheck;
use crate::status::sample::{EPOCH, at, instance, observed};
use crate::{ActionResult, Effect, Event, NodeState, step};

use ProbeKind::{Liveness, Readiness, Startup};

const UID: &str = "u";

struct Node {
    state: NodeState,
    now: Now,
}

impl Node {
    /// A node that has been up for long, with one pod.
    fn new(spec: Value) -> Self {
        Self::came_up_at(spec, EPOCH.0 - 1_000_000_000_000, ProbeRecord::default())
    }

    fn came_up_at(spec: Value, started: i64, record: ProbeRecord) -> Self {
        let config = NodeConfig { sources: vec![Source::File], ..Default::default() };
        let mut state = NodeState::new(config, HostFacts::default(), model::Wall(started));
        state.probe_records.insert(UID.into(), record);
        let mut node = Self { state, now: at(0) };
        node.tell(Event::Started);
        let ready = |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let status = RuntimeStatus {
            conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
            ..Default::default()
        };
        let runtime_name = "containerd".into();
        node.tell(Event::RuntimeChecked(RuntimeCheck::Answered {
            runtime_name,
            status,
            cgroup_driver: None,
        }));
        let at = node.now.mono;
        node.tell(Event::Observed(Observation { at, scope: Scope::All, pods: vec![] }));
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": UID}, "spec": spec});
        pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        node.tell(Event::PodSetDelivered { source: Source::File, pods: vec![pod] });
        // whatever it wanted to do is over and done with
        node.end_plan(true);
        node
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.pass(Duration::from_millis(1));
        step(&mut self.state, self.now, event)
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { mono: self.now.mono.plus(time), wall: self.now.wall.plus(time) };
    }

    fn see(&mut self, containers: Vec<ObservedContainer>) -> Vec<Effect> {
        let at = self.now.mono.plus(Duration::from_millis(1));
        let pods = vec![Arc::new(observed(containers))];
        self.tell(Event::Observed(Observation { at, scope: Scope::Pod(UID.into()), pods }))
    }

    fn end_plan(&mut self, good: bool) -> Vec<Effect> {
        let Some(plan) = self.state.pods[&PodUid::from(UID)].plan.clone() else { return Vec::new() };
        for (stage, actions) in plan.stages.iter().enumerate() {
            for (action, what) in actions.actions.iter().enumerate() {
                let result = match what {
                    _ if !good => ActionResult::Skipped,
                    Action::MakePodDirs { .. } => ActionResult::Dirs { log_numbers: Default::default() },
                    Action::RunSandbox { .. } => ActionResult::SandboxRunning { id: "s0".into() },
                    _ => ActionResult::Ok,
                };
                let (uid, epoch) = (UID.into(), plan.epoch);
                self.tell(Event::ActionDone { uid, epoch, stage, action, result });
            }
        }
        self.tell(Event::PlanEnded { uid: UID.into(), epoch: plan.epoch })
    }

    fn answer(&mut self, kind: ProbeKind, id: &str, outcome: ProbeOutcome) -> Vec<Effect> {
        let (uid, container, id) = (UID.into(), "c".into(), ContainerId::new(id));
        self.tell(Event::ProbeDone { uid, container, kind, id, outcome, took: Duration::ZERO })
    }

    /// Lets the pod's timer ring when it is due.
    fn ring(&mut self) -> Vec<Effect> {
        let due = self.state.pods[&PodUid::from(UID)].probes.timer.expect("a timer");
        self.pass(due.since(self.now.mono));
        self.tell(Event::Timer(TimerKey::Probe(UID.into())))
    }

    /// Lets time pass until this probe is asked.
    fn until_asked(&mut self, kind: ProbeKind) -> Vec<Effect> {
        for _ in 0..100 {
            let effects = self.ring();
            if asked(&effects).contains(&kind) {
                return effects;
            }
        }
        panic!("{kind:?} is never asked");
    }

    fn says(&self) -> (bool, bool) {
        let status = self.state.pods[&PodUid::from(UID)].status.as_ref().expect("a status");
        let c = status.container_statuses.iter().flatten().find(|c| c.name == "c").expect("a container");
        (c.started == Some(true), c.ready)
    }
}

fn asked(effects: &[Effect]) -> Vec<ProbeKind> {
    let kind = |e: &Effect| match e {
        Effect::RunProbe { kind, .. } => Some(*kind),
        _ => None,
    };
    effects.iter().filter_map(kind).collect()
}

fn told(effects: &[Effect]) -> Vec<&str> {
    let message = |e: &'_ Effect| match e {
        Effect::RecordEvent { event, .. } => Some(event.message.clone()),
        _ => None,
    };
    effects.iter().filter_map(message).map(|m| &*m.leak()).collect()
}

fn kept(effects: &[Effect]) -> Option<&ProbeRecord> {
    effects.iter().find_map(|e| match e {
        Effect::StoreProbeRecord { record, .. } => Some(record),
        _ => None,
    })
}

fn stops(effects: &[Effect]) -> Vec<String> {
    let stages = effects.iter().filter_map(|e| match e {
        Effect::RunPlan { stages, .. } => Some(stages),
        _ => None,
    });
    let actions = stages.flat_map(|s| s.iter().flat_map(|s| &s.actions));
    actions
        .filter_map(|a| match a {
            Action::StopContainer { id, grace_secs, .. } => Some(format!("{id} {grace_secs}s")),
            _ => None,
        })
        .collect()
}

fn published(effects: &[Effect]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::StatusChanged { .. }))
}

fn one(probes: &[(ProbeKind, Value)]) -> Value {
    json!({"containers": [container("c", probes)]})
}

#[test]
fn readiness_goes_from_the_answer_into_the_status() {
    let mut node = Node::new(one(&[(Readiness, json!({"failureThreshold": 2}))]));
    let effects = node.see(vec![running("c", 0)]);
    assert_eq!((asked(&effects), node.says()), (vec![Readiness], (true, false)));
    let call = effects.iter().find_map(|e| match e {
        Effect::RunProbe { id, call, attempts, .. } => Some((id.to_string(), call.timeout, *attempts)),
        _ => None,
    });
    assert_eq!(call, Some(("c0".into(), Duration::from_secs(1), 3)));

    let effects = node.answer(Readiness, "c0", ProbeOutcome::Success);
    assert!(published(&effects) && node.says() == (true, true));
    assert_eq!(kept(&effects).unwrap().containers["c"].results, [(Readiness, true)].into());
    // an answer that changes nothing costs nothing but the next turn
    node.until_asked(Readiness);
    let effects = node.answer(Readiness, "c0", ProbeOutcome::Success);
    assert!(
        matches!(effects[..], [Effect::SetTimer { key: TimerKey::Probe(_), at: Some(_) }]),
        "{effects:?}"
    );

    node.until_asked(Readiness);
    let effects = node.answer(Readiness, "c0", failure());
    assert_eq!((told(&effects), published(&effects)), (vec!["Readiness probe failed: no"], false));
    node.until_asked(Readiness);
    let effects = node.answer(Readiness, "c0", failure());
    assert!(published(&effects) && node.says() == (true, false));
    assert_eq!(kept(&effects).unwrap().containers["c"].results, [(Readiness, false)].into());
    assert_eq!(stops(&effects), [""; 0]);
    // the change is news, and so it is asked once more; that answer is none
    assert_eq!(asked(&effects), [Readiness]);
    assert_eq!(asked(&node.answer(Readiness, "c0", failure())), []);
}

#[test]
fn a_failed_life_is_ended_and_begun_again() {
    let mut node =
        Node::new(one(&[(Liveness, json!({"failureThreshold": 1, "terminationGracePeriodSeconds": 7}))]));
    node.see(vec![running("c", 0)]);
    node.until_asked(Liveness);
    let effects = node.answer(Liveness, "c0", failure());
    assert_eq!(stops(&effects), ["c0 7s"]);
    let killing = "Container c failed liveness probe, will be restarted";
    assert_eq!(told(&effects), ["Liveness probe failed: no", killing]);
    let record = kept(&effects).unwrap();
    assert!(record.containers["c"].must_restart);
    // it ends well, and is not taken for one that is done
    node.end_plan(true);
    let effects = node.see(vec![instance("c", 0, ContainerState::Exited, 0)]);
    assert_eq!(stops(&effects), [""; 0]);
    // the next instance is alive until it is found not to be
    node.end_plan(false);
    let effects = node.see(vec![running("c", 1), instance("c", 0, ContainerState::Exited, 0)]);
    assert_eq!((stops(&effects), node.says()), (vec![], (true, true)));
    assert_eq!(kept(&effects), Some(&ProbeRecord::default()), "nothing is left to remember");
}

#[test]
fn one_that_ends_well_is_started_again_although_it_succeeded() {
    let mut spec = one(&[(Liveness, json!({"failureThreshold": 1}))]);
    spec["restartPolicy"] = json!("OnFailure");
    let mut node = Node::new(spec);
    node.see(vec![running("c", 0)]);
    node.until_asked(Liveness);
    assert_eq!(stops(&node.answer(Liveness, "c0", failure())), ["c0 30s"]);
    node.end_plan(true);
    node.see(vec![instance("c", 0, ContainerState::Exited, 0)]);
    let status = node.state.pods[&PodUid::from(UID)].status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"), "the pod is not over");
    let entry = &node.state.pods[&PodUid::from(UID)];
    assert!(entry.why.iter().any(|w| w.why.container.as_deref() == Some("c")), "{:?}", entry.why);
    assert!(entry.lifecycle().may_start());
}

#[test]
fn an_agent_that_died_between_the_kill_and_the_start_starts_it_all_the_same() {
    let mut spec = one(&[(Liveness, json!({}))]);
    spec["restartPolicy"] = json!("OnFailure");
    let check = |must_restart: bool, phase: &str| {
        let mut of = ContainerProbeRecord::new(ContainerId::new("c0"));
        of.must_restart = must_restart;
        let record = ProbeRecord { containers: [("c".to_owned(), of)].into() };
        let mut node = Node::came_up_at(spec.clone(), EPOCH.0, record);
        node.see(vec![instance("c", 0, ContainerState::Exited, 0)]);
        let status = node.state.pods[&PodUid::from(UID)].status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some(phase));
    };
    check(true, "Running");
    check(false, "Succeeded");
}

#[test]
fn a_restarted_agent_says_what_was_said_from_the_first() {
    let both = [(Startup, json!({})), (Readiness, json!({}))];
    let check = |results: &[(ProbeKind, bool)], expect: (bool, bool)| {
        let mut of = ContainerProbeRecord::new(ContainerId::new("c0"));
        of.results = results.iter().copied().collect();
        let known = (!results.is_empty()).then(|| ("c".to_owned(), of));
        let record = ProbeRecord { containers: known.into_iter().collect() };
        let mut node = Node::came_up_at(one(&both), EPOCH.0 + 60_000_000_000, record);
        node.pass(Duration::from_secs(60));
        let effects = node.see(vec![running("c", 0)]);
        assert_eq!(node.says(), expect, "{results:?}");
        assert_eq!((asked(&effects), kept(&effects)), (vec![], None), "all in its time, and nothing new");
    };
    check(&[(Startup, true), (Readiness, true)], (true, true));
    check(&[(Startup, true), (Readiness, false)], (true, false));
    check(&[(Startup, true)], (true, false));
    check(&[], (false, false));
}

#[test]
fn a_start_opens_the_way_for_the_rest() {
    let mut node = Node::new(one(&[(Startup, json!({})), (Readiness, json!({})), (Liveness, json!({}))]));
    let effects = node.see(vec![running("c", 0)]);
    assert_eq!((asked(&effects), node.says()), (vec![Startup], (false, false)));
    let effects = node.answer(Startup, "c0", ProbeOutcome::Success);
    assert_eq!((asked(&effects), node.says()), (vec![Readiness], (true, false)));
    let effects = node.answer(Readiness, "c0", ProbeOutcome::Success);
    assert_eq!(node.says(), (true, true));
    assert_eq!(asked(&effects), []);
    node.until_asked(Liveness);
}

#[test]
fn a_pod_that_goes_is_still_asked_whether_it_is_ready() {
    let numbers = || json!({"failureThreshold": 1});
    let mut node = Node::new(one(&[(Readiness, numbers()), (Liveness, numbers())]));
    node.see(vec![running("c", 0)]);
    node.answer(Readiness, "c0", ProbeOutcome::Success);
    node.until_asked(Liveness);
    let effects = node.tell(Event::PodSetDelivered { source: Source::File, pods: vec![] });
    assert_eq!(stops(&effects), ["c0 30s"]);
    // the answer about its life comes too late
    assert_eq!(told(&node.answer(Liveness, "c0", failure())), [""; 0]);
    let effects = node.until_asked(Readiness);
    assert_eq!(asked(&effects), [Readiness]);
    let effects = node.answer(Readiness, "c0", failure());
    assert!(published(&effects) && node.says() == (true, false));
    // and once everything has stopped, nobody is asked anything
    node.end_plan(true);
    let mut over = observed(vec![instance("c", 0, ContainerState::Exited, 0)]);
    over.sandboxes[0].ready = false;
    let at = node.now.mono.plus(Duration::from_millis(1));
    let effects = node.tell(Event::Observed(Observation {
        at,
        scope: Scope::Pod(UID.into()),
        pods: vec![Arc::new(over)],
    }));
    assert_eq!(asked(&effects), []);
    assert_eq!(node.state.pods[&PodUid::from(UID)].probes.timer, None);
}

#[test]
fn what_can_not_be_asked_is_told_and_tried_again_in_its_time() {
    let mut spec = one(&[(Readiness, json!({}))]);
    spec["containers"][0]["readinessProbe"]["tcpSocket"]["port"] = json!("nope");
    let mut node = Node::new(spec);
    let text = "Readiness probe errored and resulted in unknown state: port nope not found";
    let effects = node.see(vec![running("c", 0)]);
    assert_eq!((told(&effects), asked(&effects)), (vec![text], vec![]));
    assert_eq!(told(&node.ring()), [text]);
    assert_eq!(node.says(), (true, false));
}

#[test]
fn answers_about_strangers_change_nothing() {
    let mut node = Node::new(one(&[(Readiness, json!({}))]));
    node.see(vec![running("c", 0)]);
    let check = |node: &mut Node, uid: &str, container: &str, id: &str| {
        let (uid, container, id) = (uid.into(), container.into(), ContainerId::new(id));
        let outcome = ProbeOutcome::Success;
        let took = Duration::ZERO;
        let effects = node.tell(Event::ProbeDone { uid, container, kind: Readiness, id, outcome, took });
        assert!(effects.is_empty(), "{effects:?}");
    };
    check(&mut node, "stranger", "c", "c0");
    check(&mut node, UID, "stranger", "c0");
    check(&mut node, UID, "c", "c9");
    assert!(node.tell(Event::Timer(TimerKey::Probe("stranger".into()))).is_empty());
    assert_eq!(node.says(), (true, false));
}

#[test]
fn pods_without_probes_have_no_timer_and_no_record() {
    let mut node = Node::new(json!({"containers": [{"name": "c"}]}));
    let effects = node.see(vec![running("c", 0)]);
    assert_eq!((asked(&effects), kept(&effects), node.says()), (vec![], None, (true, true)));
    let timers = effects.iter().any(|e| matches!(e, Effect::SetTimer { key: TimerKey::Probe(_), .. }));
    assert!(!timers, "{effects:?}");
    assert_eq!(node.state.pods[&PodUid::from(UID)].probes.timer, None::<Mono>);
}
