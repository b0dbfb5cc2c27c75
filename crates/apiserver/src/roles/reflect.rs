//! A set of objects kept in sight: listed once, then watched; listed again only when the server no longer knows where
//! the watch was.
//!
//! ```text
//!   list ──> All ──> watch from its version ──> Changed, Gone, ... ──┐
//!    ^                 ^      closed, broken: from the last version ──┤
//!    └── 410 ──────────┴──────────────────────────────────────────────┘   failures: told once, growing waits
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use model::k8s::ObjectMeta;
use ports::ApiError;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::calls::Listed;
use crate::watch::{ObjectIdentity, UnreadableObject, Watch, WatchEvent};

use super::progress::{WatchEntries, WatchProgress};

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How often a "no" is asked about before it is told. Whoever authorizes nodes learns of a pod a little later than its
/// node does, and says no until then.
const DOUBTED_REFUSALS: u32 = 3;
/// A watch that ends sooner is no watch, whatever it said: only a longer one shows that all is well again. Otherwise a
/// connection that opens and breaks would be tried without end, and each time as if for the first time.
const SHORT: Duration = Duration::from_secs(1);
/// Changes that nobody has taken yet. Who is slow slows the watch, and the server keeps the rest.
const ROOM: usize = 64;
/// As many objects that can't be read are named to whoever asks.
const MOST_LISTED: usize = 20;

#[derive(Debug)]
pub enum Notice<T> {
    /// The whole set: what can be read of it, and what is there and can't be.
    All {
        items: Vec<T>,
        unreadable: Vec<UnreadableObject>,
    },
    Changed(T),
    Gone(ObjectIdentity),
    /// The newest version of this object can't be read. Told once, until something else is wrong with it.
    Unreadable(UnreadableObject),
    /// The server can't be asked, or says no. Told when it begins and when its text changes.
    Failing(ApiError),
    /// After `Failing`: all is well again.
    Recovered,
}

/// What is watched.
pub trait Target: Send + Sync + 'static {
    type Item: Send + 'static;
    fn list(&self) -> BoxFuture<'_, Result<Listed<Self::Item>, ApiError>>;
    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Self::Item>, ApiError>>;
    fn meta(item: &Self::Item) -> &ObjectMeta;
    /// Of which connection it is one.
    fn entries(&self) -> &WatchEntries;
    /// `services`, and which of them if it is one only.
    fn name(&self) -> (&'static str, String);
}

/// Never ends by itself; dropping the stream ends the watch.
pub fn reflect<T: Target>(target: T) -> BoxStream<'static, Notice<T::Item>> {
    let (notices, stream) = mpsc::channel(ROOM);
    tokio::spawn(async move {
        let gone = notices.clone();
        let (resource, object) = target.name();
        let progress = target.entries().add(resource, object);
        let mut reflector = Reflector {
            target,
            notices,
            progress,
            unreadable: BTreeMap::new(),
            version: None,
            failing: None,
            failures: 0,
            forgotten: false,
        };
        tokio::select! {
            () = gone.closed() => {}
            () = reflector.run() => {}
        }
    });
    ReceiverStream::new(stream).boxed()
}

fn key(identity: &ObjectIdentity) -> (String, String) {
    (identity.namespace.clone(), identity.name.clone())
}

struct Reflector<T: Target> {
    target: T,
    notices: mpsc::Sender<Notice<T::Item>>,
    progress: WatchProgress,
    /// By namespace and name: what was told.
    unreadable: BTreeMap<(String, String), UnreadableObject>,
    /// Where the next watch goes on.
    version: Option<String>,
    /// What was told of the failure that holds.
    failing: Option<String>,
    failures: u32,
    /// The server did not know where the last watch was to begin.
    forgotten: bool,
}

impl<T: Target> Reflector<T> {
    async fn run(&mut self) {
        loop {
            match self.round().await {
                Ok(()) => {}
                Err(ApiError::Gone { .. }) => self.forgotten().await,
                Err(error) => self.failed(error).await,
            }
        }
    }

    /// One list if it is needed, and one watch to its end.
    async fn round(&mut self) -> Result<(), ApiError> {
        let version = match &self.version {
            Some(version) => version.clone(),
            None => {
                let listed = self.target.list().await?;
                self.progress.heard();
                self.version = Some(listed.resource_version.clone());
                self.listed(listed.items, listed.unreadable).await;
                listed.resource_version
            }
        };
        let mut watch = self.target.watch(&version).await?;
        self.progress.heard();
        let began = Instant::now();
        let mut lasts = false;
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = sleep_until(began + SHORT), if !lasts => {
                    lasts = true;
                    self.well().await;
                    continue;
                }
            };
            match event {
                Some(event) => self.take(event?).await,
                None => break,
            }
        }
        if !lasts {
            self.pause(None).await;
        }
        Ok(())
    }

    async fn take(&mut self, event: WatchEvent<T::Item>) {
        self.progress.heard();
        match event {
            WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                let meta = T::meta(&item);
                self.at(meta.resource_version.clone().unwrap_or_default());
                self.readable(meta.namespace.as_deref(), meta.name.as_deref());
                self.tell(Notice::Changed(item)).await;
            }
            WatchEvent::Deleted(identity) => {
                self.at(identity.resource_version.clone());
                self.readable(Some(&identity.namespace), Some(&identity.name));
                self.tell(Notice::Gone(identity)).await;
            }
            WatchEvent::Unreadable(object) => {
                self.at(object.identity.resource_version.clone());
                if self.is_news(&object) {
                    self.report_unreadable();
                    self.tell(Notice::Unreadable(object)).await;
                }
            }
            WatchEvent::Bookmark { resource_version, .. } => self.at(resource_version),
        }
    }

    async fn listed(&mut self, items: Vec<T::Item>, unreadable: Vec<UnreadableObject>) {
        let there = |object: &UnreadableObject| key(&object.identity);
        self.unreadable.retain(|key, _| unreadable.iter().any(|object| there(object) == *key));
        let news: Vec<_> = unreadable.iter().filter(|object| self.is_news(object)).cloned().collect();
        self.report_unreadable();
        self.tell(Notice::All { items, unreadable }).await;
        for object in news {
            self.tell(Notice::Unreadable(object)).await;
        }
    }

    /// Notes it. Another version with the same mistake is no news.
    fn is_news(&mut self, object: &UnreadableObject) -> bool {
        let before = self.unreadable.insert(key(&object.identity), object.clone());
        before.is_none_or(|before| {
            (before.identity.uid, before.problem) != (object.identity.uid.clone(), object.problem.clone())
        })
    }

    fn readable(&mut self, namespace: Option<&str>, name: Option<&str>) {
        if self.unreadable.is_empty() {
            return;
        }
        let key = (namespace.unwrap_or_default().to_owned(), name.unwrap_or_default().to_owned());
        if self.unreadable.remove(&key).is_some() {
            self.report_unreadable();
        }
    }

    fn report_unreadable(&self) {
        let line = |object: &UnreadableObject| format!("{}: {}", object.identity, object.problem);
        let mut lines: Vec<String> = self.unreadable.values().take(MOST_LISTED).map(line).collect();
        let others = self.unreadable.len() - lines.len();
        if others > 0 {
            lines.push(format!("and {others} others"));
        }
        self.progress.unreadable(lines);
    }

    /// The next round lists. A server that does not even know what it listed has to be waited for.
    async fn forgotten(&mut self) {
        self.version = None;
        if self.forgotten {
            self.pause(None).await;
        }
        self.forgotten = true;
    }

    fn at(&mut self, version: String) {
        if !version.is_empty() {
            self.version = Some(version);
        }
    }

    async fn tell(&self, notice: Notice<T::Item>) {
        // Nobody is left to tell when this fails, and the task is about to end.
        if let Err(TrySendError::Full(notice)) = self.notices.try_send(notice) {
            self.progress.held_by("the agent does not take its changes".to_owned());
            let _ = self.notices.send(notice).await;
        }
    }

    async fn well(&mut self) {
        self.failures = 0;
        self.forgotten = false;
        if self.failing.take().is_some() {
            self.tell(Notice::Recovered).await;
        }
    }

    async fn failed(&mut self, error: ApiError) {
        let text = error.to_string();
        self.progress.held_by(text.clone());
        let wait = error.retry_after();
        let doubted = matches!(error, ApiError::Forbidden { .. }) && self.failures < DOUBTED_REFUSALS;
        if !doubted && self.failing.as_ref() != Some(&text) {
            self.failing = Some(text);
            self.tell(Notice::Failing(error)).await;
        }
        self.pause(wait).await;
    }

    /// Doubling waits, with a part left to chance: many nodes come back at once.
    async fn pause(&mut self, asked: Option<Duration>) {
        let doubled = FIRST_WAIT.saturating_mul(1 << self.failures.min(8)).min(LONGEST_WAIT);
        self.failures += 1;
        let spread = doubled.mul_f64(0.75 + fastrand::f64() * 0.5);
        sleep(spread.max(asked.unwrap_or_default())).await;
    }
}

#[cfg(test)]
mod tests;
