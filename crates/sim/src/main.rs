//! `sim run --seeds A..B [--profile calm|faults|stuck] [--steps N]` and `sim replay SEED [--profile …]`.

use std::process::ExitCode;

use sim::{Options, Profile, run};

const USAGE: &str = "usage:\n  sim run --seeds A..B [--profile calm|faults|stuck] [--steps N]\n  \
                     sim replay SEED [--profile calm|faults|stuck] [--steps N]";

struct Command {
    replay: Option<u64>,
    seeds: std::ops::Range<u64>,
    options: Options,
}

fn parse(words: &[String]) -> Option<Command> {
    let mut command = Command { replay: None, seeds: 0..100, options: Options::default() };
    let mut rest = match words.first()?.as_str() {
        "run" => &words[1..],
        "replay" => {
            command.replay = Some(words.get(1)?.parse().ok()?);
            command.options.print = true;
            &words[2..]
        }
        _ => return None,
    };
    while let [flag, value, more @ ..] = rest {
        match flag.as_str() {
            "--seeds" => {
                let (from, to) = value.split_once("..")?;
                command.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            "--profile" => command.options.profile = Profile::parse(value)?,
            "--steps" => command.options.steps = Some(value.parse().ok()?),
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
    if let Some(seed) = command.replay {
        let outcome = run(seed, &command.options);
        println!("{outcome}");
        return if outcome.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let mut bad = 0;
    let mut events = 0;
    for seed in command.seeds.clone() {
        let outcome = run(seed, &command.options);
        events += outcome.events;
        if outcome.failure.is_some() {
            bad += 1;
            println!("{outcome}\n");
        }
    }
    println!("{} seeds, {events} events, {bad} bad", command.seeds.count());
    if bad > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
