//! The `rubelet` binary: the node agent when called without a sub-command, as upstream's `kubelet` is.

use std::io::Write;
use std::process::ExitCode;

use rubelet::flags::{self, Invocation};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    match flags::parse(arguments, &[])? {
        Invocation::Help => write!(std::io::stdout(), "{}", flags::help(&[]))?,
        Invocation::Version(request) => {
            write!(std::io::stdout(), "{}", request.stdout())?;
            write!(std::io::stderr(), "{}", request.stderr())?;
        }
        Invocation::Command { name, .. } => anyhow::bail!("unknown command {name}"),
        Invocation::Agent(flags) => {
            tracing_subscriber::fmt().with_writer(std::io::stderr).init();
            rubelet::agent::run(*flags)?;
        }
    }
    Ok(())
}
