//! Pods, observations and statuses in few words, for the tests of this area.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::cri::NamespaceMode;
use model::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use model::pod::{PodView, QosClass, Source};
use model::{ContainerId, Mono, Now, Reason, SandboxId, Wall, k8s};
use serde_json::{Value, json};

use super::{IpFamily, PodResources, ProbeReport, StartFailure, StatusInputs};

pub const EPOCH: Wall = Wall(1_700_000_000_000_000_000);
pub const SANDBOX: &str = "s0";

pub fn at(seconds: u64) -> Now {
    let since = Duration::from_secs(seconds);
    Now { mono: Mono::from_duration(since), wall: EPOCH.plus(since) }
}

pub fn pod(spec: Value) -> PodView {
    view(json!({}), spec, Value::Null, Source::Api)
}

pub fn view(metadata: Value, spec: Value, status: Value, source: Source) -> PodView {
    let mut all = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
    if spec_lacks_containers(&all["spec"]) {
        all["spec"]["containers"] = json!([]);
    }
    for (key, value) in metadata.as_object().into_iter().flatten() {
        all["metadata"][key] = value.clone();
    }
    if status.is_object() {
        all["status"] = status;
    }
    PodView::new(Arc::new(serde_json::from_value(all).unwrap()), source)
}

fn spec_lacks_containers(spec: &Value) -> bool {
    spec["containers"].is_null()
}

/// The same pod, being deleted.
pub fn deleting(pod: &PodView) -> PodView {
    let mut pod = pod.clone();
    Arc::make_mut(&mut pod.pod).metadata.deletion_timestamp = Some(at(0).wall.api_time());
    pod
}

pub fn sandbox(id: &str, attempt: u32, ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::from(id),
        attempt,
        created_at: EPOCH,
        ready,
        network: NamespaceMode::Pod,
        has_network_status: true,
        ips: if ready { vec!["10.0.0.1".to_owned()] } else { Vec::new() },
        runtime_handler: String::new(),
    }
}

/// Instance number `attempt` of a container; a later attempt is newer.
pub fn instance(name: &str, attempt: u32, state: ContainerState, exit_code: i32) -> ObservedContainer {
    let created_at = at(u64::from(attempt) * 10).wall;
    let ran = state != ContainerState::Created;
    let ended = state == ContainerState::Exited;
    ObservedContainer {
        stop_signal: 0,
        image_mounts: Default::default(),
        id: ContainerId::from(format!("{name}{attempt}")),
        sandbox_id: SandboxId::from(SANDBOX),
        name: name.to_owned(),
        state,
        restart_count: attempt,
        hash: None,
        created_at,
        started_at: if ran { created_at } else { Wall::default() },
        finished_at: if ended { created_at.plus(Duration::from_secs(5)) } else { Wall::default() },
        exit_code,
        reason: match (ended, exit_code) {
            (false, _) => String::new(),
            (true, 0) => "Completed".to_owned(),
            (true, _) => "Error".to_owned(),
        },
        message: String::new(),
        image: "image".to_owned(),
        image_ref: "sha256:i".to_owned(),
        image_id: String::new(),
        log_path: String::new(),
        pod_grace: None,
        pre_stop: None,
        resources: None,
        user: None,
    }
}

/// A ready sandbox and these instances.
pub fn observed(containers: Vec<ObservedContainer>) -> ObservedPod {
    let pod = pod(json!({}));
    let mut observed = ObservedPod::empty(pod.uid, pod.full_name);
    observed.sandboxes.push(sandbox(SANDBOX, 0, true));
    observed.containers = containers;
    observed.sort();
    observed
}

/// A container status from the state's short form: `run`, `run!` (not started), `wait`, `wait/1` (waits after an
/// end with exit code 1), `0` (ended), `all` (removed for a restart of all), `blank` (no state).
pub fn status(name: &str, short: &str) -> k8s::ContainerStatus {
    let end = |code: &str| json!({"exitCode": code.parse::<i32>().unwrap(), "reason": "r"});
    let (state, last) = match short.split_once('/') {
        Some((_, code)) => (json!({"waiting": {}}), json!({"terminated": end(code)})),
        None => match short {
            "run" | "run!" => (json!({"running": {}}), json!({})),
            "wait" => (json!({"waiting": {}}), json!({})),
            "blank" => (json!({}), json!({})),
            "all" => {
                (json!({"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}}), json!({}))
            }
            code => (json!({"terminated": end(code)}), json!({})),
        },
    };
    serde_json::from_value(json!({
        "name": name, "image": "image", "imageID": "", "ready": short == "run", "restartCount": 0,
        "started": short == "run", "state": state, "lastState": last,
    }))
    .unwrap()
}

/// Owns what a status is derived from.
pub struct Scene {
    pub pod: PodView,
    pub observed: ObservedPod,
    pub old: Option<k8s::PodStatus>,
    pub failures: BTreeMap<String, StartFailure>,
    pub must_restart: BTreeMap<String, ContainerId>,
    pub probes: BTreeMap<String, ProbeReport>,
    pub terminal: bool,
    pub recursive_read_only: bool,
    pub stop_signals: bool,
    pub image_volume_digests: bool,
    pub ready_to_start: bool,
    pub keeps_readiness: bool,
    pub host_ips: Vec<String>,
    pub primary_family: IpFamily,
    pub resources: PodResources,
    pub resize_pending: bool,
    pub now: Now,
    pub agent_started: Wall,
}

impl Scene {
    pub fn new(pod: PodView, observed: ObservedPod) -> Self {
        Self {
            pod,
            observed,
            old: None,
            failures: BTreeMap::new(),
            must_restart: BTreeMap::new(),
            probes: BTreeMap::new(),
            terminal: false,
            recursive_read_only: false,
            stop_signals: false,
            image_volume_digests: false,
            ready_to_start: true,
            keeps_readiness: true,
            host_ips: Vec::new(),
            primary_family: IpFamily::V4,
            resources: PodResources::default(),
            resize_pending: false,
            now: at(100),
            agent_started: EPOCH,
        }
    }

    pub fn fail(&mut self, name: &str, reason: Reason, message: &str) {
        self.failures.insert(name.to_owned(), StartFailure { reason, message: message.to_owned() });
    }

    pub fn inputs(&self) -> StatusInputs<'_> {
        StatusInputs {
            pod: &self.pod,
            observed: &self.observed,
            old: self.old.as_ref(),
            failures: &self.failures,
            must_restart: &self.must_restart,
            probes: &self.probes,
            eviction: None,
            disruption: None,
            terminal: self.terminal,
            runtime_name: "containerd",
            recursive_read_only: self.recursive_read_only,
            stop_signals: self.stop_signals,
            image_volume_digests: self.image_volume_digests,
            ready_to_start: self.ready_to_start,
            keeps_readiness: self.keeps_readiness,
            host_ips: &self.host_ips,
            primary_family: self.primary_family,
            qos: QosClass::BestEffort,
            resources: &self.resources,
            resize_pending: self.resize_pending,
            now: self.now,
            agent_started: self.agent_started,
        }
    }

    pub fn derive(&self) -> k8s::PodStatus {
        super::derive(&self.inputs())
    }

    /// Derives, accepts, and remembers what was accepted.
    pub fn advance(&mut self) -> Option<k8s::PodStatus> {
        let accepted = super::accept(&self.pod, self.old.as_ref(), self.derive(), self.now);
        if accepted.is_some() {
            self.old.clone_from(&accepted);
        }
        accepted
    }
}
