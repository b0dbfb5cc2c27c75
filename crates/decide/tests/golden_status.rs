//! Statuses that a real kubelet showed, derived again from what it must have seen in the runtime.
//!
//! The runtime's side is rebuilt from the recorded container statuses (an instance per state and last state, a failed
//! start per waiting reason); whether the sandbox stood is read from `PodReadyToStartContainers`, results of probes
//! from `started` and `ready` of containers that define them. Everything else in a status has to come out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decide::status::{
    self, IpFamily, PodResources, ProbeReport, ResourceList, StartFailure, StatusInputs, derive,
};
use model::cri::NamespaceMode;
use model::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use model::pod::{PodView, QosClass, Source};
use model::quantity::Quantity;
use model::{ContainerId, Mono, Now, Reason, SandboxId, Wall, k8s};
use serde_json::{Map, Value, json};

const POD_IP: &str = "10.88.0.5";
const START: Wall = Wall(1_700_000_000_000_000_000);
const STATIC_POD: &str = "static-vm";
/// The recorder's cgroup v1 word for "no limit", which showed by chance.
const NO_LIMIT_QUIRK: &str = "9007199254740988Ki";

/// Differences that are meant: pod, JSON pointer into the status, why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

struct Recorded {
    name: String,
    spec: Value,
    settled: Value,
    transitions: Vec<Value>,
}

fn recorded() -> Vec<Recorded> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/status");
    let mut paths: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut spec = value["spec"].take();
        default_requests(&mut spec);
        add_ephemeral(&mut spec, &value["settled"]);
        let transitions = value["transitions"].as_array().unwrap().clone();
        Recorded { name, spec, settled: value["settled"].take(), transitions }
    };
    paths.into_iter().map(read).collect()
}

/// What the API server does to a pod on arrival: a limit is a request too.
fn default_requests(spec: &mut Value) {
    for container in spec["containers"].as_array_mut().unwrap() {
        let Some(limits) = container.pointer("/resources/limits").and_then(Value::as_object).cloned() else {
            continue;
        };
        let resources = container["resources"].as_object_mut().unwrap();
        let requests = resources.entry("requests").or_insert_with(|| json!({})).as_object_mut().unwrap();
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
    }
}

/// Ephemeral containers came later than the recorded spec.
fn add_ephemeral(spec: &mut Value, settled: &Value) {
    if let Some(statuses) = settled["ephemeralContainerStatuses"].as_array() {
        let containers = statuses.iter().map(|s| json!({"name": s["name"], "image": s["image"]}));
        spec["ephemeralContainers"] = containers.collect();
    }
}

fn after(seconds: u64) -> Now {
    Now {
        mono: Mono::from_duration(Duration::from_secs(seconds)),
        wall: START.plus(Duration::from_secs(seconds)),
    }
}

impl Recorded {
    fn source(&self) -> Source {
        if self.name == STATIC_POD { Source::File } else { Source::Api }
    }

    fn pod(&self, api_phase: &str, deleting: bool) -> PodView {
        let mut pod: k8s::Pod = serde_json::from_value(json!({
            "metadata": {"name": self.name, "namespace": "rec", "uid": "<uid>"},
            "spec": self.spec,
            "status": {"phase": api_phase},
        }))
        .unwrap();
        pod.metadata.generation = self.settled["observedGeneration"].as_i64();
        if deleting {
            pod.metadata.deletion_timestamp = Some(after(50).wall.api_time());
        }
        PodView::new(Arc::new(pod), self.source())
    }

    fn qos(&self) -> QosClass {
        let shown = self.settled["qosClass"].as_str().unwrap();
        let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
        classes.into_iter().find(|class| class.as_str() == shown).unwrap()
    }

    fn containers(&self) -> Vec<&Value> {
        ["initContainers", "containers", "ephemeralContainers"]
            .iter()
            .flat_map(|list| self.spec[list].as_array().into_iter().flatten())
            .collect()
    }

    /// Recorded pods with resources have regular containers only.
    fn resources(&self) -> PodResources {
        let regular = self.spec["containers"].as_array().unwrap();
        let own = &self.spec["resources"];
        let total = |what: &str| -> ResourceList {
            let mut sums: BTreeMap<String, Quantity> = BTreeMap::new();
            for (name, amount) in regular.iter().filter_map(|c| c["resources"][what].as_object()).flatten() {
                *sums.entry(name.clone()).or_default() += amount.as_str().unwrap().parse().unwrap();
            }
            for (name, amount) in own[what].as_object().into_iter().flatten() {
                sums.insert(name.clone(), amount.as_str().unwrap().parse().unwrap());
            }
            sums.into_iter().map(|(name, sum)| (name, sum.to_api())).collect()
        };
        let limited = |name: &str| {
            own["limits"][name].is_string()
                || regular.iter().all(|c| c["resources"]["limits"][name].is_string())
        };
        PodResources {
            requests: total("requests"),
            limits: total("limits"),
            cpu_limited: limited("cpu"),
            memory_limited: limited("memory"),
            pod_level: serde_json::from_value(own.clone()).unwrap_or_default(),
        }
    }

    fn host_network(&self) -> bool {
        self.spec["hostNetwork"] == json!(true)
    }

    fn sandbox(&self, ready: bool) -> ObservedSandbox {
        let network = if self.host_network() { NamespaceMode::Node } else { NamespaceMode::Pod };
        ObservedSandbox {
            id: SandboxId::from("sandbox"),
            attempt: 0,
            created_at: START,
            ready,
            network,
            has_network_status: true,
            ips: if ready && !self.host_network() { vec![POD_IP.to_owned()] } else { Vec::new() },
            runtime_handler: String::new(),
        }
    }

    /// An end that fits the container, from wherever the record shows one.
    fn some_end(&self, container: &str) -> Option<Value> {
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let statuses = lists.iter().flat_map(|list| self.settled[list].as_array().into_iter().flatten());
        statuses
            .filter(|status| status["name"] == json!(container))
            .flat_map(|status| [&status["lastState"]["terminated"], &status["state"]["terminated"]])
            .find(|end| end.is_object())
            .cloned()
    }
}

/// The rebuilt outside of a pod.
struct World<'a> {
    recorded: &'a Recorded,
    observed: ObservedPod,
    failures: BTreeMap<String, StartFailure>,
    probes: BTreeMap<String, ProbeReport>,
}

impl<'a> World<'a> {
    fn new(recorded: &'a Recorded) -> Self {
        let pod = recorded.pod("Pending", false);
        Self {
            recorded,
            observed: ObservedPod::empty(pod.uid.clone(), pod.full_name.clone()),
            failures: BTreeMap::new(),
            probes: BTreeMap::new(),
        }
    }

    fn instance(&mut self, name: &str, attempt: u64) -> &mut ObservedContainer {
        let id = ContainerId::from(format!("{name}-{attempt}"));
        let position = self.observed.containers.iter().position(|c| c.id == id).unwrap_or_else(|| {
            let new = self.fresh_instance(id, name, attempt);
            self.observed.containers.insert(0, new);
            0
        });
        &mut self.observed.containers[position]
    }

    fn fresh_instance(&self, id: ContainerId, name: &str, attempt: u64) -> ObservedContainer {
        let spec = self.recorded.containers().into_iter().find(|c| c["name"] == json!(name)).unwrap();
        ObservedContainer {
            stop_signal: 0,
            image_mounts: Default::default(),
            id,
            sandbox_id: SandboxId::from("sandbox"),
            name: name.to_owned(),
            state: ContainerState::Created,
            restart_count: u32::try_from(attempt).unwrap(),
            hash: None,
            created_at: after(attempt + 1).wall,
            started_at: after(attempt + 1).wall,
            finished_at: Wall::default(),
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: spec["image"].as_str().unwrap().to_owned(),
            image_ref: "sha256:<id>".to_owned(),
            image_id: String::new(),
            log_path: String::new(),
            pod_grace: None,
            pre_stop: None,
            resources: None,
            user: None,
        }
    }

    fn end(&mut self, name: &str, attempt: u64, end: &Value) {
        let instance = self.instance(name, attempt);
        instance.state = ContainerState::Exited;
        instance.finished_at = instance.started_at;
        instance.exit_code = i32::try_from(end["exitCode"].as_i64().unwrap()).unwrap();
        instance.reason = end["reason"].as_str().unwrap_or_default().to_owned();
        instance.message = end["message"].as_str().unwrap_or_default().to_owned();
    }

    /// Makes the runtime, the failed starts and the probes such that the container shows that state.
    fn show(&mut self, name: &str, state: &Value, started: &Value, ready: &Value, attempt: u64) {
        self.failures.remove(name);
        if let Some(waiting) = state["waiting"].as_object() {
            self.show_waiting(name, waiting, attempt);
        } else if state["running"].is_object() {
            self.instance(name, attempt).state = ContainerState::Running;
        } else {
            self.end(name, attempt, &state["terminated"]);
        }
        let spec = self.recorded.containers().into_iter().find(|c| c["name"] == json!(name)).unwrap();
        let running = state["running"].is_object();
        let result =
            |probe: &str, shown: &Value| shown.as_bool().filter(|_| running && spec[probe].is_object());
        let report = ProbeReport {
            startup: result("startupProbe", started),
            has_startup_worker: spec["startupProbe"].is_object(),
            readiness: result("readinessProbe", ready),
            has_readiness_worker: spec["readinessProbe"].is_object(),
        };
        self.probes.insert(name.to_owned(), report);
    }

    fn show_waiting(&mut self, name: &str, waiting: &Map<String, Value>, attempt: u64) {
        let word = waiting["reason"].as_str().unwrap();
        let reason = *Reason::ALL.iter().find(|reason| reason.as_str() == word).unwrap();
        if matches!(reason, Reason::ContainerCreating | Reason::PodInitializing) {
            return;
        }
        let message = waiting.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.failures.insert(name.to_owned(), StartFailure { reason, message });
        let ran = matches!(
            reason,
            Reason::CrashLoopBackOff | Reason::RunContainerError | Reason::PostStartHookError
        );
        if ran && self.instance(name, attempt).state != ContainerState::Exited {
            let end = self.recorded.some_end(name).unwrap();
            self.end(name, attempt, &end);
        }
    }

    fn derive(
        &self,
        pod: &PodView,
        old: Option<&k8s::PodStatus>,
        terminal: bool,
        now: Now,
    ) -> Option<k8s::PodStatus> {
        let new = derive(&StatusInputs {
            pod,
            observed: &self.observed,
            old,
            failures: &self.failures,
            must_restart: &BTreeMap::new(),
            probes: &self.probes,
            eviction: None,
            disruption: None,
            terminal,
            runtime_name: "containerd",
            recursive_read_only: false,
            stop_signals: false,
            image_volume_digests: false,
            ready_to_start: true,
            keeps_readiness: true,
            host_ips: &[],
            primary_family: IpFamily::V4,
            qos: self.recorded.qos(),
            resources: &self.recorded.resources(),
            resize_pending: false,
            now,
            agent_started: START,
        });
        status::accept(pod, old, new, now)
    }
}

fn is_terminal(phase: &Value) -> bool {
    matches!(phase.as_str(), Some("Succeeded" | "Failed"))
}

fn condition_is_true(conditions: &Value, kind: &str) -> bool {
    let mut conditions = conditions.as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == json!(kind) && c["status"] == json!("True"))
}

/// The recorded settled status, reached through a fresh one and one with a sandbox.
fn settle(recorded: &Recorded) -> k8s::PodStatus {
    let settled = &recorded.settled;
    if settled["containerStatuses"].is_null() {
        let pod = recorded.pod("Pending", false);
        let message = settled["message"].as_str().unwrap().strip_prefix("Pod was rejected: ").unwrap();
        let status = status::rejected(&pod, recorded.qos(), settled["reason"].as_str().unwrap(), message);
        return status::accept(&pod, None, status, after(0)).unwrap();
    }
    let mut world = World::new(recorded);
    let pod = recorded.pod("Pending", false);
    let fresh = world.derive(&pod, None, false, after(0)).unwrap();
    let has_ip = settled["podIP"].is_string();
    let mut old = fresh;
    if has_ip {
        world.observed.sandboxes = vec![recorded.sandbox(true)];
        old = world.derive(&pod, Some(&old), false, after(1)).unwrap();
    }
    let stands = condition_is_true(&settled["conditions"], "PodReadyToStartContainers");
    world.observed.sandboxes = if has_ip || stands { vec![recorded.sandbox(stands)] } else { Vec::new() };
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for status in settled[list].as_array().into_iter().flatten() {
            let (name, attempt) =
                (status["name"].as_str().unwrap(), status["restartCount"].as_u64().unwrap());
            let before = &status["lastState"]["terminated"];
            if before.is_object() && !status["state"]["waiting"].is_object() {
                world.end(name, attempt - 1, before);
            }
            world.show(name, &status["state"], &status["started"], &status["ready"], attempt);
        }
    }
    world.observed.sort();
    let terminal = is_terminal(&settled["phase"]);
    let api_phase = if terminal { "Running" } else { settled["phase"].as_str().unwrap() };
    let pod = recorded.pod(api_phase, false);
    // nothing new: what was there before is what is settled
    world.derive(&pod, Some(&old), terminal, after(60)).unwrap_or(old)
}

/// Puts placeholders where the record has them, and drops what JSON can leave out.
fn canonical(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| !inner.is_null());
            for (key, inner) in map.iter_mut() {
                if inner.is_string() && (key.ends_with("Time") || key.ends_with("edAt")) {
                    *inner = json!("<time>");
                }
                canonical(inner);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(canonical),
        Value::String(text) => {
            if text == POD_IP {
                *text = "<pod-ip>".to_owned();
            } else if text.starts_with("containerd://") {
                *text = "containerd://<id>".to_owned();
            }
        }
        _ => {}
    }
}

fn differences(expect: &Value, got: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match (expect, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let inner = format!("{path}/{key}");
                differences(
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                    &inner,
                    found,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}/{index}"), found);
            }
        }
        _ if expect != got => found.push((path.to_owned(), format!("recorded {expect}, derived {got}"))),
        _ => {}
    }
}

/// Removes the quirk; says whether it was there.
fn drop_quirk(status: &mut Value) -> bool {
    let Some(limits) = status.pointer_mut("/resources/limits").and_then(Value::as_object_mut) else {
        return false;
    };
    let quirky = limits.get("memory") == Some(&json!(NO_LIMIT_QUIRK));
    if quirky {
        limits.remove("memory");
        if limits.is_empty() {
            status["resources"].as_object_mut().unwrap().remove("limits");
        }
    }
    quirky
}

#[test]
fn settled_statuses_come_out() {
    let mut failures = Vec::new();
    let mut excused = vec![false; EXCEPTIONS.len()];
    let mut quirks = 0;
    let all = recorded();
    assert!(all.len() >= 50, "fixtures are missing");
    for recorded in &all {
        let mut expect = recorded.settled.clone();
        quirks += u32::from(drop_quirk(&mut expect));
        let mut got = serde_json::to_value(settle(recorded)).unwrap();
        canonical(&mut expect);
        canonical(&mut got);
        let mut found = Vec::new();
        differences(&expect, &got, "", &mut found);
        for (path, difference) in found {
            let exception =
                EXCEPTIONS.iter().position(|(pod, at, _)| *pod == recorded.name && path.starts_with(at));
            match exception {
                Some(index) => excused[index] = true,
                None => failures.push(format!("{}{path}: {difference}", recorded.name)),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(quirks > 0, "the record has the quirk no more: its rule can go");
    for (used, exception) in excused.iter().zip(EXCEPTIONS) {
        assert!(used, "unused exception {exception:?}");
    }
}

/// The part of a status that transitions were recorded of.
fn summary(status: &k8s::PodStatus) -> Value {
    let status = serde_json::to_value(status).unwrap();
    let mut conditions = Map::new();
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let kind = condition["type"].as_str().unwrap().to_owned();
        conditions.insert(kind, json!([condition["status"], condition["reason"]]));
    }
    let mut containers = Map::new();
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for c in status[list].as_array().into_iter().flatten() {
            let shown = json!([c["state"], c["ready"], c["started"], c["restartCount"]]);
            containers.insert(c["name"].as_str().unwrap().to_owned(), shown);
        }
    }
    json!({
        "phase": status["phase"], "reason": status["reason"], "message": status["message"],
        "conditions": conditions, "containers": containers,
    })
}

/// A kubelet that may still have containers running keeps a terminal phase to itself; its conditions tell it.
fn reveal_phase(transition: &mut Value) {
    let phase = match transition["conditions"]["Ready"][1].as_str() {
        Some("PodCompleted") => "Succeeded",
        Some("PodFailed") => "Failed",
        _ => return,
    };
    if transition["phase"] != json!(phase) {
        transition["phase"] = json!(phase);
        transition.as_object_mut().unwrap().remove("reason");
        transition.as_object_mut().unwrap().remove("message");
    }
}

/// The last word on a pod changes its phase and the states of containers, but no condition.
fn is_last(transition: &Value) -> bool {
    is_terminal(&transition["phase"]) && transition["conditions"]["Ready"][1] == json!("ContainersNotReady")
}

/// Takes out ephemeral containers that were not there yet.
fn forget_later_containers(pod: &mut PodView, known: &Map<String, Value>) {
    let mut object = k8s::Pod::clone(&pod.pod);
    let lists = object.spec.iter_mut().flat_map(|spec| &mut spec.ephemeral_containers);
    lists.for_each(|list| list.retain(|c| known.contains_key(&c.name)));
    *pod = pod.with_pod(Arc::new(object));
}

/// What was recorded of one moment, without what others did.
fn kubelet_part(transition: &Value) -> Value {
    let mut part = transition.clone();
    part.as_object_mut().unwrap().remove("deleting");
    part
}

fn check_transitions(recorded: &Recorded, failures: &mut Vec<String>) -> usize {
    let mut world = World::new(recorded);
    let mut old: Option<k8s::PodStatus> = None;
    let mut api_phase = "Pending".to_owned();
    let mut checked = 0;
    for (index, transition) in recorded.transitions.iter().enumerate() {
        let repeated =
            index > 0 && kubelet_part(&recorded.transitions[index - 1]) == kubelet_part(transition);
        if transition["containers"].as_object().unwrap().is_empty() || repeated {
            continue;
        }
        let mut expect = kubelet_part(transition);
        reveal_phase(&mut expect);
        let stood = !world.observed.sandboxes.is_empty();
        let stands = transition["conditions"]["PodReadyToStartContainers"][0] == json!("True");
        if stands || stood {
            world.observed.sandboxes = vec![recorded.sandbox(stands)];
        }
        let containers = transition["containers"].as_object().unwrap();
        for (name, shown) in containers.iter().filter(|_| !is_last(&expect)) {
            world.show(name, &shown[0], &shown[2], &shown[1], shown[3].as_u64().unwrap());
        }
        world.observed.sort();
        let is_static = recorded.source().is_static();
        let deleting = transition["deleting"] == json!(true) && !is_static;
        let stopped = stood && !stands && containers.values().all(|shown| !shown[0]["running"].is_object());
        let late = recorded.spec["activeDeadlineSeconds"].is_u64() && is_terminal(&expect["phase"]);
        let mut pod = recorded.pod(&api_phase, deleting);
        forget_later_containers(&mut pod, containers);
        let now = after(if late { 60 } else { 1 });
        old = world.derive(&pod, old.as_ref(), stopped, now).or(old);
        if is_last(&expect) {
            let last = status::finish_status(&pod, old.clone().unwrap());
            old = status::accept(&pod, old.as_ref(), last, now).or(old);
        }
        let mut got = summary(old.as_ref().unwrap());
        if expect.get("reason").is_none() {
            got["reason"].take();
            got["message"].take();
        }
        canonical(&mut expect);
        canonical(&mut got);
        let mut found = Vec::new();
        differences(&expect, &got, "", &mut found);
        for (path, difference) in found {
            failures.push(format!("{} transition {index}{path}: {difference}", recorded.name));
        }
        api_phase = transition["phase"].as_str().unwrap().to_owned();
        checked += 1;
    }
    checked
}

#[test]
fn transitions_come_out() {
    let mut failures = Vec::new();
    let all = recorded();
    let checked: usize = all.iter().map(|recorded| check_transitions(recorded, &mut failures)).sum();
    assert!(failures.is_empty(), "{} of {checked}:\n{}", failures.len(), failures.join("\n"));
    assert!(checked > 200, "only {checked} transitions were compared");
}
