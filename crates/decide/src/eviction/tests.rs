//! Which thresholds are due, which conditions hold, and when the next look is.

use model::eviction::MemoryFigures;
use model::k8s;
use model::node::ThresholdValue;

use super::*;

const MIB: u64 = 1 << 20;

fn at(secs: f64) -> Mono {
    Mono::from_duration(Duration::from_secs_f64(secs))
}

fn threshold(signal: EvictionSignal, value: &str, grace: u64, reclaim: Option<&str>) -> EvictionThreshold {
    let amount = |text: &str| ThresholdValue::Amount(k8s::Quantity(text.into()));
    EvictionThreshold {
        signal,
        value: amount(value),
        grace: Duration::from_secs(grace),
        minimum_reclaim: reclaim.map(amount),
    }
}

struct Bench {
    config: EvictionConfig,
    state: NodeEviction,
}

impl Bench {
    fn new(thresholds: Vec<EvictionThreshold>) -> Self {
        let pressure_transition = Duration::from_secs(60);
        let config = EvictionConfig { thresholds, pressure_transition, ..EvictionConfig::default() };
        Self { config, state: NodeEviction::default() }
    }

    /// Of 1000 MiB. What is due, and the conditions that hold.
    fn memory(&mut self, secs: f64, available_mib: u64) -> (String, String) {
        self.memory_read(secs, secs, available_mib)
    }

    fn memory_read(&mut self, began: f64, secs: f64, available_mib: u64) -> (String, String) {
        let working_set = (1000 - available_mib) * MIB;
        let node = MemoryFigures {
            limit_bytes: 1000 * MIB,
            usage_bytes: working_set,
            working_set_bytes: working_set,
        };
        self.state.request(FigureGroup::Memory, at(began));
        let figures = NodeFigures::Memory { node, pods: None };
        assert_eq!(self.state.figures_read(FigureGroup::Memory, at(began), Ok(figures)), None);
        self.look(secs)
    }

    fn look(&mut self, secs: f64) -> (String, String) {
        let due = self.state.assess(&self.config, at(secs));
        let due: Vec<String> = due
            .iter()
            .map(|due| {
                let kind = if due.threshold.is_hard() { "hard" } else { "soft" };
                format!("{kind} {}", due.threshold.signal.as_str())
            })
            .collect();
        (due.join(", "), self.state.pressure().conditions().join(","))
    }
}

fn memory_hard() -> EvictionThreshold {
    threshold(EvictionSignal::MemoryAvailable, "100Mi", 0, None)
}

#[track_caller]
fn check(found: (String, String), due: &str, conditions: &str) {
    assert_eq!((found.0.as_str(), found.1.as_str()), (due, conditions));
}

#[test]
fn a_hard_threshold_is_due_at_once_and_its_condition_stays_for_a_time() {
    let mut bench = Bench::new(vec![memory_hard()]);
    check(bench.memory(1.0, 101), "", "");
    // Strictly less.
    check(bench.memory(2.0, 100), "", "");
    check(bench.memory(3.0, 99), "hard memory.available", "MemoryPressure");
    check(bench.memory(4.0, 100), "", "MemoryPressure");
    check(bench.look(62.9), "", "MemoryPressure");
    assert_eq!(bench.state.next_change(&bench.config, at(62.9)), Some(at(63.0)));
    check(bench.look(63.0), "", "");
    assert_eq!(bench.state.next_change(&bench.config, at(63.0)), None);
}

#[test]
fn a_condition_does_not_flap() {
    let mut bench = Bench::new(vec![memory_hard()]);
    for round in 0..10 {
        let secs = f64::from(round) * 40.0;
        bench.memory(secs + 1.0, 50);
        check(bench.memory(secs + 2.0, 500), "", "MemoryPressure");
        check(bench.look(secs + 40.0), "", "MemoryPressure");
    }
}

#[test]
fn a_soft_threshold_has_its_condition_before_its_grace_is_over() {
    let mut bench = Bench::new(vec![threshold(EvictionSignal::MemoryAvailable, "200Mi", 30, None)]);
    check(bench.memory(1.0, 150), "", "MemoryPressure");
    assert_eq!(bench.state.next_change(&bench.config, at(1.0)), Some(at(31.0)));
    check(bench.memory(30.0, 150), "", "MemoryPressure");
    check(bench.look(31.0), "soft memory.available", "MemoryPressure");
    check(bench.memory(32.0, 250), "", "MemoryPressure");
    // Its grace begins anew.
    check(bench.memory(33.0, 150), "", "MemoryPressure");
    check(bench.memory(62.0, 150), "", "MemoryPressure");
    check(bench.memory(63.0, 150), "soft memory.available", "MemoryPressure");
}

#[test]
fn what_was_short_must_come_back_with_the_minimum_on_top() {
    let reclaim = threshold(EvictionSignal::MemoryAvailable, "100Mi", 0, Some("50Mi"));
    let mut bench = Bench::new(vec![reclaim]);
    check(bench.memory(1.0, 120), "", "");
    check(bench.memory(2.0, 99), "hard memory.available", "MemoryPressure");
    check(bench.memory(3.0, 149), "hard memory.available", "MemoryPressure");
    check(bench.memory(4.0, 150), "", "MemoryPressure");
    check(bench.memory(5.0, 120), "", "MemoryPressure");
}

#[test]
fn only_figures_that_began_after_the_last_deed_count() {
    let mut bench = Bench::new(vec![memory_hard()]);
    bench.memory(1.0, 50);
    let next = |bench: &mut Bench, secs: f64| {
        let due = bench.state.assess(&bench.config, at(secs));
        bench.state.actionable(&due, at(secs)).is_some()
    };
    assert!(next(&mut bench, 1.0));
    bench.state.activity =
        Activity::Evicting { pod: "a".into(), signal: EvictionSignal::MemoryAvailable, late: false };
    bench.memory(2.0, 50);
    assert!(!next(&mut bench, 2.0), "one pod at a time");
    bench.state.done(None, at(3.0));
    bench.memory_read(2.9, 3.1, 50);
    assert!(!next(&mut bench, 3.1), "read before the last pod had ended");
    bench.memory_read(3.1, 3.2, 50);
    assert!(next(&mut bench, 3.2));
    bench.state.give_up_for_now(at(4.0));
    bench.memory(5.0, 50);
    assert!(!next(&mut bench, 5.0), "nothing could be done");
    assert_eq!(bench.state.next_change(&bench.config, at(5.0)), Some(at(14.0)));
    assert!(next(&mut bench, 14.0));
}

#[test]
fn figures_that_can_no_longer_be_read_end_no_pod() {
    let mut bench = Bench::new(vec![memory_hard()]);
    bench.memory(1.0, 50);
    let next = |bench: &mut Bench, secs: f64| {
        let due = bench.state.assess(&bench.config, at(secs));
        assert_eq!(due.len(), 1, "the last figures are short");
        bench.state.actionable(&due, at(secs)).is_some()
    };
    assert!(next(&mut bench, 1.0));
    bench.state.request(FigureGroup::Memory, at(2.0));
    assert!(bench.state.figures_read(FigureGroup::Memory, at(2.0), Err("gone".into())).is_some());
    assert!(!next(&mut bench, 60.0));
    bench.memory(61.0, 50);
    assert!(next(&mut bench, 61.0));
}

#[test]
fn what_was_removed_counts_for_its_signal_only() {
    let mut bench =
        Bench::new(vec![memory_hard(), threshold(EvictionSignal::NodefsAvailable, "100", 0, None)]);
    bench.memory(1.0, 50);
    bench.state.done(Some(EvictionSignal::MemoryAvailable), at(1.0));
    assert!(bench.state.reclaimed.contains(&EvictionSignal::MemoryAvailable));
    assert!(!bench.state.reclaimed.contains(&EvictionSignal::NodefsAvailable));
    bench.state.give_up_for_now(at(2.0));
    assert!(bench.state.reclaimed.is_empty(), "the next attempt removes again");
}

#[test]
fn memory_goes_first() {
    let thresholds = vec![
        threshold(EvictionSignal::PidAvailable, "100", 0, None),
        threshold(EvictionSignal::NodefsAvailable, "100", 0, None),
        memory_hard(),
    ];
    let mut bench = Bench::new(thresholds);
    let processes = NodeFigures::Processes { most: 150, running: 100 };
    let disk = DiskFigures { device: 1, available_bytes: 5, capacity_bytes: 500, inodes_free: 0, inodes: 0 };
    bench.state.figures_read(FigureGroup::Processes, at(1.0), Ok(processes));
    bench.state.figures_read(FigureGroup::NodeFilesystem, at(1.0), Ok(NodeFigures::NodeFilesystem(disk)));
    let (due, conditions) = bench.memory(1.0, 50);
    // Containers write to the filesystem of the node here.
    let all = "hard memory.available, hard nodefs.available, hard containerfs.available, hard pid.available";
    assert_eq!((due.as_str(), conditions.as_str()), (all, "MemoryPressure,DiskPressure,PIDPressure"));
}

#[test]
fn a_signal_without_figures_is_left_out() {
    let mut bench = Bench::new(vec![memory_hard()]);
    let failed =
        |bench: &mut Bench| bench.state.figures_read(FigureGroup::Memory, at(1.0), Err("no file".into()));
    assert!(failed(&mut bench).is_some_and(|message| message.contains("no file")));
    assert_eq!(failed(&mut bench), None, "told once");
    check(bench.look(1.0), "", "");
    assert_eq!(bench.state.next_reading(&bench.config, FigureGroup::Memory, at(1.0)), at(11.0));
    // An answer to another question.
    let processes = NodeFigures::Processes { most: 1, running: 1 };
    assert_eq!(bench.state.figures_read(FigureGroup::Memory, at(2.0), Ok(processes)), None);
    check(bench.look(2.0), "", "");
}

#[test]
fn the_next_reading_follows_the_rate() {
    let mut bench = Bench::new(vec![memory_hard()]);
    let next = |bench: &Bench, secs| {
        bench.state.next_reading(&bench.config, FigureGroup::Memory, at(secs)).since(at(secs)).as_millis()
    };
    bench.memory(1.0, 612);
    assert_eq!(next(&bench, 1.0), 500, "512 MiB could go at 1 GiB/s");
    bench.memory(1.1, 312);
    assert_eq!(next(&bench, 1.1), 100, "212 MiB go at 3000 MiB/s");
    bench.memory(2.0, 90);
    assert_eq!(next(&bench, 2.0), 1000, "met");
    // Wanted while it was being read.
    assert!(bench.state.request(FigureGroup::Memory, at(3.0)));
    assert!(!bench.state.request(FigureGroup::Memory, at(3.1)));
    assert_eq!(next(&bench, 3.2), 0);
}

#[test]
fn notices_are_asked_for_when_the_level_has_moved() {
    let mut bench = Bench::new(vec![memory_hard()]);
    let asked = |bench: &mut Bench| {
        bench.state.notices_to_request(&bench.config).and_then(|levels| levels.node_usage_bytes)
    };
    assert_eq!(asked(&mut bench), None, "nothing is known");
    bench.memory(1.0, 500);
    assert_eq!(asked(&mut bench), Some(900 * MIB));
    bench.memory(2.0, 400);
    assert_eq!(asked(&mut bench), None, "the same level");
    assert_eq!(bench.state.noticed(FigureGroup::Memory, at(2.05)), at(2.1), "no sooner than that");
    assert_eq!(asked(&mut bench), Some(900 * MIB), "the notice was spent");
    bench.memory(3.0, 50);
    assert_eq!(asked(&mut bench), None, "met already");
}
