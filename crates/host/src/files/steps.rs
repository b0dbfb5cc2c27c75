//! Steps of long work on disk, counted when they start.
//!
//! Callers learn from [`WorkProgress`] that the work makes progress: a tree of a million files is slow, a server that
//! does not answer hangs, and only a hang is reported. Tests end the process at a chosen step, so that every point
//! where an agent may be killed is tested (`killed`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use model::PodUid;
use model::volume::VolumeNotice;

use super::volume_notices::VolumeNoticeSender;

/// Counts the steps of one piece of work. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct WorkProgress {
    steps_taken: Arc<AtomicU64>,
    forwarding_to: Arc<[WorkProgress]>,
    cancelled: Arc<AtomicBool>,
    /// How many callers wait for this work to stop, if it may be stopped for them.
    yields_to: Option<Arc<AtomicUsize>>,
    /// Receives notices about the work, which are more than a count.
    sender: Option<(PodUid, VolumeNoticeSender)>,
}

impl WorkProgress {
    /// Progress that is also counted in `others`, so that work queued behind this work sees that it is still running.
    pub fn forwarding_to(others: Vec<WorkProgress>) -> Self {
        Self { forwarding_to: others.into(), ..Self::default() }
    }

    /// For work on volumes of this pod, with notices sent to `teller`.
    pub fn reporting_to(self, uid: &PodUid, teller: Option<VolumeNoticeSender>) -> Self {
        Self { sender: teller.map(|teller| (uid.clone(), teller)), ..self }
    }

    /// For work that stops when the count is not zero.
    pub fn yielding_to(self, count: &Arc<AtomicUsize>) -> Self {
        Self { yields_to: Some(Arc::clone(count)), ..self }
    }

    /// Returns a guard. Dropping it tells the work that its caller is gone.
    pub fn waiter_guard(&self) -> WaiterGuard {
        WaiterGuard(Arc::clone(&self.cancelled))
    }

    /// True when no caller waits for the work any more, or when other work on the whole pod is waiting. Restartable
    /// work must stop then.
    pub fn is_cancelled(&self) -> bool {
        let asked_to_go = |count: &Arc<AtomicUsize>| count.load(Ordering::Relaxed) > 0;
        self.cancelled.load(Ordering::Relaxed) || self.yields_to.as_ref().is_some_and(asked_to_go)
    }

    pub fn tell(&self, news: VolumeNotice) {
        if let Some((uid, teller)) = &self.sender {
            teller.tell(uid, news);
        }
    }

    pub fn steps_taken(&self) -> u64 {
        self.steps_taken.load(Ordering::Relaxed)
    }

    pub fn record_step(&self) {
        self.steps_taken.fetch_add(1, Ordering::Relaxed);
        self.forwarding_to.iter().for_each(WorkProgress::record_step);
    }

    /// Counts a step of a helper thread.
    pub fn step(&self, name: &str) {
        self.record_step();
        kill_point(name);
    }

    /// Counts here the steps that `work` takes on this thread.
    pub fn count_steps_of<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(self.clone()));
        let value = work();
        CURRENT.set(before);
        value
    }

    /// The progress that counts for this thread, to hand on to helper threads.
    pub fn current() -> WorkProgress {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }
}

pub struct WaiterGuard(Arc<AtomicBool>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    static CURRENT: RefCell<Option<WorkProgress>> = const { RefCell::new(None) };
}

/// Called before everything that changes the disk or the mount table.
pub fn step(name: &str) {
    CURRENT.with_borrow(|current| {
        if let Some(pulse) = current {
            pulse.record_step();
        }
    });
    kill_point(name);
}

/// Where tests kill the agent.
fn kill_point(name: &str) {
    #[cfg(test)]
    super::killed::step(name);
    #[cfg(not(test))]
    let _ = name;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_where_somebody_listens() {
        let (outer, inner) = (WorkProgress::default(), WorkProgress::default());
        step("before");
        outer.count_steps_of(|| {
            step("one");
            inner.count_steps_of(|| step("of the inner"));
            WorkProgress::current().record_step();
        });
        step("after");
        assert_eq!((outer.steps_taken(), inner.steps_taken()), (2, 1));
        let (shared, alone) = (WorkProgress::default(), WorkProgress::default());
        let own = WorkProgress::forwarding_to(vec![shared.clone()]);
        own.count_steps_of(|| step("heard by others"));
        assert_eq!((own.steps_taken(), shared.steps_taken(), alone.steps_taken()), (1, 1, 0));
    }
}
