use super::*;

const LIMIT: u64 = 10_000_000;

/// Containers that write at a rate, and an adapter that answers at once.
struct Bench {
    logs: ContainerLogs,
    config: LogRotationConfig,
    now: Mono,
    calls: VecDeque<(ContainerId, LogCall)>,
    timers: BTreeMap<ContainerId, Mono>,
    /// Bytes per second since a time.
    rates: BTreeMap<ContainerId, (u64, Mono)>,
    largest: u64,
    rotated: u32,
    measured: u32,
    failures: Vec<String>,
}

impl Bench {
    fn new(workers: u32) -> Self {
        let config = LogRotationConfig { max_bytes: LIMIT, workers, ..LogRotationConfig::default() };
        Self {
            logs: ContainerLogs::default(),
            config,
            now: Mono(1),
            calls: VecDeque::new(),
            timers: BTreeMap::new(),
            rates: BTreeMap::new(),
            largest: 0,
            rotated: 0,
            measured: 0,
            failures: Vec::new(),
        }
    }

    fn run(&mut self, pod: &str, containers: &[(&str, u64)]) {
        let ids: Vec<ContainerId> = containers.iter().map(|(name, _)| ContainerId::from(*name)).collect();
        for (id, (_, rate)) in ids.iter().zip(containers) {
            self.rates.insert(id.clone(), (*rate, self.now));
        }
        let running = ids.iter().map(|id| (id, "/var/log/pods/p/c/0.log")).collect();
        let work = self.logs.set_running(&PodUid::from(pod), running);
        self.take(work);
    }

    fn take(&mut self, work: Vec<LogWork>) {
        for work in work {
            match work {
                LogWork::Call { id, call, .. } => self.calls.push_back((id, call)),
                LogWork::Timer { id, at: Some(at) } => drop(self.timers.insert(id, at)),
                LogWork::Timer { id, at: None } => drop(self.timers.remove(&id)),
                LogWork::Failed { message, .. } => self.failures.push(message),
            }
        }
    }

    fn size(&self, id: &ContainerId) -> u64 {
        let (rate, begun) = self.rates[id];
        (u128::from(rate) * self.now.since(begun).as_nanos() / 1_000_000_000) as u64
    }

    fn answer(&mut self, id: &ContainerId, result: LogCallResult) {
        let work = self.logs.call_ended(&self.config, self.now, id, result);
        self.take(work);
    }

    /// Answers all calls but those that wait, and goes on from timer to timer.
    fn go_on(&mut self, during: Duration) {
        let end = self.now.plus(during);
        let mut waiting: Vec<(ContainerId, u64)> = Vec::new();
        loop {
            while let Some((id, call)) = self.calls.pop_front() {
                let size = self.size(&id);
                self.largest = self.largest.max(size);
                match call {
                    LogCall::Measure => {
                        self.measured += 1;
                        self.answer(&id, LogCallResult::Measured(Ok(Some(size))));
                    }
                    LogCall::AwaitWrite { size } => waiting.push((id, size)),
                    LogCall::Rotate { .. } => {
                        self.rotated += 1;
                        self.rates.get_mut(&id).unwrap().1 = self.now;
                        self.answer(&id, LogCallResult::Rotated(Ok(())));
                    }
                    LogCall::Compress { .. } => self.answer(&id, LogCallResult::Compressed(Ok(()))),
                }
            }
            let writes = waiting.iter().filter(|(id, _)| self.rates[id].0 > 0);
            let write_at = writes.map(|_| self.now.plus(Duration::from_millis(1))).min();
            let next = self.timers.values().copied().chain(write_at).min().filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            let due: Vec<_> =
                self.timers.iter().filter(|(_, at)| **at <= self.now).map(|(id, _)| id.clone()).collect();
            for id in due {
                self.timers.remove(&id);
                let work = self.logs.timer_fired(&id);
                self.take(work);
            }
            for (id, size) in std::mem::take(&mut waiting) {
                match self.size(&id) == size {
                    true => waiting.push((id, size)),
                    false => self.answer(&id, LogCallResult::Written(Ok(()))),
                }
            }
        }
        self.now = end;
        self.calls.extend(waiting.into_iter().map(|(id, size)| (id, LogCall::AwaitWrite { size })));
    }
}

#[test]
fn a_silent_container_is_measured_once() {
    let mut bench = Bench::new(1);
    bench.run("p", &[("silent", 0)]);
    bench.go_on(Duration::from_secs(3600));
    assert_eq!((bench.measured, bench.rotated), (1, 0));
    assert_eq!(bench.calls, [("silent".into(), LogCall::AwaitWrite { size: 0 })]);
}

#[test]
fn a_log_is_rotated_soon_after_it_is_full_at_any_rate() {
    for (rate, most) in [(1_000, 11), (100_000, 11), (5_000_000, 13), (50_000_000, 20), (200_000_000, 40)] {
        let mut bench = Bench::new(1);
        bench.run("p", &[("c", rate)]);
        bench.go_on(Duration::from_secs(200));
        let full = rate * 200 / LIMIT;
        assert!(u64::from(bench.rotated) >= full / 5, "{rate}: rotated {} times", bench.rotated);
        assert!(bench.largest <= most * 1_000_000, "{rate}: {} bytes", bench.largest);
        assert!(bench.measured < 200 * 21, "{rate}: measured {} times", bench.measured);
    }
}

/// It wrote little for a long time, and then as fast as it can.
#[test]
fn a_burst_after_silence_is_noticed() {
    let mut bench = Bench::new(1);
    bench.run("p", &[("c", 0)]);
    bench.go_on(Duration::from_secs(100));
    bench.rates.insert("c".into(), (100_000_000, bench.now));
    bench.go_on(Duration::from_secs(10));
    assert!(bench.rotated > 30, "{}", bench.rotated);
    assert!(bench.largest <= 3 * LIMIT, "{}", bench.largest);
}

#[test]
fn what_ended_is_forgotten_and_its_late_answers_too() {
    let mut bench = Bench::new(1);
    bench.run("p", &[("a", 10), ("b", 10)]);
    assert_eq!(bench.calls.len(), 2);
    bench.run("p", &[("b", 10)]);
    bench.answer(&"a".into(), LogCallResult::Measured(Ok(Some(LIMIT))));
    assert_eq!(bench.calls.len(), 2, "{:?}", bench.calls);
    bench.run("p", &[]);
    assert_eq!(bench.logs.pods().count(), 0);
    assert!(bench.timers.is_empty());
}

#[test]
fn a_missing_log_is_begun_again() {
    let mut bench = Bench::new(1);
    bench.run("p", &[("c", 0)]);
    bench.calls.clear();
    bench.answer(&"c".into(), LogCallResult::Measured(Ok(None)));
    assert_eq!(bench.calls, [("c".into(), LogCall::Rotate { max_files: 5 })]);

    // It is not there either: that is no reason to ask the runtime twenty times a second.
    bench.answer(&"c".into(), LogCallResult::Rotated(Ok(())));
    bench.calls.clear();
    let work = bench.logs.timer_fired(&"c".into());
    bench.take(work);
    bench.calls.clear();
    bench.answer(&"c".into(), LogCallResult::Measured(Ok(None)));
    assert_eq!(bench.calls, []);
    assert_eq!(bench.timers[&"c".into()], bench.now.plus(Duration::from_secs(10)));
    assert_eq!(bench.failures.len(), 1);
}

#[test]
fn a_failure_is_told_once_and_tried_again_after_the_interval() {
    let mut bench = Bench::new(1);
    bench.run("p", &[("c", 0)]);
    for _ in 0..3 {
        bench.calls.clear();
        bench.answer(&"c".into(), LogCallResult::Measured(Ok(Some(LIMIT))));
        assert_eq!(bench.calls, [("c".into(), LogCall::Rotate { max_files: 5 })]);
        bench.answer(&"c".into(), LogCallResult::Rotated(Err("no room".into())));
        assert_eq!(bench.timers[&"c".into()], bench.now.plus(Duration::from_secs(10)));
        bench.now = bench.now.plus(Duration::from_secs(10));
        let work = bench.logs.timer_fired(&"c".into());
        bench.take(work);
    }
    assert_eq!(bench.failures, ["rotating the log /var/log/pods/p/c/0.log: no room"]);
}

#[test]
fn so_many_are_compressed_at_once_as_there_are_workers() {
    let mut bench = Bench::new(2);
    let names = ["a", "b", "c", "d"];
    bench.run("p", &names.map(|name| (name, 0)));
    bench.calls.clear();
    for name in names {
        bench.answer(&name.into(), LogCallResult::Measured(Ok(Some(LIMIT))));
        bench.answer(&name.into(), LogCallResult::Rotated(Ok(())));
    }
    let compressing = |bench: &Bench| {
        let of = |(id, call): &(ContainerId, LogCall)| {
            matches!(call, LogCall::Compress { .. }).then(|| id.to_string())
        };
        bench.calls.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(compressing(&bench), ["a", "b"]);
    bench.answer(&"b".into(), LogCallResult::Compressed(Ok(())));
    assert_eq!(compressing(&bench), ["a", "b", "c"]);
    // Its container has ended meanwhile: what was rotated is compressed nevertheless.
    bench.run("p", &[]);
    bench.answer(&"a".into(), LogCallResult::Compressed(Ok(())));
    assert_eq!(compressing(&bench), ["a", "b", "c", "d"]);
}
