//! The way back: from the binary form to JSON, by the same table.

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value, json};

use super::super::{Field, Kind, Label, MESSAGES, Message, is_inlined, pod_message};

pub(super) fn decode_pod(bytes: &[u8]) -> Value {
    Value::Object(decode_message(pod_message(), bytes))
}

fn decode_message(message: &Message, mut bytes: &[u8]) -> Map<String, Value> {
    let mut json = Map::new();
    while bytes.has_remaining() {
        let (number, value) = next(&mut bytes);
        let field = message.fields.iter().find(|field| field.number == number);
        let field = field.unwrap_or_else(|| panic!("{} has no field {number}", message.name));
        match (field.kind, field.label) {
            (Kind::Message(at), _) if is_inlined(message, field) => {
                json.extend(decode_message(&MESSAGES[at], value.bytes()));
            }
            (_, Label::Single) => {
                let earlier = json.insert(field.name.to_owned(), decode_value(field.kind, &value));
                assert_eq!(earlier, None, "{}.{} is there twice", message.name, field.name);
            }
            (_, Label::Repeated) => {
                let list = json.entry(field.name).or_insert_with(|| json!([]));
                list.as_array_mut().expect("a list").push(decode_value(field.kind, &value));
            }
            (_, Label::Map) => {
                let (key, value) = decode_entry(field, value.bytes());
                json.entry(field.name).or_insert_with(|| json!({}))[key] = value;
            }
        }
    }
    // JSON always has this list.
    if message.name == "PodSpec" {
        json.entry("containers").or_insert_with(|| json!([]));
    }
    json
}

fn decode_entry(field: &Field, bytes: &[u8]) -> (String, Value) {
    match &parts(bytes)[..] {
        [(1, key), (2, value)] => (key.text().to_owned(), decode_value(field.kind, value)),
        _ => panic!("{}: not an entry of a map", field.name),
    }
}

enum Raw<'a> {
    Integer(i64),
    Bytes(&'a [u8]),
}

impl<'a> Raw<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Raw::Bytes(bytes) => bytes,
            Raw::Integer(number) => panic!("{number} is not made of bytes"),
        }
    }

    fn integer(&self) -> i64 {
        match self {
            Raw::Integer(number) => *number,
            Raw::Bytes(bytes) => panic!("{bytes:?} is no number"),
        }
    }

    fn text(&self) -> &'a str {
        std::str::from_utf8(self.bytes()).expect("text")
    }
}

/// The next field, by its number.
fn next<'a>(bytes: &mut &'a [u8]) -> (u32, Raw<'a>) {
    let (number, wire) = decode_key(bytes).expect("a key");
    let first = decode_varint(bytes).expect("a number or a length");
    let value = match wire {
        WireType::Varint => Raw::Integer(first as i64),
        WireType::LengthDelimited => {
            let (taken, rest) = bytes.split_at(first as usize);
            *bytes = rest;
            Raw::Bytes(taken)
        }
        other => panic!("field {number}: {other:?}"),
    };
    (number, value)
}

fn parts(mut bytes: &[u8]) -> Vec<(u32, Raw<'_>)> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        parts.push(next(&mut bytes));
    }
    parts
}

fn decode_value(kind: Kind, value: &Raw<'_>) -> Value {
    let value = match kind {
        Kind::Text => return json!(value.text()),
        Kind::Bool => return json!(value.integer() == 1),
        Kind::Integer => return json!(value.integer()),
        Kind::Message(at) => return Value::Object(decode_message(&MESSAGES[at], value.bytes())),
        Kind::FieldsV1 | Kind::Time | Kind::Quantity | Kind::IntOrString => parts(value.bytes()),
    };
    match (kind, &value[..]) {
        (Kind::FieldsV1, [(1, json)]) => serde_json::from_str(json.text()).expect("JSON"),
        (Kind::Time, [(1, seconds)]) => {
            json!(jiff::Timestamp::from_second(seconds.integer()).expect("a time").to_string())
        }
        (Kind::Quantity, [(1, text)]) => json!(text.text()),
        (Kind::IntOrString, [(1, Raw::Integer(0)), (2, number)]) => json!(number.integer()),
        (Kind::IntOrString, [(1, Raw::Integer(1)), (3, text)]) => json!(text.text()),
        _ => panic!("another value was expected"),
    }
}
