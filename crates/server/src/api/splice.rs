//! Copies bytes between two connections in both directions, unchanged. Each stream costs two small buffers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Held per direction.
pub(super) const BUFFER_BYTES: usize = 16 * 1024;
/// How long the other direction may stay open without traffic after one direction has ended.
pub(super) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a splice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// One side has closed, and the other got all of its bytes.
    Closed,
    /// A connection broke.
    Broken,
    /// Nothing passed for too long.
    Idle,
}

/// Carries bytes both ways until both sides are done, one breaks, or nothing passes for `idle` (zero: no limit).
pub(super) async fn splice(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) -> StreamEnd {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let last = LastActivity::new();
    let limit = idle_limit(idle);
    let mut there = std::pin::pin!(copy_until_closed(&mut from_client, &mut to_server, &last));
    let mut back = std::pin::pin!(copy_until_closed(&mut from_server, &mut to_client, &last));
    let (first, there_is_left) = tokio::select! {
        ended = &mut there => (ended, false),
        ended = &mut back => (ended, true),
        () = wait_until_idle(&last, limit) => return StreamEnd::Idle,
    };
    if first.is_err() {
        return StreamEnd::Broken;
    }
    last.record_activity();
    let rest = async { if there_is_left { there.await } else { back.await } };
    tokio::select! {
        ended = rest => if ended.is_ok() { StreamEnd::Closed } else { StreamEnd::Broken },
        () = wait_until_idle(&last, limit.min(HALF_CLOSED_TIMEOUT)) => StreamEnd::Closed,
    }
}

async fn copy_until_closed(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    last: &LastActivity,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        last.record_activity();
        to.write_all(&buffer[..length]).await?;
        to.flush().await?;
        last.record_activity();
    }
}

/// When something passed last, in either direction.
pub(super) struct LastActivity {
    begun: Instant,
    millis: AtomicU64,
}

impl LastActivity {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), millis: AtomicU64::new(0) }
    }
    pub(super) fn record_activity(&self) {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }
    fn at(&self) -> Instant {
        self.begun + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

/// How long nothing may pass; a configured zero is no limit.
pub(super) fn idle_limit(idle: Duration) -> Duration {
    if idle.is_zero() { Duration::from_secs(u64::from(u32::MAX)) } else { idle }
}

/// Ends when nothing passed for so long.
pub(super) async fn wait_until_idle(last: &LastActivity, limit: Duration) {
    loop {
        let due = last.at() + limit;
        if due <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn with_splice(
        idle: Duration,
        script: impl AsyncFnOnce(DuplexStream, DuplexStream),
    ) -> (StreamEnd, Duration) {
        let (client, client_end) = duplex(1024);
        let (server, server_end) = duplex(1024);
        let begun = Instant::now();
        let (ended, ()) = tokio::join!(
            async { (splice(client_end, server_end, idle).await, begun.elapsed()) },
            script(client, server)
        );
        ended
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_side_says_after_the_other_is_done_still_passes() {
        let (ended, _) = with_splice(HOUR, async |mut client, mut server| {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"question");
            tokio::time::sleep(Duration::from_secs(20)).await;
            let answering = async move {
                server.write_all(&[7; 100_000]).await.unwrap();
                drop(server);
            };
            let mut got = Vec::new();
            let (read, ()) = tokio::join!(client.read_to_end(&mut got), answering);
            assert_eq!((read.unwrap(), got), (100_000, vec![7; 100_000]));
        })
        .await;
        assert_eq!(ended, StreamEnd::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_never_ends_is_left_after_a_while() {
        let (ended, took) = with_splice(HOUR, async |client, mut server| {
            server.shutdown().await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(client);
        })
        .await;
        assert_eq!((ended, took), (StreamEnd::Closed, HALF_CLOSED_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_it_and_words_do_not() {
        let minute = Duration::from_secs(60);
        let (ended, took) = with_splice(minute, async |mut client, mut server| {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                client.write_all(b"x").await.unwrap();
                server.read_u8().await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(70)).await;
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        })
        .await;
        assert_eq!((ended, took), (StreamEnd::Idle, Duration::from_secs(560)));
    }
}
