//! Commands for users, answered by the agent that runs on this node.
//!
//! ```text
//!   rubelet get pods ─┐                                        ┌─> /v1/pods, /v1/node
//!   rubelet why web  ─┼─> Client ── <root-dir>/rubelet.sock ───┼─> /v1/why
//!   rubelet logs web ─┘      └── the log itself is read from disk
//! ```
//!
//! Each command has a file with its requests and its output; everything that makes text is a pure function.

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
use options::{CommandArguments, CommandOption, UsageError};

macro_rules! commands {
    ($($variant:ident => $name:literal,)*) => {
        /// A command. Everything that differs between them is a `match` over all of them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Command { $($variant),* }
        impl Command {
            pub const ALL: &'static [Command] = &[$(Command::$variant),*];

            /// The word on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Command::$variant => $name),* }
            }
        }
    };
}

commands!(
    Get => "get",
    Logs => "logs",
    Why => "why",
);

impl Command {
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|command| command.name() == word)
    }

    /// The line about it in the help of the program.
    pub fn summary(self) -> &'static str {
        match self {
            Command::Get => "show the pods of the running agent, or its node",
            Command::Logs => "print the log of a container",
            Command::Why => "show what a pod waits for, since when, and when the next attempt is",
        }
    }
}

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
type OutputWriter<'a> = &'a mut dyn Write;

/// Runs the command to its end. Wrong usage ends with 2, any other failure with 1.
pub fn run(command: Command, arguments: &[String]) -> ExitCode {
    match run_command(command, arguments, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let usage = matches!(error, CommandError::Usage(_));
            let error = anyhow::Error::new(error);
            // If this fails too, the error can't be reported.
            let _ = writeln!(io::stderr(), "Error: {error:#}");
            if usage {
                let _ = writeln!(io::stderr(), "See: rubelet {} --help", command.name());
            }
            if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// The reader of the output has closed the pipe.
fn is_broken_pipe(error: &CommandError) -> bool {
    matches!(error, CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn run_command(command: Command, arguments: &[String], out: OutputWriter<'_>) -> Result<(), CommandError> {
    let (usage, about, switches) = match command {
        Command::Get => (get::USAGE, get::ABOUT, get::OPTIONS),
        Command::Logs => (logs::USAGE, logs::ABOUT, logs::OPTIONS),
        Command::Why => (why::USAGE, why::ABOUT, why::OPTIONS),
    };
    let switches: Vec<CommandOption> = switches.iter().chain(COMMON).copied().collect();
    let given = options::parse(arguments, &switches)?;
    if given.has("help") {
        return print(out, &options::help(usage, about, &switches));
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Start)?;
    runtime.block_on(async {
        let client = Client::new(root_dir(&given).join(SOCKET));
        match command {
            Command::Get => get::run(&client, &given, out).await,
            Command::Logs => logs::run(&client, &given, out).await,
            Command::Why => why::run(&client, &given, out).await,
        }
    })
}

const COMMON: &[CommandOption] = &[
    CommandOption {
        name: "namespace",
        letter: Some('n'),
        value: Some("NAMESPACE"),
        about: "look only in this namespace",
    },
    CommandOption {
        name: "root-dir",
        letter: None,
        value: Some("DIRECTORY"),
        about: "root directory of the agent [RUBELET_ROOT_DIR, else /var/lib/kubelet]",
    },
    CommandOption { name: "help", letter: Some('h'), value: None, about: "print this" },
];

fn root_dir(given: &CommandArguments) -> PathBuf {
    match given.value("root-dir") {
        Some(dir) => dir.into(),
        None => std::env::var_os(ROOT_DIR_VARIABLE)
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| DEFAULT_ROOT_DIR.into(), PathBuf::from),
    }
}

fn print(out: OutputWriter<'_>, text: &str) -> Result<(), CommandError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CommandError::Output)
}

fn print_json(out: OutputWriter<'_>, value: &impl serde::Serialize) -> Result<(), CommandError> {
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
