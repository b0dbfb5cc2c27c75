//! Unusual parts of pods: a deadline, a readiness gate, files from the downward API, ephemeral containers.

use model::k8s::{Pod, PodSpec};
use model::pod::Source;
use serde_json::{Value, json};

use super::{ALWAYS_PRESENT, image_name};
use crate::rng::Rng;

/// The condition of the readiness gates of simulated pods.
pub const GATE: &str = "sim.test/open";

#[derive(Clone, Debug, Default)]
pub struct OptionalFields {
    deadline_secs: Option<u64>,
    gate: bool,
    own_fields: bool,
    host_path: bool,
    /// The image of each ephemeral container.
    ephemeral_container_images: Vec<u64>,
}

impl OptionalFields {
    pub fn seeded(rng: &mut Rng) -> Self {
        Self {
            deadline_secs: rng.per_mille(80).then(|| rng.between(1, 60)),
            gate: rng.per_mille(150),
            own_fields: rng.per_mille(150),
            host_path: rng.per_mille(100),
            ephemeral_container_images: Vec::new(),
        }
    }

    pub fn add_ephemeral_container(&mut self, rng: &mut Rng) {
        self.ephemeral_container_images.push(rng.below(ALWAYS_PRESENT));
    }

    pub fn add_to(&self, pod: &mut Pod, source: Source) {
        let Some(spec) = &mut pod.spec else { return };
        spec.active_deadline_seconds = self.deadline_secs.map(|secs| secs as i64);
        if self.gate {
            spec.readiness_gates = Some(vec![made(json!({"conditionType": GATE}))]);
        }
        if self.own_fields {
            let item =
                json!({"path": "name", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}});
            let volume = json!({"name": "fields", "downwardAPI": {"items": [item]}});
            add_volume(spec, volume);
        }
        if self.host_path {
            add_volume(spec, json!({"name": "host", "hostPath": {"path": "/srv/sim"}}));
        }
        // Only the API server accepts these.
        if source == Source::Api && !self.ephemeral_container_images.is_empty() {
            let debugger = |(number, image): (usize, &u64)| {
                made(
                    json!({"name": format!("d{number}"), "image": image_name(*image), "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}),
                )
            };
            spec.ephemeral_containers =
                Some(self.ephemeral_container_images.iter().enumerate().map(debugger).collect());
        }
    }
}

fn add_volume(spec: &mut PodSpec, volume: Value) {
    let name = volume["name"].as_str().unwrap_or_default();
    for container in &mut spec.containers {
        let mount = made(json!({"name": name, "mountPath": format!("/{name}")}));
        container.volume_mounts.get_or_insert_default().push(mount);
    }
    spec.volumes.get_or_insert_default().push(made(volume));
}

fn made<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the simulation makes good pods")
}
