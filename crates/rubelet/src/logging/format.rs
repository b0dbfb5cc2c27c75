//! A line of the log: as klog writes text, or with the keys of Kubernetes' JSON.
//!
//! ```text
//!   I1118 15:04:05.000000    1234 executor.rs:12] container started pod="default/web" attempt=2
//!   {"ts":1763478245000.0,"caller":"engine/executor.rs:12","msg":"container started","v":0,"pod":"default/web","attempt":2}
//! ```
//!
//! A line of the journal begins with its priority (`<6>`), which journald takes off again.
//!
//! Messages and values may quote texts of others, so each is cut here, whatever was cut before.

use std::fmt::{self, Write};

use host::clock::SystemClock;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use model::text_limits::{TextLimit, truncate_text};
use ports::WallClock;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How a line is written.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub json: bool,
    /// Lines go to the journal, which reads priorities.
    pub priorities: bool,
    pub pid: u32,
    /// Of the times in text.
    pub zone: TimeZone,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.priorities {
            write!(to, "<{}>", priority(*event.metadata().level()))?;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = SystemClock.wall().timestamp();
        match self.json {
            true => write_json(&mut to, now, event.metadata(), fields),
            false => self.write_text(&mut to, now, event.metadata(), fields),
        }
    }
}

impl Format {
    fn write_text(
        &self,
        to: &mut impl Write,
        now: Timestamp,
        about: &Metadata<'_>,
        fields: Fields,
    ) -> fmt::Result {
        let severity = match *about.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let time = now.to_zoned(self.zone.clone()).strftime("%m%d %H:%M:%S%.6f").to_string();
        let file = about.file().map_or("unknown", |path| path.rsplit('/').next().unwrap_or(path));
        write!(to, "{severity}{time} {:>7} {file}:{}] ", self.pid, about.line().unwrap_or_default())?;
        // Others may have a say in a message: it stays one line.
        fields.message.chars().try_for_each(|letter| match letter.is_control() {
            true => write!(to, "{}", letter.escape_default()),
            false => to.write_char(letter),
        })?;
        for (name, value) in fields.rest {
            write!(to, " {name}={value}")?;
        }
        writeln!(to)
    }
}

fn write_json(to: &mut impl Write, now: Timestamp, about: &Metadata<'_>, fields: Fields) -> fmt::Result {
    let millis = now.as_nanosecond() as f64 / 1e6;
    let file = about.file().map_or_else(|| "unknown".to_owned(), short_path);
    let caller = format!("{file}:{}", about.line().unwrap_or_default());
    let message = Value::from(fields.message);
    write!(to, "{{\"ts\":{millis:.4},\"caller\":{},\"msg\":{message}", Value::from(caller))?;
    match *about.level() {
        Level::ERROR => {}
        Level::WARN => write!(to, ",\"v\":0,\"level\":\"warn\"")?,
        Level::INFO => write!(to, ",\"v\":0")?,
        Level::DEBUG => write!(to, ",\"v\":4")?,
        Level::TRACE => write!(to, ",\"v\":6")?,
    }
    for (name, value) in fields.rest {
        let name = if name == "error" { "err" } else { name };
        write!(to, ",{}:{value}", Value::from(name))?;
    }
    writeln!(to, "}}")
}

/// The last directory and the name, as zap shows a caller.
fn short_path(path: &str) -> String {
    let mut parts = path.rsplit('/').filter(|part| *part != "src");
    let name = parts.next().unwrap_or(path);
    parts.next().map_or_else(|| name.to_owned(), |parent| format!("{parent}/{name}"))
}

/// Of syslog.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// What an event says. Values are JSON, which klog's text has for strings and numbers as well.
#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        let value = match value.into() {
            Value::String(text) => Value::String(truncate_text(text, TextLimit::LogLine)),
            other => other,
        };
        match (field.name(), &value) {
            ("message", Value::String(text)) => self.message = text.clone(),
            (name, _) => self.rest.push((name.trim_start_matches("r#"), value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_directory_and_file() {
        assert_eq!(short_path("crates/engine/src/executor.rs"), "engine/executor.rs");
        assert_eq!(short_path("crates/decide/src/node/mod.rs"), "node/mod.rs");
        assert_eq!(short_path("main.rs"), "main.rs");
    }
}
