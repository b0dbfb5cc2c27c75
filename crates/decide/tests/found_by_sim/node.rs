//! A node that gets events one after the other.

use std::sync::Arc;
use std::time::Duration;

use decide::event::RuntimeCheck;
use decide::state::PodEntry;
use decide::{Action, ActionResult, Effect, Epoch, Event, NodeState, step};
use model::cri::{NamespaceMode, RuntimeCondition, RuntimeStatus};
use model::k8s::Pod;
use model::node::{HostFacts, NodeConfig};
use model::observed::{ContainerState, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope};
use model::pod::Source;
use model::{FullName, Mono, Now, PodUid, Wall};
use serde_json::{Value, json};

pub struct Node {
    pub state: NodeState,
    pub now: Now,
}

/// A plan that the node asked for.
pub struct Plan {
    pub uid: PodUid,
    pub epoch: Epoch,
    pub actions: Vec<(usize, usize, Action)>,
}

impl Node {
    pub fn new() -> Self {
        Self::with(NodeConfig::default())
    }

    /// Up, with an answering runtime and one source, and an empty runtime.
    pub fn with(config: NodeConfig) -> Self {
        let mut node = Self::begun(NodeConfig { sources: vec![Source::File], ..config });
        node.see_everything(vec![]);
        node
    }

    /// Up, and the first reading is on its way.
    pub fn unread() -> Self {
        Self::unread_with(&[Source::File])
    }

    pub fn unread_with(sources: &[Source]) -> Self {
        Self::begun(NodeConfig { sources: sources.to_vec(), ..NodeConfig::default() })
    }

    fn begun(config: NodeConfig) -> Self {
        let start = Wall(1_700_000_000_000_000_000);
        let state = NodeState::new(config, HostFacts::default(), start);
        let mut node = Self { state, now: Now { mono: Mono(1), wall: start } };
        node.tell(Event::Started);
        let ready = |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let conditions = vec![ready("RuntimeReady"), ready("NetworkReady")];
        let status = RuntimeStatus { conditions, ..Default::default() };
        node.tell(Event::RuntimeChecked(RuntimeCheck::Answered {
            runtime_name: "test".into(),
            status,
            cgroup_driver: None,
        }));
        node
    }

    pub fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.pass(Duration::from_millis(1));
        step(&mut self.state, self.now, event)
    }

    pub fn pass(&mut self, time: Duration) {
        self.now.mono = self.now.mono.plus(time);
        self.now.wall = self.now.wall.plus(time);
    }

    pub fn want(&mut self, pods: &[Value]) -> Vec<Effect> {
        self.want_from(Source::File, pods)
    }

    pub fn want_from(&mut self, source: Source, pods: &[Value]) -> Vec<Effect> {
        let parse = |pod: &Value| Arc::new(serde_json::from_value::<Pod>(pod.clone()).expect("a pod"));
        self.tell(Event::PodSetDelivered { source, pods: pods.iter().map(parse).collect() })
    }

    pub fn see_everything(&mut self, pods: Vec<ObservedPod>) -> Vec<Effect> {
        let pods = pods.into_iter().map(Arc::new).collect();
        let at = self.now.mono;
        self.tell(Event::Observed(Observation { at, scope: Scope::All, pods }))
    }

    /// Observes one pod for long enough to be accepted although it contradicts earlier answers of the runtime.
    pub fn see_for_long(&mut self, uid: &str, sandboxes: Vec<ObservedSandbox>) -> Vec<Effect> {
        let effects = self.see(uid, sandboxes.clone(), vec![]);
        assert!(plan(&effects).is_none(), "nothing follows at once");
        self.pass(decide::observation_guard::CONFIRM_DELAY);
        self.see(uid, sandboxes, vec![])
    }

    /// What there is of one pod.
    pub fn see(
        &mut self,
        uid: &str,
        sandboxes: Vec<ObservedSandbox>,
        containers: Vec<ObservedContainer>,
    ) -> Vec<Effect> {
        let mut pod = ObservedPod::empty(uid.into(), FullName::new("p", "ns"));
        pod.sandboxes = sandboxes;
        pod.containers = containers;
        pod.sort();
        let at = self.now.mono;
        self.tell(Event::Observed(Observation {
            at,
            scope: Scope::Pod(uid.into()),
            pods: vec![Arc::new(pod)],
        }))
    }

    /// Everything of a plan succeeds, and it ends.
    pub fn succeed(&mut self, plan: &Plan) -> Vec<Effect> {
        for (stage, action, what) in &plan.actions {
            let result = match what {
                Action::MakePodDirs { .. } => ActionResult::Dirs { log_numbers: Default::default() },
                Action::RunSandbox { .. } => ActionResult::SandboxRunning { id: "s".into() },
                Action::StartContainer(start) => {
                    let id = format!("{}-{}", start.name, start.config.metadata.attempt);
                    ActionResult::ContainerStarted { id: id.into() }
                }
                _ => ActionResult::Ok,
            };
            let (uid, epoch) = (plan.uid.clone(), plan.epoch);
            self.tell(Event::ActionDone { uid, epoch, stage: *stage, action: *action, result });
        }
        self.tell(Event::PlanEnded { uid: plan.uid.clone(), epoch: plan.epoch })
    }

    pub fn entry(&self, uid: &str) -> &PodEntry {
        &self.state.pods[&PodUid::from(uid)]
    }
}

pub fn plan(effects: &[Effect]) -> Option<Plan> {
    effects.iter().find_map(|effect| match effect {
        Effect::RunPlan { uid, epoch, stages } => {
            let numbered = stages.iter().enumerate().flat_map(|(stage, s)| {
                s.actions.iter().enumerate().map(move |(action, what)| (stage, action, what.clone()))
            });
            Some(Plan { uid: uid.clone(), epoch: *epoch, actions: numbered.collect() })
        }
        _ => None,
    })
}

pub fn words(effects: &[Effect]) -> Vec<&'static str> {
    plan(effects).map(|p| p.actions.iter().map(|(_, _, a)| a.name()).collect()).unwrap_or_default()
}

/// A pod `p` of namespace `ns` with this UID and spec.
pub fn pod(uid: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid}, "spec": spec});
    pod["spec"]["enableServiceLinks"] = json!(true);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(5);
    pod
}

pub fn sandbox(id: &str, ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: id.into(),
        attempt: 0,
        created_at: Wall(1),
        ready,
        network: NamespaceMode::Pod,
        has_network_status: true,
        ips: if ready { vec!["10.0.0.2".into()] } else { vec![] },
        runtime_handler: String::new(),
    }
}

pub fn container(
    name: &str,
    image: &str,
    count: u32,
    state: ContainerState,
    exit_code: i32,
) -> ObservedContainer {
    ObservedContainer {
        stop_signal: 0,
        image_mounts: Default::default(),
        pre_stop: None,
        id: format!("{name}-{count}").into(),
        sandbox_id: "s".into(),
        name: name.into(),
        state,
        restart_count: count,
        hash: Some(decide::render::container_hash(name, image)),
        created_at: Wall(1_000 + i64::from(count)),
        started_at: Wall(1_000),
        finished_at: Wall(if state == ContainerState::Exited { 2_000 } else { 0 }),
        exit_code,
        reason: String::new(),
        message: String::new(),
        image: image.into(),
        image_ref: image.into(),
        image_id: image.into(),
        log_path: format!("/logs/{name}/{count}.log"),
        pod_grace: None,
        resources: None,
        user: None,
    }
}
