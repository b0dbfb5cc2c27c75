//! The text format of metrics, as far as tests compare it: families with their types and the names of their labels.

use std::collections::{BTreeMap, BTreeSet};

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
