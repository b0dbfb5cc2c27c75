//! A set of objects kept in sight: listed once, then watched; listed again only when the server no longer knows where
//! the watch was.
//!
//! ```text
//!   list ──> All ──> watch from its version ──> Changed, Gone, ... ──┐
//!    ^                 ^      closed, broken: from the last version ──┤
//!    └── 410 ──────────┴──────────────────────────────────────────────┘   failures: told once, growing waits
//! ```

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use model::k8s::ObjectMeta;
use ports::ApiError;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::calls::Listed;
use crate::watch::{Watch, WatchEvent};

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

#[derive(Debug)]
pub enum Notice<T> {
    /// The whole set.
    All(Vec<T>),
    Changed(T),
    Gone(T),
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
}

/// Never ends by itself; dropping the stream ends the watch.
pub fn reflect<T: Target>(target: T) -> BoxStream<'static, Notice<T::Item>> {
    let (notices, stream) = mpsc::channel(ROOM);
    tokio::spawn(async move {
        let gone = notices.clone();
        let mut reflector =
            Reflector { target, notices, version: None, failing: None, failures: 0, forgotten: false };
        tokio::select! {
            () = gone.closed() => {}
            () = reflector.run() => {}
        }
    });
    ReceiverStream::new(stream).boxed()
}

struct Reflector<T: Target> {
    target: T,
    notices: mpsc::Sender<Notice<T::Item>>,
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
                self.version = Some(listed.resource_version.clone());
                self.tell(Notice::All(listed.items)).await;
                listed.resource_version
            }
        };
        let mut watch = self.target.watch(&version).await?;
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
        match event {
            WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                self.at(&item);
                self.tell(Notice::Changed(item)).await;
            }
            WatchEvent::Deleted(item) => {
                self.at(&item);
                self.tell(Notice::Gone(item)).await;
            }
            WatchEvent::Bookmark { resource_version, .. } => self.version = Some(resource_version),
        }
    }

    /// The next round lists. A server that does not even know what it listed has to be waited for.
    async fn forgotten(&mut self) {
        self.version = None;
        if self.forgotten {
            self.pause(None).await;
        }
        self.forgotten = true;
    }

    fn at(&mut self, item: &T::Item) {
        if let Some(version) = &T::meta(item).resource_version {
            self.version = Some(version.clone());
        }
    }

    async fn tell(&self, notice: Notice<T::Item>) {
        // Nobody is left to tell when this fails, and the task is about to end.
        let _ = self.notices.send(notice).await;
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use model::k8s::Service;

    use super::*;

    /// Says no so many times, and then that there is nothing.
    struct Refusing {
        refusals: u32,
        asked: Arc<AtomicU32>,
    }

    impl Target for Refusing {
        type Item = Service;

        fn list(&self) -> BoxFuture<'_, Result<Listed<Service>, ApiError>> {
            let refused = self.asked.fetch_add(1, Ordering::Relaxed) < self.refusals;
            Box::pin(async move {
                if refused {
                    return Err(ApiError::Forbidden { call: "list".into(), message: "no".into() });
                }
                Ok(Listed { items: Vec::new(), resource_version: "1".into(), more: String::new() })
            })
        }

        fn watch<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Watch<Service>, ApiError>> {
            Box::pin(std::future::pending())
        }

        fn meta(service: &Service) -> &ObjectMeta {
            &service.metadata
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_when_it_lasts() {
        for (refusals, expect) in [(0, "all"), (1, "all"), (3, "all"), (4, "failing"), (9, "failing")] {
            let asked = Arc::new(AtomicU32::new(0));
            let mut notices = reflect(Refusing { refusals, asked: asked.clone() });
            let first = match notices.next().await {
                Some(Notice::All(_)) => "all",
                Some(Notice::Failing(_)) => "failing",
                other => panic!("{other:?}"),
            };
            assert_eq!(first, expect, "after {refusals} refusals");
        }
    }
}
