//! A cache of reviews by the API server, each with a time to live.
//!
//! It is bounded, and drops the oldest entry when it is full. A client that sends many made-up tokens cannot choose
//! which entry of another client is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// More callers than any node has. Beyond this, reviews are made again.
const MAX_ENTRIES: usize = 4096;

/// A hash: neither tokens nor names are kept.
type Key = [u8; 32];

pub(super) struct Cache<V> {
    entries: Mutex<Entries<V>>,
}

struct Entries<V> {
    /// With the number of the entry: a newer one for the same key has another number.
    known: BTreeMap<Key, (V, Instant, u64)>,
    /// In the order in which they were added. Replaced entries are still in it.
    order: VecDeque<(Key, u64)>,
    next: u64,
}

impl<V: Clone> Cache<V> {
    pub fn new() -> Self {
        Self { entries: Mutex::new(Entries { known: BTreeMap::new(), order: VecDeque::new(), next: 0 }) }
    }

    pub fn key(of: &[u8]) -> Key {
        Sha256::digest(of).into()
    }

    pub async fn get(&self, key: &Key) -> Option<V> {
        let entries = self.entries.lock().await;
        entries
            .known
            .get(key)
            .filter(|(_, until, _)| Instant::now() < *until)
            .map(|(value, ..)| value.clone())
    }

    pub async fn put(&self, key: Key, value: V, holds: Duration) {
        if !holds.is_zero() {
            self.entries.lock().await.put(key, value, Instant::now() + holds);
        }
    }
}

impl<V> Entries<V> {
    fn put(&mut self, key: Key, value: V, until: Instant) {
        let number = self.next;
        self.next += 1;
        self.known.insert(key, (value, until, number));
        self.order.push_back((key, number));
        // Replaced entries count as well, so the order is what is bounded.
        while self.order.len() > MAX_ENTRIES {
            let Some((oldest, number)) = self.order.pop_front() else { return };
            if self.known.get(&oldest).is_some_and(|(.., newest)| *newest == number) {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn key(n: usize) -> Key {
        Cache::<usize>::key(&n.to_le_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn answers_hold_their_time() {
        let cache = Cache::new();
        cache.put(key(1), 1, TTL).await;
        cache.put(key(2), 2, Duration::ZERO).await;
        assert_eq!((cache.get(&key(1)).await, cache.get(&key(2)).await), (Some(1), None));
        tokio::time::advance(TTL).await;
        assert_eq!(cache.get(&key(1)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_first_and_nothing_piles_up() {
        let cache = Cache::new();
        for n in 0..3 * MAX_ENTRIES {
            cache.put(key(n), n, TTL).await;
            assert_eq!(cache.get(&key(n)).await, Some(n));
        }
        let first_kept = 2 * MAX_ENTRIES;
        assert_eq!(cache.get(&key(first_kept - 1)).await, None, "older ones went");
        assert_eq!(cache.get(&key(first_kept)).await, Some(first_kept), "younger ones stay");
        let entries = cache.entries.lock().await;
        assert_eq!((entries.known.len(), entries.order.len()), (MAX_ENTRIES, MAX_ENTRIES));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_renewed_is_young_again_and_costs_no_room() {
        let cache = Cache::new();
        cache.put(key(0), 0, TTL).await;
        for n in 1..MAX_ENTRIES {
            cache.put(key(n), n, TTL).await;
        }
        cache.put(key(0), 7, TTL).await;
        cache.put(key(MAX_ENTRIES), 1, TTL).await;
        assert_eq!(cache.get(&key(0)).await, Some(7));
        for _ in 0..5 * MAX_ENTRIES {
            cache.put(key(0), 8, TTL).await;
        }
        let entries = cache.entries.lock().await;
        assert!(entries.known.contains_key(&key(0)) && entries.order.len() <= MAX_ENTRIES);
    }
}
