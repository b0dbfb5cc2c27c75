//! Steps of long work on disk, told as they are begun.
//!
//! Whoever waits for the work learns from them that it goes on ([`WorkProgress`]): a tree of a million files is slow, a server
//! that does not answer hangs, and only the second is worth telling. Tests end the process at a chosen step, so that
//! every place where an agent may die is walked through (`killed`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use model::PodUid;
use model::volume::VolumeNotice;

use super::volume_notices::VolumeNoticeSender;

/// Counts the steps of one piece of work. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct WorkProgress {
    steps_taken: Arc<AtomicU64>,
    forwarding_to: Arc<[WorkProgress]>,
    cancelled: Arc<AtomicBool>,
    /// Who is to be given way to, where the work may be left for somebody else.
    yields_to: Option<Arc<AtomicUsize>>,
    /// For what is worth more than a beat.
    sender: Option<(PodUid, VolumeNoticeSender)>,
}

impl WorkProgress {
    /// One whose steps count there as well: for those who wait for the end of other people's work.
    pub fn forwarding_to(others: Vec<WorkProgress>) -> Self {
        Self { forwarding_to: others.into(), ..Self::default() }
    }

    /// Of work on that pod's volumes, which others may be told of.
    pub fn reporting_to(self, uid: &PodUid, teller: Option<VolumeNoticeSender>) -> Self {
        Self { sender: teller.map(|teller| (uid.clone(), teller)), ..self }
    }

    /// Of work that ends when the count is not zero.
    pub fn yielding_to(self, count: &Arc<AtomicUsize>) -> Self {
        Self { yields_to: Some(Arc::clone(count)), ..self }
    }

    /// As long as the answer is kept somebody waits for the work.
    pub fn waiter_guard(&self) -> WaiterGuard {
        WaiterGuard(Arc::clone(&self.cancelled))
    }

    /// Nobody waits for it any more, or it is in the way: work that can be begun anew ends here.
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

    /// A step of a thread that shares in the work.
    pub fn step(&self, name: &str) {
        self.record_step();
        kill_point(name);
    }

    /// Steps that `work` takes on this thread are counted here.
    pub fn count_steps_of<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(self.clone()));
        let value = work();
        CURRENT.set(before);
        value
    }

    /// The one that counts for this thread, for other threads that share in the work.
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
