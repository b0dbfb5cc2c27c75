//! A watch: the server's response, with one JSON document per line, until it ends.
//!
//! The stream ends with `None` when the server closes it after the requested time, and when its connection pool was
//! replaced. Everything else is reported: an ERROR event, an incomplete line, a broken connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ports::ApiError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Sent};
use crate::json::WatchLineError;
use crate::request::Call;
use crate::status;
use crate::transport::{WatchSlot, transport_failure};
use crate::watch_event::WatchEvent;

/// The server is asked to end each watch after a random time from this on, so that not all watches end at once after
/// the server was away.
const MIN_WATCH_SECS: u64 = 300;
const MAX_WATCH_SECS: u64 = 600;
/// If the server does not end the watch by itself, we end it this much later.
const SLACK: Duration = Duration::from_secs(30);
/// An API server stores objects of at most 1.5 MiB; as JSON they may be larger.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WatchStart<'a> {
    /// After this resource version, of a list, an object or a bookmark.
    Version(&'a str),
    /// With all objects as `Added` events and then a bookmark: a list that needs little memory.
    InitialEvents,
}

pub struct Watch<T> {
    call: String,
    lines: Option<Lines>,
    decode: fn(&[u8]) -> Result<WatchEvent<T>, WatchLineError>,
}

/// Opens the watch of `call`. `within` bounds the wait for the head of the response.
pub(crate) async fn open<T>(
    connection: &Connection,
    call: Call,
    since: WatchStart<'_>,
    within: Duration,
    decode: fn(&[u8]) -> Result<WatchEvent<T>, WatchLineError>,
) -> Result<Watch<T>, ApiError> {
    let (call, lasts) = prepared(call, since);
    let sent = call.open(connection, within).await?;
    Ok(Watch { call: call.name(), lines: Some(Lines::new(sent, lasts)), decode })
}

fn prepared(call: Call, since: WatchStart<'_>) -> (Call, Duration) {
    let seconds = fastrand::u64(MIN_WATCH_SECS..MAX_WATCH_SECS);
    let call = call.query(&[
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", &seconds.to_string()),
    ]);
    let call = match since {
        WatchStart::Version(version) => call.query(&[("resourceVersion", version)]),
        WatchStart::InitialEvents => {
            call.query(&[("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")])
        }
    };
    (call, Duration::from_secs(seconds) + SLACK)
}

impl<T> Watch<T> {
    /// After `None` or an error the watch has ended.
    pub async fn next(&mut self) -> Option<Result<WatchEvent<T>, ApiError>> {
        let line = match self.lines.as_mut()?.next(&self.call).await {
            Some(Ok(line)) => line,
            Some(Err(error)) => return self.ended(error),
            None => {
                self.lines = None;
                return None;
            }
        };
        match (self.decode)(&line) {
            Ok(event) => Some(Ok(event)),
            Err(WatchLineError::ErrorStatus(told)) => {
                self.ended(status::from_watch_error(self.call.clone(), told))
            }
            Err(WatchLineError::Malformed(error)) => {
                self.ended(ApiError::Decode { call: self.call.clone(), message: error.to_string() })
            }
        }
    }

    fn ended(&mut self, error: ApiError) -> Option<Result<WatchEvent<T>, ApiError>> {
        self.lines = None;
        Some(Err(error))
    }
}

impl<T: Send + 'static> Watch<T> {
    pub fn stream(self) -> BoxStream<'static, Result<WatchEvent<T>, ApiError>> {
        futures::stream::unfold(
            self,
            |mut watch| async move { watch.next().await.map(|event| (event, watch)) },
        )
        .boxed()
    }
}

struct Lines {
    body: Incoming,
    slot: Option<WatchSlot>,
    replaced: CancellationToken,
    until: Instant,
    lasts: Duration,
    cutter: LineSplitter,
}

impl Lines {
    fn new(sent: Sent, lasts: Duration) -> Self {
        let until = Instant::now() + lasts;
        let Sent { answer, slot: place, replaced: gone } = sent;
        let body = answer.into_body();
        Self { body, slot: place, replaced: gone, until, lasts, cutter: LineSplitter::default() }
    }

    async fn next(&mut self, call: &str) -> Option<Result<Bytes, ApiError>> {
        loop {
            if let Some(line) = self.cutter.whole_line() {
                return Some(Ok(line));
            }
            if self.cutter.buffered_bytes() > MAX_LINE_BYTES {
                let message = format!("a line is longer than {MAX_LINE_BYTES} bytes");
                return Some(Err(ApiError::Decode { call: call.to_owned(), message }));
            }
            let frame = tokio::select! {
                biased;
                () = self.replaced.cancelled() => return None,
                () = tokio::time::sleep_until(self.until) => {
                    return Some(Err(ApiError::TimedOut { call: call.to_owned(), after: self.lasts }));
                }
                frame = self.body.frame() => frame,
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.cutter.feed(&data);
                    }
                }
                Some(Err(error)) => {
                    if let Some(place) = &self.slot {
                        place.mark_broken();
                    }
                    return Some(Err(transport_failure(call, &error)));
                }
                None if self.cutter.buffered_bytes() == 0 => return None,
                None => {
                    let message = "the answer ended in the middle of an event".to_owned();
                    return Some(Err(ApiError::Unavailable { call: call.to_owned(), message }));
                }
            }
        }
    }
}

/// Collects bytes and returns whole lines.
#[derive(Default)]
pub(crate) struct LineSplitter {
    buffer: BytesMut,
    /// The buffer has no line end before this position.
    searched: usize,
}

impl LineSplitter {
    pub fn feed(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// How many bytes belong to an incomplete line.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The next complete line that is not empty.
    pub fn whole_line(&mut self) -> Option<Bytes> {
        loop {
            let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + end + 1).freeze();
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }
}
