//! What we render, against what the reference sent to a real runtime for the same pods.
//!
//! Each fixture is a pod of the recorded run: its spec as it was created, and the sandbox and container configurations
//! as the runtime got them. Names that change from run to run are placeholders there (`<uid>`, `<dir>`, `<pod-ip>`,
//! `<id>`), and simply are our inputs here. Differences that we want are in a table with their reasons.

#[path = "golden/diff.rs"]
mod diff;
#[path = "golden/node.rs"]
mod node;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use decide::render::{self, ContainerInputs, ContainerRef, RenderContext, ResolvedImage};
use model::ContainerId;
use model::k8s;
use model::pod::{PodView, Source};
use serde::Deserialize;
use serde_json::Value;

use diff::{Allowed, Difference};

/// Differences that we want.
const WANTED: &[Allowed] = &[Allowed {
    pod: "*",
    target: "*",
    path: "image.user_specified_image",
    reason: "the recorded runtime's CRI is older than this field, so it is not in its record",
}];

const PLACEHOLDER_UID: &str = "<uid>";

#[derive(Deserialize)]
struct Fixture {
    name: String,
    source: Source,
    /// Where the record shows the real one (a static pod's has no dashes and was not replaced everywhere).
    uid: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: Value,
    /// Containers that the reference could not configure, with its message.
    #[serde(default)]
    refused: BTreeMap<String, String>,
    /// `sandbox`, and each container by its name.
    cri: BTreeMap<String, Value>,
}

impl Fixture {
    fn pod(&self) -> PodView {
        let mut pod = k8s::Pod { spec: Some(node::defaulted(&self.spec)), ..k8s::Pod::default() };
        pod.metadata.name = Some(self.name.clone());
        pod.metadata.namespace = Some("rec".into());
        pod.metadata.uid = Some(self.uid.clone().unwrap_or(PLACEHOLDER_UID.into()));
        pod.metadata.labels = Some(self.labels.clone());
        pod.metadata.annotations = Some(self.annotations.clone());
        PodView::new(Arc::new(pod), self.source)
    }

    /// One spelling of the UID, so that it compares.
    fn with_placeholder(&self, value: &Value) -> Value {
        let Some(uid) = &self.uid else { return value.clone() };
        let text = value.to_string().replace(uid, PLACEHOLDER_UID);
        serde_json::from_str(&text).expect("still JSON")
    }
}

fn fixtures() -> Vec<Fixture> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/reference");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("the fixtures").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).expect("a fixture");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths.iter().map(read).collect()
}

fn render_sandbox(pod: &PodView, recorded: &Value) -> Value {
    let (config, facts) = (node::config(), node::facts());
    let attempt = recorded.pointer("/metadata/attempt").and_then(Value::as_u64).unwrap_or(0);
    let ctx = RenderContext::new(&config, &facts);
    let rendered = render::sandbox_config(&ctx, pod, attempt as u32).expect("a sandbox configuration");
    assert_eq!((rendered.warnings, rendered.node_warnings), (vec![], vec![]));
    serde_json::to_value(rendered.value).expect("JSON")
}

fn render_container(pod: &PodView, name: &str, restart_count: u32) -> Result<Value, String> {
    let (config, facts) = (node::config(), node::facts());
    let (objects, services) = (node::objects(), node::services());
    let image = ResolvedImage { reference: "sha256:<id>".into(), user_uid: Some(0), username: String::new() };
    let ips = ["<pod-ip>".to_owned()];
    let target = ContainerId::new("<id>");
    let ephemeral = pod.spec().ephemeral_containers.iter().flatten().find(|c| c.name == name);
    let has_target = ephemeral.is_some_and(|c| c.target_container_name.is_some());
    let inputs = ContainerInputs {
        target: has_target.then_some(&target),
        env: render::EnvSources {
            objects: Some(&objects),
            services: render::Services::Read(&services),
            ..Default::default()
        },
        ..ContainerInputs::new(&ips, &image, restart_count)
    };
    let container = ContainerRef::find(pod, name).unwrap_or_else(|| panic!("no container {name}"));
    let ctx = RenderContext::new(&config, &facts);
    let rendered =
        render::container_config(&ctx, pod, &container, &inputs).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(rendered.config).expect("JSON"))
}

fn compare(fixture: &Fixture, target: &str, recorded: &Value, differences: &mut Vec<Difference>) {
    let pod = fixture.pod();
    let ours = if target == "sandbox" {
        render_sandbox(&pod, recorded)
    } else {
        let attempt = recorded.pointer("/metadata/attempt").and_then(Value::as_u64).unwrap_or(0);
        render_container(&pod, target, attempt as u32).expect("a container configuration")
    };
    let ours = diff::comparable(fixture.with_placeholder(&ours));
    let theirs = diff::comparable(fixture.with_placeholder(recorded));
    for (path, ours, theirs) in diff::between(&ours, &theirs) {
        let target = target.to_owned();
        differences.push(Difference { pod: fixture.name.clone(), target, path, ours, theirs });
    }
}

#[test]
fn every_recorded_message_is_rendered_the_same() {
    let mut differences = Vec::new();
    let mut compared = 0;
    for fixture in fixtures() {
        for (target, recorded) in &fixture.cri {
            compare(&fixture, target, recorded, &mut differences);
            compared += 1;
        }
    }
    assert!(compared > 90, "only {compared} messages were compared");
    diff::judge(&differences, WANTED);
}

#[test]
fn containers_that_the_reference_refused_are_refused_in_its_words() {
    let mut seen = 0;
    for fixture in fixtures() {
        for (name, message) in &fixture.refused {
            assert_eq!(render_container(&fixture.pod(), name, 0), Err(message.clone()), "{}", fixture.name);
            seen += 1;
        }
    }
    assert_eq!(seen, 3);
}
