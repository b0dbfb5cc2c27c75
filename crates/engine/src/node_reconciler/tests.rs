//! The Node reconciler against an API that fails in every way, with paused time.

use model::cri::{RuntimeCondition, RuntimeStatus};
use model::k8s::{NodeCondition, Quantity};
use tokio::time::sleep;

use super::*;
use crate::fake_api::{FakeApi, Fault, RecordedReasons, TestWall};
use crate::node_duties::follow_node;
use crate::outbox::Outbox;

struct Bench {
    api: Arc<FakeApi>,
    ear: Arc<RecordedReasons>,
    clock: Clock,
    facts: watch::Sender<Arc<HostFacts>>,
    runtime: watch::Sender<RuntimeSnapshot>,
    images: watch::Sender<ImageList>,
    inbox: tokio::sync::mpsc::UnboundedReceiver<decide::Event>,
    cidrs: watch::Receiver<Option<String>>,
    stop: tokio_util::sync::DropGuard,
    storage: watch::Sender<Option<String>>,
    volumes: watch::Sender<Option<Vec<String>>>,
    pressure: watch::Sender<NodePressure>,
}

fn facts() -> HostFacts {
    HostFacts {
        cpus: 2,
        memory_bytes: 4 << 30,
        root_fs_bytes: 10 << 30,
        architecture: "amd64".into(),
        boot_id: "boot".into(),
        addresses: model::node::HostAddresses {
            routed: vec!["192.0.2.1".parse().unwrap()],
            ..Default::default()
        },
        ..HostFacts::default()
    }
}

fn ready(clock: &Clock) -> RuntimeSnapshot {
    let good =
        |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..RuntimeCondition::default() };
    RuntimeSnapshot {
        name: "containerd".into(),
        version: "2.0.0".into(),
        status: Some(RuntimeStatus {
            conditions: vec![good("RuntimeReady"), good("NetworkReady")],
            ..RuntimeStatus::default()
        }),
        answered_at: Some(clock.mono()),
        relisted_at: Some(clock.mono()),
        ..RuntimeSnapshot::default()
    }
}

impl Bench {
    fn start(api: Arc<FakeApi>, setup: NodeObjectConfig, runtime: fn(&Clock) -> RuntimeSnapshot) -> Self {
        let (ear, clock) = (RecordedReasons::new(), Clock::new(TestWall::new()));
        let stop = CancellationToken::new();
        let facts = watch::Sender::new(Arc::new(facts()));
        let runtime = watch::Sender::new(runtime(&clock));
        let images = watch::Sender::new(ImageList::default());
        let (storage, volumes) = (watch::Sender::new(None), watch::Sender::new(None));
        let pressure = watch::Sender::new(NodePressure::default());
        let (outbox, inbox) = tokio::sync::mpsc::unbounded_channel();
        let (node_now, node) = watch::channel(WatchedNode::default());
        let (cidrs_now, cidrs) = watch::channel(None);
        tokio::spawn(follow_node(api.clone(), setup.name.clone(), Outbox(outbox), node_now, cidrs_now));
        let deps = NodeReconcilerDeps {
            setup: Arc::new(setup),
            api: api.clone(),
            events: ear.clone(),
            clock: clock.clone(),
            seed: JitterSeed(1),
            node,
            facts: facts.subscribe(),
            runtime: runtime.subscribe(),
            images: images.subscribe(),
            storage: storage.subscribe(),
            volumes: volumes.subscribe(),
            pressure: pressure.subscribe(),
        };
        tokio::spawn(NodeReconciler::new(deps).run(Vec::new(), stop.clone()));
        Self {
            api,
            ear,
            clock,
            facts,
            runtime,
            images,
            storage,
            volumes,
            pressure,
            inbox,
            cidrs,
            stop: stop.drop_guard(),
        }
    }

    fn ready() -> Self {
        Self::start(FakeApi::new(), setup(), ready)
    }

    fn condition(&self) -> NodeCondition {
        let node = self.api.node().expect("a node");
        let conditions =
            node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == "Ready").expect("Ready")
    }

    /// Keeps the runtime responsive for this time.
    async fn live(&self, secs: u64) {
        for _ in 0..secs.div_ceil(20) {
            sleep(Duration::from_secs(20.min(secs))).await;
            let now = self.clock.mono();
            self.runtime.send_modify(|view| (view.answered_at, view.relisted_at) = (Some(now), Some(now)));
        }
    }

    fn seen(&mut self) -> Vec<bool> {
        let mut seen = Vec::new();
        while let Ok(event) = self.inbox.try_recv() {
            if let decide::Event::NodeObserved(node) = event {
                seen.push(node.is_some());
            }
        }
        seen
    }
}

fn setup() -> NodeObjectConfig {
    NodeObjectConfig { name: "n".into(), hostname: "n".into(), ..NodeObjectConfig::default() }
}

async fn soon() {
    sleep(Duration::from_millis(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_made_ready_at_once() {
    let mut bench = Bench::start(FakeApi::new(), setup(), |_| RuntimeSnapshot::default());
    soon().await;
    assert_eq!(bench.condition().status, "False");
    bench.runtime.send_replace(ready(&bench.clock));
    soon().await;
    assert_eq!(bench.condition().status, "True");
    assert!(bench.ear.take().ends_with(&["NodeReady".to_owned()]));
    assert_eq!(bench.seen().first(), Some(&true));
    assert_eq!(bench.api.calls().await, ["create node", "patch node"]);
    // Nothing more is sent while nothing changes and no status update is due.
    bench.live(120).await;
    assert_eq!(bench.api.calls().await, [""; 0]);
    bench.live(400).await;
    assert_eq!(bench.api.calls().await, ["patch node"]);
    drop(bench.stop);
}

#[tokio::test(start_paused = true)]
async fn changes_are_sent_when_they_happen() {
    let mut bench = Bench::ready();
    soon().await;
    bench.api.calls().await;
    bench.seen();
    bench.facts.send_replace(Arc::new(HostFacts { cpus: 8, ..facts() }));
    soon().await;
    assert_eq!(bench.api.calls().await, ["patch node"]);
    let node = bench.api.node().unwrap();
    assert_eq!(node.status.as_ref().unwrap().capacity.as_ref().unwrap()["cpu"], Quantity("8".into()));
    assert_eq!(bench.seen(), [true]);
    let image = Image { id: "i".into(), size: 5, repo_tags: vec!["a:b".into()], ..Image::default() };
    bench.images.send_replace(Some(Arc::new(vec![image])));
    soon().await;
    assert_eq!(bench.api.calls().await, ["patch node"]);
    // Images do not affect pods.
    assert_eq!(bench.seen(), [false; 0]);
    // A runtime that stops answering is noticed at its timeout, not at the next tick.
    bench.runtime.send_modify(|view| view.last_check_failed = true);
    sleep(Duration::from_secs(29)).await;
    assert_eq!(bench.condition().status, "True");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.condition().message.as_deref(), Some("container runtime is down"));
    assert!(bench.ear.take().ends_with(&["NodeNotReady".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn registration_is_tried_with_growing_waits() {
    let api = FakeApi::new();
    api.fail("create node", Fault::Server, 9).await;
    let bench = Bench::start(api, setup(), ready);
    sleep(Duration::from_secs(40)).await;
    let calls = bench.api.timed_calls().await;
    let creations: Vec<f64> =
        calls.iter().filter(|(_, call)| call == "create node").map(|(at, _)| *at).collect();
    let waits: Vec<u64> =
        creations.windows(2).map(|pair| ((pair[1] - pair[0]) * 10.0).round() as u64).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 70, 70]);
    assert!(bench.api.node().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_node_from_before_is_taken_over() {
    let api = FakeApi::new();
    let old = serde_json::json!({
        "metadata": {"name": "n", "labels": {"theirs": "x"}},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        "status": {"nodeInfo": {
            "bootID": "older", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": "",
        }},
    });
    api.put_node(serde_json::from_value(old).unwrap()).await;
    let bench = Bench::start(api, setup(), ready);
    soon().await;
    let node = bench.api.node().unwrap();
    let labels = node.metadata.labels.clone().unwrap();
    assert_eq!((labels["theirs"].as_str(), labels["kubernetes.io/hostname"].as_str()), ("x", "n"));
    assert_eq!(bench.condition().status, "True");
    assert!(bench.ear.take().contains(&"Rebooted".to_owned()));
    assert_eq!(bench.cidrs.borrow().as_deref(), Some("10.1.0.0/24"));
    assert_eq!(bench.api.calls().await, ["create node", "get node", "patch node", "patch node"]);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_make_a_node_takes_the_one_there_is() {
    let api = FakeApi::new();
    api.put_node(Node::default()).await;
    api.fail("create node", Fault::Forbidden, 1).await;
    let bench = Bench::start(api, setup(), ready);
    soon().await;
    assert_eq!(bench.condition().status, "True");
    // With the gate KubeletRegistrationGetOnExistsOnly a forbidden create does not lead to a read of the Node.
    let api = FakeApi::new();
    api.put_node(Node::default()).await;
    api.fail("create node", Fault::Forbidden, 1).await;
    let bench = Bench::start(api, NodeObjectConfig { get_on_exists_only: true, ..setup() }, ready);
    bench.live(5).await;
    let calls = bench.api.calls().await;
    assert_eq!(calls[..3], ["create node", "create node", "get node"], "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_made_again() {
    let mut bench = Bench::ready();
    soon().await;
    let first = bench.api.node().unwrap().metadata.uid.clone();
    bench.api.calls().await;
    bench.seen();
    bench.api.delete_node();
    soon().await;
    let second = bench.api.node().expect("made again").metadata.uid.clone();
    assert_ne!(first, second);
    assert_eq!(bench.seen().last(), Some(&true));
    assert_eq!(bench.condition().status, "True");
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_finds_nothing_leads_to_a_new_node() {
    let bench = Bench::ready();
    soon().await;
    bench.api.calls().await;
    bench.api.fail("patch node", Fault::NotFound, 1).await;
    bench.facts.send_replace(Arc::new(HostFacts { cpus: 8, ..facts() }));
    soon().await;
    assert_eq!(bench.api.calls().await[..3], ["patch node", "create node", "get node"]);
    let node = bench.api.node().unwrap();
    assert_eq!(node.status.as_ref().unwrap().capacity.as_ref().unwrap()["cpu"], Quantity("8".into()));
}

#[tokio::test(start_paused = true)]
async fn a_patch_is_tried_five_times_and_then_at_the_next_tick() {
    for fault in [Fault::Conflict, Fault::Server, Fault::Hang] {
        let bench = Bench::ready();
        soon().await;
        bench.api.calls().await;
        bench.api.fail("patch node", fault, 5).await;
        bench.facts.send_replace(Arc::new(HostFacts { cpus: 8, ..facts() }));
        bench.live(if fault == Fault::Hang { 60 } else { 5 }).await;
        let calls = bench.api.calls().await;
        let patches = calls.iter().filter(|call| *call == "patch node").count();
        assert!(patches >= 5, "{fault:?} {calls:?}");
        bench.live(20).await;
        let node = bench.api.node().unwrap();
        assert_eq!(node.status.as_ref().unwrap().capacity.as_ref().unwrap()["cpu"], Quantity("8".into()));
        // Events are not sent again for each attempt.
        assert_eq!(bench.ear.take().iter().filter(|reason| *reason == "Starting").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn without_registration_the_object_is_waited_for() {
    let bench = Bench::start(FakeApi::new(), NodeObjectConfig { register: false, ..setup() }, ready);
    bench.live(100).await;
    assert_eq!(bench.api.calls().await, [""; 0]);
    bench.api.put_node(Node::default()).await;
    soon().await;
    assert_eq!(bench.api.calls().await, ["patch node"]);
    assert_eq!(bench.condition().status, "True");
    bench.api.delete_node();
    bench.live(100).await;
    assert!(bench.api.node().is_none());
    assert_eq!(bench.api.calls().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_others_do_to_the_object_is_noticed() {
    let mut bench = Bench::ready();
    soon().await;
    bench.ear.take();
    bench.seen();
    bench.api.calls().await;
    bench.api.change_node(|node| node.spec.get_or_insert_default().unschedulable = Some(true)).await;
    soon().await;
    assert_eq!(bench.ear.take(), ["NodeNotSchedulable"]);
    assert_eq!(bench.seen(), [true]);
    bench.api.change_node(|node| node.metadata.labels = None).await;
    soon().await;
    let labels = bench.api.node().unwrap().metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get("kubernetes.io/os").map(String::as_str), Some("linux"));
    bench
        .api
        .change_node(|node| {
            node.spec.get_or_insert_default().pod_cidrs = Some(vec!["10.1.0.0/24".into(), "fd00::/64".into()])
        })
        .await;
    soon().await;
    assert_eq!(bench.cidrs.borrow().as_deref(), Some("10.1.0.0/24,fd00::/64"));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_can_be_made_but_not_kept_is_no_race() {
    let bench = Bench::ready();
    soon().await;
    bench.api.calls().await;
    bench.api.fail("patch node", Fault::NotFound, 1000).await;
    bench.facts.send_replace(Arc::new(HostFacts { cpus: 8, ..facts() }));
    sleep(Duration::from_secs(60)).await;
    let calls = bench.api.calls().await;
    assert!((20..100).contains(&calls.len()), "{}", calls.len());
}

#[tokio::test(start_paused = true)]
async fn storage_holds_readiness_back_and_volumes_in_use_are_told_at_once() {
    let bench = Bench::ready();
    soon().await;
    assert_eq!(bench.condition().status, "True");
    bench.storage.send_replace(Some("CSINode is not yet initialized".into()));
    soon().await;
    assert_eq!(bench.condition().status, "False");
    assert!(bench.condition().message.unwrap_or_default().contains("CSINode is not yet initialized"));
    bench.storage.send_replace(None);
    bench.volumes.send_replace(Some(vec!["kubernetes.io/csi/d^h".into()]));
    soon().await;
    assert_eq!(bench.condition().status, "True");
    let told = |bench: &Bench| bench.api.node().and_then(|node| node.status.clone()?.volumes_in_use);
    assert_eq!(told(&bench), Some(vec!["kubernetes.io/csi/d^h".to_owned()]));
    bench.volumes.send_replace(Some(Vec::new()));
    soon().await;
    assert_eq!(told(&bench).unwrap_or_default(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pressure_is_told_at_once() {
    let bench = Bench::ready();
    soon().await;
    let told = |bench: &Bench| {
        let conditions =
            bench.api.node().and_then(|node| node.status.clone()?.conditions).unwrap_or_default();
        let holds = conditions.into_iter().filter(|one| one.status == "True" && one.type_ != "Ready");
        holds.map(|one| one.reason.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(told(&bench), [""; 0]);
    bench.pressure.send_replace(NodePressure { memory: true, disk: true, pid: false });
    soon().await;
    assert_eq!(told(&bench), ["KubeletHasInsufficientMemory", "KubeletHasDiskPressure"]);
    bench.pressure.send_replace(NodePressure::default());
    soon().await;
    assert_eq!(told(&bench), [""; 0]);
}
