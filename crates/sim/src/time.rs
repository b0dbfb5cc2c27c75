//! Simulated time: nanoseconds of the world, and on top of it each agent's own two clocks.

use model::{Mono, Now, Wall};

/// Nanoseconds since the world began.
pub type Nanos = u64;

pub const MICRO: Nanos = 1_000;
pub const MILLI: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// The wall clock at the start of the world.
pub const EPOCH: Wall = Wall(1_700_000_000_000_000_000);

/// The clocks as one agent sees them. Like the engine's, the monotonic one never shows the same value twice.
#[derive(Clone, Debug)]
pub struct AgentClock {
    origin: Nanos,
    last: u64,
}

impl AgentClock {
    pub fn new(origin: Nanos) -> Self {
        Self { origin, last: 0 }
    }

    pub fn mono(&mut self, now: Nanos) -> Mono {
        self.last = (now - self.origin).max(self.last + 1);
        Mono(self.last)
    }

    pub fn now(&mut self, now: Nanos, wall: Wall) -> Now {
        Now { mono: self.mono(now), wall }
    }

    /// The time that the clock shows at least.
    pub fn reached(&self, now: Nanos) -> Mono {
        Mono((now - self.origin).max(self.last))
    }

    /// The world's time at which a point of this clock is reached.
    pub fn world_time(&self, at: Mono) -> Nanos {
        self.origin.saturating_add(at.0)
    }
}
