//! The directory in which plugins open their registration sockets.
//!
//! Every inotify event leads to one scan of the directory tree; the differences to the last scan are reported. A socket
//! that was recreated counts as a new one. If inotify is not available (the node's limit is reached), the directory is
//! scanned once a minute.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchMask};
use model::csi::PluginInfo;
use model::text_limits::{TextLimit, truncate_text};
use ports::{CsiError, PluginSocketEvent, PluginSockets};
use tonic::transport::Channel;

use crate::call::{MAX_ANSWER_BYTES, call, channel};
use crate::registration as pb;
use pb::registration_client::RegistrationClient;

const GET_INFO_TIMEOUT: Duration = Duration::from_secs(10);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the directory is scanned without an inotify event.
const RESCAN_PERIOD: Duration = Duration::from_secs(60);
/// Deeper directories are ignored.
const MAX_DEPTH: usize = 8;
/// How many versions of its interface a plugin may name.
const MAX_VERSIONS: usize = 16;

/// [`PluginSockets`] below one directory.
#[derive(Clone, Debug)]
pub struct PluginRegistry {
    directory: PathBuf,
}

impl PluginRegistry {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }
}

/// Device, inode and modification time of a socket. They show that a socket was recreated at the same path.
type SocketIdentity = (u64, u64, i64, i64);

#[derive(Debug, Default)]
struct DirectoryScan {
    sockets: BTreeMap<String, SocketIdentity>,
    directories: Vec<PathBuf>,
}

struct Watcher {
    directory: PathBuf,
    known: BTreeMap<String, SocketIdentity>,
    changes: Option<EventStream<Vec<u8>>>,
    first: bool,
}

impl Watcher {
    /// The changes since the last scan. Waits for a change unless it is the first scan.
    async fn next(mut self) -> (Vec<PluginSocketEvent>, Self) {
        if !self.first {
            self.wait().await;
        }
        self.first = false;
        let directory = self.directory.clone();
        // The watch is added before the scan, so that no change in between is lost.
        self.add_watches(std::slice::from_ref(&directory));
        let seen = scan(directory.clone()).await;
        self.add_watches(&seen.directories);
        // A socket may have been created in a directory before that was watched.
        let seen = if seen.directories.len() > 1 { scan(directory).await } else { seen };
        let notices = difference(&self.known, &seen.sockets);
        self.known = seen.sockets;
        (notices, self)
    }

    async fn wait(&mut self) {
        let Some(changes) = &mut self.changes else { return tokio::time::sleep(RESCAN_PERIOD).await };
        let more = tokio::time::timeout(RESCAN_PERIOD, changes.next()).await;
        if matches!(more, Ok(None | Some(Err(_)))) {
            self.changes = None;
            return;
        }
        // One scan covers all events that are pending.
        while let Some(Some(_)) = changes.next().now_or_never() {}
    }

    fn add_watches(&mut self, directories: &[PathBuf]) {
        if let Err(error) = self.try_add_watches(directories) {
            tracing::warn!(directory = %self.directory.display(), %error, "inotify is not available, looking for plugins periodically");
            self.changes = None;
        }
    }

    fn try_add_watches(&mut self, directories: &[PathBuf]) -> io::Result<()> {
        let changes = match &mut self.changes {
            Some(changes) => changes,
            none => none.insert(Inotify::init()?.into_event_stream(vec![0; 16 * 1024])?),
        };
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::ATTRIB;
        for directory in directories {
            match changes.watches().add(directory, mask | WatchMask::ONLYDIR | WatchMask::DONT_FOLLOW) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

async fn scan(directory: PathBuf) -> DirectoryScan {
    let looked = tokio::task::spawn_blocking(move || {
        let mut seen = DirectoryScan::default();
        walk(&directory, 0, &mut seen);
        seen
    });
    looked.await.unwrap_or_default()
}

fn walk(directory: &Path, depth: usize, seen: &mut DirectoryScan) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    seen.directories.push(directory.to_owned());
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let path = directory.join(name);
        if metadata.is_dir() && depth < MAX_DEPTH {
            walk(&path, depth + 1, seen);
        } else if metadata.file_type().is_socket()
            && let Some(path) = path.to_str()
        {
            let identity = (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
            seen.sockets.insert(path.to_owned(), identity);
        }
    }
}

fn difference(
    known: &BTreeMap<String, SocketIdentity>,
    seen: &BTreeMap<String, SocketIdentity>,
) -> Vec<PluginSocketEvent> {
    let gone = known.iter().filter(|(path, identity)| seen.get(*path) != Some(identity));
    let came = seen.iter().filter(|(path, identity)| known.get(*path) != Some(identity));
    let gone = gone.map(|(path, _)| PluginSocketEvent::Gone { path: path.clone() });
    gone.chain(came.map(|(path, _)| PluginSocketEvent::Added { path: path.clone() })).collect()
}

fn client(socket: &str) -> RegistrationClient<Channel> {
    RegistrationClient::new(channel(Path::new(socket))).max_decoding_message_size(MAX_ANSWER_BYTES)
}

#[async_trait]
impl PluginSockets for PluginRegistry {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        let watcher =
            Watcher { directory: self.directory.clone(), known: BTreeMap::new(), changes: None, first: true };
        stream::unfold(watcher, |watcher| async { Some(watcher.next().await) }).flat_map(stream::iter).boxed()
    }

    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        let mut client = client(socket);
        let answer =
            call(Path::new(socket), GET_INFO_TIMEOUT, pb::InfoRequest {}, |r| client.get_info(r)).await?;
        Ok(plugin_info(answer))
    }

    async fn notify_registration_status(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError> {
        let mut client = client(socket);
        let status = pb::RegistrationStatus {
            plugin_registered: trouble.is_none(),
            error: trouble.unwrap_or_default().to_owned(),
        };
        call(Path::new(socket), NOTIFY_TIMEOUT, status, |r| client.notify_registration_status(r)).await?;
        Ok(())
    }
}

/// All of it is quoted in log lines and in what the plugin is told. A text that is cut here is no valid one.
fn plugin_info(answer: pb::PluginInfo) -> PluginInfo {
    let cut = |text: String| truncate_text(text, TextLimit::Name);
    PluginInfo {
        kind: cut(answer.r#type),
        name: cut(answer.name),
        endpoint: truncate_text(answer.endpoint, TextLimit::QuotedValue),
        versions: answer.supported_versions.into_iter().take(MAX_VERSIONS).map(cut).collect(),
    }
}

#[cfg(test)]
mod tests;
