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
pub(crate) const MAX_UNAUTHENTICATED_CONNECTIONS: usize = 256;

/// One connection, seen from the door.
#[derive(Default)]
pub(crate) struct UnauthenticatedConnection {
    active: AtomicBool,
    /// Shared with whoever finds that a request is allowed.
    pub authorized: Arc<AtomicBool>,
    displaced: CancellationToken,
}

impl UnauthenticatedConnection {
    /// It asked something, or is known: while that is looked into, it does not go for somebody silent.
    pub fn mark_active(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Ends when its place is needed.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

/// Those who are not welcome yet, oldest first. A connection that ended is no longer there.
#[derive(Default)]
pub(crate) struct UnauthenticatedConnections(VecDeque<Weak<UnauthenticatedConnection>>);

impl UnauthenticatedConnections {
    /// A place for a new connection, which may be that of another.
    pub fn add_connection(&mut self) -> Arc<UnauthenticatedConnection> {
        if self.0.len() >= MAX_UNAUTHENTICATED_CONNECTIONS {
            let stays =
                |connection: &Arc<UnauthenticatedConnection>| !connection.authorized.load(Ordering::Relaxed);
            self.0.retain(|connection| connection.upgrade().is_some_and(|connection| stays(&connection)));
        }
        if self.0.len() >= MAX_UNAUTHENTICATED_CONNECTIONS {
            let silent = |connection: &Weak<UnauthenticatedConnection>| {
                connection.upgrade().is_none_or(|connection| !connection.active.load(Ordering::Relaxed))
            };
            let goes = self.0.iter().position(silent).unwrap_or_default();
            if let Some(connection) = self.0.remove(goes).and_then(|connection| connection.upgrade()) {
                connection.displaced.cancel();
            }
        }
        let connection = Arc::new(UnauthenticatedConnection::default());
        self.0.push_back(Arc::downgrade(&connection));
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was closed, by number, after `more` came to a full house.
    fn closed(mark: impl Fn(usize, &UnauthenticatedConnection), more: usize) -> Vec<usize> {
        let mut connections = UnauthenticatedConnections::default();
        let mut held: Vec<Arc<UnauthenticatedConnection>> =
            (0..MAX_UNAUTHENTICATED_CONNECTIONS).map(|_| connections.add_connection()).collect();
        held.iter().enumerate().for_each(|(number, connection)| mark(number, connection));
        held.extend((0..more).map(|_| connections.add_connection()));
        let is_closed = |connection: &Arc<UnauthenticatedConnection>| connection.displaced.is_cancelled();
        held.iter()
            .enumerate()
            .filter(|(_, connection)| is_closed(connection))
            .map(|(number, _)| number)
            .collect()
    }

    #[test]
    fn silent_ones_go_first_and_welcome_ones_never() {
        assert_eq!(closed(|_, _| {}, 3), [0, 1, 2]);
        assert_eq!(
            closed(
                |number, connection| if number != 7 {
                    connection.mark_active()
                },
                1
            ),
            [7]
        );
        // When all were heard, one of them goes; after that there is a silent one.
        assert_eq!(
            closed(|_, connection| connection.mark_active(), 3),
            [0, MAX_UNAUTHENTICATED_CONNECTIONS, MAX_UNAUTHENTICATED_CONNECTIONS + 1]
        );
        let welcome = |number, connection: &UnauthenticatedConnection| {
            connection.authorized.store(number < 10, Ordering::Relaxed)
        };
        assert_eq!(closed(welcome, 12), [10, 11]);
    }

    #[test]
    fn who_left_takes_no_place() {
        let mut connections = UnauthenticatedConnections::default();
        let kept = connections.add_connection();
        for _ in 0..10 * MAX_UNAUTHENTICATED_CONNECTIONS {
            drop(connections.add_connection());
        }
        assert!(connections.0.len() <= MAX_UNAUTHENTICATED_CONNECTIONS && !kept.displaced.is_cancelled());
    }
}
