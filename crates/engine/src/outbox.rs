//! Where tasks send their outcomes.

use decide::Event;
use tokio::sync::mpsc;

/// Sends the outcome of a task to the dispatcher.
#[derive(Clone)]
pub(crate) struct Outbox(pub mpsc::UnboundedSender<Event>);

impl Outbox {
    pub fn send(&self, event: Event) {
        // The receiver is dropped only while the agent shuts down.
        let _ = self.0.send(event);
    }
}
