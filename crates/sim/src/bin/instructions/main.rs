//! How many instructions the hot decisions take, counted by valgrind's callgrind and held against a baseline.
//!
//! ```text
//!   parent: for each number of pods ── valgrind ── this program again ── Node::with(pods) ── each case: measured(..)
//!             └── callgrind's dump of each ──> count ──> baseline.txt: more than the tolerance above it fails
//! ```
//!
//! Counts don't depend on how busy the machine is. Only what runs inside [`measured`] counts. `hack/bench instructions`
//! runs it; `--update` writes a new baseline. It stands beside the simulator, whose build it shares.

mod node;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use node::{Case, Node};

/// Numbers of pods on the node.
const SIZES: [usize; 4] = [1, 50, 1000, 5000];
/// Tells the child how many pods to make.
const PODS: &str = "RUBELET_COUNTED_PODS";
/// In percent of the baseline. Another libc or a compiler of the same version on another machine moves less than that.
const TOLERANCE: f64 = 10.0;
/// What one event may cost at the most pods, over what it costs at fifty. A complete reading is of all of them.
const GROWTH: f64 = 2.0;
const FEW: usize = 50;
const MANY: usize = 5000;

type Counts = BTreeMap<String, u64>;

fn main() -> ExitCode {
    if let Ok(pods) = std::env::var(PODS) {
        run_cases(pods.parse().expect("a number of pods"));
        return ExitCode::SUCCESS;
    }
    let told = |flag: &str| std::env::args().any(|word| word == flag);
    let (update, growth_only) = (told("--update"), told("--growth"));
    let mut counts = Counts::new();
    for pods in SIZES {
        let counted = count(pods);
        counts.extend(Case::ALL.into_iter().zip(counted).map(|(case, count)| (key(case, pods), count)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/instructions/baseline.txt");
    if update {
        std::fs::write(&path, render(&counts)).expect("write the baseline");
    }
    let baseline = parse(&std::fs::read_to_string(&path).unwrap_or_default());
    let good = compare(&counts, &baseline);
    if grows_little(&counts) && (good || growth_only) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The function that callgrind counts. `--toggle-collect` gets its name.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Each case continues from the one before.
fn run_cases(pods: usize) {
    let mut node = Node::with(pods);
    for case in Case::ALL {
        let event = node.prepare(case);
        let result = measured(|| node.run(event));
        // The result is dropped outside, as in the engine. Here callgrind writes what it has counted.
        node.check(case, &result);
    }
}

/// The instructions of each case.
fn count(pods: usize) -> Vec<u64> {
    let program = std::env::current_exe().expect("this program");
    let out = program.with_file_name(format!("callgrind.out.{}", std::process::id()));
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--toggle-collect=instructions::measured*",
            "--dump-before=instructions::node::Node::check*",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .env(PODS, pods.to_string())
        // What a CPU can do decides which memcpy is taken: the same everywhere.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM")
        .output()
        .expect("run valgrind");
    assert!(output.status.success(), "valgrind: {}", String::from_utf8_lossy(&output.stderr));
    let dump = |number: usize| PathBuf::from(format!("{}.{number}", out.display()));
    let counts = (1..=Case::ALL.len()).map(|number| total(&dump(number))).collect();
    // The last one holds what came after all cases.
    for file in (1..=Case::ALL.len() + 1).map(dump).chain([out.clone()]) {
        let _ = std::fs::remove_file(file);
    }
    counts
}

fn total(dump: &Path) -> u64 {
    let text = std::fs::read_to_string(dump);
    let text = text.unwrap_or_else(|error| panic!("callgrind's output {}: {error}", dump.display()));
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals in the output");
    total.trim().parse().expect("a count")
}

/// Whether the cost of an event about one pod grows little with the number of other pods.
fn grows_little(counts: &Counts) -> bool {
    let mut good = true;
    for case in Case::ALL.into_iter().filter(|case| !case.is_of_all()) {
        let of = |pods| counts.get(&key(case, pods)).map_or(0.0, |count| *count as f64);
        let growth = of(MANY) / of(FEW);
        let verdict = if growth <= GROWTH { "" } else { ": GROWS TOO MUCH" };
        good &= growth <= GROWTH;
        println!("{growth:>9.2}x  {} at {MANY} pods, of that at {FEW}{verdict}", case.name());
    }
    good
}

fn key(case: Case, pods: usize) -> String {
    format!("{} at {pods:>4} pods", case.name())
}

fn render(counts: &Counts) -> String {
    counts.iter().map(|(key, count)| format!("{count:>10}  {key}\n")).collect()
}

fn parse(text: &str) -> Counts {
    let line = |line: &str| {
        let (count, key) = line.trim().split_once("  ")?;
        Some((key.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Prints both, and returns whether nothing costs notably more than before.
fn compare(counts: &Counts, baseline: &Counts) -> bool {
    let mut good = true;
    for (key, count) in counts {
        let verdict = match baseline.get(key) {
            None => {
                good = false;
                "not in the baseline: hack/bench instructions --update".to_owned()
            }
            Some(known) => {
                let change = (*count as f64 / *known as f64 - 1.0) * 100.0;
                good &= change <= TOLERANCE;
                match change {
                    change if change > TOLERANCE => format!("{change:+.1} %: REGRESSION"),
                    change if change < -TOLERANCE => format!("{change:+.1} %: better; please --update"),
                    change => format!("{change:+.1} %"),
                }
            }
        };
        println!("{count:>10}  {key}  ({verdict})");
    }
    for key in baseline.keys().filter(|key| !counts.contains_key(*key)) {
        println!(
            "     gone  {key}  (in the baseline, but nothing counts it: hack/bench instructions --update)"
        );
        good = false;
    }
    good
}
