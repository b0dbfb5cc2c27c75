//! A thread lists the runtime's containers continuously, without the agent, and reports a container with two live
//! instances or a pod with two ready sandboxes.
//!
//! The runtime lists what was there at one moment and then looks at each one's state, so an instance that is made after
//! the end of another was seen can't appear beside it as running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use crate::support::harness::Runtime;
use crate::support::runtime_view::{RuntimePod, RuntimeView};

const BETWEEN_LOOKS: Duration = Duration::from_millis(150);
const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";

/// A watcher on a thread of its own.
pub struct DuplicateWatcher {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

#[derive(Default)]
struct Report {
    looks: usize,
    found: Vec<String>,
}

impl DuplicateWatcher {
    pub fn watch(runtime: &Runtime) -> DuplicateWatcher {
        let seen = RuntimeView::new(runtime);
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let thread = spawn(move || {
            let mut report = Report::default();
            while !ended.load(Ordering::Relaxed) {
                // The runtime may be away: that is part of some tests.
                if let Ok(pods) = seen.pods() {
                    report.looks += 1;
                    report.found.extend(pods.iter().flat_map(|(name, pod)| twins(name, pod)));
                }
                sleep(BETWEEN_LOOKS);
            }
            report
        });
        DuplicateWatcher { done, thread }
    }

    /// Ends watching.
    ///
    /// # Panics
    /// When there were duplicates, or the runtime was never listed.
    #[track_caller]
    pub fn assert_none(self) {
        self.done.store(true, Ordering::Relaxed);
        let report = self.thread.join().expect("the watcher of twins");
        assert!(report.looks > 0, "the runtime could not be looked at once");
        assert!(report.found.is_empty(), "lived twice:\n{}", report.found.join("\n"));
        println!("nothing lived twice in {} looks", report.looks);
    }
}

fn twins(name: &str, pod: &RuntimePod) -> Vec<String> {
    let mut counts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sandbox in pod.ready_sandboxes() {
        counts.entry(format!("sandbox of {name} {}", sandbox.uid)).or_default().push(sandbox.id.to_string());
    }
    for container in pod.running() {
        let uid = container.labels.get(LABEL_POD_UID).map(String::as_str).unwrap_or_default();
        let key = format!("container {} of {name} {uid}", container.name);
        counts.entry(key).or_default().push(container.id.to_string());
    }
    let several = counts.into_iter().filter(|(_, ids)| ids.len() > 1);
    several.map(|(what, ids)| format!("{what}: {}", ids.join(", "))).collect()
}
