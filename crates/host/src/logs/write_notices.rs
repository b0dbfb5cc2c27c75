//! Tells once that a file was written to.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::{Mutex, oneshot};

const BUFFER: usize = 16 * 1024;
/// When so many wait, those are forgotten whose caller has gone.
const MANY: usize = 1024;

/// A file is watched only until its next change, so that one that is written all the time costs nothing.
pub(super) const WRITES: WatchMask = WatchMask::MODIFY
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::ONESHOT)
    .union(WatchMask::DONT_FOLLOW);

/// One inotify instance for all files.
#[derive(Clone, Default)]
pub(super) struct WriteNotices {
    watcher: Arc<Mutex<Option<Watcher>>>,
}

struct Watcher {
    watches: Watches,
    waiting: HashMap<WatchDescriptor, Vec<oneshot::Sender<()>>>,
}

impl WriteNotices {
    /// To add files to, in a thread that may block.
    pub async fn watches(&self) -> io::Result<Watches> {
        let mut watcher = self.watcher.lock().await;
        if let Some(watcher) = watcher.as_ref() {
            return Ok(watcher.watches.clone());
        }
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream(vec![0; BUFFER])?;
        *watcher = Some(Watcher { watches: watches.clone(), waiting: HashMap::new() });
        tokio::spawn(self.clone().forward(events));
        Ok(watches)
    }

    /// Ends at the next change of the file. A change before this call is not told of: the caller has to look at the file
    /// once more.
    pub async fn next(&self, watch: WatchDescriptor) -> impl Future<Output = ()> + Send + use<> {
        let (sender, written) = oneshot::channel();
        if let Some(watcher) = self.watcher.lock().await.as_mut() {
            if watcher.waiting.len() >= MANY {
                watcher.waiting.retain(|_, senders| senders.iter().any(|sender| !sender.is_closed()));
            }
            watcher.waiting.entry(watch).or_default().push(sender);
        }
        // A sender that is dropped means as much as a notification: whoever waits looks at the file again.
        async move { drop(written.await) }
    }

    async fn forward(self, mut events: EventStream<Vec<u8>>) {
        while let Some(Ok(event)) = events.next().await {
            let mut watcher = self.watcher.lock().await;
            let Some(watcher) = watcher.as_mut() else { return };
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                watcher.waiting.clear();
            } else {
                watcher.waiting.remove(&event.wd);
            }
        }
        // inotify failed: the next one that waits begins anew.
        *self.watcher.lock().await = None;
    }
}
