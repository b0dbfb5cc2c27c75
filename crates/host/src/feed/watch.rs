//! Watches a path for changes with inotify.
//!
//! There are two watches: on the path itself, and on the nearest existing directory above it, which shows when the path
//! is created, removed or replaced. Both are renewed before every read ([`PathWatcher::renew_watches`] is idempotent),
//! so a directory that was deleted and created again is watched again. Without inotify (the node's limit is reached)
//! changes are found only at the feed's period.
//!
//! A file that is being written is not reported before its writer closed it: `CREATE` and `MODIFY` mark it as
//! unfinished, `CLOSE_WRITE` (or a rename over it) as changed. If the writer never closes it, we wait for one period.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::Instant;

use super::manifests::{FileHints, is_ignored};

pub struct PathWatcher {
    path: PathBuf,
    stream: Option<EventStream<Vec<u8>>>,
    /// The watch on the path itself.
    inner: Option<WatchDescriptor>,
    /// The watch on a directory above, and the name in it that leads to the path.
    outer: Option<(WatchDescriptor, OsString)>,
    hints: FileHints,
    /// Unfinished files, and how many periods have passed since they were marked.
    writing: BTreeMap<OsString, u32>,
}

impl PathWatcher {
    /// `path` is absolute.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            stream: None,
            inner: None,
            outer: None,
            hints: FileHints::default(),
            writing: BTreeMap::new(),
        }
    }

    /// What was learned since the last call. Ask for it after [`PathWatcher::renew_watches`] and right before reading.
    pub fn take_hints(&mut self) -> FileHints {
        let mut hints = std::mem::take(&mut self.hints);
        hints.unfinished = self.writing.keys().cloned().collect();
        // A file that was deleted and is being rewritten is reported as deleted only when the rewrite is complete.
        self.hints.deleted = hints.deleted.extract_if(.., |name| self.writing.contains_key(name)).collect();
        hints
    }

    /// Renews the watches. Changes after this call are not missed.
    pub fn renew_watches(&mut self) {
        if let Err(error) = self.try_renew_watches() {
            tracing::warn!(path = %self.path.display(), %error, "inotify is not available, polling every fileCheckFrequency");
            self.stream = None;
            self.inner = None;
            self.outer = None;
        }
    }

    fn try_renew_watches(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            self.stream = Some(Inotify::init()?.into_event_stream(vec![0; 16 * 1024])?);
            self.inner = None;
            self.outer = None;
        }
        let Some(stream) = &self.stream else { return Ok(()) };
        let mut watches = stream.watches();
        let outer = watch_above(&mut watches, &self.path)?;
        let inner = match watches.add(&self.path, inner_mask()) {
            Ok(watch) => Some(watch),
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(error),
        };
        let old = [self.inner.take(), self.outer.take().map(|(watch, _)| watch)];
        self.inner = inner;
        self.outer = outer;
        for old in old.into_iter().flatten() {
            let used =
                self.inner.as_ref() == Some(&old) || self.outer.as_ref().is_some_and(|(w, _)| *w == old);
            if !used {
                // Fails if the kernel removed the watch already.
                let _ = watches.remove(old);
            }
        }
        Ok(())
    }

    /// Returns when the path should be read, or at the deadline.
    pub async fn wait(&mut self, deadline: Instant) {
        loop {
            let Some(stream) = &mut self.stream else {
                tokio::time::sleep_until(deadline).await;
                return self.period_ended();
            };
            let event = tokio::select! {
                event = stream.next() => event,
                () = tokio::time::sleep_until(deadline) => return self.period_ended(),
            };
            let mut worth = self.note(event);
            // All events that have arrived already are covered by one read.
            while let Some(event) = self.stream.as_mut().and_then(|stream| stream.next().now_or_never()) {
                worth |= self.note(event);
            }
            if worth {
                return;
            }
        }
    }

    fn period_ended(&mut self) {
        for name in self.writing.extract_if(.., |_, periods| *periods > 0).map(|(name, _)| name) {
            self.hints.changed.insert(name);
        }
        self.writing.values_mut().for_each(|periods| *periods += 1);
    }

    fn note(&mut self, event: Option<io::Result<EventOwned>>) -> bool {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                tracing::warn!(path = %self.path.display(), %error, "inotify failed, reading everything anew");
                self.stream = None;
                return true;
            }
            None => {
                self.stream = None;
                return true;
            }
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Events were lost, so everything has to be read.
            self.writing.clear();
            return true;
        }
        let own_name = self.path.file_name().unwrap_or_default().to_owned();
        if Some(&event.wd) == self.inner.as_ref() {
            return match event.name {
                Some(name) => self.note_file(&self.path.join(&name), name, event.mask),
                None if event.mask.intersects(SELF_GONE) => true,
                None => self.note_file(&self.path.clone(), own_name, event.mask),
            };
        }
        match (&self.outer, event.name) {
            (Some((watch, next)), Some(name)) if *watch == event.wd && *next == name => {
                if self.path.is_dir() || *next != own_name {
                    !event.mask.intersects(EventMask::MODIFY | EventMask::ATTRIB)
                } else {
                    self.note_file(&self.path.clone(), name, event.mask)
                }
            }
            (Some((watch, _)), None) if *watch == event.wd => event.mask.intersects(SELF_GONE),
            _ => false,
        }
    }

    /// An event about a manifest. Returns true if the file should be read now.
    fn note_file(&mut self, path: &Path, name: OsString, mask: EventMask) -> bool {
        if is_ignored(&name) && !may_be_linked_to(&name, mask) {
            return false;
        }
        if mask.contains(EventMask::ISDIR) {
            return true;
        }
        let written = mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO);
        if mask.contains(EventMask::MODIFY) || (mask.contains(EventMask::CREATE) && has_a_writer(path)) {
            self.writing.entry(name).or_insert(0);
            return false;
        }
        if mask.contains(EventMask::ATTRIB) && self.writing.contains_key(&name) {
            return false;
        }
        self.writing.remove(&name);
        if mask.contains(EventMask::DELETE) {
            self.hints.deleted.insert(name.clone());
        }
        if written || mask.contains(EventMask::CREATE) {
            self.hints.changed.insert(name);
        }
        true
    }
}

/// Each attempt gets one directory closer. If directories are created and removed faster, only the period remains.
const WATCH_TRIES: usize = 64;

const SELF_GONE: EventMask =
    EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED).union(EventMask::UNMOUNT);

fn inner_mask() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::ATTRIB
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
}

fn outer_mask() -> WatchMask {
    let selves = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
    WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | selves
        | WatchMask::ONLYDIR
}

/// Watches the nearest directory above `path` that exists.
fn watch_above(
    watches: &mut inotify::Watches,
    path: &Path,
) -> io::Result<Option<(WatchDescriptor, OsString)>> {
    let mut found = None;
    for _ in 0..WATCH_TRIES {
        let mut child = path;
        while let Some(parent) = child.parent() {
            match watches.add(parent, outer_mask()) {
                Ok(watch) => {
                    found = Some((watch, child.file_name().unwrap_or_default().to_owned()));
                    break;
                }
                Err(error) if is_absent(&error) => child = parent,
                Err(error) => return Err(error),
            }
        }
        // If the next directory was created before this watch was added, that one is closer.
        if child == path || !child.is_dir() {
            break;
        }
    }
    Ok(found)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Hidden names matter when they are renamed or created as symlinks: manifests may be symlinks through them (`..data`).
fn may_be_linked_to(name: &OsStr, mask: EventMask) -> bool {
    name.as_bytes().starts_with(b"..") && mask.intersects(EventMask::MOVED_TO | EventMask::CREATE)
}

/// A regular file is created empty and then written. One with a second hard link was linked here complete.
fn has_a_writer(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.nlink() == 1)
}
