//! The text format, with the time of each sample, which the metrics library does not write.

use std::fmt::Write;

use model::Wall;

/// One family; empty ones are not shown.
pub(super) struct Family {
    name: &'static str,
    kind: &'static str,
    about: &'static str,
    lines: String,
}

impl Family {
    pub fn new(name: &'static str, kind: &'static str, about: &'static str) -> Self {
        Self { name, kind, about, lines: String::new() }
    }

    pub fn add(&mut self, labels: &str, value: Option<f64>, at: Option<Wall>) {
        let Some(value) = value else { return };
        // Writing to a String cannot fail.
        let _ = match at {
            Some(at) => writeln!(self.lines, "{}{labels} {value} {}", self.name, at.0 / 1_000_000),
            None => writeln!(self.lines, "{}{labels} {value}", self.name),
        };
    }

    pub fn text(&self) -> String {
        match self.lines.is_empty() {
            true => String::new(),
            false => {
                format!("# HELP {0} {1}\n# TYPE {0} {2}\n{3}", self.name, self.about, self.kind, self.lines)
            }
        }
    }
}

/// In braces, with their values escaped.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", pairs.iter().map(one).collect::<Vec<_>>().join(","))
}
