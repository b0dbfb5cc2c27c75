//! Reports when one of some files may have changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};

/// For file systems without change notifications.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Replacing a certificate and its key takes a moment.
const SETTLE: Duration = Duration::from_millis(100);

/// Watches the directories, because files are replaced by renames, and symlinks by other symlinks.
pub struct FileWatch {
    events: Option<EventStream<[u8; 4096]>>,
}

impl FileWatch {
    pub fn new() -> Self {
        let events = Inotify::init().and_then(|inotify| inotify.into_event_stream([0; 4096]));
        if let Err(error) = &events {
            tracing::warn!("inotify is not available, polling certificate files: {error}");
        }
        Self { events: events.ok() }
    }

    /// Waits until something changes in the directory of one of the files, at most a minute.
    pub async fn changed(&mut self, files: &[PathBuf]) {
        self.watch(files);
        let Some(events) = &mut self.events else {
            tokio::time::sleep(AT_LEAST_EVERY).await;
            return;
        };
        if tokio::time::timeout(AT_LEAST_EVERY, events.next()).await.is_err() {
            return;
        }
        // Wait for the rest of the same change. If the directory never becomes quiet, the next round continues.
        let rest = async { while let Ok(Some(_)) = tokio::time::timeout(SETTLE, events.next()).await {} };
        let _ = tokio::time::timeout(10 * SETTLE, rest).await;
    }

    fn watch(&mut self, files: &[PathBuf]) {
        let Some(events) = &self.events else { return };
        let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::CREATE;
        // Added each time, because a directory may have been replaced; adding one twice does nothing.
        let add = |dir: &Path| {
            let _ = events.watches().add(dir, mask | WatchMask::ONLYDIR);
        };
        for file in files {
            add(&directory(file));
            // Also watch the targets of symlinks, because their content may be written in place.
            if let Ok(real) = file.canonicalize() {
                add(&directory(&real));
            }
        }
    }
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}
