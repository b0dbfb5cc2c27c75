//! Manifests and what is written in them.

use decide::render::expansion::expand;
use manifest::{ReferencePolicy, decode_file, decode_http};
use model::codec;
use model::quantity::Quantity;

use crate::target::{Target, text};

const YAML: &[&str] = &[
    "---\n",
    "apiVersion: v1\n",
    "kind: Pod\n",
    "metadata:\n",
    "spec:\n",
    "  containers:\n",
    "- ",
    "name: ",
    "image: ",
    "&a ",
    "*a",
    "<<: ",
    "!!binary ",
    "|\n",
    ">-\n",
    "? ",
    "restartPolicy: ",
    "resources: ",
    "limits: ",
    "0644",
];

pub const TARGETS: [Target; 5] = [
    Target { name: "manifest_file", run: manifest_file, dictionary: YAML },
    Target { name: "manifest_http", run: manifest_http, dictionary: YAML },
    Target { name: "documents", run: documents, dictionary: YAML },
    Target {
        name: "quantity",
        run: quantity,
        dictionary: &["Ki", "Mi", "Ei", "n", "u", "m", "k", "E", "e3", "E-9", "-", "+", ".", "000"],
    },
    Target { name: "expansion", run: expansion, dictionary: &["$(", ")", "$$", "$(A)", "$(B)", "$"] },
];

fn manifest_file(data: &[u8]) {
    let content = decode_file(data, "/manifests/a.yaml", "node", ReferencePolicy::Allow);
    assert_eq!(
        content,
        decode_file(data, "/manifests/a.yaml", "node", ReferencePolicy::Allow),
        "the same bytes, the same pods"
    );
    for pod in &content.pods {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        assert!(!uid.is_empty(), "a static pod without a UID");
        assert_round_trips(pod);
    }
}

fn manifest_http(data: &[u8]) {
    for pod in
        decode_http(data, "http://example.test/pods", "node", ReferencePolicy::Deny).unwrap_or_default()
    {
        assert_round_trips(&pod);
    }
}

/// A decoded pod survives encode and decode.
fn assert_round_trips(pod: &model::k8s::Pod) {
    let again = codec::pod_from_value(codec::pod_to_value(pod)).expect("our own JSON of a pod");
    assert_eq!(&again, pod);
}

fn documents(data: &[u8]) {
    let Ok(documents) = codec::parse_documents(data) else { return };
    let written: usize = documents.iter().map(|document| document.to_string().len()).sum();
    // YAML aliases may repeat content, within a budget: a small file must not fill the memory.
    assert!(written <= 16 << 20, "{} bytes became {written}", data.len());
}

fn quantity(data: &[u8]) {
    let Some(Ok(quantity)) = text(data).map(str::parse::<Quantity>) else { return };
    let written = quantity.to_string();
    let again: Quantity = written.parse().unwrap_or_else(|error| panic!("{written:?}: {error}"));
    assert_eq!(again.nanos(), quantity.nanos(), "{written:?}");
    assert_eq!(again.to_string(), written, "the canonical form is its own");
    let _ = (quantity.value(), quantity.milli_value(), quantity.rounded_up_to_milli());
    let _ = (quantity + again, quantity - again);
}

fn expansion(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let known = |name: &str| (name == "A").then(|| "value".to_owned());
    let out = expand(text, known);
    assert!(out.len() <= text.len() * 2 + 8, "{text:?} became {out:?}");
    assert!(text.contains('$') || out == text, "{text:?} has nothing to expand");
}
