//! Keeps a set of objects up to date: lists once and then watches; lists again only if the server no longer has the
//! resource version at which the watch was.
//!
//! ```text
//!   list ──> All ──> watch from its version ──> Changed, Gone, ... ──┐
//!    ^                 ^      closed, broken: from the last version ──┤
//!    └── 410 ──────────┴──────────────────────────────────────────────┘   failures: reported once, back-off
//! ```
//!
//! A watch that works without a change looks like one that something between the server and us holds up. Only what
//! the server sends in it tells them apart: events, bookmarks, and its end in order. Its opening says nothing, because
//! a proxy may open it and pass nothing on.

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

use crate::object_list::ObjectList;
use crate::watch::Watch;
use crate::watch_event::{ObjectIdentity, UnreadableObject, WatchEvent};

use crate::watch_progress::{WatchProgress, WatchStatuses};

const FIRST_WAIT: Duration = Duration::from_millis(200);
const MAX_WAIT: Duration = Duration::from_secs(10);
/// A Forbidden answer is retried this often before it is reported: the node authorizer learns of a new pod slightly
/// later than the kubelet, and refuses its secrets and config maps until then.
const FORBIDDEN_RETRIES: u32 = 3;
/// A watch that ends within this time counts as a failure; otherwise a connection that opens and breaks would be
/// retried without back-off.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// After so many answers at one version that are no event, the next round lists: a watch from the same version would
/// meet the same answer again.
const MAX_UNUSABLE_ANSWERS: u32 = 3;
/// How many events are buffered. If the receiver is slow, the watch is read more slowly, and the server buffers the
/// rest.
const EVENT_BUFFER: usize = 64;
/// At most this many unreadable objects are named in the watch's status.
const MAX_UNREADABLE_REPORTED: usize = 20;

#[derive(Debug)]
pub enum ReflectorEvent<T> {
    /// The whole set: the decoded objects, and those that can't be decoded.
    All {
        items: Vec<T>,
        unreadable: Vec<UnreadableObject>,
    },
    Changed(T),
    Gone(ObjectIdentity),
    /// The newest version of this object can't be decoded. Sent once, until the problem changes.
    Unreadable(UnreadableObject),
    /// The server can't be reached or refuses the request. Sent when this starts and when the message changes.
    Failing(ApiError),
    /// Follows `Failing` when a watch works again.
    Recovered,
}

/// A set of objects to list and watch.
pub trait ListWatcher: Send + Sync + 'static {
    type Item: Send + 'static;
    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Self::Item>, ApiError>>;
    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Self::Item>, ApiError>>;
    fn meta(item: &Self::Item) -> &ObjectMeta;
    /// The watch statuses of the connection.
    fn entries(&self) -> &WatchStatuses;
    /// The resource (`services`), and the object's name if only one is watched.
    fn name(&self) -> (&'static str, String);
}

/// Never ends by itself; dropping the stream ends the watch.
pub fn reflect<T: ListWatcher>(target: T) -> BoxStream<'static, ReflectorEvent<T::Item>> {
    let (notices, stream) = mpsc::channel(EVENT_BUFFER);
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
            reported_failure: None,
            failures: 0,
            last_version_was_gone: false,
            watch_fails: false,
            unusable_answers: 0,
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

struct Reflector<T: ListWatcher> {
    target: T,
    notices: mpsc::Sender<ReflectorEvent<T::Item>>,
    progress: WatchProgress,
    /// By namespace and name: the problem that was sent.
    unreadable: BTreeMap<(String, String), UnreadableObject>,
    /// The resource version from which the next watch resumes.
    version: Option<String>,
    /// The message of the present failure that was sent.
    reported_failure: Option<String>,
    failures: u32,
    /// The server no longer had the resource version at which the last watch started.
    last_version_was_gone: bool,
    /// The problem in `progress` is one of the watch, which a list that succeeds does not end.
    watch_fails: bool,
    /// Answers in watches from `version` that are no event.
    unusable_answers: u32,
}

impl<T: ListWatcher> Reflector<T> {
    async fn run(&mut self) {
        loop {
            match self.list_and_watch().await {
                Ok(()) => {}
                Err(error @ ApiError::Gone { .. }) => self.handle_gone_version(&error).await,
                Err(error) => self.handle_failure(error).await,
            }
        }
    }

    /// Lists if necessary, and watches until the watch ends.
    async fn list_and_watch(&mut self) -> Result<(), ApiError> {
        let version = match &self.version {
            Some(version) => version.clone(),
            None => self.list().await?,
        };
        let mut watch = self.target.watch(&version).await?;
        self.progress.set_bookmarks(false);
        let began = Instant::now();
        let mut lasts = false;
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = sleep_until(began + SHORT_WATCH), if !lasts => {
                    lasts = true;
                    self.report_recovery().await;
                    continue;
                }
            };
            match event {
                Some(Ok(event)) => self.handle_event(event).await,
                Some(Err(error)) => {
                    self.note_unusable_answer(&error);
                    return Err(error);
                }
                None => break,
            }
        }
        if lasts {
            // Whatever was held up on its way has arrived before the end.
            self.progress.note_activity();
        } else {
            self.hold_watch(format!("the watch ended within {SHORT_WATCH:?} of its beginning"));
            self.pause(None).await;
        }
        Ok(())
    }

    /// Returns the version of the list.
    async fn list(&mut self) -> Result<String, ApiError> {
        let listed = self.target.list().await?;
        self.progress.note_activity();
        if !self.watch_fails {
            self.progress.replace_problem(None);
        }
        self.unusable_answers = 0;
        self.version = Some(listed.resource_version.clone());
        self.handle_list(listed.items, listed.unreadable).await;
        Ok(listed.resource_version)
    }

    fn hold_watch(&mut self, problem: String) {
        self.watch_fails = true;
        self.progress.set_problem(problem);
    }

    /// The watch works.
    fn release_watch(&mut self) {
        self.watch_fails = false;
        self.progress.replace_problem(None);
    }

    /// Decides whether the next round lists although the server may still have the version.
    fn note_unusable_answer(&mut self, error: &ApiError) {
        match error {
            ApiError::Gone { .. } | ApiError::Unavailable { .. } => return,
            // The server did not end the watch when it was asked to: something in between may have held up events.
            ApiError::TimedOut { .. } => self.version = None,
            _ => {
                self.unusable_answers += 1;
                if self.unusable_answers >= MAX_UNUSABLE_ANSWERS {
                    self.version = None;
                }
            }
        }
        self.watch_fails = true;
    }

    async fn handle_event(&mut self, event: WatchEvent<T::Item>) {
        self.progress.note_activity();
        self.release_watch();
        match event {
            WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                let meta = T::meta(&item);
                self.set_version(meta.resource_version.clone().unwrap_or_default());
                self.readable(meta.namespace.as_deref(), meta.name.as_deref());
                self.send(ReflectorEvent::Changed(item)).await;
            }
            WatchEvent::Deleted(identity) => {
                self.set_version(identity.resource_version.clone());
                self.readable(Some(&identity.namespace), Some(&identity.name));
                self.send(ReflectorEvent::Gone(identity)).await;
            }
            WatchEvent::Unreadable(object) => {
                match object.identity.resource_version.as_str() {
                    // A watch from the version before it would bring it again.
                    "" => self.version = None,
                    version => self.set_version(version.to_owned()),
                }
                if self.is_news(&object) {
                    self.report_unreadable();
                    self.send(ReflectorEvent::Unreadable(object)).await;
                }
            }
            WatchEvent::Bookmark { resource_version, .. } => {
                self.progress.set_bookmarks(true);
                self.set_version(resource_version);
            }
        }
    }

    async fn handle_list(&mut self, items: Vec<T::Item>, unreadable: Vec<UnreadableObject>) {
        let there = |object: &UnreadableObject| key(&object.identity);
        self.unreadable.retain(|key, _| unreadable.iter().any(|object| there(object) == *key));
        let news: Vec<_> = unreadable.iter().filter(|object| self.is_news(object)).cloned().collect();
        self.report_unreadable();
        self.send(ReflectorEvent::All { items, unreadable }).await;
        for object in news {
            self.send(ReflectorEvent::Unreadable(object)).await;
        }
    }

    /// Stores the problem. Returns false if it was sent before: another version with the same problem is not sent
    /// again.
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
        let mut lines: Vec<String> =
            self.unreadable.values().take(MAX_UNREADABLE_REPORTED).map(line).collect();
        let others = self.unreadable.len() - lines.len();
        if others > 0 {
            lines.push(format!("and {others} others"));
        }
        self.progress.unreadable(lines);
    }

    /// The next round lists. If the version of a fresh list is already gone, wait before the next list.
    async fn handle_gone_version(&mut self, error: &ApiError) {
        self.version = None;
        if self.last_version_was_gone {
            self.hold_watch(format!("{error}, right after a list"));
            self.pause(None).await;
        }
        self.last_version_was_gone = true;
    }

    fn set_version(&mut self, version: String) {
        if !version.is_empty() && self.version.as_ref() != Some(&version) {
            self.version = Some(version);
            self.unusable_answers = 0;
        }
    }

    async fn send(&self, notice: ReflectorEvent<T::Item>) {
        // If this fails, the receiver was dropped and the task is about to end.
        if let Err(TrySendError::Full(notice)) = self.notices.try_send(notice) {
            let problem = "the agent is not consuming watch events".to_owned();
            let before = self.progress.replace_problem(Some(problem));
            let _ = self.notices.send(notice).await;
            self.progress.replace_problem(before);
        }
    }

    async fn report_recovery(&mut self) {
        self.release_watch();
        self.failures = 0;
        self.last_version_was_gone = false;
        if self.reported_failure.take().is_some() {
            self.send(ReflectorEvent::Recovered).await;
        }
    }

    async fn handle_failure(&mut self, error: ApiError) {
        let text = error.to_string();
        self.progress.set_problem(text.clone());
        let wait = error.retry_after();
        let doubted = matches!(error, ApiError::Forbidden { .. }) && self.failures < FORBIDDEN_RETRIES;
        if !doubted && self.reported_failure.as_ref() != Some(&text) {
            self.reported_failure = Some(text);
            self.send(ReflectorEvent::Failing(error)).await;
        }
        self.pause(wait).await;
    }

    /// Waits for twice the time of the last wait, with jitter, because many nodes reconnect at once.
    async fn pause(&mut self, asked: Option<Duration>) {
        let doubled = FIRST_WAIT.saturating_mul(1 << self.failures.min(8)).min(MAX_WAIT);
        self.failures += 1;
        let spread = doubled.mul_f64(0.75 + fastrand::f64() * 0.5);
        sleep(spread.max(asked.unwrap_or_default())).await;
    }
}

#[cfg(test)]
mod tests;
