//! The `cargo xtask` command.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use xtask::tidy;

fn main() -> Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => run_tidy(),
        _ => bail!("usage: cargo xtask tidy"),
    }
}

fn run_tidy() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let report = tidy::check_tree(&root)?;
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    for failure in &report.failures {
        eprintln!("error: {failure}");
    }
    println!("tidy: {} files, {} errors", report.files, report.failures.len());
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
