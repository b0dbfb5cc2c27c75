//! The `rubelet` binary. For now it reads its command line and its configuration, and says what is wrong
//! with them.

use std::io::Write;
use std::process::ExitCode;

use rubelet::config::{self, Host};
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
            let loaded = config::load(&flags.sources())?;
            for warning in flags.warnings.iter().chain(&loaded.warnings) {
                eprintln!("Warning: {warning}");
            }
            let host =
                Host { cgroup_v1: !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() };
            if let Err(faults) = config::validate(&loaded.config, &loaded.gates, host) {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                anyhow::bail!("failed to validate kubelet configuration: {}", faults.join("; "));
            }
            anyhow::bail!("the configuration is good, but this build has no agent to run with it");
        }
    }
    Ok(())
}
