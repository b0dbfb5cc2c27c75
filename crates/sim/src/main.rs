//! The command line of the simulator; see docs/simulation.md.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::record::{self, Window};
use sim::{Mutant, Options, Outcome, Profile, run, shrink};

const USAGE: &str = "usage:
  sim run --seeds A..B [--profile calm|faults|short|stuck|storage] [--jobs N] [--logs DIR] [--steps N]
      runs every seed; the first that breaks an invariant is shrunk and its event log written
  sim replay SEED [--profile P] [--only PART,...] [--steps N]
      runs one seed and shows every event with its effects and the reasons of pods
  sim shrink SEED [--profile P] [--only PART,...] [--logs DIR]
      finds the parts of a failing seed that matter, and writes the event log of what is left
  sim step FILE [--from N] [--count N] [--pod UID]
      steps through an event log, showing each decision with its why
  sim mutants [--seeds A..B]
      makes each deliberate mistake in turn, and tells how many seeds it takes to notice";

struct Command {
    verb: String,
    target: Option<String>,
    seeds: Range<u64>,
    jobs: u64,
    logs: PathBuf,
    window: Window,
    options: Options,
}

fn parse(words: &[String]) -> Option<Command> {
    let (verb, mut rest) = words.split_first()?;
    let mut command = Command {
        verb: verb.clone(),
        target: None,
        seeds: 0..100,
        jobs: 1,
        logs: PathBuf::from("target/sim"),
        window: Window::default(),
        options: Options::default(),
    };
    match verb.as_str() {
        "run" | "mutants" => {}
        "replay" | "shrink" | "step" => {
            let (target, more) = rest.split_first()?;
            command.target = Some(target.clone());
            rest = more;
        }
        _ => return None,
    }
    while let [flag, value, more @ ..] = rest {
        match flag.as_str() {
            "--seeds" => {
                let (from, to) = value.split_once("..")?;
                command.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            "--profile" => command.options.profile = Profile::parse(value)?,
            "--steps" => command.options.steps = Some(value.parse().ok()?),
            "--only" => {
                let parts = value.split(',').filter(|part| !part.is_empty());
                command.options.only = Some(parts.map(str::to_owned).collect());
            }
            "--jobs" => command.jobs = value.parse().ok().filter(|jobs| *jobs > 0)?,
            "--logs" => command.logs = value.into(),
            "--from" => command.window.from = value.parse().ok()?,
            "--count" => command.window.count = Some(value.parse().ok()?),
            "--pod" => command.window.pod = Some(value.as_str().into()),
            _ => return None,
        }
        rest = more;
    }
    rest.is_empty().then_some(command)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(command) = parse(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match (command.verb.as_str(), &command.target) {
        ("replay" | "shrink", Some(seed)) => match seed.parse() {
            Ok(seed) => one_seed(&command, seed),
            Err(_) => {
                eprintln!("{seed:?} is no seed: a number is needed\n{USAGE}");
                ExitCode::from(2)
            }
        },
        ("step", Some(file)) => step(Path::new(file), &command.window),
        ("mutants", _) => mutants(&command.seeds),
        _ => many_seeds(&command),
    }
}

fn verdict(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one_seed(command: &Command, seed: u64) -> ExitCode {
    if command.verb == "shrink" {
        if !explain(command, seed) {
            println!("seed {seed} breaks nothing");
        }
        return ExitCode::SUCCESS;
    }
    let outcome = run(seed, &Options { print: true, ..command.options.clone() });
    println!("{outcome}");
    verdict(outcome.failure.is_none())
}

fn step(file: &Path, window: &Window) -> ExitCode {
    match record::read(file) {
        Ok(lines) => {
            record::replay_log(&lines, window, &mut |text| print!("{text}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("reading the event log: {error}");
            ExitCode::FAILURE
        }
    }
}

fn many_seeds(command: &Command) -> ExitCode {
    let next = AtomicU64::new(command.seeds.start);
    let work = || {
        let (mut events, mut bad) = (0, Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= command.seeds.end {
                return (events, bad);
            }
            let outcome = run(seed, &command.options);
            events += outcome.events;
            if outcome.failure.is_some() {
                println!("{}", headline(&outcome));
                bad.push(seed);
            }
        }
    };
    let (mut events, mut bad) = (0, Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..command.jobs).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            // A panic inside a run is caught there and reported as a violation.
            if let Ok((more, found)) = worker.join() {
                events += more;
                bad.extend(found);
            }
        }
    });
    bad.sort_unstable();
    if let Some(first) = bad.first() {
        explain(command, *first);
    }
    let seeds = command.seeds.clone().count();
    let profile = command.options.profile.word();
    println!("simulation: {seeds} seeds ({profile}), {events} steps, {} violations", bad.len());
    verdict(bad.is_empty())
}

fn headline(outcome: &Outcome) -> String {
    let Some(failure) = &outcome.failure else { return String::new() };
    let (invariant, message) = (failure.violation.invariant, &failure.violation.message);
    format!("seed {} breaks {invariant}: {message}\n  {}", outcome.seed, outcome.replay_command())
}

/// Shrinks a failing seed, writes its event log and says how to step through it. `false`: it does not fail.
fn explain(command: &Command, seed: u64) -> bool {
    let Some(shrunk) = shrink(seed, &command.options) else { return false };
    let (before, after) = (shrunk.parts_before, shrunk.only.len());
    println!("\nseed {seed} needs {after} of its {before} parts ({} runs):", shrunk.runs);
    for (name, words) in &shrunk.descriptions {
        println!("  {name}: {words}");
    }
    let options = Options { only: Some(shrunk.only), record: true, ..command.options.clone() };
    let outcome = run(seed, &options);
    println!("{outcome}");
    let file = command.logs.join(format!("{}-{seed}.jsonl", options.profile.word()));
    match record::write(&file, &outcome.record) {
        Ok(()) => println!("step through it with: cargo run -p sim -- step {}", file.display()),
        Err(error) => println!("the event log could not be written to {}: {error}", file.display()),
    }
    true
}

fn mutants(seeds: &Range<u64>) -> ExitCode {
    let mut all_caught = true;
    println!("| mistake | where | seeds until noticed | caught of {} | broke |", seeds.clone().count());
    println!("| --- | --- | --- | --- | --- |");
    for (mutant, profile) in Mutant::all() {
        let failures: Vec<_> = seeds
            .clone()
            .filter_map(|seed| {
                let outcome = run(seed, &Options { profile, mutant, ..Options::default() });
                outcome.failure.map(|failure| (seed, failure.violation.invariant))
            })
            .collect();
        let first = failures.first().map(|(seed, _)| (seed - seeds.start + 1).to_string());
        let mut broke: Vec<_> = failures.iter().map(|(_, invariant)| *invariant).collect();
        broke.sort_unstable();
        broke.dedup();
        all_caught &= !failures.is_empty();
        let place = if Mutant::DECISIONS.contains(&mutant) { "decisions" } else { "driver" };
        let first = first.unwrap_or_else(|| "not noticed".into());
        println!(
            "| {mutant:?} | {place} ({}) | {first} | {} | {} |",
            profile.word(),
            failures.len(),
            broke.join(", ")
        );
    }
    verdict(all_caught)
}
