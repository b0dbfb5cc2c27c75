//! A node with a given number of running pods, and the events that are measured on it.

use std::sync::{Arc, LazyLock};

use decide::event::RuntimeCheck;
use decide::plan::{PlanInputs, PodPlan, plan_pod};
use decide::sandbox_placement::SandboxPlacement;
use decide::{Effect, Event, Hint, NodeState, step};
use model::credentials::PullHistory;
use model::cri::{Image, NamespaceMode, RuntimeCondition, RuntimeStatus};
use model::node::{HostFacts, NodeConfig};
use model::observed::{ContainerState, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope};
use model::pod::Source;
use model::{FullName, Mono, Now, PodUid, Wall, k8s};
use serde_json::json;

const SECOND: u64 = 1_000_000_000;
const IMAGE: &str = "registry.test/app:1";
const START: i64 = 1_700_000_000 * SECOND as i64;

#[derive(Clone, Copy, PartialEq)]
pub enum Case {
    /// Planning a pod that needs nothing.
    Plan,
    /// The runtime hints at a container.
    Hint,
    /// The reading that follows shows its exit: status, plan, a look for its image.
    Exit,
    /// The image exists: plan, restart.
    Restart,
    /// A reading of one pod shows nothing new.
    SameReading,
    /// A complete reading shows nothing new.
    SameRelist,
    /// A file is added to the directory of manifests.
    Manifest,
    /// The API server adds a pod.
    PodComes,
    /// The API server deletes a pod, which has to end.
    PodGoes,
}

impl Case {
    pub const ALL: [Case; 9] = [
        Case::Plan,
        Case::Hint,
        Case::Exit,
        Case::Restart,
        Case::SameReading,
        Case::SameRelist,
        Case::Manifest,
        Case::PodComes,
        Case::PodGoes,
    ];

    /// Whether the event is about all pods.
    pub fn is_of_all(self) -> bool {
        self == Case::SameRelist
    }

    pub fn name(self) -> &'static str {
        match self {
            Case::Plan => "plan_pod of a converged pod",
            Case::Hint => "step: hint at a container",
            Case::Exit => "step: exit of a container",
            Case::Restart => "step: its image is there, it is restarted",
            Case::SameReading => "step: reading of one pod, nothing new",
            Case::SameRelist => "step: complete reading, nothing new",
            Case::Manifest => "step: one manifest more",
            Case::PodComes => "step: one pod of the API more",
            Case::PodGoes => "step: one pod of the API less",
        }
    }
}

pub enum Outcome {
    Plan(PodPlan),
    Step(Vec<Effect>),
}

pub struct Node {
    state: NodeState,
    now: u64,
    manifests: Vec<Arc<k8s::Pod>>,
    seen: Vec<Arc<ObservedPod>>,
}

impl Node {
    /// All pods run, and everything about them is known and settled.
    pub fn with(pods: usize) -> Node {
        let mut config = NodeConfig { sources: vec![Source::File], ..NodeConfig::default() };
        config.node_object.capacity.max_pods = 10_000;
        let facts = HostFacts { cpus: 64, memory_bytes: 1 << 40, ..HostFacts::default() };
        let mut node = Node {
            state: NodeState::new(config, facts, Wall(START)),
            now: SECOND,
            manifests: (0..pods).map(manifest).collect(),
            seen: (0..pods).map(|number| Arc::new(observed(number))).collect(),
        };
        node.step(Event::Started);
        node.step(Event::RuntimeChecked(runtime_ready()));
        node.step(Event::PodSetDelivered { source: Source::File, pods: node.manifests.clone() });
        node.step(node.relist());
        assert_eq!(node.state.pods.len(), pods);
        for entry in node.state.pods.values() {
            let phase = entry.status.as_ref().and_then(|status| status.phase.as_deref());
            assert_eq!(phase, Some("Running"), "{:?}", entry.why);
            assert!(entry.plan.is_none(), "{:?}", entry.plan);
        }
        node
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.now += SECOND;
        let now = self.time();
        step(&mut self.state, now, event)
    }

    fn time(&self) -> Now {
        Now { mono: Mono(self.now), wall: Wall(START + self.now as i64) }
    }

    fn relist(&self) -> Event {
        Event::Observed(Observation { at: Mono(self.now), scope: Scope::All, pods: self.seen.clone() })
    }

    fn reading(&self, pod: ObservedPod) -> Event {
        let scope = Scope::Pod(pod.uid.clone());
        Event::Observed(Observation { at: Mono(self.now), scope, pods: vec![Arc::new(pod)] })
    }

    /// The event for the measured part. `None`: it plans, and runs no step.
    pub fn prepare(&mut self, case: Case) -> Option<Event> {
        self.now += SECOND;
        let pods = self.manifests.len();
        Some(match case {
            Case::Plan => return None,
            Case::Hint => Event::Hint(Hint::ContainerOrSandbox(format!("c{}", pods / 2))),
            Case::Exit => {
                let mut pod = observed(pods / 2);
                pod.containers[0].state = ContainerState::Exited;
                pod.containers[0].finished_at = self.time().wall;
                pod.containers[0].exit_code = 1;
                self.seen[pods / 2] = Arc::new(pod.clone());
                self.reading(pod)
            }
            Case::Restart => Event::ImageInspected {
                image: IMAGE.into(),
                result: Ok(Some(Image {
                    id: "sha256:1".into(),
                    repo_tags: vec![IMAGE.into()],
                    ..Default::default()
                })),
                history: PullHistory::default(),
            },
            Case::SameReading => self.reading(ObservedPod::clone(&self.seen[0])),
            Case::SameRelist => self.relist(),
            Case::Manifest => {
                self.manifests.push(manifest(pods));
                Event::PodSetDelivered { source: Source::File, pods: self.manifests.clone() }
            }
            Case::PodComes => Event::PodChanged { source: Source::Api, pod: manifest(pods + 1) },
            Case::PodGoes => Event::PodRemoved { source: Source::Api, uid: uid(pods + 1) },
        })
    }

    pub fn run(&mut self, event: Option<Event>) -> Outcome {
        let now = self.time();
        match event {
            None => Outcome::Plan(self.plan()),
            Some(event) => Outcome::Step(step(&mut self.state, now, event)),
        }
    }

    fn plan(&self) -> PodPlan {
        let entry = &self.state.pods[&uid(self.manifests.len() / 2)];
        let observed = entry.fresh_observation().expect("a fresh reading");
        plan_pod(&PlanInputs {
            config: &self.state.config,
            facts: &self.state.facts,
            runtime: &self.state.runtime,
            entry,
            observed,
            name_holder: None,
            primary_family: self.state.primary_family(),
            placement: Ok(SandboxPlacement::default()),
            cluster: self.state.objects.as_ref(),
            node: self.state.node.as_deref(),
            now: self.time(),
        })
    }

    /// Checks that the case did what it is meant to measure. Callgrind gets its name.
    #[inline(never)]
    pub fn check(&self, case: Case, outcome: &Outcome) {
        let runs =
            |effects: &[Effect]| effects.iter().filter(|e| matches!(e, Effect::RunPlan { .. })).count();
        match (case, outcome) {
            (Case::Plan, Outcome::Plan(plan)) => assert!(plan.stages.is_empty(), "{plan:?}"),
            (Case::Hint, Outcome::Step(effects)) => {
                assert!(matches!(effects[..], [Effect::Observe(Scope::Pod(_))]), "{effects:?}");
            }
            (Case::Exit, Outcome::Step(effects)) => {
                assert!(effects.iter().any(|e| matches!(e, Effect::InspectImage { .. })), "{effects:?}");
            }
            (Case::SameReading, Outcome::Step(effects)) => assert!(effects.is_empty(), "{effects:?}"),
            (Case::SameRelist, Outcome::Step(effects)) => assert_eq!(runs(effects), 0),
            (Case::PodGoes, Outcome::Step(effects)) => {
                assert!(effects.iter().any(|e| matches!(e, Effect::CancelPlan { .. })), "{effects:?}");
            }
            (_, Outcome::Step(effects)) => assert_eq!(runs(effects), 1, "{effects:?}"),
            (_, Outcome::Plan(_)) => panic!("a plan where effects were wanted"),
        }
    }
}

fn uid(number: usize) -> PodUid {
    PodUid::from(format!("00000000-0000-4000-8000-{number:012}"))
}

fn name(number: usize) -> String {
    format!("pod-{number}")
}

/// Decoded once: making thousands under valgrind takes long enough.
static MANIFEST: LazyLock<k8s::Pod> = LazyLock::new(|| {
    let container = json!({
        "name": "main", "image": IMAGE, "command": ["serve", "--port", "80"],
        "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
        "env": [{ "name": "MODE", "value": "fast" }, { "name": "LEVEL", "value": "3" }],
        "ports": [{ "containerPort": 80, "protocol": "TCP" }],
        "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "memory": "64Mi" } },
        "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "default", "labels": { "app": "web", "tier": "front" } },
        "spec": {
            "containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": false,
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
        },
    });
    model::codec::pod_from_value(pod).expect("a pod")
});

fn manifest(number: usize) -> Arc<k8s::Pod> {
    let mut pod = MANIFEST.clone();
    pod.metadata.name = Some(name(number));
    pod.metadata.uid = Some(uid(number).to_string());
    Arc::new(pod)
}

fn observed(number: usize) -> ObservedPod {
    let mut pod = ObservedPod::empty(uid(number), FullName::new(&name(number), "default"));
    pod.sandboxes.push(ObservedSandbox {
        id: format!("s{number}").into(),
        attempt: 0,
        created_at: Wall(START - 100),
        ready: true,
        network: NamespaceMode::Pod,
        has_network_status: true,
        ips: vec![format!("10.0.{}.{}", number / 250, number % 250 + 1)],
        runtime_handler: String::new(),
    });
    pod.containers.push(ObservedContainer {
        id: format!("c{number}").into(),
        sandbox_id: format!("s{number}").into(),
        name: "main".into(),
        state: ContainerState::Running,
        restart_count: 0,
        hash: None,
        created_at: Wall(START - 50),
        started_at: Wall(START - 40),
        finished_at: Wall(0),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: IMAGE.into(),
        image_ref: "registry.test/app@sha256:1".into(),
        image_id: "sha256:1".into(),
        log_path: format!("/var/log/pods/default_{}/main/0.log", name(number)),
        pod_grace: Some(30),
        pre_stop: None,
        resources: None,
        user: None,
        stop_signal: 0,
        image_mounts: Default::default(),
    });
    pod
}

fn runtime_ready() -> RuntimeCheck {
    let condition = |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
    RuntimeCheck::Answered {
        runtime_name: "bench".into(),
        status: RuntimeStatus {
            conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            ..Default::default()
        },
        cgroup_driver: None,
    }
}
