//! JSON into Kubernetes types, read as Go reads it.
//!
//! The generated types are stricter than the API's own decoder in some places. [`LenientDeserializer`] stands between
//! `serde_json` and the types, and gives them what Go would have made of the same bytes:
//!
//! | the JSON | what the type gets |
//! | --- | --- |
//! | `null` for a text, a number, a boolean, a list, a map, a struct | the zero value |
//! | `null` for a time, or none at all where the type insists on one | `0001-01-01T00:00:00Z`, which is Go's zero |
//! | `null` for a quantity | `0` |
//! | a bare number for a quantity | its text |
//! | a time after the last one that we can hold | the last one that we can hold |
//!
//! It also skips fields that are not needed ([`FieldFilter`]) without decoding them, so a skipped field can't cause an
//! error. And it keeps the path of the current field, so that an error names the field.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::value::CowStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::Number;

use super::{CodecError, one_line};
use crate::text_limits::{TextLimit, truncate_text};

/// Which fields of an object are decoded.
#[derive(Clone, Copy, Debug)]
pub enum FieldFilter {
    Skip,
    Whole,
    /// These fields, and no other. In a list: of each element.
    Only(&'static [(&'static str, FieldFilter)]),
    /// All fields, with these filters for the named ones.
    Except(&'static [(&'static str, FieldFilter)]),
}

impl FieldFilter {
    fn of_field(self, name: &str) -> FieldFilter {
        let (fields, others) = match self {
            FieldFilter::Only(fields) => (fields, FieldFilter::Skip),
            FieldFilter::Except(fields) => (fields, FieldFilter::Whole),
            other => return other,
        };
        fields.iter().find(|(known, _)| *known == name).map_or(others, |(_, take)| *take)
    }
}

/// managedFields is often half of an object and is never used, so it is not decoded.
const METADATA: FieldFilter = FieldFilter::Except(&[("managedFields", FieldFilter::Skip)]);

/// What the bytes hold beside the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantities {
    /// The API server has checked them.
    Trusted,
    /// A text that is no quantity is refused.
    Checked,
}

/// The object that the bytes are, as far as it is wanted.
pub fn decode<T: DeserializeOwned>(json: &[u8], take: FieldFilter) -> Result<T, CodecError> {
    decode_with(json, take, Quantities::Trusted)
}

pub(super) fn decode_with<T: DeserializeOwned>(
    json: &[u8],
    take: FieldFilter,
    quantities: Quantities,
) -> Result<T, CodecError> {
    let mut source = serde_json::Deserializer::from_slice(json);
    let trail = FieldPath::default();
    let place = DecodeContext { take, form: DecodeKind::Typed, trail: &trail, quantities };
    let read = T::deserialize(LenientDeserializer { source: &mut source, place });
    let read = read.and_then(|value| source.end().map(|()| value));
    read.map_err(|error| failure(&error, &trail))
}

fn failure(error: &serde_json::Error, trail: &FieldPath<'_>) -> CodecError {
    let (line, column) = (error.line() as u64, error.column() as u64);
    let text = one_line(&error.to_string());
    // serde_json repeats the place at the end of its message
    let detail = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
    let detail = truncate_text(detail, TextLimit::ServerMessage);
    match truncate_text(trail.to_string(), TextLimit::ServerMessage) {
        path if error.is_data() && !path.is_empty() => CodecError::Field { path, detail },
        _ if line > 0 => CodecError::Syntax { line, column, detail },
        _ => CodecError::Unplaced { detail },
    }
}

/// The fields from the object's top to the one that is being read. After an error it ends at the culprit.
#[derive(Default)]
struct FieldPath<'de>(RefCell<Vec<PathSegment<'de>>>);

enum PathSegment<'de> {
    Field(Cow<'de, str>),
    Element(usize),
}

impl<'de> FieldPath<'de> {
    fn enter(&self, step: PathSegment<'de>) {
        self.0.borrow_mut().push(step);
    }

    fn leave(&self) {
        self.0.borrow_mut().pop();
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.borrow().iter().enumerate() {
            match step {
                PathSegment::Field(name) if index == 0 => write!(f, "{name}")?,
                PathSegment::Field(name) => write!(f, ".{name}")?,
                PathSegment::Element(number) => write!(f, "[{number}]")?,
            }
        }
        Ok(())
    }
}

/// What kind of value is being read, where its own type does not tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecodeKind {
    Typed,
    Time,
    Quantity,
    /// Any JSON (`FieldsV1`, `RawExtension`): nothing in it is touched.
    Raw,
}

impl DecodeKind {
    fn of_newtype(self, name: &str) -> DecodeKind {
        match name {
            _ if self == DecodeKind::Raw => DecodeKind::Raw,
            "Time" | "MicroTime" => DecodeKind::Time,
            "Quantity" => DecodeKind::Quantity,
            "FieldsV1" | "RawExtension" | "JSON" => DecodeKind::Raw,
            _ => DecodeKind::Typed,
        }
    }

    fn of_parts(self) -> DecodeKind {
        if self == DecodeKind::Raw { DecodeKind::Raw } else { DecodeKind::Typed }
    }
}

/// Where in an object we are.
struct DecodeContext<'t, 'de> {
    take: FieldFilter,
    form: DecodeKind,
    trail: &'t FieldPath<'de>,
    quantities: Quantities,
}

impl Clone for DecodeContext<'_, '_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for DecodeContext<'_, '_> {}

/// The deserializer that the types see.
struct LenientDeserializer<'t, 'de, D> {
    source: D,
    place: DecodeContext<'t, 'de>,
}

/// Reads a value of any JSON type: `zero` is what a `null` counts as.
macro_rules! with_zero {
    ($($method:ident $zero:literal),+ $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.read(visitor, $zero)
        })+
    };
}

const ZERO_TIME: &str = "\"0001-01-01T00:00:00Z\"";

impl<'t, 'de, D: Deserializer<'de>> LenientDeserializer<'t, 'de, D> {
    fn read<V: Visitor<'de>>(self, visitor: V, zero: &'static str) -> Result<V::Value, D::Error> {
        self.read_struct(visitor, zero, &[])
    }

    fn read_struct<V: Visitor<'de>>(
        self,
        visitor: V,
        zero: &'static str,
        owed: &'static [&'static str],
    ) -> Result<V::Value, D::Error> {
        let zero = match self.place.form {
            DecodeKind::Time => ZERO_TIME,
            DecodeKind::Quantity => "\"0\"",
            DecodeKind::Raw => "null",
            DecodeKind::Typed => zero,
        };
        self.source.deserialize_any(LenientVisitor {
            visitor,
            place: self.place,
            null_json: zero,
            required_fields: owed,
        })
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for LenientDeserializer<'_, 'de, D> {
    type Error = D::Error;

    with_zero! {
        deserialize_any "0",
        deserialize_bool "false",
        deserialize_i8 "0",
        deserialize_i16 "0",
        deserialize_i32 "0",
        deserialize_i64 "0",
        deserialize_u8 "0",
        deserialize_u16 "0",
        deserialize_u32 "0",
        deserialize_u64 "0",
        deserialize_f32 "0",
        deserialize_f64 "0",
        deserialize_char "\"\"",
        deserialize_str "\"\"",
        deserialize_string "\"\"",
        deserialize_bytes "\"\"",
        deserialize_byte_buf "\"\"",
        deserialize_seq "[]",
        deserialize_map "{}",
        deserialize_unit "null",
        deserialize_identifier "\"\"",
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (place, zero) = (self.place, "null");
        self.source.deserialize_option(LenientVisitor {
            visitor,
            place,
            null_json: zero,
            required_fields: &[],
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let place = DecodeContext { form: self.place.form.of_newtype(name), ..self.place };
        let reading = LenientVisitor { visitor, place, null_json: "null", required_fields: &[] };
        self.source.deserialize_newtype_struct(name, reading)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if name == "ObjectMeta" && matches!(self.place.take, FieldFilter::Whole) {
            self.place.take = METADATA;
        }
        // The only types that we use and that insist on a field.
        let owed: &'static [&'static str] = if name == "Condition" { &["lastTransitionTime"] } else { &[] };
        self.read_struct(visitor, "{}", owed)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.read(visitor, "[]")
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.read(visitor, "[]")
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.read(visitor, "null")
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.source.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.source.deserialize_ignored_any(visitor)
    }
}

/// Between the source and a type's own visitor.
struct LenientVisitor<'t, 'de, V> {
    visitor: V,
    place: DecodeContext<'t, 'de>,
    /// JSON of what a `null` counts as.
    null_json: &'static str,
    /// Required fields: if absent they are read as null.
    required_fields: &'static [&'static str],
}

macro_rules! numbers {
    ($($method:ident $type:ty => $number:expr),+ $(,)?) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            match self.place.form {
                DecodeKind::Quantity => self.visit_string($number(value).to_string()),
                _ => self.visitor.$method(value),
            }
        })+
    };
}

/// JSON has no other numbers than these.
fn of_float(value: f64) -> Number {
    Number::from_f64(value).unwrap_or_else(|| Number::from(0))
}

impl<'de, V: Visitor<'de>> Visitor<'de> for LenientVisitor<'_, 'de, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    numbers! { visit_i64 i64 => Number::from, visit_u64 u64 => Number::from, visit_f64 f64 => of_float }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.visitor.visit_bool(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        match self.place.form {
            DecodeKind::Time => self.visitor.visit_str(&representable_time(value)),
            DecodeKind::Quantity => {
                self.check_quantity(value)?;
                self.visitor.visit_str(value)
            }
            DecodeKind::Typed | DecodeKind::Raw => self.visitor.visit_str(value),
        }
    }

    fn visit_string<E: Error>(self, value: String) -> Result<V::Value, E> {
        match self.place.form {
            DecodeKind::Typed | DecodeKind::Raw => self.visitor.visit_string(value),
            DecodeKind::Time | DecodeKind::Quantity => self.visit_str(&value),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        if self.null_json == "null" {
            return self.visitor.visit_unit();
        }
        let bytes: &'de [u8] = self.null_json.as_bytes();
        serde_json::Deserializer::from_slice(bytes).deserialize_any(self).map_err(E::custom)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(LenientDeserializer { source, place: self.place })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, source: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(LenientDeserializer { source, place: self.place })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(LenientSeqAccess { elements, place: self.place, next: 0 })
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(LenientMapAccess {
            fields,
            place: self.place,
            take: FieldFilter::Whole,
            required_fields: self.required_fields,
            is_owed: false,
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(data)
    }
}

impl<V> LenientVisitor<'_, '_, V> {
    fn check_quantity<E: Error>(&self, text: &str) -> Result<(), E> {
        match self.place.quantities {
            Quantities::Trusted => Ok(()),
            Quantities::Checked => {
                text.parse::<crate::quantity::Quantity>().map(|_| ()).map_err(|error| E::custom(error))
            }
        }
    }
}

/// Go writes years beyond 9999 with more digits, and our clock ends a day before that year does.
fn representable_time(text: &str) -> Cow<'_, str> {
    let year = text.split('-').next().unwrap_or_default();
    if year < "9999" && year.len() == 4 || text.parse::<jiff::Timestamp>().is_ok() {
        return text.into();
    }
    let is_far = year.parse::<u32>().is_ok_and(|year| year >= 9999);
    let rest = text[year.len()..].get(..15).unwrap_or_default();
    // The same day of another year tells whether it is a time at all.
    let is_time = format!("9996{rest}").parse::<jiff::civil::DateTime>().is_ok();
    if is_far && is_time { Cow::Borrowed("9999-12-30T22:00:00Z") } else { text.into() }
}

struct LenientSeqAccess<'t, 'de, A> {
    elements: A,
    place: DecodeContext<'t, 'de>,
    next: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for LenientSeqAccess<'_, 'de, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let place = DecodeContext { form: self.place.form.of_parts(), ..self.place };
        place.trail.enter(PathSegment::Element(self.next));
        let element = self.elements.next_element_seed(LenientSeed { seed, place })?;
        place.trail.leave();
        self.next += 1;
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.elements.size_hint()
    }
}

struct LenientMapAccess<'t, 'de, A> {
    fields: A,
    place: DecodeContext<'t, 'de>,
    /// Of the field whose value comes next.
    take: FieldFilter,
    required_fields: &'static [&'static str],
    /// The value that comes next is not there.
    is_owed: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for LenientMapAccess<'_, 'de, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(name) = self.fields.next_key_seed(FieldName)? {
            let take = self.place.take.of_field(&name);
            if matches!(take, FieldFilter::Skip) {
                self.fields.next_value::<IgnoredAny>()?;
                continue;
            }
            self.take = take;
            self.required_fields =
                if self.required_fields.contains(&&*name) { &[] } else { self.required_fields };
            let key = seed.deserialize(CowStrDeserializer::<A::Error>::new(Cow::Borrowed(&*name)))?;
            self.place.trail.enter(PathSegment::Field(name));
            return Ok(Some(key));
        }
        let Some((name, rest)) = self.required_fields.split_first() else { return Ok(None) };
        (self.required_fields, self.is_owed) = (rest, true);
        self.place.trail.enter(PathSegment::Field(Cow::Borrowed(name)));
        seed.deserialize(CowStrDeserializer::<A::Error>::new(Cow::Borrowed(*name))).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let place = DecodeContext { take: self.take, form: self.place.form.of_parts(), ..self.place };
        let part = LenientSeed { seed, place };
        let value = if self.is_owed {
            let nothing: &'de [u8] = b"null";
            part.deserialize(&mut serde_json::Deserializer::from_slice(nothing)).map_err(A::Error::custom)?
        } else {
            self.fields.next_value_seed(part)?
        };
        place.trail.leave();
        Ok(value)
    }
}

/// One element or field's value.
struct LenientSeed<'t, 'de, S> {
    seed: S,
    place: DecodeContext<'t, 'de>,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for LenientSeed<'_, 'de, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<S::Value, D::Error> {
        self.seed.deserialize(LenientDeserializer { source, place: self.place })
    }
}

/// A field's name, without a copy where it stands in the bytes as it is.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Cow<'de, str>, D::Error> {
        source.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

#[cfg(test)]
mod tests;
