//! What the benchmarks share: figures of processes, of the machine, and of samples. Everything is seen from outside, in
//! `/proc`, so that it means the same for every program.

// Each benchmark is a program of its own and uses a part of this.
#![allow(dead_code)]
// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// A number from the environment, as the scripts in `hack/bench.d` hand options on.
pub fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
        Err(_) => default,
    }
}

/// By name, whatever a side measured.
pub type Figures = BTreeMap<String, f64>;

/// Which side a process measures. Without it, it is the parent of one process for each side.
pub const SIDE: &str = "RUBELET_BENCH_SIDE";
/// The file that a side writes its figures to.
pub const OUT: &str = "RUBELET_BENCH_OUT";

/// Runs this program again for one side. Also tells whether that came to its end: what it had measured when it failed
/// counts.
pub fn run_side(side: &str, binary: &Path) -> (Figures, bool) {
    let out = tempfile::NamedTempFile::new().expect("a file for the figures");
    let status = Command::new(std::env::current_exe().expect("this program"))
        .env(SIDE, side)
        .env(OUT, out.path())
        .env("RUBELET_E2E_BINARY", binary)
        .status()
        .expect("run a side");
    let text = fs::read_to_string(out.path()).expect("read the figures");
    (serde_json::from_str(&text).unwrap_or_default(), status.success())
}

/// The agent that is looked at: the one that ships, or the one built beside this program.
pub fn rubelet() -> PathBuf {
    std::env::var_os("RUBELET_BENCH_RUBELET").unwrap_or_else(|| env!("CARGO_BIN_EXE_rubelet").into()).into()
}

/// CPU time of a process by thread, in nanoseconds: finer than the hundredths of `/proc/<pid>/stat`.
pub struct CpuClock {
    pid: u32,
    began: Instant,
    threads: BTreeMap<String, u64>,
}

/// CPU seconds used, over so many seconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuUse {
    pub seconds: f64,
    pub over: f64,
}

impl CpuUse {
    /// Thousandths of one core.
    pub fn millicores(&self) -> f64 {
        self.seconds / self.over * 1000.0
    }
}

impl CpuClock {
    pub fn start(pid: u32) -> CpuClock {
        CpuClock { pid, began: Instant::now(), threads: threads(pid) }
    }

    /// Since the start. What threads used that are gone by now is not in it.
    pub fn read(&self) -> CpuUse {
        let since = |(thread, spent): (String, u64)| {
            spent.saturating_sub(self.threads.get(&thread).copied().unwrap_or(0))
        };
        let spent: u64 = threads(self.pid).into_iter().map(since).sum();
        CpuUse { seconds: spent as f64 / 1e9, over: self.began.elapsed().as_secs_f64() }
    }
}

fn threads(pid: u32) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.unwrap_or_else(|error| panic!("the process {pid} is gone: {error}"));
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((task.file_name().to_string_lossy().into_owned(), text.split(' ').next()?.parse().ok()?))
    };
    tasks.flatten().filter_map(spent).collect()
}

/// User and system time of a process with all its threads, those that are gone too, in hundredths of a second.
pub fn whole_cpu_seconds(pid: u32) -> f64 {
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process's figures");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("the name's end").1.split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / TICKS
}

/// In MiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: f64,
    /// The part that no file could give back.
    pub anonymous: f64,
}

pub fn memory(pid: u32) -> Memory {
    Memory { resident: status_mib(pid, "VmRSS:"), anonymous: status_mib(pid, "RssAnon:") }
}

/// The most that it ever had, in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    status_mib(pid, "VmHWM:")
}

fn status_mib(pid: u32, key: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process's figures");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}

pub fn thread_count(pid: u32) -> usize {
    threads(pid).len()
}

/// Times of the same thing, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    pub fn add(&mut self, seconds: f64) {
        self.0.push(seconds);
    }

    /// By the nearest rank; with few samples p99 is the longest.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        assert!(!sorted.is_empty(), "no samples");
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() as f64 * share).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }
}

/// When something was last written, by the machine's clock.
pub fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Seconds from one time to another; zero when the second is earlier by the grain of the clock.
pub fn between(from: SystemTime, to: SystemTime) -> f64 {
    to.duration_since(from).unwrap_or_default().as_secs_f64()
}

/// Polls closely until the probe gives something.
///
/// # Panics
/// At the deadline.
#[track_caller]
pub fn soon<T>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(began.elapsed() < deadline, "waited {deadline:?} for {what}");
        sleep(Duration::from_millis(2));
    }
}

/// The machine and the day, for the head of a report.
pub fn machine() -> String {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = text("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let memory = text("/proc/meminfo");
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    let gib = memory.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or_default() / 1024.0 / 1024.0;
    let date = Command::new("date").args(["-u", "+%F %H:%M UTC"]).output().expect("run date");
    format!(
        "{}, {cores} cores ({}), {gib:.0} GiB, Linux {}, load average {}",
        String::from_utf8_lossy(&date.stdout).trim(),
        model.trim_start_matches([' ', '\t', ':']),
        text("/proc/sys/kernel/osrelease").trim(),
        text("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
    )
}
