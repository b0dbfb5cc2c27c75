//! Future events in the order of their time; events at the same time keep the order in which they were scheduled.

use std::collections::BTreeMap;

use crate::time::Nanos;

#[derive(Debug)]
pub struct Queue<T> {
    planned: BTreeMap<(Nanos, u64), T>,
    next: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { planned: BTreeMap::new(), next: 0 }
    }
}

impl<T> Queue<T> {
    pub fn plan(&mut self, at: Nanos, what: T) {
        self.planned.insert((at, self.next), what);
        self.next += 1;
    }

    /// The next event that is due until then.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, T)> {
        let next = self.planned.first_entry().filter(|e| e.key().0 <= end)?;
        let ((at, _), what) = next.remove_entry();
        Some((at, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_the_same_time_keeps_its_order() {
        let mut queue = Queue::default();
        for (at, what) in [(5, "c"), (1, "a"), (5, "d"), (3, "b")] {
            queue.plan(at, what);
        }
        let mut seen = Vec::new();
        for end in [0, 2, 4, 4, 5, 9] {
            while let Some((_, what)) = queue.next_until(end) {
                seen.push((end, what));
            }
        }
        assert_eq!(seen, [(2, "a"), (4, "b"), (5, "c"), (5, "d")]);
    }
}
