//! Images from the request to the start, event by event: the Events, the states, and the time of the next attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::action::{ActionResult, CallFailure};
use decide::event::{Event, PulledImage, RuntimeCheck};
use decide::image_pull::{PullContext, PullKey, PullingPod};
use decide::{Action, Effect, NodeState, StartContainer, step};
use model::credentials::{
    CredentialPlugin, PullCredentials, PullHistory, PullServiceAccount, PulledRecord, TokenAttributes,
    TokenCacheType, VerificationPolicy,
};
use model::cri::{Image, ImageSpec, NamespaceMode, RuntimeCondition, RuntimeStatus};
use model::node::{HostFacts, NodeConfig};
use model::observed::{Observation, ObservedPod, ObservedSandbox, Scope};
use model::pod::Source;
use model::{Mono, Now, PodUid, SandboxId, Wall};
use serde_json::{Value, json};

const START: i64 = 1_700_000_000_000_000_000;

/// A node whose pods have their sandboxes already.
struct Bench {
    state: NodeState,
    now: Duration,
    effects: Vec<Effect>,
    /// The pulls that began, by their image.
    pulls: BTreeMap<String, PullKey>,
}

impl Bench {
    fn new(config: NodeConfig) -> Self {
        let config = NodeConfig { sources: vec![Source::File], ..config };
        let state = NodeState::new(config, HostFacts::default(), Wall(START));
        let mut bench = Self { state, now: Duration::ZERO, effects: Vec::new(), pulls: BTreeMap::new() };
        let condition = |kind: &str| RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..RuntimeCondition::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        bench.send(Event::Started);
        bench.send(Event::RuntimeChecked(RuntimeCheck::Answered {
            runtime_name: "containerd".into(),
            status: RuntimeStatus { conditions, ..RuntimeStatus::default() },
            cgroup_driver: None,
        }));
        bench
    }

    fn send(&mut self, event: Event) {
        let now = Now { mono: Mono::from_duration(self.now), wall: Wall(START).plus(self.now) };
        let effects = step(&mut self.state, now, event);
        for effect in &effects {
            if let Effect::PullImage { pull, .. } = effect {
                self.pulls.insert(pull.image.clone(), pull.clone());
            }
        }
        self.effects.extend(effects);
    }

    /// Delivers the pods and shows their sandboxes.
    fn pods(&mut self, manifests: &[Value]) {
        let decode = |manifest: &Value| {
            // A static pod can't name a service account, so it gets the one of the manifest afterwards.
            let mut manifest = manifest.clone();
            let account = manifest["spec"].as_object_mut().and_then(|spec| spec.remove("serviceAccountName"));
            let bytes = manifest.to_string().into_bytes();
            let content = manifest::decode_file(&bytes, "/m.json", "node", manifest::ReferencePolicy::Deny);
            let (pods, problems) = (content.pods, content.errors);
            assert!(problems.is_empty(), "{problems:?}");
            let mut pod = pods.into_iter().next().expect("a pod");
            if let Some(spec) = &mut pod.spec {
                spec.service_account_name = account.and_then(|name| name.as_str().map(str::to_owned));
            }
            Arc::new(pod)
        };
        let pods: Vec<_> = manifests.iter().map(decode).collect();
        self.send(Event::PodSetDelivered { source: Source::File, pods });
        let entries: Vec<_> = self.state.pods.values().map(|e| e.view().clone()).collect();
        let sandboxed = |view: &model::pod::PodView| {
            let mut pod = ObservedPod::empty(view.uid.clone(), view.full_name.clone());
            pod.sandboxes.push(ObservedSandbox {
                id: SandboxId::new(format!("sandbox-{}", view.uid)),
                attempt: 0,
                created_at: Wall(START),
                ready: true,
                network: NamespaceMode::Pod,
                has_network_status: true,
                ips: vec!["10.0.0.5".into()],
                runtime_handler: String::new(),
            });
            Arc::new(pod)
        };
        let pods = entries.iter().map(sandboxed).collect();
        let at = Mono::from_duration(self.now);
        self.send(Event::Observed(Observation { at, scope: Scope::All, pods }));
    }

    fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// `inspect <image>`, `pull <image>`, and the texts of Events, in their order.
    fn told(&mut self) -> Vec<String> {
        let text = |effect: &Effect| match effect {
            Effect::InspectImage { image } => Some(format!("inspect {image}")),
            Effect::PullImage { pull, .. } => Some(format!("pull {}", pull.image)),
            Effect::RecordEvent { event, .. } => {
                let about = event.container.as_ref().map(|(_, name)| format!("{name}: ")).unwrap_or_default();
                Some(format!("{about}{} {}", event.reason, event.message))
            }
            _ => None,
        };
        self.taken().iter().filter_map(text).collect()
    }

    fn inspected(&mut self, image: &str, found: bool, history: PullHistory) {
        let result = Ok(found.then(|| sample_image(image)));
        self.send(Event::ImageInspected { image: image.into(), result, history });
    }

    fn pulled(&mut self, image: &str) {
        let result = PulledImage {
            reference: sample_image(image).id,
            image: Some(sample_image(image)),
            took: Duration::from_millis(1500),
        };
        self.send(Event::ImagePulled { pull: self.pulls[image].clone(), result: Ok(result) });
    }

    fn pull_failed(&mut self, image: &str, message: &str) {
        let failure = CallFailure { unreachable: false, message: message.into() };
        self.send(Event::ImagePulled { pull: self.pulls[image].clone(), result: Err(failure) });
    }

    /// The pod's timer, if it is due by then.
    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let due: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        for uid in due {
            let at = self.state.pods[&uid].timer;
            if at.is_some_and(|at| at <= Mono::from_duration(self.now)) {
                self.send(Event::Timer(decide::TimerKey::PodWakeUp(uid)));
            }
        }
    }

    fn waiting(&self, container: &str) -> (String, String) {
        let entry = self.state.pods.values().next().expect("a pod");
        let status = entry.status.as_ref().expect("a status");
        let statuses = status.container_statuses.as_deref().unwrap_or_default();
        let own = statuses.iter().find(|s| s.name == container).expect("the container's status");
        let waiting = own.state.as_ref().and_then(|s| s.waiting.clone()).unwrap_or_default();
        (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
    }

    /// Containers that are started by the plans so far. The pod's directories are made first.
    fn starts(&mut self) -> Vec<StartContainer> {
        let mut starts = Vec::new();
        let mut effects = self.taken();
        while !effects.is_empty() {
            for effect in std::mem::take(&mut effects) {
                let Effect::RunPlan { uid, epoch, stages } = effect else { continue };
                for (stage, actions) in stages.iter().enumerate() {
                    for (action, what) in actions.actions.iter().enumerate() {
                        let result = match what {
                            Action::StartContainer(start) => {
                                starts.push((**start).clone());
                                ActionResult::ContainerStarted { id: format!("id-{}", start.name).into() }
                            }
                            Action::MakePodDirs { .. } => ActionResult::Dirs { log_numbers: BTreeMap::new() },
                            _ => ActionResult::Ok,
                        };
                        let uid = uid.clone();
                        self.send(Event::ActionDone { uid, epoch, stage, action, result });
                    }
                }
                self.send(Event::PlanEnded { uid, epoch });
            }
            effects = self.taken();
        }
        starts
    }
}

fn sample_image(image: &str) -> Image {
    Image { id: format!("id of {image}"), size: 42, ..Image::default() }
}

fn pod(name: &str, image: &str, policy: &str) -> Value {
    with_containers(name, json!([{ "name": "c", "image": image, "imagePullPolicy": policy }]), json!([]))
}

fn with_containers(name: &str, containers: Value, volumes: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": containers, "volumes": volumes },
    })
}

fn record(name: &str) -> PullHistory {
    let node = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
    PullHistory::Pulled(PulledRecord {
        last_updated_time: None,
        image_ref: "x".into(),
        credential_mapping: [(name.to_owned(), node)].into(),
    })
}

const IMAGE: &str = "h.test/a:1";

#[test]
fn a_pull_is_told_with_its_durations() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[pod("p", IMAGE, "Always")]);
    assert_eq!(b.told(), ["c: Pulling Pulling image \"h.test/a:1\"", "pull h.test/a:1"]);
    b.now += Duration::from_millis(2500);
    b.pulled(IMAGE);
    let told = b.told();
    assert_eq!(
        told[0],
        "c: Pulled Successfully pulled image \"h.test/a:1\" in 1.5s (2.5s including waiting). Image size: 42 bytes."
    );
}

#[test]
fn an_image_that_is_there_is_used_by_those_who_may() {
    let check = |policy: Option<VerificationPolicy>, history: PullHistory, expect: &str| {
        let mut b = Bench::new(NodeConfig { pull_verification: policy.clone(), ..NodeConfig::default() });
        b.pods(&[pod("p", IMAGE, "IfNotPresent")]);
        assert_eq!(b.told(), ["inspect h.test/a:1"]);
        b.inspected(IMAGE, true, history.clone());
        assert_eq!(b.told()[0], expect, "{policy:?} {history:?}");
    };
    let present = "c: Pulled Container image \"h.test/a:1\" already present on machine";
    let accessible = format!("{present} and can be accessed by the pod");
    let pulls = "c: Pulling Pulling image \"h.test/a:1\"";
    let default = || Some(VerificationPolicy::default());
    check(None, PullHistory::PullIntent, present);
    check(default(), PullHistory::NoRecord, &accessible);
    check(default(), record("h.test/a"), &accessible);
    check(default(), record("h.test/b"), pulls);
    check(default(), PullHistory::PullIntent, pulls);
    check(Some(VerificationPolicy::AlwaysVerify), PullHistory::NoRecord, pulls);
    check(Some(VerificationPolicy::NeverVerify), PullHistory::PullIntent, &accessible);
}

#[test]
fn to_those_who_may_not_use_it_an_image_is_not_there() {
    let config =
        NodeConfig { pull_verification: Some(VerificationPolicy::AlwaysVerify), ..NodeConfig::default() };
    let mut b = Bench::new(config);
    b.pods(&[pod("p", IMAGE, "Never")]);
    b.told();
    b.inspected(IMAGE, true, PullHistory::NoRecord);
    let text = "Container image \"h.test/a:1\" is not present with pull policy of Never";
    assert_eq!(b.told(), [&format!("c: ErrImageNeverPull {text}"), "c: Failed Error: ErrImageNeverPull"]);
    assert_eq!(b.waiting("c"), ("ErrImageNeverPull".into(), text.into()));
}

#[test]
fn a_failed_pull_backs_off_and_comes_again() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[pod("p", IMAGE, "Always")]);
    b.told();
    b.pull_failed(IMAGE, "no");
    assert_eq!(
        b.told(),
        ["c: Failed Failed to pull image \"h.test/a:1\": no", "c: Failed Error: ErrImagePull"]
    );
    assert_eq!(b.waiting("c"), ("ErrImagePull".into(), "no".into()));
    b.pass(1);
    assert_eq!(
        b.told(),
        ["c: BackOff Back-off pulling image \"h.test/a:1\"", "c: Failed Error: ImagePullBackOff"]
    );
    let text = "Back-off pulling image \"h.test/a:1\": ErrImagePull: no";
    assert_eq!(b.waiting("c"), ("ImagePullBackOff".into(), text.into()));
    b.pass(8);
    assert_eq!(b.told(), [""; 0]);
    b.pass(1);
    assert_eq!(b.told(), ["c: Pulling Pulling image \"h.test/a:1\"", "pull h.test/a:1"]);
}

#[test]
fn the_runtime_tells_two_kinds_of_failure_apart() {
    let check = |error: &str, reason: &str, message: &str| {
        let mut b = Bench::new(NodeConfig::default());
        b.pods(&[pod("p", IMAGE, "Always")]);
        b.told();
        b.pull_failed(IMAGE, error);
        assert_eq!(b.waiting("c"), (reason.into(), message.into()));
        let told = b.told();
        assert_eq!(told[0], format!("c: Failed Failed to pull image \"h.test/a:1\": {error}"));
        assert_eq!(told[1], format!("c: Failed Error: {reason}"));
    };
    check("x", "ErrImagePull", "x");
    check(
        "RegistryUnavailable: it is down",
        "RegistryUnavailable",
        "image pull failed for h.test/a:1 because the registry is unavailable: it is down",
    );
    check(
        "SignatureValidationFailed: forged",
        "SignatureValidationFailed",
        "image pull failed for h.test/a:1 because the signature validation failed: forged",
    );
}

#[test]
fn two_containers_that_saw_one_failure_wait_for_it_once() {
    let container = |name: &str| json!({ "name": name, "image": IMAGE, "imagePullPolicy": "Always" });
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[with_containers("p", json!([container("c"), container("d")]), json!([]))]);
    b.told();
    b.pull_failed(IMAGE, "no");
    b.pass(1);
    b.told();
    b.pass(9);
    let pulls: Vec<_> = b.told().into_iter().filter(|told| told.starts_with("pull ")).collect();
    assert_eq!(pulls, ["pull h.test/a:1"], "ten seconds, and not twenty");
}

#[test]
fn pulls_that_begin_too_often_fail_and_let_the_next_one_try() {
    let config = NodeConfig { registry_pull_qps: 1, registry_burst: 1, ..NodeConfig::default() };
    let mut b = Bench::new(config);
    let manifests: Vec<Value> =
        (0..3).map(|n| pod(&format!("p{n}"), &format!("h.test/a:{n}"), "Always")).collect();
    b.pods(&manifests);
    let pulls = |told: Vec<String>| -> Vec<String> {
        let wanted = |text: &String| text.starts_with("pull ") || text.contains("QPS");
        told.into_iter().filter(wanted).collect()
    };
    // Serial: one runs, two wait.
    let begun = pulls(b.told());
    assert_eq!(begun.len(), 1, "{begun:?}");
    b.pull_failed(begun[0].strip_prefix("pull ").unwrap(), "no");
    let refused = pulls(b.told());
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.iter().all(|text| text.ends_with(": pull QPS exceeded")), "{refused:?}");
    b.pass(10);
    assert_eq!(pulls(b.told()).iter().filter(|text| text.starts_with("pull ")).count(), 1);
}

fn reader(policy: &str) -> Value {
    let mount = json!([{ "name": "v", "mountPath": "/v" }]);
    let containers = json!([
        { "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mount },
        { "name": "d", "image": IMAGE, "imagePullPolicy": "Never" },
    ]);
    let volume = json!({ "name": "v", "image": { "reference": "h.test/v:1", "pullPolicy": policy } });
    with_containers("p", containers, json!([volume]))
}

#[test]
fn an_image_volume_is_fetched_beside_the_containers_images() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[reader("IfNotPresent")]);
    assert_eq!(b.told(), ["inspect h.test/v:1", "inspect h.test/a:1"]);
    b.inspected(IMAGE, true, PullHistory::NoRecord);
    let names: Vec<String> = b.starts().iter().map(|s| s.name.clone()).collect();
    assert_eq!(names, ["d"], "who mounts the volume waits for it");
}

#[test]
fn what_mounts_an_image_is_given_what_was_pulled() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[reader("Always")]);
    assert_eq!(
        b.told(),
        ["Pulling Pulling image \"h.test/v:1\"", "pull h.test/v:1", "inspect h.test/a:1"],
        "the event is about the pod"
    );
    b.pulled("h.test/v:1");
    assert!(b.told()[0].starts_with("Pulled Successfully pulled image \"h.test/v:1\""));
    b.inspected(IMAGE, true, PullHistory::NoRecord);
    let starts = b.starts();
    let start = starts.iter().find(|s| s.name == "c").expect("a start");
    let image = start.config.mounts.iter().find_map(|m| m.image.clone()).expect("a mounted image");
    let ImageSpec { image, user_specified_image, .. } = image;
    assert_eq!((image.as_str(), user_specified_image.as_str()), ("id of h.test/v:1", "h.test/v:1"));
}

#[test]
fn a_volume_without_its_image_keeps_its_containers_waiting() {
    let mut b = Bench::new(NodeConfig::default());
    let mount = json!([{ "name": "v", "mountPath": "/v" }]);
    let container = json!({ "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mount });
    let volume = json!({ "name": "v", "image": { "reference": "h.test/v:1", "pullPolicy": "Always" } });
    b.pods(&[with_containers("p", json!([container]), json!([volume]))]);
    b.inspected(IMAGE, true, PullHistory::NoRecord);
    assert!(b.starts().is_empty(), "the volume is missing");
    b.pull_failed("h.test/v:1", "no");
    assert_eq!(b.told(), ["Failed Failed to pull image \"h.test/v:1\": no", "c: Failed Error: ErrImagePull"]);
    assert_eq!(b.waiting("c"), ("ErrImagePull".into(), "no".into()));
}

#[test]
fn a_volume_whose_image_came_keeps_nobody_waiting() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[reader("Always")]);
    b.pull_failed("h.test/v:1", "no");
    b.pass(1);
    assert_eq!(b.waiting("c").0, "ImagePullBackOff");
    b.pass(9);
    assert!(b.told().contains(&"pull h.test/v:1".to_owned()));
    b.pulled("h.test/v:1");
    assert_eq!(b.waiting("c"), ("ContainerCreating".into(), String::new()), "its own image is looked for");
    b.inspected(IMAGE, true, PullHistory::NoRecord);
    let names: Vec<String> = b.starts().iter().map(|s| s.name.clone()).collect();
    assert_eq!(names, ["c", "d"]);
}

#[test]
fn an_image_that_is_both_container_and_volume_is_pulled_once() {
    let mount = json!([{ "name": "v", "mountPath": "/v" }]);
    let container =
        json!({ "name": "c", "image": IMAGE, "imagePullPolicy": "Always", "volumeMounts": mount });
    let volume = json!({ "name": "v", "image": { "reference": IMAGE, "pullPolicy": "Always" } });
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[with_containers("p", json!([container]), json!([volume]))]);
    let pulls = b.told().iter().filter(|told| told.starts_with("pull ")).count();
    assert_eq!(pulls, 1);
    b.pulled(IMAGE);
    assert_eq!(b.starts().len(), 1);
}

#[test]
fn plugins_are_asked_before_the_pull() {
    let mut b = Bench::new(with_plugin(None));
    b.pods(&[pod("p", IMAGE, "Always")]);
    let asked = b.asked();
    assert_eq!((asked.0.image.as_str(), asked.1), (IMAGE, false));
    b.send(Event::CredentialPluginsAnswered { pull: asked.0, for_access: false, account: None });
    assert_eq!(b.told(), ["pull h.test/a:1"]);
}

fn with_plugin(token: Option<TokenAttributes>) -> NodeConfig {
    let plugin = CredentialPlugin {
        name: "plugin".into(),
        match_images: vec!["*.test".into()],
        default_cache: Duration::from_secs(60),
        api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
        args: Vec::new(),
        env: Vec::new(),
        token,
    };
    NodeConfig { credential_plugins: vec![plugin], serialize_image_pulls: false, ..NodeConfig::default() }
}

fn takes_tokens(required: bool) -> NodeConfig {
    with_plugin(Some(TokenAttributes {
        audience: "registry".into(),
        required,
        required_annotations: Vec::new(),
        optional_annotations: Vec::new(),
        cache: TokenCacheType::ServiceAccount,
    }))
}

impl Bench {
    /// The only question to plugins since the last look, and whether it is only about access.
    fn asked(&mut self) -> (PullKey, bool, PullingPod) {
        let asks = |effect: &Effect| match effect {
            Effect::AskCredentialPlugins { pull, pod, for_access } => {
                Some((pull.clone(), *for_access, pod.clone()))
            }
            _ => None,
        };
        let asked: Vec<_> = self.taken().iter().filter_map(asks).collect();
        let [only] = &asked[..] else { panic!("{asked:?}") };
        only.clone()
    }

    fn contexts(&mut self) -> Vec<PullContext> {
        let context = |effect: &Effect| match effect {
            Effect::PullImage { context, .. } => Some((**context).clone()),
            _ => None,
        };
        self.taken().iter().filter_map(context).collect()
    }
}

fn in_namespace(name: &str, namespace: &str, annotations: Value) -> Value {
    let mut pod = pod(name, IMAGE, "Always");
    pod["metadata"]["namespace"] = json!(namespace);
    pod["metadata"]["annotations"] = annotations;
    pod
}

#[test]
fn a_pull_carries_the_pods_sandbox_and_annotations() {
    let mut b = Bench::new(NodeConfig::default());
    b.pods(&[in_namespace("p", "team", json!({ "io.containerd.cri.runtime-handler": "kata" }))]);
    let [context] = &b.contexts()[..] else { panic!("one pull") };
    assert_eq!(context.annotations["io.containerd.cri.runtime-handler"], "kata");
    let sandbox = context.sandbox.as_ref().expect("the sandbox's configuration");
    assert_eq!((sandbox.metadata.name.as_str(), sandbox.metadata.namespace.as_str()), ("p-node", "team"));
    assert_eq!(sandbox.annotations, context.annotations);
    assert!(!sandbox.linux.as_ref().expect("linux").cgroup_parent.is_empty());
}

#[test]
fn pods_share_a_pull_only_if_the_runtime_sees_no_difference() {
    let check = |pods: &[(&str, Value)], expect: usize| {
        let mut b = Bench::new(NodeConfig { serialize_image_pulls: false, ..NodeConfig::default() });
        let manifests: Vec<Value> = pods
            .iter()
            .enumerate()
            .map(|(n, (namespace, annotations))| {
                in_namespace(&format!("p{n}"), namespace, annotations.clone())
            })
            .collect();
        b.pods(&manifests);
        assert_eq!(b.contexts().len(), expect, "{pods:?}");
    };
    check(&[("a", json!({})), ("a", json!({}))], 1);
    check(&[("a", json!({ "x": "1" })), ("a", json!({ "x": "1" }))], 1);
    check(&[("a", json!({})), ("b", json!({}))], 2);
    check(&[("a", json!({ "x": "1" })), ("a", json!({ "x": "2" }))], 2);
}

fn with_account(name: &str, account: &str) -> Value {
    let mut pod = pod(name, IMAGE, "IfNotPresent");
    pod["spec"]["serviceAccountName"] = json!(account);
    pod
}

#[test]
fn plugins_that_take_tokens_are_asked_by_service_account() {
    let mut b = Bench::new(takes_tokens(true));
    b.pods(&[pod("static", IMAGE, "Always")]);
    assert_eq!(
        b.told().last().map(String::as_str),
        Some("pull h.test/a:1"),
        "asked by nobody without an account"
    );
    let mut b = Bench::new(takes_tokens(false));
    b.pods(&[pod("static", IMAGE, "Always")]);
    assert_eq!(b.asked().2.service_account, "");
}

#[test]
fn a_service_account_that_opened_an_image_opens_it_again() {
    let account = PullServiceAccount { uid: "1".into(), namespace: "default".into(), name: "sa".into() };
    let record = PulledRecord {
        last_updated_time: None,
        image_ref: sample_image(IMAGE).id,
        credential_mapping: BTreeMap::from([(
            "h.test/a".to_owned(),
            PullCredentials {
                kubernetes_service_accounts: vec![account.clone()],
                ..PullCredentials::default()
            },
        )]),
    };
    let check = |given: Option<PullServiceAccount>, expect: &str| {
        let mut b = Bench::new(takes_tokens(true));
        b.pods(&[with_account("p", "sa")]);
        b.inspected(IMAGE, true, PullHistory::Pulled(record.clone()));
        let (pull, for_access, pod) = b.asked();
        assert_eq!((for_access, pod.service_account.as_str()), (true, "sa"));
        b.send(Event::CredentialPluginsAnswered { pull, for_access: true, account: given.clone() });
        let told = b.told();
        assert!(told.iter().any(|text| text.contains(expect)), "{given:?}: {told:?}");
    };
    check(Some(account.clone()), "can be accessed by the pod");
    check(Some(PullServiceAccount { uid: "2".into(), ..account.clone() }), "Pulling image");
    check(None, "Pulling image");
}
