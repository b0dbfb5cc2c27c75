//! The feed of a directory of manifests, or of one file.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use model::pod::Source;
use ports::{FeedNotice, PodFeed};
use tokio::time::Instant;

use super::ManifestDecoder;
use super::manifests::Manifests;
use super::notices::NoticeQueue;
use super::watch::PathWatcher;

pub struct FileFeed {
    path: PathBuf,
    period: Duration,
    decoder: ManifestDecoder,
}

impl FileFeed {
    /// `path` may be missing, a file or a directory, and may change between them. Everything is read again every
    /// `period`, even if no change was reported.
    pub fn new(path: impl Into<PathBuf>, period: Duration, decoder: ManifestDecoder) -> Self {
        let path = path.into();
        // Also removes a trailing slash.
        let path = path.components().collect();
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { path, period: period.max(Duration::from_millis(1)), decoder }
    }
}

impl PodFeed for FileFeed {
    fn source(&self) -> Source {
        Source::File
    }

    fn stream(self: Box<Self>) -> BoxStream<'static, FeedNotice> {
        let running = Running {
            manifests: Some(Manifests::new(self.path.clone(), self.decoder)),
            watch: PathWatcher::new(self.path),
            notices: NoticeQueue::new(Source::File),
            period: self.period,
            look_at: Instant::now(),
        };
        stream::unfold(running, |mut running| async move {
            let notice = running.next().await;
            Some((notice, running))
        })
        .boxed()
    }
}

struct Running {
    /// `None` only during a read.
    manifests: Option<Manifests>,
    watch: PathWatcher,
    notices: NoticeQueue,
    period: Duration,
    /// When to read next if no change is reported.
    look_at: Instant,
}

impl Running {
    async fn next(&mut self) -> FeedNotice {
        loop {
            if let Some(notice) = self.notices.next() {
                return notice;
            }
            // The first read is due at once.
            self.watch.wait(self.look_at).await;
            if self.look_at <= Instant::now() {
                self.look_at = Instant::now() + self.period;
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        self.watch.renew_watches();
        let hints = self.watch.take_hints();
        let Some(mut manifests) = self.manifests.take() else { return };
        let work = tokio::task::spawn_blocking(move || {
            let reading = manifests.read(&hints);
            (manifests, reading)
        });
        match work.await {
            Ok((manifests, reading)) => {
                self.manifests = Some(manifests);
                self.notices.take(reading);
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The tokio runtime is shutting down.
            Err(_) => std::future::pending().await,
        }
    }
}
