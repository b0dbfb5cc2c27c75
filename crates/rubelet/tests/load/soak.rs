//! A soak: pods of every kind come and go, turn after turn, and after each turn the machine is as it was before. About
//! a minute; `hack/soak --minutes N` runs the same for longer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::harness::{Node, cgroups_below, mounts_below, wait};
use crate::support::kinds::{
    DuplicateWatcher, KINDS, Kind, LONG, RunLog, assert_sound, impatient, wait_no_trace, wait_settled,
};
use crate::support::runtime_view::RuntimeView;

/// Turns that are always made: the first warms up.
const TURNS: usize = 3;
const PER_TURN: usize = 2;
/// A soak of any length may grow by this since it warmed up. A leak of some hundred bytes per pod shows in an hour.
const GROWTH: u64 = 16 << 20;
/// The pool for blocking calls has as many threads as were busy in the last seconds.
const THREADS: u64 = 8;
/// Connections that are being closed.
const DESCRIPTORS: u64 = 4;

/// How long the soak goes on.
fn duration() -> Duration {
    let minutes = std::env::var("RUBELET_SOAK_MINUTES").ok().and_then(|text| text.parse::<f64>().ok());
    Duration::from_secs_f64(minutes.unwrap_or(0.75).max(0.0) * 60.0)
}

/// What the agent and its node hold when no pod is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    descriptors: u64,
    threads: u64,
    /// Memory that is nobody's file.
    memory: u64,
    /// All of it, with the pages of the program itself. Only shown: the kernel drops and reads those as it likes.
    resident: u64,
    files: usize,
    mounts: usize,
    cgroups: usize,
}

impl Held {
    fn of(node: &Node) -> Held {
        let process = Path::new("/proc").join(node.agent.pid().expect("the agent's pid").to_string());
        let status = fs::read_to_string(process.join("status")).expect("the agent's status");
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim_start_matches(':').split_whitespace().next().and_then(|word| word.parse().ok())
        };
        let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().count();
        Held {
            descriptors: entries(&process.join("fd")) as u64,
            threads: number("Threads").expect("a count of threads"),
            memory: number("RssAnon").expect("a size of memory") * 1024,
            resident: number("VmRSS").expect("a size of memory") * 1024,
            files: files_below(&node.agent.root_dir()) + files_below(&node.agent.logs_dir()),
            mounts: mounts_below(&node.runtime.dir).len(),
            cgroups: cgroups_below(&node.runtime.cgroup_root).len(),
        }
    }

    /// The first lines of the table that a long soak leaves for docs/performance.md.
    const HEADER: &'static str = "| minutes | pods so far | anonymous MiB | resident MiB | descriptors | threads | files | mounts | cgroups |\n\
                                  | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

    fn row(&self, elapsed: Duration, pods: usize) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "| {:.1} | {pods} | {:.1} | {:.1} | {} | {} | {} | {} | {} |",
            elapsed.as_secs_f64() / 60.0,
            mib(self.memory),
            mib(self.resident),
            self.descriptors,
            self.threads,
            self.files,
            self.mounts,
            self.cgroups
        )
    }

    /// No more than it was, but for what may vary.
    fn within(&self, before: &Held) -> Result<(), String> {
        let fits = self.descriptors <= before.descriptors + DESCRIPTORS
            && self.threads <= before.threads + THREADS
            && self.memory <= before.memory + GROWTH
            && self.files <= before.files
            && self.mounts <= before.mounts
            && self.cgroups <= before.cgroups;
        if fits { Ok(()) } else { Err(format!("{self:?}\n  and it was {before:?}")) }
    }
}

fn files_below(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => 1 + files_below(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}

#[test]
fn after_any_number_of_pods_the_machine_is_as_before() {
    let start = Instant::now();
    let mut node = Node::start_with(impatient);
    let seen = RuntimeView::new(&node.runtime);
    let diary = RunLog::new(&node);
    let twins = DuplicateWatcher::watch(&node.runtime);
    let mut warm = None;
    let mut turn = 0;
    println!("{}", Held::HEADER);
    while turn < TURNS || start.elapsed() < duration() {
        turn_of_pods(&node, &seen, &diary, turn);
        wait_no_trace(&node, |_| false);
        let held = Held::of(&node);
        println!("{}", held.row(start.elapsed(), (turn + 1) * PER_TURN * KINDS.len()));
        match &warm {
            None => warm = Some(held),
            Some(warm) => {
                wait("the agent to hold no more than before", LONG, || Held::of(&node).within(warm))
            }
        }
        turn += 1;
    }
    println!("{} pods came and went", turn * PER_TURN * KINDS.len());
    twins.assert_none();
    assert_sound(&mut node);
}

/// Pods come; a third of them goes before it is up, the others when they are what they have to be.
fn turn_of_pods(node: &Node, seen: &RuntimeView, diary: &RunLog, turn: usize) {
    let mut wanted: BTreeMap<String, Kind> = BTreeMap::new();
    for (index, kind) in KINDS.into_iter().cycle().take(KINDS.len() * PER_TURN).enumerate() {
        let number = turn * PER_TURN + index / KINDS.len();
        node.agent.write_manifest(&kind.name(number), &kind.manifest(number, diary));
        wanted.insert(kind.name(number), kind);
    }
    wait("the first of them in the runtime", LONG, || match seen.pods()?.len() {
        0 => Err("none yet".to_owned()),
        _ => Ok(()),
    });
    let hasty: Vec<String> = wanted.keys().step_by(3).cloned().collect();
    for name in &hasty {
        node.agent.remove_manifest(name);
        wanted.remove(name);
    }
    wait_settled(node, seen, &wanted);
    for name in wanted.keys() {
        node.agent.remove_manifest(name);
    }
}
