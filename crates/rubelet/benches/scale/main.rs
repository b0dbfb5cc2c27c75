//! A kubelet against the number of its pods, on a simulated runtime behind a real CRI socket (`crates/fakecri`): CPU and
//! memory at rest, latencies, and what one event costs. `hack/bench scale` runs it; docs/performance.md holds what came
//! out, and docs/scale.svg shows it.
//!
//! Runtime calls take no time here, and there are no processes: what is left is the kubelet's own.

// Real processes live in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../figures/mod.rs"]
mod figures;
mod plot;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use figures::{CpuClock, Samples, between, number, soon};
use plot::{Panel, Series};
use subject::Subject;

/// What a start, or a load, leaves to do is over then.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two events of the load: far apart enough that they don't come together.
const BETWEEN_EVENTS: Duration = Duration::from_millis(20);
const EVENTS: usize = 100;
const COMERS: usize = 10;
const SOON: Duration = Duration::from_secs(120);

/// What was seen of one kubelet with so many pods. Times in seconds, memory in MiB.
#[derive(Clone, Debug)]
struct Seen {
    pods: usize,
    /// From the start of the process until all run.
    all_running: f64,
    rest_millicores: f64,
    resident: f64,
    anonymous: f64,
    created: Samples,
    restarted: Samples,
    /// CPU of one exit with its restart, beyond what it uses at rest.
    event_cpu: f64,
}

fn main() -> ExitCode {
    let rest = Duration::from_secs(number("RUBELET_BENCH_REST", 10) as u64);
    let patience = Duration::from_secs(number("RUBELET_BENCH_PATIENCE", 120) as u64);
    let sizes = std::env::var("RUBELET_BENCH_PODS").unwrap_or("50 500 1000 5000".into());
    let sizes: Vec<usize> = sizes.split_whitespace().map(|n| n.parse().expect("numbers of pods")).collect();
    println!("machine: {}", figures::machine());
    let mut sides = vec![("rubelet", figures::rubelet())];
    sides.extend(std::env::var_os("RUBELET_BENCH_UPSTREAM").map(|path| ("upstream", PathBuf::from(path))));
    println!(
        "\n| kubelet | pods | all running after | CPU at rest | resident | anonymous | created to started, p50 | p99 \
         | exit to restarted, p50 | p99 | CPU of one exit |"
    );
    println!("|{}", " --- |".repeat(11));
    let mut all: Vec<(&str, Vec<Seen>)> = Vec::new();
    for (name, binary) in &sides {
        let mut seen = Vec::new();
        for &pods in &sizes {
            match look(binary, pods, rest, patience) {
                Ok(one) => {
                    print_row(name, &one);
                    seen.push(one);
                }
                Err(why) => println!("| {name} | {pods} | {why} |{}", " - |".repeat(8)),
            }
        }
        all.push((*name, seen));
    }
    if let Some(path) = std::env::var_os("RUBELET_BENCH_SVG") {
        std::fs::write(&path, plot::draw(&panels(&all))).expect("write the plot");
        println!("\nplot: {}", Path::new(&path).display());
    }
    verdict(&all)
}

fn look(binary: &Path, pods: usize, rest: Duration, patience: Duration) -> Result<Seen, String> {
    let mut subject = Subject::prepare(binary, pods + COMERS + 10);
    for number in 0..pods {
        subject.write_manifest(&format!("pod-{number}"));
    }
    let begun = Instant::now();
    subject.launch();
    while subject.runtime.running() < pods {
        if begun.elapsed() > patience {
            let running = subject.runtime.running();
            return Err(format!("{running} run after {} s: given up", patience.as_secs()));
        }
        sleep(Duration::from_millis(20));
    }
    let all_running = begun.elapsed().as_secs_f64();
    sleep(SETTLE);
    let clock = CpuClock::start(subject.pid());
    sleep(rest);
    let at_rest = clock.read();
    let memory = figures::memory(subject.pid());
    let created = create(&subject);
    sleep(SETTLE);
    let (restarted, event_cpu) = exits(&subject, pods, at_rest.millicores() / 1000.0);
    Ok(Seen {
        pods,
        all_running,
        rest_millicores: at_rest.millicores(),
        resident: memory.resident,
        anonymous: memory.anonymous,
        created,
        restarted,
        event_cpu,
    })
}

/// Pods that come one at a time to those that are there.
fn create(subject: &Subject) -> Samples {
    let mut samples = Samples::default();
    for number in 0..COMERS {
        let name = format!("comer-{number}");
        let begun = std::time::SystemTime::now();
        subject.write_manifest(&name);
        let started = soon("a pod to start", SOON, || subject.starts(&name).first().copied());
        samples.add(between(begun, started));
    }
    samples
}

/// Containers of different pods end one after the other, and each is to be started again.
fn exits(subject: &Subject, pods: usize, rest_rate: f64) -> (Samples, f64) {
    let events = EVENTS.min(pods);
    let names: Vec<String> = (0..events).map(|number| format!("pod-{}", number * pods / events)).collect();
    let clock = CpuClock::start(subject.pid());
    let ended: Vec<_> = names
        .iter()
        .map(|name| {
            sleep(BETWEEN_EVENTS);
            subject.exit(name).unwrap_or_else(|| panic!("{name} does not run"))
        })
        .collect();
    let mut samples = Samples::default();
    for (name, ended) in names.iter().zip(ended) {
        let again = soon("a container to be started again", SOON, || subject.starts(name).get(1).copied());
        samples.add(between(ended, again));
    }
    // What follows the restart belongs to the event as well.
    sleep(Duration::from_secs(2));
    let used = clock.read();
    (samples, (used.seconds - rest_rate * used.over).max(0.0) / events as f64)
}

fn print_row(name: &str, seen: &Seen) {
    let ms = |samples: &Samples, share: f64| format!("{:.1} ms", samples.quantile(share) * 1000.0);
    println!(
        "| {name} | {} | {:.1} s | {:.2} % | {:.1} MiB | {:.1} MiB | {} | {} | {} | {} | {:.2} ms |",
        seen.pods,
        seen.all_running,
        seen.rest_millicores / 10.0,
        seen.resident,
        seen.anonymous,
        ms(&seen.created, 0.5),
        ms(&seen.created, 0.99),
        ms(&seen.restarted, 0.5),
        ms(&seen.restarted, 0.99),
        seen.event_cpu * 1000.0,
    );
}

fn panels(all: &[(&str, Vec<Seen>)]) -> Vec<Panel> {
    let panel = |title: &str, unit: &'static str, of: &dyn Fn(&Seen) -> f64| Panel {
        title: title.to_owned(),
        unit,
        series: all
            .iter()
            .map(|(name, seen)| Series {
                name: (*name).to_owned(),
                points: seen.iter().map(|one| (one.pods as f64, of(one))).collect(),
            })
            .collect(),
    };
    vec![
        panel("CPU at rest", "% of a core", &|seen| seen.rest_millicores / 10.0),
        panel("resident memory", "MiB", &|seen| seen.resident),
        panel("exit to restarted, median", "ms", &|seen| seen.restarted.quantile(0.5) * 1000.0),
        panel("CPU of one exit", "ms", &|seen| seen.event_cpu * 1000.0),
    ]
}

/// The cost of one event with the most pods, against the cost with the fewest.
fn verdict(all: &[(&str, Vec<Seen>)]) -> ExitCode {
    let Some((few, many)) = all.first().and_then(|(_, seen)| Some((seen.first()?, seen.last()?))) else {
        eprintln!("rubelet did not come up with any number of pods");
        return ExitCode::FAILURE;
    };
    let ratio = many.event_cpu / few.event_cpu.max(1e-9);
    let verdict = if ratio <= 2.0 { "hit" } else { "MISSED" };
    println!(
        "\ntarget: CPU of one event at {} pods is {ratio:.2} times that at {} (at most 2): {verdict}",
        many.pods, few.pods
    );
    ExitCode::SUCCESS
}
