//! JSON to values, refusing duplicate keys (which `serde_json` alone lets the last one win).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::CodecError;

/// All values of a sequence of JSON texts; `null` counts as an empty document.
pub(super) fn parse_stream(text: &str) -> Result<Vec<Value>, CodecError> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<UniqueKeys>() {
        let UniqueKeys(value) = document.map_err(|error| syntax_error(&error))?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(documents)
}

fn syntax_error(error: &serde_json::Error) -> CodecError {
    let (line, column) = (error.line() as u64, error.column() as u64);
    let text = error.to_string();
    // serde_json repeats the place at the end of its message
    let detail = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
    CodecError::Syntax { line, column, detail }
}

struct UniqueKeys(Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor).map(UniqueKeys)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeys(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let UniqueKeys(value) = fields.next_value()?;
            if object.insert(name.clone(), value).is_some() {
                return Err(A::Error::custom(format_args!("duplicate key {name:?}")));
            }
        }
        Ok(Value::Object(object))
    }
}
