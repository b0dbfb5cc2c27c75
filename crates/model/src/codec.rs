//! Bytes to Kubernetes types and back, behind non-generic functions.
//!
//! Each pair of deserializer and Kubernetes type is slow to compile, so all of them live here: text becomes a
//! [`serde_json::Value`] first (YAML or JSON), and only values become types.

mod decoder;
mod json;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use decoder::{FieldFilter, decode};

use decoder::Quantities;

/// A manifest of this size or more is refused by whoever reads it.
pub const MAX_MANIFEST_BYTES: usize = 10 << 20;

/// Deeper nesting than any Kubernetes type has; keeps recursion off the end of the stack.
const MAX_DEPTH: usize = 40;
/// How many nodes aliases may expand to in total, so that a few hundred bytes cannot fill the memory.
const MAX_ALIAS_NODES: usize = 100_000;

/// Why bytes did not become an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("line {line}: not valid UTF-8")]
    NotText { line: usize },
    #[error("line {line}, column {column}: {detail}")]
    Syntax { line: u64, column: u64, detail: String },
    #[error("{detail}")]
    Unplaced { detail: String },
    #[error("{path}: {detail}")]
    Field { path: String, detail: String },
}

/// The documents of a YAML stream or of a sequence of JSON values. Empty documents are left out; one syntax
/// error, duplicate key or unbounded alias anywhere fails the whole text.
pub fn parse_documents(bytes: &[u8]) -> Result<Vec<Value>, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|error| CodecError::NotText {
        line: 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.trim_start().starts_with('{') {
        return parse_yaml(text);
    }
    // Most texts that begin with a brace are JSON, but YAML has flow mappings too. When it is neither, the
    // message about the JSON is the one its author can use.
    json::parse_stream(text).or_else(|json_error| parse_yaml(text).map_err(|_| json_error))
}

fn parse_yaml(text: &str) -> Result<Vec<Value>, CodecError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIAS_NODES },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let parsed = serde_saphyr::from_multiple_with_options(text, options);
    let mut documents: Vec<Value> = parsed.map_err(|error| {
        let message = one_line(&error.without_snippet().to_string());
        // advice to the programmer, not to the manifest's author
        let message = message.replace(", set DuplicateKeyPolicy in Options if acceptable", "");
        match error.location() {
            Some(place) if place.line() > 0 => {
                let (line, column) = (place.line(), place.column());
                let detail = message.replace(&format!(" at line {line}, column {column}"), "");
                CodecError::Syntax { line, column, detail }
            }
            _ => CodecError::Unplaced { detail: message },
        }
    })?;
    documents.iter_mut().for_each(whole_numbers);
    Ok(documents)
}

/// YAML knows no difference between `1`, `1.0` and `1e0`: whole numbers are integers however they are written.
fn whole_numbers(value: &mut Value) {
    /// Up to here every whole number has exactly one floating point form.
    const EXACT: f64 = (1u64 << 53) as f64;
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT)
            {
                *value = (whole as i64).into();
            }
        }
        _ => {}
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The `kind` of a document, if it is an object that has one.
pub fn kind_of(document: &Value) -> Option<&str> {
    document.get("kind")?.as_str().filter(|kind| !kind.is_empty())
}

/// The `apiVersion` of a document, if it is an object that has one.
pub fn api_version_of(document: &Value) -> Option<&str> {
    document.get("apiVersion")?.as_str().filter(|version| !version.is_empty())
}

/// A Pod from its JSON form. Unknown fields are ignored; a field of a wrong type is named by its path.
pub fn pod_from_value(value: Value) -> Result<Pod, CodecError> {
    from_value(&value)
}

/// An object of a manifest from its JSON form. Nobody has checked it before.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, CodecError> {
    // Through bytes, so that each type is compiled with one deserializer only. Manifests are few and small.
    let bytes =
        serde_json::to_vec(value).expect("values have text keys only, so they always have a JSON form");
    decoder::decode_with(&bytes, FieldFilter::Whole, Quantities::Checked)
}

/// A Pod as an API server sends it.
pub fn pod_from_json(json: &[u8]) -> Result<Pod, CodecError> {
    decode(json, FieldFilter::Whole)
}

/// The pods of a `PodList` or of a `List` whose items are pods.
pub fn pod_list_from_value(mut value: Value) -> Result<Vec<Pod>, CodecError> {
    let items = match value.get_mut("items").map(Value::take) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => {
            return Err(CodecError::Field {
                path: "items".to_owned(),
                detail: "expected a list of pods".to_owned(),
            });
        }
    };
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            pod_from_value(item).map_err(|error| match error {
                CodecError::Field { path, detail } => {
                    CodecError::Field { path: format!("items[{index}].{path}"), detail }
                }
                other => other,
            })
        })
        .collect()
}

/// The JSON form of a pod.
pub fn pod_to_value(pod: &Pod) -> Value {
    serde_json::to_value(pod).expect("pods have text keys only, so they always have a JSON form")
}

/// The JSON form of a pod's status.
pub fn pod_status_to_value(status: &PodStatus) -> Value {
    serde_json::to_value(status).expect("statuses have text keys only, so they always have a JSON form")
}

/// The same bytes for the same pod, whatever map type `serde_json` was built with: fields in the order of the
/// generated types, map keys sorted.
pub fn pod_to_canonical_json(pod: &Pod) -> Vec<u8> {
    serde_json::to_vec(pod).expect("pods have text keys only, so they always have a JSON form")
}

#[cfg(test)]
mod tests;
