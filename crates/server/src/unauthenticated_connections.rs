//! Limits the connections of a port that have not yet made an authorized request.
//!
//! ```text
//!   accepted ─> idle ─(a whole request, or a trusted certificate)─> active ─(a request was allowed)─> authorized
//!                └────────── at the limit: the oldest idle one, else the oldest active one, is closed
//! ```
//!
//! A real client sends its request at once. So connections that send nothing only displace each other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

/// Connections of a port that are not authorized yet. On a port without authentication, these are all connections.
pub(crate) const MAX_UNAUTHENTICATED_CONNECTIONS: usize = 256;

/// One connection, until one of its requests is allowed.
#[derive(Default)]
pub(crate) struct UnauthenticatedConnection {
    active: AtomicBool,
    /// Set by the access check when it allows a request.
    pub authorized: Arc<AtomicBool>,
    displaced: CancellationToken,
}

impl UnauthenticatedConnection {
    /// It sent a request, or a trusted certificate. It is not closed while there are idle connections.
    pub fn mark_active(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection has to be closed to make room.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

/// The connections that are not authorized yet, oldest first. A connection that ended is dropped from here.
#[derive(Default)]
pub(crate) struct UnauthenticatedConnections(VecDeque<Weak<UnauthenticatedConnection>>);

impl UnauthenticatedConnections {
    /// Adds a connection. At the limit, another one is closed to make room.
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

    /// The numbers of the connections that were closed when `more` came at the limit.
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
        // When all are active, one of them is closed; after that there is an idle one.
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
