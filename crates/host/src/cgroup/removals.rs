//! Tells which cgroups are removed, by inotify: the kernel reports the removal of their directories.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

const BUFFER: usize = 16 * 1024;

/// A directory that is watched, and the index of the cgroup that it belongs to.
pub(super) type WatchedDirectory = (PathBuf, usize);

/// The names of directories that are removed from below these, each with its index. Ends when one of the watched
/// directories is itself removed, when events were lost, and when there is no inotify.
pub(super) fn removals(directories: Vec<WatchedDirectory>) -> BoxStream<'static, (usize, String)> {
    let open = async move {
        let opened = tokio::task::spawn_blocking(move || watch(directories)).await;
        match opened.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok((events, owners)) => forward(events, owners),
            Err(error) => {
                tracing::warn!("watching for removed cgroups: {error}");
                // Not tried again at each write: the limit of watches is reached, or there is no inotify at all.
                stream::pending().boxed()
            }
        }
    };
    stream::once(open).flatten().boxed()
}

type Owners = HashMap<WatchDescriptor, usize>;

fn watch(directories: Vec<WatchedDirectory>) -> io::Result<(EventStream<Vec<u8>>, Owners)> {
    let inotify = Inotify::init()?;
    let mut owners = Owners::new();
    for (directory, owner) in directories {
        let mask = WatchMask::DELETE | WatchMask::DELETE_SELF | WatchMask::ONLYDIR | WatchMask::DONT_FOLLOW;
        owners.insert(inotify.watches().add(&directory, mask)?, owner);
    }
    Ok((inotify.into_event_stream(vec![0; BUFFER])?, owners))
}

fn forward(events: EventStream<Vec<u8>>, owners: Owners) -> BoxStream<'static, (usize, String)> {
    let over = EventMask::Q_OVERFLOW | EventMask::DELETE_SELF | EventMask::IGNORED;
    events
        .take_while(move |event| {
            let goes_on = event.as_ref().is_ok_and(|event| !event.mask.intersects(over));
            std::future::ready(goes_on)
        })
        .filter_map(move |event| {
            let removed = event.ok().and_then(|event| {
                let is_cgroup = event.mask.contains(EventMask::DELETE | EventMask::ISDIR);
                let name = event.name.filter(|_| is_cgroup)?.into_string().ok()?;
                Some((*owners.get(&event.wd)?, name))
            });
            std::future::ready(removed)
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[tokio::test]
    async fn removed_directories_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for path in ["one/pod1", "one/pod2", "two/pod3"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(one.join("file"), "").unwrap();
        let mut removed = removals(vec![(one.clone(), 0), (two.clone(), 7)]);
        // The watches are there once the stream was polled and nothing came.
        let first = tokio::time::timeout(Duration::from_millis(300), removed.next()).await;
        assert!(first.is_err(), "nothing was removed yet");
        fs::remove_file(one.join("file")).unwrap();
        fs::create_dir(one.join("pod4")).unwrap();
        fs::remove_dir(one.join("pod1")).unwrap();
        fs::remove_dir(two.join("pod3")).unwrap();
        assert_eq!(removed.next().await, Some((0, "pod1".into())));
        assert_eq!(removed.next().await, Some((7, "pod3".into())));
        fs::remove_dir(&two).unwrap();
        assert_eq!(removed.next().await, None, "a level above pods is gone");
    }
}
