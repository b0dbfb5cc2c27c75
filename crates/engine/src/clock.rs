//! Both clocks in one place.
//!
//! The monotonic clock never returns the same value twice: "began before" and "ended after" must be told apart even
//! when two things happen within the resolution of the machine's clock (or while a test has paused it).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Mono, Now};
use ports::WallClock;
use tokio::time::Instant;

#[derive(Clone)]
pub struct Clock {
    origin: Instant,
    last: Arc<AtomicU64>,
    wall: Arc<dyn WallClock>,
}

impl Clock {
    pub fn new(wall: Arc<dyn WallClock>) -> Self {
        Self { origin: Instant::now(), last: Arc::new(AtomicU64::new(0)), wall }
    }

    pub fn mono(&self) -> Mono {
        let real = Mono::from_duration(self.origin.elapsed()).0;
        let next = |last: u64| real.max(last.saturating_add(1));
        let before = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(next(last)));
        Mono(before.map_or(real, next))
    }

    pub fn now(&self) -> Now {
        Now { mono: self.mono(), wall: self.wall.wall() }
    }

    /// The `Instant` for a time of the monotonic clock. An `Instant` reaches further than that clock does.
    pub fn instant(&self, at: Mono) -> Instant {
        self.origin + at.as_duration()
    }
}
