//! Rubelet beside the upstream kubelet: the same containerd, configuration and pods, one after the other, observed from
//! outside. `hack/bench kubelets` runs it; docs/performance.md holds what came out.
//!
//! ```text
//!   parent ─┬─ child "reference": the CRI calls alone, without any kubelet: the runtime's own time
//!           ├─ child "rubelet"  ─┬─ standalone: marks of containers, the runtime's lists, /proc
//!           ├─ child "upstream" ─┘  and with an API server: a watch, the audit log
//!           └─ table: figures, ratios, targets
//! ```
//!
//! Each side is a process of its own, with a containerd of its own that has seen nothing else.

// Real processes live in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../figures/mod.rs"]
mod figures;
#[path = "../../tests/support/mod.rs"]
mod support;

mod alone;
mod api;
mod marks;
mod reference;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

// Times in seconds, memory in MiB, CPU in thousandths of a core or seconds.
use figures::{Figures, OUT, SIDE, number, run_side};

/// What is measured, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Pods that come, restart and go one at a time.
    pub single: usize,
    /// Pods that come at once.
    pub burst: usize,
    /// Seconds over which CPU at rest is measured.
    pub rest: usize,
}

fn main() -> ExitCode {
    let sizes = Sizes {
        single: number("RUBELET_BENCH_SINGLE", 10).max(1),
        burst: number("RUBELET_BENCH_BURST", 100).max(2),
        rest: number("RUBELET_BENCH_REST", 20).max(1),
    };
    match std::env::var(SIDE) {
        Ok(side) => {
            measure(&side, sizes);
            ExitCode::SUCCESS
        }
        Err(_) => compare(sizes),
    }
}

fn compare(sizes: Sizes) -> ExitCode {
    let upstream =
        std::env::var_os("RUBELET_BENCH_UPSTREAM").expect("RUBELET_BENCH_UPSTREAM: the kubelet's path");
    let rubelet = figures::rubelet();
    println!("machine: {}", figures::machine());
    println!("rubelet: {}, {}", version(&rubelet), rubelet.display());
    println!("upstream: {}", version(Path::new(&upstream)));
    println!("containerd: {}; {sizes:?}", std::env::var("RUBELET_TEST_CONTAINERD").unwrap_or("1.6".into()));
    let mut sides = BTreeMap::new();
    let mut complete = true;
    for (side, binary) in
        [("reference", rubelet.clone()), ("rubelet", rubelet), ("upstream", PathBuf::from(upstream))]
    {
        let began = std::time::Instant::now();
        let (figures, good) = run_side(side, &binary);
        eprintln!("{side}: {} figures in {:.0} s", figures.len(), began.elapsed().as_secs_f64());
        complete &= good;
        sides.insert(side, figures);
    }
    print!("{}", table::render(&sides["reference"], &sides["rubelet"], &sides["upstream"], sizes));
    if complete {
        return ExitCode::SUCCESS;
    }
    eprintln!("a side did not come to its end (see above): its figures are missing");
    ExitCode::FAILURE
}

fn measure(side: &str, sizes: Sizes) {
    let mut figures = Figures::new();
    match side {
        "reference" => reference::measure(sizes, &mut Out(&mut figures)),
        _ => {
            let binary = std::env::var_os("RUBELET_E2E_BINARY").expect("the agent's path");
            let size = std::fs::metadata(binary).expect("the agent").len();
            figures.insert("binary".into(), size as f64 / 1024.0 / 1024.0);
            alone::measure(sizes, &mut Out(&mut figures));
            api::measure(sizes, &mut Out(&mut figures));
        }
    }
}

/// Where a side writes its figures: kept on disk after each, so that a failure loses only what comes after it.
pub struct Out<'a>(&'a mut Figures);

impl Out<'_> {
    pub fn put(&mut self, name: &str, value: f64) {
        eprintln!("  {name}: {value:.4}");
        self.0.insert(name.to_owned(), value);
        let path = std::env::var_os(OUT).expect("where to write figures");
        std::fs::write(path, serde_json::to_string(self.0).expect("figures")).expect("write the figures");
    }

    /// The quantiles of samples, as `<name> p50` and so on.
    pub fn put_samples(&mut self, name: &str, samples: &figures::Samples) {
        for (label, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            self.put(&format!("{name} {label}"), samples.quantile(share));
        }
    }
}

fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output().expect("ask for the version");
    String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", ")
}
