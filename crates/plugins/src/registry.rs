//! The directory in which plugins open their registration sockets.
//!
//! Any change below it leads to one look at all of it, and the difference to the look before is told. A socket that was
//! made anew is another one. Without inotify (the node's limit is reached) the period is what remains.

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
use ports::{CsiError, PluginSockets, SocketNotice};
use tonic::transport::Channel;

use crate::call::{call, channel};
use crate::registration as pb;
use pb::registration_client::RegistrationClient;

const INFO: Duration = Duration::from_secs(10);
const NOTIFY: Duration = Duration::from_secs(5);
/// How often it is looked at although nothing told of a change.
const PERIOD: Duration = Duration::from_secs(60);
/// Deeper is nobody's registration.
const DEEPEST: usize = 8;

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

/// Which file it is: a path alone does not tell that it was made anew.
type Identity = (u64, u64, i64, i64);

#[derive(Debug, Default)]
struct Seen {
    sockets: BTreeMap<String, Identity>,
    directories: Vec<PathBuf>,
}

struct Watcher {
    directory: PathBuf,
    known: BTreeMap<String, Identity>,
    changes: Option<EventStream<Vec<u8>>>,
    first: bool,
}

impl Watcher {
    /// What is different now. Waits unless it is the first look.
    async fn next(mut self) -> (Vec<SocketNotice>, Self) {
        if !self.first {
            self.wait().await;
        }
        self.first = false;
        let directory = self.directory.clone();
        // The watch comes first: what happens between it and the look is seen by either.
        self.arm(std::slice::from_ref(&directory));
        let seen = look(directory.clone()).await;
        self.arm(&seen.directories);
        // A socket may have been made in a directory before that was watched.
        let seen = if seen.directories.len() > 1 { look(directory).await } else { seen };
        let notices = difference(&self.known, &seen.sockets);
        self.known = seen.sockets;
        (notices, self)
    }

    async fn wait(&mut self) {
        let Some(changes) = &mut self.changes else { return tokio::time::sleep(PERIOD).await };
        let more = tokio::time::timeout(PERIOD, changes.next()).await;
        if matches!(more, Ok(None | Some(Err(_)))) {
            self.changes = None;
            return;
        }
        // All that has happened already counts for one look.
        while let Some(Some(_)) = changes.next().now_or_never() {}
    }

    fn arm(&mut self, directories: &[PathBuf]) {
        if let Err(error) = self.try_arm(directories) {
            tracing::warn!(directory = %self.directory.display(), %error, "not watching for plugins, only looking now and then");
            self.changes = None;
        }
    }

    fn try_arm(&mut self, directories: &[PathBuf]) -> io::Result<()> {
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

async fn look(directory: PathBuf) -> Seen {
    let looked = tokio::task::spawn_blocking(move || {
        let mut seen = Seen::default();
        walk(&directory, 0, &mut seen);
        seen
    });
    looked.await.unwrap_or_default()
}

fn walk(directory: &Path, depth: usize, seen: &mut Seen) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    seen.directories.push(directory.to_owned());
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let path = directory.join(name);
        if metadata.is_dir() && depth < DEEPEST {
            walk(&path, depth + 1, seen);
        } else if metadata.file_type().is_socket()
            && let Some(path) = path.to_str()
        {
            let identity = (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
            seen.sockets.insert(path.to_owned(), identity);
        }
    }
}

fn difference(known: &BTreeMap<String, Identity>, seen: &BTreeMap<String, Identity>) -> Vec<SocketNotice> {
    let gone = known.iter().filter(|(path, identity)| seen.get(*path) != Some(identity));
    let came = seen.iter().filter(|(path, identity)| known.get(*path) != Some(identity));
    let gone = gone.map(|(path, _)| SocketNotice::Gone { path: path.clone() });
    gone.chain(came.map(|(path, _)| SocketNotice::Came { path: path.clone() })).collect()
}

fn client(socket: &str) -> RegistrationClient<Channel> {
    RegistrationClient::new(channel(Path::new(socket)))
}

#[async_trait]
impl PluginSockets for PluginRegistry {
    fn watch(&self) -> BoxStream<'static, SocketNotice> {
        let watcher =
            Watcher { directory: self.directory.clone(), known: BTreeMap::new(), changes: None, first: true };
        stream::unfold(watcher, |watcher| async { Some(watcher.next().await) }).flat_map(stream::iter).boxed()
    }

    async fn info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        let mut client = client(socket);
        let answer = call(Path::new(socket), INFO, pb::InfoRequest {}, |r| client.get_info(r)).await?;
        Ok(PluginInfo {
            kind: answer.r#type,
            name: answer.name,
            endpoint: answer.endpoint,
            versions: answer.supported_versions,
        })
    }

    async fn notify(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError> {
        let mut client = client(socket);
        let status = pb::RegistrationStatus {
            plugin_registered: trouble.is_none(),
            error: trouble.unwrap_or_default().to_owned(),
        };
        call(Path::new(socket), NOTIFY, status, |r| client.notify_registration_status(r)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
