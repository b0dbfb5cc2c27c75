//! A client's WebSocket of protocol v5 becomes the SPDY streams that runtimes speak: exec and attach.
//!
//! ```text
//!   v5 message: channel | bytes            SPDY stream, by its header streamtype
//!     0 stdin, 4 resize          ──────>   stdin, resize
//!     255 | 0: stdin is at its end ───>    stdin, FIN
//!     1 stdout, 2 stderr         <──────   stdout, stderr
//!     3 status, at the very end  <──────   error
//! ```
//!
//! Runtimes speak protocol v4. Over WebSocket it has no way to end the input alone, so SPDY is used towards them.
//! The status comes last: whoever has read it has read all output. When the client goes, the runtime's connection goes.

use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::StreamExt;
use ports::StreamFlags;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use super::splice::{HALF_CLOSED_TIMEOUT, LastActivity, StreamEnd, idle_limit, wait_until_idle};
use super::{spdy, websocket};

/// The protocol that a client has to offer.
pub(super) const CLIENT_PROTOCOL: &str = "v5.channel.k8s.io";
/// The protocol that the runtime is offered.
pub(super) const RUNTIME_PROTOCOL: &str = "v4.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Bytes of a status at most; runtimes put the words of what failed into it.
const MAX_STATUS_BYTES: usize = 64 * 1024;
/// The status for a runtime whose connection ended before it sent one.
const NO_STATUS: &[u8] = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the container runtime ended the stream without a status","reason":"InternalError","code":500}"#;

/// The streams of one command: a channel, its name and its SPDY id.
struct Streams {
    wanted: Vec<(u8, &'static str)>,
}

impl Streams {
    fn of(flags: StreamFlags) -> Self {
        let all = [
            (STATUS, "error", true),
            (STDIN, "stdin", flags.stdin),
            (STDOUT, "stdout", flags.stdout),
            (STDERR, "stderr", flags.stderr),
            (RESIZE, "resize", flags.tty),
        ];
        let wanted = all.into_iter().filter(|(.., wanted)| *wanted);
        Self { wanted: wanted.map(|(channel, name, _)| (channel, name)).collect() }
    }

    /// A client's ids are odd.
    fn ids(&self) -> impl Iterator<Item = (u32, u8, &'static str)> {
        self.wanted.iter().zip((1..).step_by(2)).map(|((channel, name), id)| (id, *channel, *name))
    }

    fn id_of(&self, channel: u8) -> Option<u32> {
        self.ids().find(|(_, other, _)| *other == channel).map(|(id, ..)| id)
    }

    fn channel_of(&self, id: u32) -> Option<u8> {
        self.ids().find(|(other, ..)| *other == id).map(|(_, channel, _)| channel)
    }

    /// What the runtime writes to.
    fn outputs(&self) -> Vec<u8> {
        let is_output = |channel: &u8| matches!(*channel, STATUS | STDOUT | STDERR);
        self.wanted.iter().map(|(channel, _)| *channel).filter(is_output).collect()
    }

    /// The channel on which the client learns that the stream is open.
    fn first_output(&self) -> u8 {
        self.outputs().into_iter().filter(|channel| *channel != STATUS).min().unwrap_or(STATUS)
    }
}

/// Translates until the command has ended, the client is gone, or nothing passes for `idle`.
pub(super) async fn translate(
    client: impl AsyncRead + AsyncWrite + Unpin,
    runtime: impl AsyncRead + AsyncWrite + Unpin,
    flags: StreamFlags,
    idle: Duration,
) -> StreamEnd {
    let streams = Streams::of(flags);
    let last = LastActivity::new();
    let (from_client, to_client) = tokio::io::split(client);
    let (from_runtime, to_runtime) = tokio::io::split(runtime);
    let mut from_client = FramedRead::new(from_client, websocket::WebSocketDecoder::default());
    let from_runtime = FramedRead::new(from_runtime, spdy::SpdyDecoder::default());
    // Only the last ping of a side has to be answered.
    let (client_pings, client_asked) = mpsc::channel(1);
    let (runtime_pings, runtime_asked) = mpsc::channel(1);
    let (ended, all_is_told) = {
        let inward = ClientToRuntime {
            streams: &streams,
            last: &last,
            out: Some(to_runtime),
            message: MessageState::BetweenMessages,
        };
        let outward = RuntimeToClient { streams: &streams, last: &last, out: to_client, status: Vec::new() };
        tokio::select! {
            ended = inward.run(&mut from_client, client_pings, runtime_asked) => (ended, false),
            ended = outward.run(from_runtime, runtime_pings, client_asked) => (ended, true),
            () = wait_until_idle(&last, idle_limit(idle)) => (StreamEnd::Idle, false),
        }
    };
    if all_is_told && ended == StreamEnd::Closed {
        // A connection that is closed while the client still sends may lose what the client has not read yet.
        let rest = async { while let Some(Ok(_)) = from_client.next().await {} };
        let _ = tokio::time::timeout(HALF_CLOSED_TIMEOUT, rest).await;
    }
    ended
}

/// From the client to the runtime.
struct ClientToRuntime<'a, R> {
    streams: &'a Streams,
    last: &'a LastActivity,
    /// `None`: the runtime takes no more input, and may still send output.
    out: Option<WriteHalf<R>>,
    message: MessageState,
}

/// The message that is being read.
#[derive(Clone, Copy)]
enum MessageState {
    BetweenMessages,
    /// Its first byte has not come.
    ChannelPending,
    Channel(u8),
}

impl<R: AsyncWrite> ClientToRuntime<'_, R> {
    async fn run<C: AsyncRead>(
        mut self,
        pieces: &mut FramedRead<ReadHalf<C>, websocket::WebSocketDecoder>,
        pings: mpsc::Sender<Bytes>,
        mut asked: mpsc::Receiver<u32>,
    ) -> StreamEnd {
        let mut encoder = spdy::SpdyEncoder::default();
        for (id, _, name) in self.streams.ids() {
            self.send(&encoder.open(id, &[("streamtype", name)])).await;
        }
        loop {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                Some(id) = asked.recv() => {
                    self.send(&spdy::SpdyEncoder::ping(id)).await;
                    continue;
                }
            };
            self.last.record_activity();
            match piece {
                Some(Ok(websocket::WebSocketEvent::Data { begins, bytes, ends })) => {
                    self.data(begins, bytes).await;
                    if ends {
                        self.message = MessageState::BetweenMessages;
                    }
                }
                Some(Ok(websocket::WebSocketEvent::Ping(payload))) => drop(pings.try_send(payload)),
                Some(Ok(websocket::WebSocketEvent::Close)) | None => return self.gone().await,
                Some(Err(error)) => {
                    tracing::debug!(%error, "reading a stream from the client failed");
                    self.gone().await;
                    return StreamEnd::Broken;
                }
            }
        }
    }

    /// The client is gone: the runtime's streams are ended at once.
    async fn gone(&mut self) -> StreamEnd {
        if let Some(out) = &mut self.out {
            let _ = out.shutdown().await;
        }
        StreamEnd::Closed
    }

    async fn data(&mut self, begins: bool, mut bytes: Bytes) {
        if begins {
            self.message = MessageState::ChannelPending;
        }
        if matches!(self.message, MessageState::ChannelPending) && bytes.has_remaining() {
            self.message = MessageState::Channel(bytes.get_u8());
        }
        let MessageState::Channel(channel) = self.message else { return };
        if bytes.is_empty() {
            return;
        }
        match channel {
            STDIN | RESIZE => self.write(channel, &bytes, false).await,
            CLOSE if matches!(bytes[0], STDIN | RESIZE) => self.write(bytes[0], &[], true).await,
            _ => {}
        }
        self.last.record_activity();
    }

    async fn write(&mut self, channel: u8, bytes: &[u8], ends: bool) {
        if let Some(id) = self.streams.id_of(channel) {
            self.send(&spdy::SpdyEncoder::data(id, bytes, ends)).await;
        }
    }

    async fn send(&mut self, frame: &[u8]) {
        let Some(out) = &mut self.out else { return };
        if out.write_all(frame).await.is_err() || out.flush().await.is_err() {
            self.out = None;
        }
    }
}

/// From the runtime to the client.
struct RuntimeToClient<'a, C> {
    streams: &'a Streams,
    last: &'a LastActivity,
    out: WriteHalf<C>,
    status: Vec<u8>,
}

impl<C: AsyncWrite> RuntimeToClient<'_, C> {
    async fn run<R: AsyncRead>(
        mut self,
        mut pieces: FramedRead<ReadHalf<R>, spdy::SpdyDecoder>,
        pings: mpsc::Sender<u32>,
        mut asked: mpsc::Receiver<Bytes>,
    ) -> StreamEnd {
        let mut open = self.streams.outputs();
        let mut fine = self.send(&websocket::message(&[self.streams.first_output()], &[])).await;
        while fine.is_ok() && !open.is_empty() {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                Some(payload) = asked.recv() => {
                    fine = self.send(&websocket::pong(&payload)).await;
                    continue;
                }
            };
            self.last.record_activity();
            let ended = match piece {
                Some(Ok(spdy::SpdyEvent::Data { stream, bytes, ends })) => {
                    let channel = self.streams.channel_of(stream);
                    fine = self.data(channel, &bytes).await;
                    channel.filter(|_| ends)
                }
                Some(Ok(spdy::SpdyEvent::Reset { stream })) => self.streams.channel_of(stream),
                Some(Ok(spdy::SpdyEvent::Ping { id })) => {
                    // Its own ids are even; an odd one would be the answer to a ping of ours.
                    if id % 2 == 0 {
                        let _ = pings.try_send(id);
                    }
                    None
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "reading a stream from the container runtime failed");
                    break;
                }
                None => break,
            };
            open.retain(|channel| Some(*channel) != ended);
        }
        let status = if self.status.is_empty() { NO_STATUS } else { &self.status };
        let end = [websocket::message(&[STATUS], status), websocket::close()].concat();
        fine = fine.and(self.send(&end).await);
        let _ = self.out.shutdown().await;
        if fine.is_ok() { StreamEnd::Closed } else { StreamEnd::Broken }
    }

    async fn data(&mut self, channel: Option<u8>, bytes: &[u8]) -> std::io::Result<()> {
        match channel {
            Some(STATUS) => {
                let room = MAX_STATUS_BYTES.saturating_sub(self.status.len());
                self.status.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Some(channel @ (STDOUT | STDERR)) if !bytes.is_empty() => {
                self.send(&websocket::message(&[channel], bytes)).await?;
                self.last.record_activity();
            }
            _ => {}
        }
        Ok(())
    }

    async fn send(&mut self, frame: &[u8]) -> std::io::Result<()> {
        self.out.write_all(frame).await?;
        self.out.flush().await
    }
}

#[cfg(test)]
mod tests;
