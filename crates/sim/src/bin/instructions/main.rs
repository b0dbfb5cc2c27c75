//! How many instructions the hot decisions take, counted by valgrind's callgrind and held against a baseline.
//!
//! ```text
//!   parent: for each case and number of pods ── valgrind ── this program again ── Node::with(pods) ── measured(..)
//!             └── callgrind's total ──> count ──> baseline.txt: more than the tolerance above it fails
//! ```
//!
//! Counts don't depend on how busy the machine is. Only what runs inside [`measured`] counts. `hack/bench instructions`
//! runs it; `--update` writes a new baseline.

mod node;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};

use node::{Case, Node};

/// Numbers of pods on the node.
const SIZES: [usize; 3] = [1, 50, 1000];
/// Tells the child how many pods to make, and which of the cases counts.
const PODS: &str = "RUBELET_COUNTED_PODS";
const CASE: &str = "RUBELET_COUNTED_CASE";
/// In percent of the baseline. Another libc or a compiler of the same version on another machine moves less than that.
const TOLERANCE: f64 = 10.0;

type Counts = BTreeMap<String, u64>;

fn main() -> ExitCode {
    if let Ok(pods) = std::env::var(PODS) {
        let case = std::env::var(CASE).expect("the number of a case");
        run_cases(pods.parse().expect("a number of pods"), case.parse().expect("the number of a case"));
        return ExitCode::SUCCESS;
    }
    let update = std::env::args().any(|word| word == "--update");
    let mut counts = Counts::new();
    for pods in SIZES {
        for (index, case) in Case::ALL.into_iter().enumerate() {
            counts.insert(key(case, pods), count(pods, index));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/baseline.txt");
    if update {
        std::fs::write(&path, render(&counts)).expect("write the baseline");
        print!("{}", render(&counts));
        return ExitCode::SUCCESS;
    }
    let baseline = parse(&std::fs::read_to_string(&path).unwrap_or_default());
    if compare(&counts, &baseline) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What callgrind looks at. Its name is what `--toggle-collect` is told.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// The cases build on each other: all are run, and one is counted.
fn run_cases(pods: usize, counted: usize) {
    let mut node = Node::with(pods);
    for (index, case) in Case::ALL.into_iter().enumerate() {
        let event = node.prepare(case);
        let result = match index == counted {
            true => measured(|| node.run(event)),
            false => node.run(event),
        };
        // What comes out is dropped outside: the engine does that elsewhere.
        node.check(case, &result);
    }
}

fn count(pods: usize, case: usize) -> u64 {
    let dir = tempfile::tempdir().expect("a directory for callgrind's output");
    let out = dir.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*::measured*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("this program"))
        .env(PODS, pods.to_string())
        .env(CASE, case.to_string())
        // What a CPU can do decides which memcpy is taken: the same everywhere.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM")
        .output()
        .expect("run valgrind");
    assert!(output.status.success(), "valgrind: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&out).expect("callgrind's output");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals in the output");
    total.trim().parse().expect("a count")
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

/// Prints both and says whether nothing takes notably more than it did.
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
