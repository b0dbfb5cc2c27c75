//! The agent's own log, on standard error: klog's text, or JSON with Kubernetes' keys.
//!
//! How much it says is the kubelet's `-v`:
//!
//! | verbosity | our own code | the libraries below it |
//! | --- | --- | --- |
//! | 0 to 3 | info | warnings |
//! | 4 and 5 | debug | warnings |
//! | 6 and more | trace | warnings |
//!
//! `logging.vmodule` has another verbosity for single files. `RUBELET_LOG` replaces all that by directives of its own, such
//! as `info,cri=trace,h2=debug`.
//!
//! Lines about a pod carry it as the field `pod` (`namespace/name`), those about a container also `container`.

mod filter;
mod format;

use std::io;
use std::os::fd::AsFd;

use jiff::tz::TimeZone;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use self::filter::Verbosity;
use self::format::Format;
use crate::config::Logging;

/// Replaces the verbosity by directives.
pub const VARIABLE: &str = "RUBELET_LOG";
/// The variable in which systemd names the file of the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

#[derive(thiserror::Error, Debug)]
pub enum LoggingError {
    #[error("there is no log format {0:?}, only text and json")]
    Format(String),
    #[error("{VARIABLE} cannot be {value:?}")]
    Directives {
        value: String,
        #[source]
        source: ParseError,
    },
    #[error("logging is already initialized")]
    Twice(#[source] tracing::subscriber::SetGlobalDefaultError),
}

/// Changes the log while the agent runs.
#[derive(Clone, Debug)]
pub struct LogHandle {
    verbosity: Verbosity,
}

impl LogHandle {
    /// Says more or less from now on; directives from the environment, and files with a verbosity of their own, stay as they
    /// are.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.set(verbosity);
    }
}

/// Sets up the log of this process: once, before anything is logged.
pub fn init(config: &Logging) -> Result<LogHandle, LoggingError> {
    let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let journal = std::env::var(JOURNAL_VARIABLE).ok();
    let environment = LogEnvironment {
        directives: variable.as_deref(),
        is_journal: is_journal(journal.as_deref(), io::stderr().as_fd()),
        pid: std::process::id(),
        zone: TimeZone::system(),
    };
    let options = if config.format == "json" { &config.options.json } else { &config.options.text };
    let (subscriber, handle) = build(config, environment, LogWriters { split: options.split_stream })?;
    tracing::subscriber::set_global_default(subscriber).map_err(LoggingError::Twice)?;
    Ok(handle)
}

/// What the log takes from around the process.
struct LogEnvironment<'a> {
    directives: Option<&'a str>,
    is_journal: bool,
    pid: u32,
    zone: TimeZone,
}

/// Whether this file is the journal, by the device and inode that systemd gives.
fn is_journal(told: Option<&str>, file: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    told.is_some_and(|told| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Standard error, or standard output for what is no error (`splitStream`).
struct LogWriters {
    split: bool,
}

/// A line of the log goes out at once: there is nothing to flush.
enum LogWriter {
    Error(io::Stderr),
    Standard(io::Stdout),
}

impl<'a> MakeWriter<'a> for LogWriters {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter::Error(io::stderr())
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> LogWriter {
        match self.split && *about.level() > Level::ERROR {
            true => LogWriter::Standard(io::stdout()),
            false => LogWriter::Error(io::stderr()),
        }
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LogWriter::Error(file) => file.write(bytes),
            LogWriter::Standard(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            LogWriter::Error(file) => file.flush(),
            LogWriter::Standard(file) => file.flush(),
        }
    }
}

fn build<W>(
    config: &Logging,
    environment: LogEnvironment<'_>,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogHandle), LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let json = match config.format.as_str() {
        "text" => false,
        "json" => true,
        other => return Err(LoggingError::Format(other.to_owned())),
    };
    let LogEnvironment { directives, is_journal: priorities, pid, zone } = environment;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).event_format(Format {
        json,
        priorities,
        pid,
        zone,
    });
    let verbosity = Verbosity::new(config.verbosity, &config.vmodule);
    let lines: Box<dyn Layer<_> + Send + Sync> = match directives {
        Some(value) => {
            let filter = EnvFilter::try_new(value)
                .map_err(|source| LoggingError::Directives { value: value.to_owned(), source })?;
            lines.with_filter(filter).boxed()
        }
        None => lines.with_filter(verbosity.clone()).boxed(),
    };
    Ok((Registry::default().with(lines), LogHandle { verbosity }))
}

#[cfg(test)]
mod tests;
