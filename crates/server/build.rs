//! The Pods API for the crate, its client for tests, and a table of the fields of a Pod.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use protos::Side;

/// Messages whose JSON is not an object of their fields. The encoder knows them.
const VALUES: [&str; 4] = ["FieldsV1", "IntOrString", "Quantity", "Time"];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    protos::compile("proto", &["pods.proto"], &[Side::Client, Side::Server])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    write_fields(&out.join("pod_fields.rs"))
}

/// The messages that a Pod is made of, sorted by name, each with its fields in the order of their numbers.
fn write_fields(to: &Path) -> Result<(), Failure> {
    let files = protox::compile(["proto/pod.proto"], ["proto"])?.file;
    let messages: BTreeMap<&str, &DescriptorProto> =
        files.iter().flat_map(|file| &file.message_type).map(|message| (message.name(), message)).collect();
    let messages: BTreeMap<_, _> = messages.into_iter().filter(|(name, _)| !VALUES.contains(name)).collect();
    let index: BTreeMap<&str, usize> = messages.keys().enumerate().map(|(at, name)| (*name, at)).collect();
    let mut text = format!("pub(super) static MESSAGES: [Message; {}] = [\n", messages.len());
    for (name, message) in &messages {
        writeln!(text, "    Message {{ name: {name:?}, fields: &[")?;
        let mut fields: Vec<&FieldDescriptorProto> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            let entry = message.nested_type.iter().find(|nested| {
                field.r#type() == Type::Message && field.type_name().ends_with(&format!(".{}", nested.name()))
            });
            let (label, value) = match entry {
                Some(entry) => {
                    ("Map", entry.field.iter().find(|f| f.number() == 2).ok_or("no value in a map")?)
                }
                None if field.label() == Label::Repeated => ("Repeated", field),
                None => ("Single", field),
            };
            let kind = kind(value, &index)?;
            let (name, number) = (field.name(), field.number());
            writeln!(
                text,
                "        Field {{ name: {name:?}, number: {number}, label: Label::{label}, kind: Kind::{kind} }},"
            )?;
        }
        writeln!(text, "    ] }},")?;
    }
    text.push_str("];\n");
    std::fs::write(to, text)?;
    Ok(())
}

fn kind(field: &FieldDescriptorProto, index: &BTreeMap<&str, usize>) -> Result<String, Failure> {
    let kind = match field.r#type() {
        Type::String => "Text".to_owned(),
        Type::Bool => "Bool".to_owned(),
        Type::Int32 | Type::Int64 => "Integer".to_owned(),
        Type::Message => {
            let name = field.type_name().rsplit('.').next().unwrap_or_default();
            match name {
                value if VALUES.contains(&value) => value.to_owned(),
                _ => format!("Message({})", index.get(name).ok_or_else(|| format!("no message {name}"))?),
            }
        }
        other => return Err(format!("{}: fields of type {other:?} are not known", field.name()).into()),
    };
    Ok(kind)
}
