//! Answers of the API server that hold for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// More callers than any node has; what is over it is asked again.
const ENTRIES: usize = 4096;

/// Neither tokens nor names are kept, only what tells them apart.
type Key = [u8; 32];

pub(super) struct Cache<V> {
    entries: Mutex<BTreeMap<Key, (V, Instant)>>,
}

impl<V: Clone> Cache<V> {
    pub fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }

    pub fn key(of: &[u8]) -> Key {
        Sha256::digest(of).into()
    }

    pub async fn get(&self, key: &Key) -> Option<V> {
        let entries = self.entries.lock().await;
        entries.get(key).filter(|(_, until)| Instant::now() < *until).map(|(value, _)| value.clone())
    }

    pub async fn put(&self, key: Key, value: V, holds: Duration) {
        if holds.is_zero() {
            return;
        }
        let mut entries = self.entries.lock().await;
        let now = Instant::now();
        if entries.len() >= ENTRIES {
            entries.retain(|_, (_, until)| now < *until);
        }
        if entries.len() >= ENTRIES {
            // All of it is young: somebody makes up names. Which of them is asked again does not matter.
            entries.pop_first();
        }
        entries.insert(key, (value, now + holds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_hold_their_time_and_never_pile_up() {
        let cache = Cache::new();
        let key = |n: usize| Cache::<usize>::key(&n.to_le_bytes());
        cache.put(key(1), 1, Duration::from_secs(10)).await;
        cache.put(key(2), 2, Duration::ZERO).await;
        assert_eq!((cache.get(&key(1)).await, cache.get(&key(2)).await), (Some(1), None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get(&key(1)).await, None);
        for n in 0..3 * ENTRIES {
            cache.put(key(n), n, Duration::from_secs(10)).await;
            assert_eq!(cache.get(&key(n)).await, Some(n));
        }
        assert!(cache.entries.lock().await.len() <= ENTRIES);
    }
}
