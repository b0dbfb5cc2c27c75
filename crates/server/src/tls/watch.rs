//! Files that are read again when they change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio_util::sync::CancellationToken;

/// How often the files are read without a notification: inotify misses some changes, such as those behind a link.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// A certificate and its key are written one after the other.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Calls `look` after every change in a directory of one of these files, until `stop`.
pub(super) fn spawn_file_watch(
    files: Vec<PathBuf>,
    stop: CancellationToken,
    mut look: impl FnMut() + Send + 'static,
) {
    tokio::spawn(async move {
        let watching = async {
            let mut changes = watch(&files);
            loop {
                match &mut changes {
                    Some(events) => {
                        if let Ok(None | Some(Err(_))) =
                            tokio::time::timeout(POLL_INTERVAL, events.next()).await
                        {
                            changes = None;
                        }
                        tokio::time::sleep(SETTLE_TIME).await;
                    }
                    None => {
                        tokio::time::sleep(POLL_INTERVAL).await;
                        changes = watch(&files);
                    }
                }
                look();
            }
        };
        stop.run_until_cancelled(watching).await
    });
}

/// `None` when there is no inotify to be had, or a directory is missing.
fn watch(files: &[PathBuf]) -> Option<inotify::EventStream<Vec<u8>>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::CREATE | WatchMask::DELETE;
    for file in files {
        let directory = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        inotify.watches().add(directory, mask).ok()?;
    }
    inotify.into_event_stream(vec![0; 4096]).ok()
}
