//! The only place that reads the wall clock.

use model::Wall;
use ports::WallClock;

pub struct SystemClock;

impl WallClock for SystemClock {
    #[allow(clippy::disallowed_methods)] // Everybody else is handed the time from here.
    fn wall(&self) -> Wall {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Wall(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
    }
}
