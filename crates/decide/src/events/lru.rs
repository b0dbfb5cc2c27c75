//! A map that forgets what was not used for longest.

use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct LruMap<V> {
    most: usize,
    clock: u64,
    entries: BTreeMap<String, (u64, V)>,
    by_use: BTreeMap<u64, String>,
}

impl<V> LruMap<V> {
    pub fn new(most: usize) -> Self {
        Self { most, clock: 0, entries: BTreeMap::new(), by_use: BTreeMap::new() }
    }

    /// The entry of a key, made if it is not there; now the last one to be forgotten.
    pub fn entry(&mut self, key: &str, make: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        let clock = self.clock;
        if let Some((used, _)) = self.entries.get_mut(key) {
            let name = self.by_use.remove(used).unwrap_or_else(|| key.to_owned());
            self.by_use.insert(clock, name);
            *used = clock;
        } else {
            if self.entries.len() >= self.most
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.entries.remove(&oldest);
            }
            self.by_use.insert(clock, key.to_owned());
        }
        &mut self.entries.entry(key.to_owned()).or_insert_with(|| (clock, make())).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays() {
        let mut lru = LruMap::new(2);
        *lru.entry("a", || 0) += 1;
        *lru.entry("b", || 0) += 1;
        *lru.entry("a", || 0) += 1;
        *lru.entry("c", || 0) += 1;
        assert_eq!(lru.entries.get("a").map(|(_, count)| *count), Some(2));
        assert!(!lru.entries.contains_key("b"));
        assert_eq!(*lru.entry("b", || 9), 9);
        assert!(!lru.entries.contains_key("a"));
        assert_eq!((lru.entries.len(), lru.by_use.len()), (2, 2));
    }
}
