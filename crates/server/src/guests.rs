//! How many connections a port keeps of those who have not shown that they belong here.
//!
//! ```text
//!   accepted ─> silent ─(a whole request, or a certificate that counts)─> heard ─(a request was allowed)─> welcome
//!                  └────────────── when there are too many: the oldest silent one, else the oldest heard one, is closed
//! ```
//!
//! A client that means it is heard within a moment, so connections that send nothing only push each other out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

/// Connections of a port that are not welcome yet. On a port that asks nobody who they are, these are all.
pub(crate) const MOST: usize = 256;

/// One connection, seen from the door.
#[derive(Default)]
pub(crate) struct Guest {
    heard: AtomicBool,
    /// Shared with whoever finds that a request is allowed.
    pub welcome: Arc<AtomicBool>,
    pushed_out: CancellationToken,
}

impl Guest {
    /// It asked something, or is known: while that is looked into, it does not go for somebody silent.
    pub fn is_heard(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Ends when its place is needed.
    pub async fn pushed_out(&self) {
        self.pushed_out.cancelled().await;
    }
}

/// Those who are not welcome yet, oldest first. A connection that ended is no longer there.
#[derive(Default)]
pub(crate) struct Guests(VecDeque<Weak<Guest>>);

impl Guests {
    /// A place for a new connection, which may be that of another.
    pub fn enter(&mut self) -> Arc<Guest> {
        if self.0.len() >= MOST {
            let stays = |guest: &Arc<Guest>| !guest.welcome.load(Ordering::Relaxed);
            self.0.retain(|guest| guest.upgrade().is_some_and(|guest| stays(&guest)));
        }
        if self.0.len() >= MOST {
            let silent = |guest: &Weak<Guest>| {
                guest.upgrade().is_none_or(|guest| !guest.heard.load(Ordering::Relaxed))
            };
            let goes = self.0.iter().position(silent).unwrap_or_default();
            if let Some(guest) = self.0.remove(goes).and_then(|guest| guest.upgrade()) {
                guest.pushed_out.cancel();
            }
        }
        let guest = Arc::new(Guest::default());
        self.0.push_back(Arc::downgrade(&guest));
        guest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was closed, by number, after `more` came to a full house.
    fn closed(mark: impl Fn(usize, &Guest), more: usize) -> Vec<usize> {
        let mut guests = Guests::default();
        let mut held: Vec<Arc<Guest>> = (0..MOST).map(|_| guests.enter()).collect();
        held.iter().enumerate().for_each(|(number, guest)| mark(number, guest));
        held.extend((0..more).map(|_| guests.enter()));
        let is_closed = |guest: &Arc<Guest>| guest.pushed_out.is_cancelled();
        held.iter().enumerate().filter(|(_, guest)| is_closed(guest)).map(|(number, _)| number).collect()
    }

    #[test]
    fn silent_ones_go_first_and_welcome_ones_never() {
        assert_eq!(closed(|_, _| {}, 3), [0, 1, 2]);
        assert_eq!(
            closed(
                |number, guest| if number != 7 {
                    guest.is_heard()
                },
                1
            ),
            [7]
        );
        // When all were heard, one of them goes; after that there is a silent one.
        assert_eq!(closed(|_, guest| guest.is_heard(), 3), [0, MOST, MOST + 1]);
        let welcome = |number, guest: &Guest| guest.welcome.store(number < 10, Ordering::Relaxed);
        assert_eq!(closed(welcome, 12), [10, 11]);
    }

    #[test]
    fn who_left_takes_no_place() {
        let mut guests = Guests::default();
        let kept = guests.enter();
        for _ in 0..10 * MOST {
            drop(guests.enter());
        }
        assert!(guests.0.len() <= MOST && !kept.pushed_out.is_cancelled());
    }
}
