//! The state of each watch: when the server last sent something on it, and its present failure.
//!
//! A watch that is stuck looks like a watch without changes. So each `reflect` of [`roles`](crate::roles) has an entry here, which the
//! debugging API, metrics and health checks read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::report::WatchReport;
use tokio::sync::watch;
use tokio::time::Instant;

/// The entries of all watches over one connection. Cheap to clone.
#[derive(Clone)]
pub struct WatchStatuses {
    entries: Arc<watch::Sender<BTreeMap<u64, Entry>>>,
    next: Arc<AtomicU64>,
}

struct Entry {
    resource: &'static str,
    object: String,
    last_activity: Instant,
    has_bookmarks: bool,
    problem: Option<String>,
    unreadable: Vec<String>,
}

impl Default for WatchStatuses {
    fn default() -> Self {
        Self { entries: Arc::new(watch::Sender::new(BTreeMap::new())), next: Arc::default() }
    }
}

impl WatchStatuses {
    /// Adds the entry of a new watch. Dropping the returned value removes it.
    pub fn add(&self, resource: &'static str, object: String) -> WatchProgress {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let problem = Some("the API server has not answered yet".to_owned());
        let entry = Entry {
            resource,
            object,
            last_activity: Instant::now(),
            has_bookmarks: false,
            problem,
            unreadable: Vec::new(),
        };
        self.entries.send_modify(|entries| drop(entries.insert(id, entry)));
        WatchProgress { entries: self.clone(), id }
    }

    pub fn reports(&self) -> Vec<WatchReport> {
        let entries = self.entries.borrow();
        let mut reports: Vec<WatchReport> = entries.values().map(Entry::report).collect();
        reports.sort_by_cached_key(WatchReport::name);
        reports
    }
}

impl Entry {
    fn report(&self) -> WatchReport {
        WatchReport {
            resource: self.resource.to_owned(),
            object: self.object.clone(),
            last_word_secs: self.last_activity.elapsed().as_secs_f64(),
            has_bookmarks: self.has_bookmarks,
            problem: self.problem.clone().unwrap_or_default(),
            unreadable: self.unreadable.clone(),
        }
    }
}

/// The entry of one watch, which only that watch writes.
pub struct WatchProgress {
    entries: WatchStatuses,
    id: u64,
}

impl WatchProgress {
    /// Whether bookmarks came in the present watch.
    pub fn set_bookmarks(&self, there: bool) {
        self.change(|entry| entry.has_bookmarks = there);
    }

    /// The server sent a list, an event or a bookmark, or ended a watch in order.
    pub fn note_activity(&self) {
        self.change(|entry| entry.last_activity = Instant::now());
    }

    pub fn set_problem(&self, problem: String) {
        self.replace_problem(Some(problem));
    }

    /// Returns the problem until now.
    pub fn replace_problem(&self, problem: Option<String>) -> Option<String> {
        let mut before = None;
        self.change(|entry| before = std::mem::replace(&mut entry.problem, problem));
        before
    }

    pub fn unreadable(&self, objects: Vec<String>) {
        self.change(|entry| entry.unreadable = objects);
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        self.entries.entries.send_modify(|entries| {
            if let Some(entry) = entries.get_mut(&self.id) {
                change(entry);
            }
        });
    }
}

impl Drop for WatchProgress {
    fn drop(&mut self) {
        self.entries.entries.send_modify(|entries| drop(entries.remove(&self.id)));
    }
}
