//! All timers of the node, in the order of their time. A key has at most one timer.
//!
//! The queue itself neither sleeps nor reads a clock: the engine sleeps until [`TimerQueue::next_due`] and the simulator
//! moves its world there, and both then take what is due. No time is too far away for it.

use std::collections::BTreeMap;

use model::Mono;

use crate::TimerKey;

#[derive(Clone, Debug, Default)]
pub struct TimerQueue {
    /// Timers of the same time fire in the order in which they were set.
    order: BTreeMap<(Mono, u64), TimerKey>,
    places: BTreeMap<TimerKey, (Mono, u64)>,
    next: u64,
}

impl TimerQueue {
    /// Sets, moves or (`None`) removes the timer of a key.
    pub fn set(&mut self, key: TimerKey, at: Option<Mono>) {
        if let Some(place) = self.places.remove(&key) {
            self.order.remove(&place);
        }
        if let Some(at) = at {
            let place = (at, self.next);
            self.next += 1;
            self.places.insert(key.clone(), place);
            self.order.insert(place, key);
        }
    }

    /// When the first timer fires.
    pub fn next_due(&self) -> Option<Mono> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first timer whose time has come.
    pub fn take_due(&mut self, now: Mono) -> Option<TimerKey> {
        let first = self.order.first_entry().filter(|first| first.key().0 <= now)?;
        let key = first.remove();
        self.places.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> TimerKey {
        TimerKey::PodWakeUp(name.into())
    }

    /// Sets timers in this order, then takes what is due at each of the times.
    fn check(set: &[(&str, Option<u64>)], at: &[u64], expect: &[(u64, &str)]) {
        let mut queue = TimerQueue::default();
        for (name, due) in set {
            queue.set(key(name), due.map(Mono));
        }
        let mut fired = Vec::new();
        for now in at {
            while let Some(due) = queue.take_due(Mono(*now)) {
                fired.push((*now, due));
            }
        }
        let expect: Vec<_> = expect.iter().map(|(now, name)| (*now, key(name))).collect();
        assert_eq!(fired, expect, "{set:?}");
        assert_eq!(queue.order.len(), queue.places.len(), "{set:?}");
    }

    #[test]
    fn timers_fire_in_order_and_never_before_their_time() {
        check(&[], &[0, u64::MAX], &[]);
        check(&[("a", Some(5))], &[4, 5, 6], &[(5, "a")]);
        check(&[("b", Some(7)), ("a", Some(5))], &[6, 7], &[(6, "a"), (7, "b")]);
        check(&[("b", Some(5)), ("a", Some(5))], &[5], &[(5, "b"), (5, "a")]);
        // Moved, and taken away.
        check(&[("a", Some(5)), ("a", Some(9))], &[8, 9], &[(9, "a")]);
        check(&[("a", Some(9)), ("a", Some(5))], &[8, 9], &[(8, "a")]);
        check(&[("a", Some(5)), ("b", Some(6)), ("a", None)], &[9], &[(9, "b")]);
        check(&[("a", None)], &[9], &[]);
        // As far away as can be said.
        check(&[("a", Some(u64::MAX)), ("b", Some(1))], &[9], &[(9, "b")]);
        check(&[("a", Some(u64::MAX))], &[u64::MAX - 1, u64::MAX], &[(u64::MAX, "a")]);
    }

    #[test]
    fn the_next_time_is_that_of_the_first() {
        let mut queue = TimerQueue::default();
        assert_eq!(queue.next_due(), None);
        queue.set(key("a"), Some(Mono(9)));
        queue.set(key("b"), Some(Mono(5)));
        assert_eq!(queue.next_due(), Some(Mono(5)));
        queue.set(key("b"), None);
        assert_eq!(queue.next_due(), Some(Mono(9)));
    }
}
