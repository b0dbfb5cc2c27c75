//! Steps of long work on disk, told as they are begun.
//!
//! Whoever waits for the work learns from them that it goes on ([`Pulse`]): a tree of a million files is slow, a server
//! that does not answer hangs, and only the second is worth telling. Tests end the process at a chosen step, so that
//! every place where an agent may die is walked through (`killed`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use model::PodUid;
use model::volume::VolumeNews;

use super::news::Teller;

/// Counts the steps of one piece of work. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    beats: Arc<AtomicU64>,
    heard_by: Arc<[Pulse]>,
    left: Arc<AtomicBool>,
    /// Who is to be given way to, where the work may be left for somebody else.
    gives_way: Option<Arc<AtomicUsize>>,
    /// For what is worth more than a beat.
    teller: Option<(PodUid, Teller)>,
}

impl Pulse {
    /// One whose steps count there as well: for those who wait for the end of other people's work.
    pub fn heard_by(others: Vec<Pulse>) -> Self {
        Self { heard_by: others.into(), ..Self::default() }
    }

    /// Of work on that pod's volumes, which others may be told of.
    pub fn telling(self, uid: &PodUid, teller: Option<Teller>) -> Self {
        Self { teller: teller.map(|teller| (uid.clone(), teller)), ..self }
    }

    /// Of work that ends when the count is not zero.
    pub fn giving_way_to(self, count: &Arc<AtomicUsize>) -> Self {
        Self { gives_way: Some(Arc::clone(count)), ..self }
    }

    /// As long as the answer is kept somebody waits for the work.
    pub fn waited_for(&self) -> Waits {
        Waits(Arc::clone(&self.left))
    }

    /// Nobody waits for it any more, or it is in the way: work that can be begun anew ends here.
    pub fn is_left(&self) -> bool {
        let asked_to_go = |count: &Arc<AtomicUsize>| count.load(Ordering::Relaxed) > 0;
        self.left.load(Ordering::Relaxed) || self.gives_way.as_ref().is_some_and(asked_to_go)
    }

    pub fn tell(&self, news: VolumeNews) {
        if let Some((uid, teller)) = &self.teller {
            teller.tell(uid, news);
        }
    }

    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
        self.heard_by.iter().for_each(Pulse::beat);
    }

    /// A step of a thread that shares in the work.
    pub fn step(&self, name: &str) {
        self.beat();
        pass(name);
    }

    /// Steps that `work` takes on this thread are counted here.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(self.clone()));
        let value = work();
        CURRENT.set(before);
        value
    }

    /// The one that counts for this thread, for other threads that share in the work.
    pub fn current() -> Pulse {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }
}

pub struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Pulse>> = const { RefCell::new(None) };
}

/// Called before everything that changes the disk or the mount table.
pub fn step(name: &str) {
    CURRENT.with_borrow(|current| {
        if let Some(pulse) = current {
            pulse.beat();
        }
    });
    pass(name);
}

/// Where tests kill the agent.
fn pass(name: &str) {
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
        let (outer, inner) = (Pulse::default(), Pulse::default());
        step("before");
        outer.during(|| {
            step("one");
            inner.during(|| step("of the inner"));
            Pulse::current().beat();
        });
        step("after");
        assert_eq!((outer.beats(), inner.beats()), (2, 1));
        let (shared, alone) = (Pulse::default(), Pulse::default());
        let own = Pulse::heard_by(vec![shared.clone()]);
        own.during(|| step("heard by others"));
        assert_eq!((own.beats(), shared.beats(), alone.beats()), (1, 1, 0));
    }
}
