//! Random pods, and how their programs behave.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::PodUid;
use model::k8s::Pod;
use model::pod::{ANNOTATION_HASH, Source};
use serde_json::{Value, json};

use super::claims::{CLAIMS, claim_name, is_block};
use super::crowd::NO_LABEL;
use super::extras::OptionalFields;
use super::{ALWAYS_PRESENT, IMAGES, NO_IMAGE, OBJECTS, Task, image_name, object_name};
use crate::rng::Rng;
use crate::time::{EPOCH, MILLI, SECOND};
use crate::world::{
    DENIES, Lifetime, OnTerm, ProgramScript, RESTART_ALL_EXIT_CODE, SIGNERS, VERSION, signers_of,
};

#[derive(Clone, Debug)]
pub struct SimulatedPod {
    name: String,
    uid: String,
    policy: &'static str,
    grace_secs: u64,
    containers: Vec<ContainerTemplate>,
    inits: Vec<ContainerTemplate>,
    volume: bool,
    host_network: bool,
    rejected: bool,
    unmountable: bool,
    own_users: bool,
    priority: Option<i32>,
    /// In thousandths of a CPU, of the first container.
    cpu_millis: Option<u64>,
    node_selector: Option<(&'static str, &'static str)>,
    needs: ClusterReferences,
    extras: OptionalFields,
}

/// The cluster's objects that the pod uses, if it comes from the API.
#[derive(Clone, Debug, Default)]
struct ClusterReferences {
    variable: Option<u64>,
    volume: Option<u64>,
    token: bool,
    claim: Option<u64>,
    /// The volume of the claim is a device.
    is_device: bool,
    /// The signer of a certificate.
    certificate: Option<&'static str>,
}

impl ClusterReferences {
    fn seeded(rng: &mut Rng) -> Self {
        let mut one = || rng.per_mille(400).then(|| rng.below(OBJECTS));
        let (variable, volume) = (one(), one());
        Self { variable, volume, token: rng.per_mille(300), ..Self::default() }
    }

    fn add_to(&self, pod: &mut Pod) {
        let Some(spec) = &mut pod.spec else { return };
        let from = |value| serde_json::from_value(value);
        let bad = "the simulation made a bad pod";
        for container in &mut spec.containers {
            if let Some(number) = self.variable {
                let source = json!({"configMapKeyRef": {"name": object_name(number), "key": VERSION}});
                let variable = from(json!({"name": VARIABLE, "valueFrom": source})).expect(bad);
                container.env.get_or_insert_default().push(variable);
            }
            if self.is_device {
                let device = serde_json::from_value(json!({"name": CLAIMED, "devicePath": "/dev/claimed"}))
                    .expect(bad);
                container.volume_devices.get_or_insert_default().push(device);
            } else if self.claim.is_some() {
                let mount =
                    serde_json::from_value(json!({"name": CLAIMED, "mountPath": "/claimed"})).expect(bad);
                container.volume_mounts.get_or_insert_default().push(mount);
            }
            if self.volume.is_some() || self.token || self.certificate.is_some() {
                let mount =
                    serde_json::from_value(json!({"name": CONTENT, "mountPath": "/content"})).expect(bad);
                container.volume_mounts.get_or_insert_default().push(mount);
            }
        }
        if let Some(number) = self.claim {
            let volume = json!({"name": CLAIMED, "persistentVolumeClaim": {"claimName": claim_name(number)}});
            spec.volumes.get_or_insert_default().push(serde_json::from_value(volume).expect(bad));
            // The driver leaves fsGroup to the agent.
            spec.security_context.get_or_insert_default().fs_group = Some(FS_GROUP);
        }
        let map = self.volume.map(|number| json!({"configMap": {"name": object_name(number)}}));
        let token =
            self.token.then(|| json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}));
        let certificate = self.certificate.map(|signer| {
            json!({"podCertificate": {
                "signerName": signer, "keyType": "ED25519",
                "credentialBundlePath": "bundle", "keyPath": "key", "certificateChainPath": "chain",
            }})
        });
        let sources: Vec<Value> = map.into_iter().chain(token).chain(certificate).collect();
        if !sources.is_empty() {
            let volume = json!({"name": CONTENT, "projected": {"sources": sources}});
            spec.volumes.get_or_insert_default().push(serde_json::from_value(volume).expect(bad));
        }
    }
}

/// The variable and the volume whose content is a config map.
pub const VARIABLE: &str = "OBJECT";
pub const CONTENT: &str = "content";
/// The group of files in claimed volumes.
const FS_GROUP: i64 = 4711;
/// The volume that belongs to a claim.
const CLAIMED: &str = "claimed";

/// The config maps of the variable and of the volume.
pub fn objects_of(pod: &Pod) -> (Option<String>, Option<String>) {
    let Some(spec) = &pod.spec else { return (None, None) };
    let variables = spec.containers.iter().flat_map(|c| c.env.iter().flatten());
    let maps = variables.filter_map(|v| v.value_from.as_ref()?.config_map_key_ref.as_ref());
    let variable = maps.map(|map| map.name.clone()).next();
    let projected = spec.volumes.iter().flatten().filter_map(|v| v.projected.as_ref());
    let sources = projected.flat_map(|p| p.sources.iter().flatten());
    let volume = sources.filter_map(|s| s.config_map.as_ref()).map(|map| map.name.clone()).next();
    (variable, volume)
}

#[derive(Clone, Debug)]
struct ContainerTemplate {
    name: String,
    image: u64,
    pull_policy: &'static str,
    sidecar: bool,
    cpu_request: bool,
    /// Probes, hooks and restart rules.
    probes_and_hooks: Value,
    script: ProgramScript,
}

const FORBIDDEN_SYSCTL: &str = "kernel.panic";

/// A path that every agent must refuse.
const UNMOUNTABLE: &str = "/a/../b";

/// Whether a volume of this pod can never be set up.
pub fn is_unmountable(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| v.host_path.as_ref()).any(|p| p.path == UNMOUNTABLE)
        || signers_of(pod).any(|signer| signer == DENIES)
}

/// Whether the node refuses this pod.
pub fn is_rejected(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let selected = pod.spec.as_ref().and_then(|s| s.node_selector.as_ref());
    context.and_then(|c| c.sysctls.as_ref()).is_some_and(|s| s.iter().any(|s| s.name == FORBIDDEN_SYSCTL))
        || selected.is_some_and(|labels| labels.contains_key(NO_LABEL))
}

fn any_image(rng: &mut Rng) -> u64 {
    match rng.below(100) {
        0..70 => rng.below(ALWAYS_PRESENT),
        70..98 => rng.below(IMAGES),
        _ => NO_IMAGE,
    }
}

fn on_term(rng: &mut Rng, grace_secs: u64) -> OnTerm {
    match rng.below(10) {
        0..2 => OnTerm::Ignores,
        2..6 => OnTerm::Ends { after: rng.between(MILLI, 300 * MILLI), code: *rng.pick(&[0, 143]) },
        _ => {
            let longest = (grace_secs + 2) * SECOND;
            OnTerm::Ends { after: rng.between(MILLI, longest), code: *rng.pick(&[0, 143, 1]) }
        }
    }
}

fn failure_count(rng: &mut Rng) -> u32 {
    if rng.per_mille(100) { rng.between(1, 3) as u32 } else { 0 }
}

impl ContainerTemplate {
    fn seeded(rng: &mut Rng, name: String, grace_secs: u64, life: Lifetime) -> Self {
        Self {
            name,
            image: any_image(rng),
            pull_policy: *rng.pick::<&str>(&["IfNotPresent", "IfNotPresent", "Always", "Never"]),
            sidecar: false,
            cpu_request: rng.per_mille(300),
            script: ProgramScript {
                life,
                on_term: on_term(rng, grace_secs),
                failing_creates: failure_count(rng),
                failing_starts: failure_count(rng),
                failing_hooks: failure_count(rng),
                failing_probes: if rng.per_mille(300) { rng.between(1, 6) as u32 } else { 0 },
                restart_all_exits: 0,
            },
            probes_and_hooks: json!({}),
        }
    }

    /// Adds some probes, hooks and rules to a container that runs for ever.
    fn with_probes_and_hooks(mut self, rng: &mut Rng) -> Self {
        let command = json!({"exec": {"command": ["ask"]}});
        for kind in ["startupProbe", "livenessProbe", "readinessProbe"] {
            if rng.per_mille(120) {
                self.probes_and_hooks[kind] = json!({
                    "exec": {"command": ["ask"]},
                    "periodSeconds": rng.between(2, 12),
                    "failureThreshold": rng.between(1, 4),
                    "successThreshold": 1,
                    "timeoutSeconds": 1,
                });
            }
        }
        for hook in ["postStart", "preStop"] {
            if rng.per_mille(120) {
                self.probes_and_hooks["lifecycle"][hook] = command.clone();
            }
        }
        if rng.per_mille(120) {
            // A sidecar always restarts; other containers have a restart policy of their own besides a rule.
            let own =
                if self.sidecar { "Always" } else { *rng.pick::<&str>(&["Always", "OnFailure", "Never"]) };
            self.probes_and_hooks["restartPolicy"] = json!(own);
            self.probes_and_hooks["restartPolicyRules"] = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [RESTART_ALL_EXIT_CODE]}}]);
            self.script.restart_all_exits = rng.between(1, 4) as u32;
        }
        self
    }

    fn json(&self, volume: bool) -> Value {
        let mut value = json!({
            "name": self.name,
            "image": image_name(self.image),
            "imagePullPolicy": self.pull_policy,
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {},
        });
        if self.sidecar {
            value["restartPolicy"] = json!("Always");
        }
        for (key, field) in self.probes_and_hooks.as_object().into_iter().flatten() {
            value[key] = field.clone();
        }
        if self.cpu_request {
            value["resources"] = json!({"requests": {"cpu": "100m"}});
        }
        if volume {
            value["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        }
        value
    }
}

fn life(rng: &mut Rng) -> Lifetime {
    match rng.below(10) {
        0..6 => Lifetime::Forever,
        6..8 => Lifetime::Ends { after: rng.between(MILLI, 20 * SECOND), code: 0 },
        _ => Lifetime::Ends { after: rng.between(MILLI, 20 * SECOND), code: *rng.pick(&[1, 2, 137]) },
    }
}

fn init_life(rng: &mut Rng) -> Lifetime {
    match rng.below(20) {
        0 => Lifetime::Forever,
        1..3 => Lifetime::Ends { after: rng.between(MILLI, 4 * SECOND), code: 1 },
        _ => Lifetime::Ends { after: rng.between(MILLI, 4 * SECOND), code: 0 },
    }
}

impl SimulatedPod {
    pub fn seeded(rng: &mut Rng, name: &str, uid: &str) -> Self {
        let grace_secs = *rng.pick(&[0, 1, 3, 10, 30]);
        let regular = rng.between(1, 4);
        let containers = (0..regular)
            .map(|n| {
                let life = life(rng);
                ContainerTemplate::seeded(rng, format!("c{n}"), grace_secs, life).with_probes_and_hooks(rng)
            })
            .collect();
        let count = if rng.coin() { 0 } else { rng.between(1, 4) };
        let inits = (0..count)
            .map(|n| {
                let sidecar = rng.per_mille(400);
                let life = if sidecar { life(rng) } else { init_life(rng) };
                let mut one = ContainerTemplate::seeded(rng, format!("i{n}"), grace_secs, life);
                one.sidecar = sidecar;
                if sidecar { one.with_probes_and_hooks(rng) } else { one }
            })
            .collect();
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            policy: *rng.pick::<&str>(&["Always", "Always", "OnFailure", "Never"]),
            grace_secs,
            containers,
            inits,
            volume: rng.coin(),
            host_network: rng.per_mille(200),
            rejected: rng.per_mille(60),
            unmountable: rng.per_mille(30),
            own_users: rng.per_mille(200),
            priority: None,
            cpu_millis: None,
            node_selector: None,
            needs: ClusterReferences::seeded(rng),
            extras: OptionalFields::seeded(rng),
        }
    }

    /// Most pods have a claim.
    pub fn with_claim(mut self, rng: &mut Rng, devices: bool) -> Self {
        self.needs.claim = rng.per_mille(700).then(|| rng.below(CLAIMS));
        self.needs.is_device = devices && self.needs.claim.is_some_and(is_block);
        self
    }

    /// Most pods have a certificate, few of them from the signer that denies.
    pub fn with_certificate(mut self, rng: &mut Rng) -> Self {
        let signer = if rng.per_mille(100) { DENIES } else { rng.pick::<&str>(&SIGNERS[..2]) };
        self.needs.certificate = rng.per_mille(800).then_some(signer);
        self
    }

    /// One container that runs until it is stopped.
    pub fn plain(name: &str, uid: &str) -> Self {
        let script = ProgramScript {
            life: Lifetime::Forever,
            on_term: OnTerm::Ends { after: 5 * MILLI, code: 0 },
            failing_creates: 0,
            failing_starts: 0,
            failing_hooks: 0,
            failing_probes: 0,
            restart_all_exits: 0,
        };
        let container = ContainerTemplate {
            name: "c0".into(),
            image: 0,
            pull_policy: "IfNotPresent",
            sidecar: false,
            cpu_request: false,
            probes_and_hooks: json!({}),
            script,
        };
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            policy: "Always",
            grace_secs: 10,
            containers: vec![container],
            inits: Vec::new(),
            volume: true,
            host_network: false,
            rejected: false,
            unmountable: false,
            own_users: false,
            priority: None,
            cpu_millis: None,
            node_selector: None,
            needs: ClusterReferences::default(),
            extras: OptionalFields::default(),
        }
    }

    pub fn with_requests(mut self, cpu_millis: u64, priority: Option<i32>, grace_secs: u64) -> Self {
        (self.cpu_millis, self.priority, self.grace_secs) = (Some(cpu_millis), priority, grace_secs);
        self
    }

    pub fn selecting(mut self, label: Option<(&'static str, &'static str)>) -> Self {
        self.node_selector = label;
        self
    }

    pub fn change_an_image(&mut self, rng: &mut Rng) {
        let count = self.containers.len() + self.inits.len();
        let chosen = rng.below(count as u64) as usize;
        let container = self.containers.iter_mut().chain(&mut self.inits).nth(chosen);
        if let Some(container) = container {
            container.image = any_image(rng);
        }
    }

    pub fn uid(&self) -> PodUid {
        self.uid.as_str().into()
    }

    /// Adds an ephemeral container.
    pub fn add_ephemeral_container(&mut self, rng: &mut Rng) {
        self.extras.add_ephemeral_container(rng);
    }

    pub fn put(&self, source: Source) -> Task {
        self.put_pod(source, self.pod())
    }

    /// The pod with the API server's deletion mark.
    pub fn put_deleting(&self, source: Source, grace_secs: u64) -> Task {
        let mut pod = self.pod();
        pod.metadata.deletion_timestamp = Some(EPOCH.api_time());
        pod.metadata.deletion_grace_period_seconds = Some(grace_secs as i64);
        self.put_pod(source, pod)
    }

    fn put_pod(&self, source: Source, mut pod: Pod) -> Task {
        if source == Source::Api {
            self.needs.add_to(&mut pod);
        }
        self.extras.add_to(&mut pod, source);
        if source.is_static() {
            let annotations = pod.metadata.annotations.get_or_insert_with(Default::default);
            annotations.insert(ANNOTATION_HASH.into(), self.uid.clone());
        }
        let uid = PodUid::from(self.uid.as_str());
        let all = self.containers.iter().chain(&self.inits);
        let scripts: BTreeMap<_, _> =
            all.map(|c| ((uid.clone(), c.name.clone()), c.script.clone())).collect();
        Task::Put { source, pod: Arc::new(pod), scripts }
    }

    fn pod(&self) -> Pod {
        let mut spec = json!({
            "containers": self.containers.iter().map(|c| c.json(self.volume)).collect::<Vec<_>>(),
            "restartPolicy": self.policy,
            "terminationGracePeriodSeconds": self.grace_secs,
            "dnsPolicy": "Default",
            "enableServiceLinks": true,
        });
        if !self.inits.is_empty() {
            spec["initContainers"] = self.inits.iter().map(|c| c.json(false)).collect();
        }
        if self.volume {
            let source = if self.unmountable { json!({"path": UNMOUNTABLE}) } else { json!({}) };
            let kind = if self.unmountable { "hostPath" } else { "emptyDir" };
            spec["volumes"] = json!([{"name": "data", kind: source}]);
        }
        if self.host_network {
            spec["hostNetwork"] = json!(true);
        }
        if self.own_users && !self.host_network {
            spec["hostUsers"] = json!(false);
        }
        if let Some(priority) = self.priority {
            spec["priority"] = json!(priority);
        }
        if let Some(millis) = self.cpu_millis {
            spec["containers"][0]["resources"] = json!({"requests": {"cpu": format!("{millis}m")}});
        }
        if let Some((key, value)) = self.node_selector {
            spec["nodeSelector"] = json!({key: value});
        }
        if self.rejected {
            spec["securityContext"] = json!({"sysctls": [{"name": FORBIDDEN_SYSCTL, "value": "1"}]});
        }
        let metadata = json!({"name": self.name, "namespace": "sim", "uid": self.uid});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        serde_json::from_value(pod).unwrap_or_else(|error| panic!("the simulation made a bad pod: {error}"))
    }
}
