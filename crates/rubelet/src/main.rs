//! The `rubelet` binary: the node agent when called without a sub-command, as upstream's `kubelet` is.

use std::io::Write;
use std::process::ExitCode;

use rubelet::commands;
use rubelet::flags::{self, Invocation};

/// What ships gives memory back soon and keeps few arenas; `.cargo/config.toml` has its settings.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    match flags::parse(arguments)? {
        Invocation::Help => write!(std::io::stdout(), "{}", flags::help())?,
        Invocation::Version(request) => {
            write!(std::io::stdout(), "{}", request.stdout())?;
            write!(std::io::stderr(), "{}", request.stderr())?;
        }
        Invocation::Command { command, arguments } => return Ok(commands::run(command, &arguments)),
        Invocation::Agent(flags) => rubelet::agent::run(*flags)?,
    }
    Ok(ExitCode::SUCCESS)
}
