//! When the logs of running containers are measured, rotated and compressed.
//!
//! The kernel tells that a file was written, not how large it has become. So a log is measured:
//!
//! ```text
//!   runs ──> measure ──> full: rotate ──> compress older files, a few at a time
//!              ^  │ └──> has grown: again at half the time until it is full, within MIN_PAUSE and MAX_PAUSE
//!              │  └────> has not grown: wait for a notification that it was written
//!              └─────────────────────────────────────────────────────────┘
//! ```
//! A silent container costs nothing, and one that suddenly writes as fast as it can is seen after MAX_PAUSE.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use model::log_rotation::{LogCall, LogCallResult, LogRotationConfig};
use model::{ContainerId, Mono, PodUid};

/// Even a container that writes 100 MB/s is measured no more often.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Of an id in the name of a link, which may be cut.
const MIN_ID_BYTES: usize = 6;

/// What the engine is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogWork {
    Call {
        id: ContainerId,
        path: String,
        call: LogCall,
    },
    /// Sets or clears the timer of this container's log.
    Timer {
        id: ContainerId,
        at: Option<Mono>,
    },
    /// Something failed that the pod's user should know; told once while it stays the same.
    Failed {
        pod: PodUid,
        message: String,
    },
}

/// The logs of all running containers.
#[derive(Clone, Debug, Default)]
pub struct ContainerLogs {
    logs: BTreeMap<ContainerId, Log>,
    by_pod: BTreeMap<PodUid, BTreeSet<ContainerId>>,
    /// Logs whose rotated files are to be compressed, by their turn.
    to_compress: VecDeque<(ContainerId, String)>,
    compressing: BTreeSet<ContainerId>,
}

#[derive(Clone, Debug)]
struct Log {
    pod: PodUid,
    path: String,
    /// Its size at a time.
    measured: Option<(Mono, u64)>,
    activity: Activity,
    /// There was no file when it was measured last.
    was_missing: bool,
    last_failure: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Activity {
    Measuring,
    AwaitingWrite,
    /// Until its timer fires.
    Pausing,
    Rotating,
}

impl ContainerLogs {
    /// These containers of the pod run, each with the path of its log. No other container of the pod does.
    pub fn set_running(&mut self, pod: &PodUid, running: BTreeMap<&ContainerId, &str>) -> Vec<LogWork> {
        let mut work = Vec::new();
        let known = self.by_pod.get(pod).cloned().unwrap_or_default();
        for id in known.iter().filter(|id| !running.contains_key(id)) {
            self.logs.remove(id);
            work.push(LogWork::Timer { id: id.clone(), at: None });
        }
        let new = running.iter().filter(|(id, path)| !known.contains(**id) && !path.is_empty());
        for (id, path) in new {
            let log = Log {
                pod: pod.clone(),
                path: (*path).to_owned(),
                measured: None,
                activity: Activity::Measuring,
                was_missing: false,
                last_failure: None,
            };
            work.push(log.call(id, LogCall::Measure));
            self.logs.insert((*id).clone(), log);
        }
        for (id, path) in running.iter().filter(|(_, path)| !path.is_empty()) {
            if let Some(log) = self.logs.get_mut(*id).filter(|log| log.path != **path) {
                log.path = (*path).to_owned();
            }
        }
        let now: BTreeSet<ContainerId> =
            running.keys().filter(|id| self.logs.contains_key(**id)).map(|id| (*id).clone()).collect();
        match now.is_empty() {
            true => self.by_pod.remove(pod),
            false => self.by_pod.insert(pod.clone(), now),
        };
        work
    }

    /// Whether a link in `/var/log/containers` is that of a container which is here. Its log is missing for a moment while
    /// it is rotated.
    pub fn has_link(&self, name: &str) -> bool {
        let stem = name.strip_suffix(".log").unwrap_or(name);
        // Long names are cut at their end.
        let id = stem.rsplit('-').next().unwrap_or_default();
        id.len() >= MIN_ID_BYTES && self.logs.keys().any(|known| known.as_str().starts_with(id))
    }

    /// The pods that have a container here.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }

    pub fn timer_fired(&mut self, id: &ContainerId) -> Vec<LogWork> {
        let Some(log) = self.logs.get_mut(id).filter(|log| log.activity == Activity::Pausing) else {
            return Vec::new();
        };
        log.activity = Activity::Measuring;
        vec![log.call(id, LogCall::Measure)]
    }

    pub fn call_ended(
        &mut self,
        config: &LogRotationConfig,
        now: Mono,
        id: &ContainerId,
        result: LogCallResult,
    ) -> Vec<LogWork> {
        if let LogCallResult::Compressed(result) = result {
            return self.compressed(config, id, result);
        }
        let Some(log) = self.logs.get_mut(id) else { return Vec::new() };
        match (result, log.activity) {
            (LogCallResult::Measured(Ok(size)), Activity::Measuring) => log.measured(config, now, id, size),
            (LogCallResult::Written(Ok(())), Activity::AwaitingWrite) => {
                // The rate is that of the time since the first write, not of the silence before.
                log.measured = log.measured.map(|(_, size)| (now, size));
                vec![log.pause(id, now.plus(MIN_PAUSE))]
            }
            (LogCallResult::Rotated(Ok(())), Activity::Rotating) => {
                log.measured = Some((now, 0));
                log.last_failure = None;
                // With a limit of zero a log is rotated at each interval, as upstream does.
                let pause = if config.max_bytes == 0 { config.interval } else { MIN_PAUSE };
                let mut work = vec![log.pause(id, now.plus(pause))];
                if !self.to_compress.iter().any(|(waiting, _)| waiting == id) {
                    let path = log.path.clone();
                    self.to_compress.push_back((id.clone(), path));
                }
                work.extend(self.compress_next(config));
                work
            }
            (
                LogCallResult::Measured(Err(failure))
                | LogCallResult::Written(Err(failure))
                | LogCallResult::Rotated(Err(failure)),
                Activity::Measuring | Activity::AwaitingWrite | Activity::Rotating,
            ) => {
                let mut work = vec![log.pause(id, now.plus(config.interval))];
                work.extend(log.failed(failure));
                work
            }
            // The answer to an earlier call.
            _ => Vec::new(),
        }
    }

    fn compressed(
        &mut self,
        config: &LogRotationConfig,
        id: &ContainerId,
        result: Result<(), String>,
    ) -> Vec<LogWork> {
        self.compressing.remove(id);
        let mut work = Vec::new();
        if let Some(log) = self.logs.get_mut(id)
            && let Err(failure) = result
        {
            work.extend(log.failed(failure));
        }
        work.extend(self.compress_next(config));
        work
    }

    /// Begins as many as may be compressed at once; of one log one at a time.
    fn compress_next(&mut self, config: &LogRotationConfig) -> Vec<LogWork> {
        let mut work = Vec::new();
        while self.compressing.len() < config.workers as usize {
            let next = self.to_compress.iter().position(|(id, _)| !self.compressing.contains(id));
            let Some((id, path)) = next.and_then(|at| self.to_compress.remove(at)) else { break };
            self.compressing.insert(id.clone());
            work.push(LogWork::Call { id, path, call: LogCall::Compress { max_files: config.max_files } });
        }
        work
    }
}

impl Log {
    fn call(&self, id: &ContainerId, call: LogCall) -> LogWork {
        LogWork::Call { id: id.clone(), path: self.path.clone(), call }
    }

    fn pause(&mut self, id: &ContainerId, at: Mono) -> LogWork {
        self.activity = Activity::Pausing;
        LogWork::Timer { id: id.clone(), at: Some(at) }
    }

    /// `None`: there is no file at the log's path.
    fn measured(
        &mut self,
        config: &LogRotationConfig,
        now: Mono,
        id: &ContainerId,
        size: Option<u64>,
    ) -> Vec<LogWork> {
        let before = self.measured;
        self.measured = size.map(|size| (now, size));
        let still_missing = size.is_none() && self.was_missing;
        self.was_missing = size.is_none();
        if still_missing {
            let pause = self.pause(id, now.plus(config.interval));
            let failed =
                self.failed("there is no such file, although the runtime has reopened its log".to_owned());
            return [pause].into_iter().chain(failed).collect();
        }
        let Some(size) = size.filter(|size| *size < config.max_bytes) else {
            // A missing file is what an agent leaves that was killed between the two steps of a rotation.
            self.activity = Activity::Rotating;
            return vec![self.call(id, LogCall::Rotate { max_files: config.max_files })];
        };
        match before {
            Some((then, old)) if size > old => {
                let full_in = time_until_full(config.max_bytes - size, size - old, now.since(then));
                vec![self.pause(id, now.plus((full_in / 2).clamp(MIN_PAUSE, MAX_PAUSE)))]
            }
            _ => {
                self.activity = Activity::AwaitingWrite;
                vec![self.call(id, LogCall::AwaitWrite { size })]
            }
        }
    }

    fn failed(&mut self, failure: String) -> Option<LogWork> {
        if self.last_failure.as_ref() == Some(&failure) {
            return None;
        }
        self.last_failure = Some(failure.clone());
        let message = format!("rotating the log {}: {failure}", self.path);
        Some(LogWork::Failed { pod: self.pod.clone(), message })
    }
}

/// At the rate of `grown` bytes in `within`.
fn time_until_full(room: u64, grown: u64, within: Duration) -> Duration {
    let nanos = u128::from(room) * within.as_nanos() / u128::from(grown.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
