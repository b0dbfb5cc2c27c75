//! Slots on shared connections. When all slots are taken, a new connection is opened.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Fewer than any server is known to allow (API servers and the usual load balancers: 100 to 250).
const SLOTS_PER_CONNECTION: usize = 64;

/// A slot on a connection; dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
}

pub struct ConnectionSlots<T> {
    lanes: Mutex<Vec<SlottedConnection<T>>>,
    open: Box<dyn Fn() -> T + Send + Sync>,
}

struct SlottedConnection<T> {
    connection: T,
    places: Arc<Semaphore>,
}

impl<T: Clone> ConnectionSlots<T> {
    /// `open` creates another connection.
    pub fn new(open: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { lanes: Mutex::default(), open: Box::new(open) }
    }

    /// Takes a slot on the first connection that has a free one, so that later connections become idle and close.
    pub async fn take(&self) -> (T, ConnectionSlot) {
        let mut lanes = self.lanes.lock().await;
        let free = |lane: &SlottedConnection<T>| {
            let permit = lane.places.clone().try_acquire_owned().ok()?;
            Some((lane.connection.clone(), ConnectionSlot { _permit: permit }))
        };
        if let Some(found) = lanes.iter().find_map(free) {
            return found;
        }
        let lane = SlottedConnection {
            connection: (self.open)(),
            places: Arc::new(Semaphore::new(SLOTS_PER_CONNECTION)),
        };
        let found = free(&lane).expect("a new connection has places");
        lanes.push(lane);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_connection_has_so_many_places_and_the_first_are_filled_first() {
        let opened = AtomicUsize::new(0);
        let lanes = ConnectionSlots::new(move || opened.fetch_add(1, Ordering::Relaxed));
        let mut taken: Vec<(usize, ConnectionSlot)> = Vec::new();
        for _ in 0..2 * SLOTS_PER_CONNECTION + 1 {
            taken.push(lanes.take().await);
        }
        let on = |number| taken.iter().filter(|(lane, _)| *lane == number).count();
        assert_eq!([0, 1, 2].map(on), [SLOTS_PER_CONNECTION, SLOTS_PER_CONNECTION, 1]);
        taken.remove(SLOTS_PER_CONNECTION + 3);
        taken.remove(7);
        for _ in 0..2 {
            assert_eq!(lanes.take().await.0, 0, "given back at once");
        }
        let again = [lanes.take().await, lanes.take().await, lanes.take().await];
        assert_eq!(again.map(|(lane, _)| lane), [0, 1, 2]);
    }
}
