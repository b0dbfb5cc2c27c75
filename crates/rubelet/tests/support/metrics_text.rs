//! The text format of metrics, as far as tests compare it: families with their types and the names of their labels.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::harness::{hack, run};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    pub kind: String,
    /// Without the bounds of buckets.
    pub labels: BTreeSet<String>,
}

/// By name.
pub type Families = BTreeMap<String, Family>;

pub fn families(text: &str) -> Families {
    let mut families = Families::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.insert(name.to_owned(), Family { kind: kind.to_owned(), labels: BTreeSet::new() });
        } else if !line.starts_with('#')
            && let Some((name, labels)) = sample(line)
        {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = if families.contains_key(name) { name } else { base.unwrap_or(name) };
            let family = families.get_mut(name).unwrap_or_else(|| panic!("no type before: {line}"));
            family.labels.extend(labels.into_iter().filter(|label| label != "le"));
        }
    }
    families
}

/// The name and the names of the labels of one sample.
fn sample(line: &str) -> Option<(&str, Vec<String>)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    rest = rest.strip_prefix('{').unwrap_or("");
    while let Some((label, value)) = rest.split_once("=\"") {
        labels.push(label.to_owned());
        let mut escaped = false;
        let close = value.char_indices().find(|(_, one)| {
            let closes = *one == '"' && !escaped;
            escaped = *one == '\\' && !escaped;
            closes
        })?;
        rest = &value[close.0 + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    Some((name, labels))
}

/// The value of the first sample that begins so.
pub fn value(text: &str, start: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(start))?;
    let rest = line[start.len()..].trim_start_matches(|c| c != ' ');
    rest.split_whitespace().next()?.parse().ok()
}

/// Prometheus' own reader; its remarks about names are not errors (exit 3), since the names are the kubelet's.
pub fn check_with_promtool(endpoint: &str, text: &str) {
    let promtool = run(hack("parts").arg("promtool"));
    let mut child = Command::new(promtool.trim())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    let mut input = child.stdin.take().expect("its input");
    let text = text.to_owned();
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("promtool's end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    writing.join().expect("the input").unwrap_or_else(|error| panic!("{endpoint}: {error}: {said}"));
    assert!(matches!(output.status.code(), Some(0 | 3)), "{endpoint}: {}: {said}", output.status);
    assert!(!said.contains("error while linting"), "{endpoint}: {said}");
}
