//! Compares numbers, kinds and names of the fields in our proto files with the published interfaces. Ours contain a
//! part of each and were written by hand, so without this test a mistake would show only at run time.
//!
//! `hack/parts protocols` prints the directories of the published Go packages, whose struct tags tell all of it:
//!
//! ```text
//!   Namespaces string `protobuf:"bytes,2,opt,name=namespace,proto3" ...`
//! ```
//!
//! The types of Kubernetes' API were not made from proto files: beside them is one that was made from them.

// These tests run real programs.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of a field: its number, how it is encoded, and `rep` or `opt`.
type Field = (u32, String, &'static str);
/// Fields by name, of messages by name; values of enums likewise.
#[derive(Debug, Default)]
struct Interface {
    messages: BTreeMap<String, BTreeMap<String, Field>>,
    enums: BTreeMap<String, BTreeMap<String, u32>>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Messages that hold what several published ones begin with.
fn published_names(ours: &str) -> Vec<&str> {
    match ours {
        "TaskChange" => vec!["TaskStart", "TaskOOM"],
        "ImageChange" => vec!["ImageCreate", "ImageUpdate"],
        other => vec![other],
    }
}

#[test]
fn our_protocol_files_have_the_published_numbers() {
    let said = Command::new(repository().join("hack/parts")).arg("protocols").output().expect("hack/parts");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let mut published: BTreeMap<String, Interface> = BTreeMap::new();
    for line in String::from_utf8(said.stdout).unwrap().lines() {
        let (name, dir) = line.split_once(' ').expect("a name and a directory");
        let interface = published.entry(name.to_owned()).or_default();
        for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir}: {error}")).flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            let text = || fs::read_to_string(entry.path()).unwrap();
            if file == "generated.proto" {
                let found = read_proto(&text());
                interface.messages.extend(found.messages);
                interface.enums.extend(found.enums);
            } else if file.ends_with(".pb.go") {
                read_go(&text(), interface);
            }
        }
    }
    let mut faults = Vec::new();
    for (name, file) in [
        ("cri", "crates/cri/proto/runtime.proto"),
        ("containerd", "crates/cri/proto/containerd_events.proto"),
        ("registration", "crates/plugins/proto/registration.proto"),
        ("csi", "crates/plugins/proto/csi.proto"),
        ("otlp", "crates/otlp/proto/trace_service.proto"),
        ("pods", "crates/server/proto/pods.proto"),
        ("core", "crates/server/proto/pod.proto"),
        ("core", "crates/server/proto/containers.proto"),
        ("core", "crates/server/proto/meta.proto"),
        ("core", "crates/server/proto/status.proto"),
        ("core", "crates/server/proto/volumes.proto"),
    ] {
        let ours = read_proto(&fs::read_to_string(repository().join(file)).unwrap());
        assert!(ours.messages.len() > 3, "{file}: {ours:?}");
        let theirs = published.get(name).unwrap_or_else(|| panic!("no {name} in {published:?}"));
        compare(file, &ours, theirs, &mut faults);
        // What a pod has is shown whole.
        if name == "core" {
            find_missing(file, &ours, theirs, &mut faults);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn compare(file: &str, ours: &Interface, theirs: &Interface, faults: &mut Vec<String>) {
    for (message, fields) in &ours.messages {
        for name in published_names(message) {
            let Some(published) = theirs.messages.get(name) else {
                faults.push(format!("{file}: there is no message {name}"));
                continue;
            };
            for (field, found) in fields {
                if published.get(field) != Some(found) {
                    faults.push(format!("{file}: {name}.{field}: {found:?}, not {:?}", published.get(field)));
                }
            }
        }
    }
    for (kind, values) in &ours.enums {
        // Ours may stand beside the message that the published one is in.
        let is_it = |name: &&String| *name == kind || name.ends_with(&format!("_{kind}"));
        let Some(published) = theirs.enums.keys().find(is_it).map(|name| &theirs.enums[name]) else {
            faults.push(format!("{file}: there is no enum {kind}"));
            continue;
        };
        for (name, value) in values {
            // Go puts the enum's name before a value, or that of the message around it.
            let found = published.iter().find(|(full, _)| full.ends_with(&format!("_{name}")));
            if found.map(|(_, value)| value) != Some(value) {
                faults.push(format!("{file}: {kind}.{name} = {value}, not {found:?}"));
            }
        }
    }
}

/// Published fields of our messages that ours don't have.
fn find_missing(file: &str, ours: &Interface, theirs: &Interface, faults: &mut Vec<String>) {
    for (message, fields) in &ours.messages {
        let published = theirs.messages.get(message).into_iter().flat_map(|fields| fields.keys());
        let missing = published.filter(|field| !fields.contains_key(*field));
        faults.extend(missing.map(|field| format!("{file}: {message} has no {field}")));
    }
}

/// The tags of generated Go.
fn read_go(text: &str, into: &mut Interface) {
    let mut message = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("type ").and_then(|rest| rest.strip_suffix(" struct {")) {
            message = name.to_owned();
            into.messages.entry(message.clone()).or_default();
        }
        if let Some((_, tag)) = line.split_once("`protobuf:\"") {
            let parts: Vec<&str> = tag.split('"').next().unwrap_or_default().split(',').collect();
            let name = parts.iter().find_map(|part| part.strip_prefix("name=")).expect("a name");
            let label = if parts[2] == "rep" { "rep" } else { "opt" };
            let field = (parts[1].parse().expect("a number"), parts[0].to_owned(), label);
            // A choice is a type of its own, `Message_Field`.
            let owner = if parts.contains(&"oneof") { message.split('_').next().unwrap() } else { &message };
            into.messages.entry(owner.to_owned()).or_default().insert(name.to_owned(), field);
        }
        // `	Kind_VALUE Kind = 3`
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, kind, "=", value] = words[..]
            && line.starts_with('\t')
            && let Ok(value) = value.parse()
        {
            into.enums.entry(kind.to_owned()).or_default().insert(name.to_owned(), value);
        }
    }
}

/// The few forms that our own files have.
fn read_proto(text: &str) -> Interface {
    let mut found = Interface::default();
    let mut typed: Vec<(String, String, u32, String, &'static str)> = Vec::new();
    // What is open: `message Name`, `enum Name`, or another word.
    let mut open: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let words: Vec<&str> = line.split([' ', '{', ';', '=']).filter(|word| !word.is_empty()).collect();
        let outer: Vec<&str> = open.iter().filter(|(kind, _)| kind == "message").map(|(_, n)| &**n).collect();
        if line.contains('{') && !line.contains("rpc ") {
            let name = [&outer[..], &[words.get(1).copied().unwrap_or_default()]].concat().join("_");
            match words[0] {
                "message" => drop(found.messages.entry(name).or_default()),
                "enum" => drop(found.enums.entry(name).or_default()),
                _ => {}
            }
            open.push((words[0].to_owned(), words.get(1).copied().unwrap_or_default().to_owned()));
        } else if line.contains('=') && line.ends_with(';') && !open.is_empty() {
            let number = words.last().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
            if open.last().unwrap().0 == "enum" {
                let kind = [&outer[..], &[&*open.last().unwrap().1]].concat().join("_");
                found.enums.entry(kind).or_default().insert(words[0].to_owned(), number);
                continue;
            }
            let name = words[words.len() - 2].to_owned();
            let label = if words[0] == "repeated" || words[0].starts_with("map<") { "rep" } else { "opt" };
            let kind = if matches!(words[0], "repeated" | "optional") { words[1] } else { words[0] };
            typed.push((outer.join("_"), name, number, kind.to_owned(), label));
        }
        if line.contains('}') {
            open.pop();
        }
    }
    for (message, name, number, kind, label) in typed {
        let encoding = match kind.as_str() {
            "int32" | "int64" | "uint32" | "uint64" | "bool" => "varint",
            "fixed64" | "sfixed64" | "double" => "fixed64",
            "fixed32" | "sfixed32" | "float" => "fixed32",
            other if found.enums.keys().any(|name| name.rsplit('_').next() == other.rsplit('.').next()) => {
                "varint"
            }
            _ => "bytes",
        };
        found.messages.entry(message).or_default().insert(name, (number, encoding.to_owned(), label));
    }
    found
}

/// A slip of each kind is found.
#[test]
fn slips_are_found() {
    let published = "\
type Pod struct {
\tName string `protobuf:\"bytes,2,opt,name=name,proto3\" json:\"name\"`
\tLabels map[string]string `protobuf:\"bytes,3,rep,name=labels,proto3\" json:\"labels\"`
\tKind Kind `protobuf:\"varint,4,opt,name=kind,proto3,enum=Kind\" json:\"kind\"`
type Pod_Ip struct {
\tIp string `protobuf:\"bytes,5,opt,name=ip,oneof\"`
\tKind_BIG Kind = 1
";
    let mut theirs = Interface::default();
    read_go(published, &mut theirs);
    let faults = |proto: &str| {
        let mut faults = Vec::new();
        compare("p", &read_proto(proto), &theirs, &mut faults);
        faults
    };
    let good = "enum Kind {\n  BIG = 1;\n}\nmessage Pod {\n  string name = 2; // who\n  map<string, string> labels = 3;\n  \
                Kind kind = 4;\n  oneof address {\n    string ip = 5;\n  }\n}\n";
    assert_eq!(faults(good), Vec::<String>::new());
    let mut missing = Vec::new();
    find_missing("p", &read_proto(&good.replace("  string ip = 5;\n", "")), &theirs, &mut missing);
    assert_eq!(missing, ["p: Pod has no ip"]);
    for (from, to) in [
        ("name = 2", "name = 1"),
        ("map<string, string> labels", "string labels"),
        ("string name", "int64 name"),
        ("string ip = 5", "string ip = 6"),
        ("BIG = 1", "BIG = 2"),
        ("message Pod", "message Pot"),
        ("name =", "nome ="),
    ] {
        assert_eq!(faults(&good.replace(from, to)).len().min(1), 1, "{from} {to}");
    }
}
