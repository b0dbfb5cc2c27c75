//! A log as a stream of bytes, optionally followed while the container writes it.
//!
//! ```text
//! read to the end -> (no follow) end
//!                 -> the file was replaced (rotation): read what is left of the old one, then those that were rotated
//!                    away meanwhile, and go on with the new one
//!                 -> the container ended: read to the end once more, end
//!                 -> wait for a change in the log's directory, for the end of the container, or a while
//! ```
//!
//! The next piece is read only when the reader asks for it, so a slow reader delays nothing else.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::future::Future;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use inotify::{EventStream, Inotify, WatchMask};
use ports::LogOptions;
use tokio::io::AsyncSeekExt;
use tokio::time::Instant;

use super::earlier_files::files_to_read;
use super::file_lease::has_writer;
use super::log_file::LogFile;
use super::open::{open_directory, open_log, own_path};
use super::render::Renderer;
use super::rotated_logs::RotatedLogs;

const PIECE: usize = 32 * 1024;
/// How often a followed log is read although there was no notification of a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a log that was replaced is read on at most, while the runtime has it open.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(5);
/// The same where the filesystem can't tell whether a file is open.
const LAST_LINES_WITHOUT_LEASES: Duration = Duration::from_millis(100);
const LAST_LINES_PAUSE: Duration = Duration::from_millis(10);

/// Reads the log at `path`, which must be a regular file below `logs_dir`. `ended` resolves when the container writes
/// no more; it is only used when following.
pub fn stream(
    logs_dir: impl Into<PathBuf>,
    path: impl Into<PathBuf>,
    options: LogOptions,
    ended: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<'static, io::Result<Bytes>> {
    let start =
        LogStreamRequest { logs_dir: logs_dir.into(), path: path.into(), options, ended: Box::pin(ended) };
    pieces(State::Start(start))
}

/// As [`stream`], but opens the file before it returns.
pub(super) async fn open_stream(
    logs_dir: &Path,
    path: &Path,
    options: LogOptions,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
    let start = LogStreamRequest { logs_dir: logs_dir.into(), path: path.into(), options, ended };
    Ok(pieces(State::Reading(Reader::open(start).await?)))
}

fn pieces(state: State) -> BoxStream<'static, io::Result<Bytes>> {
    stream::unfold(state, |state| async move {
        let mut reader = match state {
            State::Done => return None,
            State::Start(start) => match Reader::open(start).await {
                Ok(reader) => reader,
                Err(error) => return Some((Err(error), State::Done)),
            },
            State::Reading(reader) => reader,
        };
        match reader.next().await {
            Ok(Some(piece)) => Some((Ok(piece), State::Reading(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), State::Done)),
        }
    })
    .boxed()
}

struct LogStreamRequest {
    logs_dir: PathBuf,
    path: PathBuf,
    options: LogOptions,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

enum State {
    Start(LogStreamRequest),
    Reading(Box<Reader>),
    Done,
}

struct Reader {
    start: LogStreamRequest,
    file: LogFile,
    renderer: Renderer,
    /// Files that followed this one at rotations; each is read when the one before was read to its end.
    successors: VecDeque<LogFile>,
    rotated_logs: RotatedLogs,
    changes: Changes,
    /// Until then an empty file is waited for, although the log is not followed.
    first_line_until: Option<Instant>,
    /// When it was seen that another file is at the log's path, until the old one is no longer written.
    replaced_at: Option<Instant>,
    has_ended: bool,
    is_over: bool,
}

impl Reader {
    async fn open(start: LogStreamRequest) -> io::Result<Box<Self>> {
        // Listed before the log is opened: files that are rotated away from now on may have to be read.
        let (logs_dir, log) = (start.logs_dir.clone(), start.path.clone());
        let siblings = match start.options.follow {
            true => blocking(move || Ok(RotatedLogs::existing_beside(&logs_dir, &log))).await?,
            false => RotatedLogs::default(),
        };
        let (logs_dir, log) = (start.logs_dir.clone(), start.path.clone());
        let (lines, since) = (start.options.tail_lines, start.options.since);
        let mut files = blocking(move || files_to_read(&logs_dir, &log, lines, since)).await?;
        let file = files.pop_front().ok_or(io::ErrorKind::NotFound)?;
        let renderer = Renderer::new(&start.options);
        let changes = Changes::NotWatched;
        let waits = start.options.first_line_within;
        Ok(Box::new(Self {
            start,
            file,
            renderer,
            successors: files,
            rotated_logs: siblings,
            changes,
            first_line_until: (!waits.is_zero()).then(|| Instant::now() + waits),
            replaced_at: None,
            has_ended: false,
            is_over: false,
        }))
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = vec![0; PIECE];
        while !self.is_over {
            if self.renderer.is_done() {
                return Ok(None);
            }
            let out = match self.file.read(&mut piece).await? {
                0 => self.at_end().await?,
                length => self.renderer.feed(&piece[..length]),
            };
            if !out.is_empty() {
                return Ok(Some(out));
            }
        }
        Ok(None)
    }

    /// The whole file was read. Returns the output that the end of the file produces.
    async fn at_end(&mut self) -> io::Result<Bytes> {
        if self.waits_for_last_lines().await {
            return Ok(Bytes::new());
        }
        if let Some(successor) = self.successors.pop_front() {
            if let Some(read) = self.file.metadata().await {
                self.rotated_logs.mark_done(&read);
            }
            self.file = successor;
            // Unless it is the log itself, it was rotated as well, maybe just now.
            self.replaced_at = (!self.successors.is_empty()).then(Instant::now);
            return Ok(self.renderer.restart());
        }
        if self.waits_for_first_line().await? {
            return Ok(Bytes::new());
        }
        // A reader that was behind may find more than one file.
        if !self.start.options.follow || (self.has_ended && !self.look_for_successor().await?) {
            self.is_over = true;
            return Ok(self.renderer.finish());
        }
        if self.has_ended {
            return Ok(Bytes::new());
        }
        if !self.changes.are_watched() {
            // Read once more: changes before the watch was added caused no notification.
            self.changes = Changes::watch(&self.start.logs_dir, &self.start.path).await;
            return Ok(Bytes::new());
        }
        let was_replaced = self.look_for_successor().await?;
        if !was_replaced {
            tokio::select! {
                () = &mut self.start.ended => {
                    self.has_ended = true;
                    // It may have been rotated just before.
                    self.look_for_successor().await?;
                }
                () = self.changes.next() => {}
            }
        }
        Ok(Bytes::new())
    }

    /// The log was replaced, and the runtime may still write to the old file. `false`: it was read to its end.
    async fn waits_for_last_lines(&mut self) -> bool {
        let Some(replaced) = self.replaced_at else { return false };
        let writer = match &self.file {
            LogFile::Plain(file) => file.try_clone().await.ok(),
            LogFile::Packed(_) => None,
        };
        let has_writer = match writer {
            Some(file) => has_writer(&file.into_std().await),
            None => Some(false),
        };
        let waited = replaced.elapsed();
        if waited < LAST_LINES_WITHIN && has_writer.unwrap_or(waited < LAST_LINES_WITHOUT_LEASES) {
            tokio::time::sleep(LAST_LINES_PAUSE).await;
        } else {
            // Read once more: it may have been written and closed since its end was read.
            self.replaced_at = None;
        }
        true
    }

    /// Returns false if there is nothing to wait for. A container counts as running as soon as its process exists,
    /// which may be a moment before the process has written its first line.
    async fn waits_for_first_line(&mut self) -> io::Result<bool> {
        let Some(until) = self.first_line_until.filter(|_| !self.start.options.follow) else {
            return Ok(false);
        };
        let is_empty = self.file.metadata().await.is_some_and(|file| file.len() == 0);
        if !is_empty || Instant::now() >= until {
            self.first_line_until = None;
            // Something may have been written since the end was read.
            return Ok(true);
        }
        if !self.changes.are_watched() {
            self.changes = Changes::watch(&self.start.logs_dir, &self.start.path).await;
            return Ok(true);
        }
        tokio::select! {
            () = &mut self.start.ended => self.first_line_until = None,
            () = self.changes.next() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        Ok(true)
    }

    /// Returns true if another file is at the log's path, to which the runtime writes from now on.
    async fn look_for_successor(&mut self) -> io::Result<bool> {
        let now = match open(&self.start).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let new = now.metadata().await?;
        // The last file is never a compressed one.
        let Some(file) = self.file.as_plain() else { return Ok(false) };
        let old = file.metadata().await?;
        if (old.dev(), old.ino()) != (new.dev(), new.ino()) {
            self.successors = self.missed(old, new).await?;
            self.successors.push_back(LogFile::Plain(now));
            self.replaced_at = Some(Instant::now());
            return Ok(true);
        }
        if new.len() < file.stream_position().await? {
            // The file was truncated in place: its content is new, and the rest of a line that started before is lost.
            file.seek(SeekFrom::Start(0)).await?;
            self.renderer.restart();
            return Ok(true);
        }
        Ok(false)
    }
}

impl Reader {
    /// The files that were rotated away between these two.
    async fn missed(&mut self, old: Metadata, new: Metadata) -> io::Result<VecDeque<LogFile>> {
        let (logs_dir, path) = (self.start.logs_dir.clone(), self.start.path.clone());
        let mut siblings = std::mem::take(&mut self.rotated_logs);
        let look = move || {
            let files = siblings.between(&logs_dir, &path, &old, &new)?;
            Ok((siblings, files))
        };
        let (siblings, files) = blocking(look).await?;
        self.rotated_logs = siblings;
        Ok(files.into())
    }
}

fn open(start: &LogStreamRequest) -> impl Future<Output = io::Result<tokio::fs::File>> + Send + use<> {
    let (logs_dir, path) = (start.logs_dir.clone(), start.path.clone());
    async move {
        let file: File = blocking(move || open_log(&logs_dir, &path)).await?;
        Ok(tokio::fs::File::from_std(file))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Notifies of changes in the log's directory.
enum Changes {
    NotWatched,
    Watched(EventStream<Vec<u8>>),
    /// inotify is not available.
    Polled,
}

impl Changes {
    fn are_watched(&self) -> bool {
        !matches!(self, Changes::NotWatched)
    }

    /// Of the directory of the log, which is opened without following symlinks.
    fn watch(logs_dir: &Path, log: &Path) -> impl Future<Output = Self> + Send + use<> {
        let (logs_dir, log) = (logs_dir.to_owned(), log.to_owned());
        let watch = move || {
            let dir = open_directory(&logs_dir, &log)?;
            Changes::inotify(&own_path(&dir))
        };
        async move {
            match blocking(watch).await.and_then(|inotify| inotify.into_event_stream(vec![0; 4096])) {
                Ok(events) => Changes::Watched(events),
                Err(_) => Changes::Polled,
            }
        }
    }

    fn inotify(dir: &Path) -> io::Result<Inotify> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE;
        inotify.watches().add(dir, mask | WatchMask::ONLYDIR)?;
        Ok(inotify)
    }

    async fn next(&mut self) {
        match self {
            Changes::Watched(events) => {
                // The timeout covers changes that inotify does not report, such as a replaced directory.
                let told = tokio::time::timeout(LOOK_EVERY, events.next()).await;
                if matches!(told, Ok(None | Some(Err(_)))) {
                    *self = Changes::Polled;
                }
            }
            Changes::Polled | Changes::NotWatched => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
