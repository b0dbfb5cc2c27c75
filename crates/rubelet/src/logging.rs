//! The agent's own log: lines for people or JSON for programs, on standard error.
//!
//! How much it says is the kubelet's `-v`:
//!
//! | verbosity | our own code | the libraries below it |
//! | --- | --- | --- |
//! | 0 to 3 | info | warnings |
//! | 4 and 5 | debug | warnings |
//! | 6 and more | trace | warnings |
//!
//! `RUBELET_LOG` replaces all that by directives of its own, such as `info,cri=trace,h2=debug`.
//!
//! Lines about a pod carry it as the field `pod` (`namespace/name`), those about a container also `container`.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

/// Replaces the verbosity by directives.
pub const VARIABLE: &str = "RUBELET_LOG";

/// The crates whose lines the verbosity is about.
const OUR_CRATES: [&str; 10] =
    ["apiserver", "cri", "decide", "engine", "host", "model", "otlp", "ports", "rubelet", "server"];

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
    #[error("the log was set up before")]
    Twice(#[source] tracing::subscriber::SetGlobalDefaultError),
}

/// Changes the log while the agent runs.
#[derive(Clone, Debug)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    by_variable: bool,
}

impl LogHandle {
    /// Says more or less from now on; directives from the environment stay as they are.
    pub fn set_verbosity(&self, verbosity: u32) {
        if !self.by_variable {
            // Fails only when the log itself is gone.
            let _ = self.filter.reload(EnvFilter::new(directives(verbosity)));
        }
    }
}

/// Sets up the log of this process: once, before anything is logged.
pub fn init(format: &str, verbosity: u32) -> Result<LogHandle, LoggingError> {
    let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let color = io::stderr().is_terminal();
    let (subscriber, handle) = build(format, verbosity, variable.as_deref(), color, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(LoggingError::Twice)?;
    Ok(handle)
}

fn build<W>(
    format: &str,
    verbosity: u32,
    variable: Option<&str>,
    color: bool,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogHandle), LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = match variable {
        Some(value) => EnvFilter::try_new(value)
            .map_err(|source| LoggingError::Directives { value: value.to_owned(), source })?,
        None => EnvFilter::new(directives(verbosity)),
    };
    let (filter, reloads) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines: Box<dyn Layer<_> + Send + Sync> = match format {
        "text" => lines.with_ansi(color).with_target(false).boxed(),
        "json" => lines.json().flatten_event(true).boxed(),
        other => return Err(LoggingError::Format(other.to_owned())),
    };
    let handle = LogHandle { filter: reloads, by_variable: variable.is_some() };
    Ok((Registry::default().with(filter).with(lines), handle))
}

fn directives(verbosity: u32) -> String {
    let level = match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let ours = OUR_CRATES.map(|name| format!("{name}={level}"));
    format!("warn,{}", ours.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Sends what is written to it.
    #[derive(Clone)]
    struct Pipe(Sender<Vec<u8>>);

    impl io::Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `work` logs.
    fn logged(format: &str, verbosity: u32, variable: Option<&str>, work: impl FnOnce(&LogHandle)) -> String {
        let (sender, lines) = channel();
        let pipe = Pipe(sender);
        let (subscriber, handle) = build(format, verbosity, variable, false, move || pipe.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || work(&handle));
        String::from_utf8(lines.try_iter().flatten().collect()).unwrap()
    }

    #[test]
    fn text_names_level_message_pod_and_container() {
        let text = logged("text", 0, None, |_| {
            tracing::info!(pod = "default/web-vm", container = "app", attempt = 2, "container started");
        });
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{text}");
        let expect = "INFO container started pod=\"default/web-vm\" container=\"app\" attempt=2\n";
        assert_eq!(rest.trim_start(), expect);
    }

    #[test]
    fn json_has_a_line_per_event_with_its_fields_beside_the_message() {
        let text = logged("json", 0, None, |_| {
            tracing::warn!(pod = "default/web-vm", container = "app", "container \"app\"\nended");
            tracing::info!("second");
        });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "WARN");
        assert_eq!(lines[0]["message"], "container \"app\"\nended");
        assert_eq!((&lines[0]["pod"], &lines[0]["container"]), (&"default/web-vm".into(), &"app".into()));
        assert!(lines[0]["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn verbosity_decides_how_much_is_said() {
        let said = |verbosity, variable: Option<&str>| {
            let text = logged("text", verbosity, variable, |_| {
                tracing::trace!("our-trace");
                tracing::debug!("our-debug");
                tracing::info!("our-info");
                tracing::info!(target: "h2::codec", "their-info");
                tracing::warn!(target: "h2::codec", "their-warning");
            });
            text.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let quiet = vec!["our-info", "their-warning"];
        assert_eq!(said(0, None), quiet);
        assert_eq!(said(3, None), quiet);
        assert_eq!(said(4, None), ["our-debug", "our-info", "their-warning"]);
        assert_eq!(said(6, None), ["our-trace", "our-debug", "our-info", "their-warning"]);
        assert_eq!(said(9, Some("error,h2=info")), ["their-info", "their-warning"]);
    }

    #[test]
    fn verbosity_can_change_while_running_unless_the_environment_rules() {
        let work = |handle: &LogHandle| {
            tracing::debug!("before");
            handle.set_verbosity(4);
            tracing::debug!("after");
        };
        assert!(logged("text", 0, None, work).ends_with("after\n"));
        assert_eq!(logged("text", 0, Some("warn"), work), "");
    }

    #[test]
    fn wrong_settings_are_refused() {
        let refusal = |format, variable| {
            build(format, 0, variable, false, io::sink).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(refusal("xml", None), "there is no log format \"xml\", only text and json");
        assert_eq!(refusal("text", Some("a=b=c")), "RUBELET_LOG cannot be \"a=b=c\"");
    }
}
