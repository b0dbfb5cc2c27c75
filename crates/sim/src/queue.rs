//! What will happen, in the order of its time; what is due at the same time happens in the order it was planned.

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

    pub fn next(&mut self) -> Option<(Nanos, T)> {
        self.planned.pop_first().map(|((at, _), what)| (at, what))
    }
}
