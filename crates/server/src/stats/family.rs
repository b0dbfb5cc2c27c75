//! The text format for figures that are read anew for each answer: a sample is appended to a string together with the time of
//! its reading, so that no family of the metrics library has to be built and thrown away for it.

use std::borrow::Cow;
use std::fmt::Write;

use model::Wall;

/// One family; empty ones are not shown.
pub(super) struct Family {
    name: Cow<'static, str>,
    kind: &'static str,
    about: Cow<'static, str>,
    lines: String,
}

impl Family {
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        kind: &'static str,
        about: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name: name.into(), kind, about: about.into(), lines: String::new() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn add(&mut self, labels: &str, value: Option<f64>, at: Option<Wall>) {
        let Some(value) = value else { return };
        self.lines += &self.name;
        self.lines += labels;
        // Writing to a String cannot fail.
        let _ = match at {
            Some(at) => writeln!(self.lines, " {value} {}", at.0 / 1_000_000),
            None => writeln!(self.lines, " {value}"),
        };
    }

    pub fn all_text(families: &[Family]) -> String {
        let mut text = String::with_capacity(families.iter().map(|family| family.lines.len() + 200).sum());
        for family in families.iter().filter(|family| !family.lines.is_empty()) {
            let Family { name, kind, about, lines } = family;
            let _ = write!(text, "# HELP {name} {about}\n# TYPE {name} {kind}\n{lines}");
        }
        text
    }
}

/// Labels that many samples have, written once.
pub(super) struct Labels(String);

impl Labels {
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        let mut text = String::from("{");
        write_pairs(&mut text, pairs);
        text.push('}');
        Self(text)
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// The same and some more.
    pub fn with(&self, more: &[(&str, &str)]) -> String {
        let mut text = String::with_capacity(self.0.len() + 40);
        text += &self.0[..self.0.len() - 1];
        text.push(',');
        write_pairs(&mut text, more);
        text.push('}');
        text
    }
}

fn write_pairs(text: &mut String, pairs: &[(&str, &str)]) {
    for (index, (name, value)) in pairs.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for one in value.chars() {
            match one {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
}
