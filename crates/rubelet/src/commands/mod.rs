//! Commands for people, asked of the agent that runs on this node.
//!
//! ```text
//!   rubelet get pods ─┐                                        ┌─> /v1/pods, /v1/node
//!   rubelet why web  ─┼─> Client ── <root-dir>/rubelet.sock ───┼─> /v1/why
//!   rubelet logs web ─┘      └── the log itself is read from disk
//! ```
//!
//! What is asked and printed is in one file per command; everything that makes text is a pure function.

mod client;
mod find;
mod get;
mod logs;
mod options;
mod show;
mod why;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use model::Wall;

use client::{Client, ClientError};
use find::FindError;
use options::{Given, Switch, UsageError};

/// The commands, with a line about each.
pub const NAMES: &[(&str, &str)] = &[
    ("get", "show the pods of the running agent, or its node"),
    ("logs", "print the log of a container"),
    ("why", "tell what a pod waits for, since when, and when the next attempt is"),
];

/// The socket below the root directory on which an agent answers these commands.
pub const SOCKET: &str = "rubelet.sock";

/// Says where the root directory is when `--root-dir` does not.
const ROOT_DIR_VARIABLE: &str = "RUBELET_ROOT_DIR";
const DEFAULT_ROOT_DIR: &str = "/var/lib/kubelet";

#[derive(thiserror::Error, Debug)]
enum CommandError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Logs(#[from] logs::LogsError),
    #[error("cannot write the output")]
    Output(#[source] io::Error),
    #[error("cannot start")]
    Start(#[source] io::Error),
}

/// Where the answer goes.
type Out<'a> = &'a mut dyn Write;

/// Runs the command of this name to its end. Wrong usage ends with 2, any other failure with 1.
pub fn run(name: &str, arguments: &[String]) -> ExitCode {
    match perform(name, arguments, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_quiet(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let usage = matches!(error, CommandError::Usage(_));
            let error = anyhow::Error::new(error);
            // Nobody is left to tell when this fails too.
            let _ = writeln!(io::stderr(), "Error: {error:#}");
            if usage {
                let _ = writeln!(io::stderr(), "See: rubelet {name} --help");
            }
            if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whoever read our output has seen enough.
fn is_quiet(error: &CommandError) -> bool {
    matches!(error, CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn perform(name: &str, arguments: &[String], out: Out<'_>) -> Result<(), CommandError> {
    let (usage, about, switches) = match name {
        "get" => (get::USAGE, get::ABOUT, get::SWITCHES),
        "logs" => (logs::USAGE, logs::ABOUT, logs::SWITCHES),
        "why" => (why::USAGE, why::ABOUT, why::SWITCHES),
        _ => return Err(UsageError::NoSuchCommand(name.to_owned()).into()),
    };
    let switches: Vec<Switch> = switches.iter().chain(COMMON).copied().collect();
    let given = options::parse(arguments, &switches)?;
    if given.has("help") {
        return print(out, &options::help(usage, about, &switches));
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Start)?;
    runtime.block_on(async {
        let client = Client::new(root_dir(&given).join(SOCKET));
        match name {
            "get" => get::run(&client, &given, out).await,
            "logs" => logs::run(&client, &given, out).await,
            _ => why::run(&client, &given, out).await,
        }
    })
}

const COMMON: &[Switch] = &[
    Switch {
        name: "namespace",
        letter: Some('n'),
        value: Some("NAMESPACE"),
        about: "look only in this namespace",
    },
    Switch {
        name: "root-dir",
        letter: None,
        value: Some("DIRECTORY"),
        about: "root directory of the agent [RUBELET_ROOT_DIR, else /var/lib/kubelet]",
    },
    Switch { name: "help", letter: Some('h'), value: None, about: "print this" },
];

fn root_dir(given: &Given) -> PathBuf {
    match given.value("root-dir") {
        Some(dir) => dir.into(),
        None => std::env::var_os(ROOT_DIR_VARIABLE)
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| DEFAULT_ROOT_DIR.into(), PathBuf::from),
    }
}

fn print(out: Out<'_>, text: &str) -> Result<(), CommandError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CommandError::Output)
}

fn print_json(out: Out<'_>, value: &impl serde::Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CommandError::Output(error.into()))?;
    print(out, &(text + "\n"))
}

/// The time on the wall, for ages. Commands are at the edge: this is where their time enters.
#[allow(clippy::disallowed_methods)]
fn now() -> Wall {
    Wall::from_timestamp(jiff::Timestamp::now())
}

#[cfg(test)]
mod tests;
