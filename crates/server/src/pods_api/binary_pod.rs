//! Pods in the binary form of the Kubernetes API.
//!
//! ```text
//!   Pod ── serde ──> JSON ── table of fields (from proto/pod.proto) ──> protobuf
//! ```
//!
//! The table has the numbers of all fields. Some types are more than their JSON: times, quantities, and the structures
//! that JSON shows as part of another one ([`INLINED`]).

use jiff::Timestamp;
use model::k8s::{ObjectMeta, Pod, PodStatus};
use model::{FullName, PodUid};
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

use crate::pod_list;

pub(super) struct Message {
    pub name: &'static str,
    /// In the order of their numbers.
    pub fields: &'static [Field],
}

pub(super) struct Field {
    pub name: &'static str,
    pub number: u32,
    pub label: Label,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    Single,
    Repeated,
    /// A map from text to the kind.
    Map,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Bool,
    Integer,
    /// Any JSON, as text.
    FieldsV1,
    Time,
    Quantity,
    IntOrString,
    /// Its place in the table.
    Message(usize),
}

include!(concat!(env!("OUT_DIR"), "/pod_fields.rs"));

/// Messages and their fields whose own fields are beside them in JSON.
const INLINED: [(&str, &str); 10] = [
    ("ConfigMapEnvSource", "localObjectReference"),
    ("ConfigMapKeySelector", "localObjectReference"),
    ("ConfigMapProjection", "localObjectReference"),
    ("ConfigMapVolumeSource", "localObjectReference"),
    ("EphemeralContainer", "ephemeralContainerCommon"),
    ("Probe", "handler"),
    ("SecretEnvSource", "localObjectReference"),
    ("SecretKeySelector", "localObjectReference"),
    ("SecretProjection", "localObjectReference"),
    ("Volume", "volumeSource"),
];

/// Why a pod has no binary form. Every pod that can be decoded has one, so this would be a mistake of ours.
#[derive(thiserror::Error, Debug)]
pub(super) enum EncodeError {
    #[error("{path}: the value is of another type")]
    Type { path: String },
    #[error("the pod has no JSON")]
    Json(#[from] serde_json::Error),
}

impl EncodeError {
    fn of_another_type() -> Self {
        Self::Type { path: String::new() }
    }

    fn within(self, field: &str) -> Self {
        match self {
            Self::Type { path } if path.is_empty() => Self::Type { path: field.to_owned() },
            Self::Type { path } => Self::Type { path: format!("{field}.{path}") },
            other => other,
        }
    }
}

/// The pod with this status, or with its own.
pub(super) fn encode(pod: &Pod, status: Option<&PodStatus>) -> Result<Vec<u8>, EncodeError> {
    let json: Map<String, Value> = serde_json::from_slice(&pod_list::to_json_item(pod, status)?)?;
    encode_message(pod_message(), &json)
}

/// What is told of a pod that is gone.
pub(super) fn encode_identity(uid: &PodUid, full_name: &FullName) -> Result<Vec<u8>, EncodeError> {
    let metadata = ObjectMeta {
        name: Some(full_name.name.to_string()),
        namespace: Some(full_name.namespace.to_string()),
        uid: Some(uid.to_string()),
        ..Default::default()
    };
    encode(&Pod { metadata, ..Default::default() }, None)
}

fn pod_message() -> &'static Message {
    // `Pod` is in the table: the build looks it up.
    let at = MESSAGES.binary_search_by(|message| message.name.cmp("Pod")).unwrap_or_default();
    &MESSAGES[at]
}

fn encode_message(message: &Message, json: &Map<String, Value>) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    for field in message.fields {
        if let (Kind::Message(at), true) = (field.kind, is_inlined(message, field)) {
            let inner = encode_message(&MESSAGES[at], json)?;
            if !inner.is_empty() {
                put_bytes(&mut out, field.number, &inner);
            }
            continue;
        }
        if let Some(value) = json.get(field.name).filter(|value| !value.is_null()) {
            encode_field(&mut out, field, value).map_err(|error| error.within(field.name))?;
        }
    }
    Ok(out)
}

pub(super) fn is_inlined(message: &Message, field: &Field) -> bool {
    INLINED.contains(&(message.name, field.name))
}

fn encode_field(out: &mut Vec<u8>, field: &Field, value: &Value) -> Result<(), EncodeError> {
    match field.label {
        Label::Single => encode_value(out, field.number, field.kind, value)?,
        Label::Repeated => {
            for value in value.as_array().ok_or_else(EncodeError::of_another_type)? {
                encode_value(out, field.number, field.kind, value)?;
            }
        }
        Label::Map => {
            for (key, value) in value.as_object().ok_or_else(EncodeError::of_another_type)? {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                encode_value(&mut entry, 2, field.kind, value)?;
                put_bytes(out, field.number, &entry);
            }
        }
    }
    Ok(())
}

fn encode_value(out: &mut Vec<u8>, number: u32, kind: Kind, value: &Value) -> Result<(), EncodeError> {
    match kind {
        Kind::Text => put_bytes(out, number, text(value)?.as_bytes()),
        Kind::Integer => put_integer(out, number, integer(value)?),
        Kind::Bool => {
            let value = value.as_bool().ok_or_else(EncodeError::of_another_type)?;
            put_integer(out, number, i64::from(value));
        }
        Kind::FieldsV1 | Kind::Time | Kind::Quantity | Kind::IntOrString | Kind::Message(_) => {
            put_bytes(out, number, &encode_structure(kind, value)?);
        }
    }
    Ok(())
}

fn encode_structure(kind: Kind, value: &Value) -> Result<Vec<u8>, EncodeError> {
    let mut inner = Vec::new();
    match kind {
        Kind::FieldsV1 => put_bytes(&mut inner, 1, value.to_string().as_bytes()),
        // As in the kubelet's own form, a time has no fractions of a second.
        Kind::Time => {
            let time: Timestamp = text(value)?.parse().map_err(|_| EncodeError::of_another_type())?;
            put_integer(&mut inner, 1, time.as_second());
        }
        Kind::IntOrString if !value.is_string() => {
            put_integer(&mut inner, 1, 0);
            put_integer(&mut inner, 2, integer(value)?);
        }
        Kind::IntOrString => {
            put_integer(&mut inner, 1, 1);
            put_bytes(&mut inner, 3, text(value)?.as_bytes());
        }
        Kind::Message(at) => {
            let value = value.as_object().ok_or_else(EncodeError::of_another_type)?;
            inner = encode_message(&MESSAGES[at], value)?;
        }
        // The others are no structures.
        Kind::Quantity | Kind::Text | Kind::Integer | Kind::Bool => {
            put_bytes(&mut inner, 1, text(value)?.as_bytes());
        }
    }
    Ok(inner)
}

fn text(value: &Value) -> Result<&str, EncodeError> {
    value.as_str().ok_or_else(EncodeError::of_another_type)
}

fn integer(value: &Value) -> Result<i64, EncodeError> {
    value.as_i64().ok_or_else(EncodeError::of_another_type)
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// A negative number has all 64 bits, also where 32 are declared.
fn put_integer(out: &mut Vec<u8>, number: u32, value: i64) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value as u64, out);
}

#[cfg(test)]
mod tests;
