//! A client that speaks v5 on one side, a runtime that speaks SPDY on the other, both by the byte.

use tokio::io::{AsyncReadExt, DuplexStream, duplex};

use super::super::websocket::masked;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;

fn flags(words: &str) -> StreamFlags {
    let has = |word| words.contains(word);
    StreamFlags { stdin: has('i'), stdout: has('o'), stderr: has('e'), tty: has('t') }
}

/// What a test does as the client and as the runtime, and how the translation ended.
async fn with(
    words: &str,
    idle: Duration,
    script: impl AsyncFnOnce(DuplexStream, FramedRead<ReadHalf<DuplexStream>, Frames>, WriteHalf<DuplexStream>),
) -> StreamEnd {
    let (client, near) = duplex(1 << 20);
    let (far, runtime) = duplex(1 << 20);
    let (runtime_in, runtime_out) = tokio::io::split(runtime);
    let frames = FramedRead::new(runtime_in, Frames);
    let (ended, ()) =
        tokio::join!(translate(near, far, flags(words), idle), script(client, frames, runtime_out));
    ended
}

/// Frames as a runtime gets them, whole: kind (0 is data), stream or number, flags, bytes.
struct Frames;

impl tokio_util::codec::Decoder for Frames {
    type Item = (u16, u32, u8, Vec<u8>);
    type Error = std::io::Error;

    fn decode(&mut self, bytes: &mut bytes::BytesMut) -> Result<Option<Self::Item>, Self::Error> {
        if bytes.len() < 8 {
            return Ok(None);
        }
        let mut head = &bytes[..8];
        let (first, flags, length) = (head.get_u32(), head.get_u8(), head.get_uint(3) as usize);
        if bytes.len() < 8 + length {
            return Ok(None);
        }
        bytes.advance(8);
        let mut payload = bytes.split_to(length);
        let control = first & 0x8000_0000 != 0;
        let (kind, number) = if control { (first as u16, payload.get_u32()) } else { (0, first) };
        Ok(Some((kind, number, flags, payload.to_vec())))
    }
}

/// The streams that are opened, by name.
async fn opened(
    frames: &mut FramedRead<ReadHalf<DuplexStream>, Frames>,
    count: usize,
) -> Vec<(u32, &'static str)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let (kind, id, _, payload) = frames.next().await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&payload).into_owned();
        let name = ["error", "stdin", "stdout", "stderr", "resize"];
        let name = name.into_iter().find(|name| text.ends_with(&format!("{name}\0\0\0\u{fffd}\u{fffd}")));
        assert_eq!(kind, 1, "{text:?}");
        found.push((id, name.unwrap_or_else(|| panic!("{text:?}"))));
    }
    found
}

/// The next message: opcode and payload. A test's messages are short.
async fn message(client: &mut DuplexStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    client.read_exact(&mut head).await.unwrap();
    let length = match head[1] {
        126 => usize::from(client.read_u16().await.unwrap()),
        short => usize::from(short),
    };
    let mut payload = vec![0; length];
    client.read_exact(&mut payload).await.unwrap();
    (head[0], payload)
}

#[tokio::test(start_paused = true)]
async fn a_command_with_input_that_ends() {
    let ended = with("ioe", HOUR, async |mut client, mut runtime, mut out| {
        let names = opened(&mut runtime, 4).await;
        assert_eq!(names, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
        assert_eq!(message(&mut client).await, (0x82, vec![STDOUT]));
        // In two frames, and the first byte alone in one of them.
        client.write_all(&masked(0x02, &[STDIN])).await.unwrap();
        client.write_all(&masked(0x80, b"hello")).await.unwrap();
        assert_eq!(runtime.next().await.unwrap().unwrap(), (0, 3, 0, b"hello".to_vec()));
        client.write_all(&masked(0x82, &[CLOSE, STDIN])).await.unwrap();
        assert_eq!(runtime.next().await.unwrap().unwrap(), (0, 3, 1, Vec::new()));
        // The input is over; all output still comes, and the status last, though it was told first.
        let said = [
            spdy::SpdyEncoder::data(1, SUCCESS, true),
            spdy::SpdyEncoder::data(5, b"out", false),
            spdy::SpdyEncoder::data(7, b"err", true),
            spdy::SpdyEncoder::data(5, b"last", true),
        ];
        out.write_all(&said.concat()).await.unwrap();
        assert_eq!(message(&mut client).await, (0x82, b"\x01out".to_vec()));
        assert_eq!(message(&mut client).await, (0x82, b"\x02err".to_vec()));
        assert_eq!(message(&mut client).await, (0x82, b"\x01last".to_vec()));
        assert_eq!(message(&mut client).await, (0x82, [&[STATUS], SUCCESS].concat()));
        assert_eq!(message(&mut client).await, (0x88, vec![3, 232]));
    })
    .await;
    assert_eq!(ended, StreamEnd::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_and_its_size() {
    let ended = with("iot", HOUR, async |mut client, mut runtime, mut out| {
        let names = opened(&mut runtime, 4).await;
        assert_eq!(names, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")]);
        let size = br#"{"Width":80,"Height":24}"#;
        client.write_all(&masked(0x82, &[&[RESIZE], &size[..]].concat())).await.unwrap();
        assert_eq!(runtime.next().await.unwrap().unwrap(), (0, 7, 0, size.to_vec()));
        // Both sides ask whether the other is there.
        client.write_all(&masked(0x89, b"there?")).await.unwrap();
        out.write_all(&spdy::SpdyEncoder::ping(2)).await.unwrap();
        assert_eq!(runtime.next().await.unwrap().unwrap(), (6, 2, 0, Vec::new()));
        assert_eq!(message(&mut client).await, (0x82, vec![STDOUT]));
        assert_eq!(message(&mut client).await, (0x8a, b"there?".to_vec()));
        // The client goes, and the runtime is told.
        drop(client);
        assert!(runtime.next().await.is_none());
    })
    .await;
    assert_eq!(ended, StreamEnd::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_without_a_status_is_told() {
    let ended = with("o", HOUR, async |mut client, mut runtime, mut out| {
        opened(&mut runtime, 2).await;
        out.write_all(&spdy::SpdyEncoder::data(3, b"half", false)).await.unwrap();
        drop((runtime, out));
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        let text = String::from_utf8_lossy(&said).into_owned();
        assert!(text.contains("\u{1}half") && text.contains("without a status"), "{text}");
    })
    .await;
    assert_eq!(ended, StreamEnd::Closed);
}

/// What the runtime does not take any more must not keep the client from what is told.
#[tokio::test(start_paused = true)]
async fn a_reset_stream_ends_and_unwanted_channels_are_dropped() {
    let ended = with("e", HOUR, async |mut client, mut runtime, mut out| {
        assert_eq!(opened(&mut runtime, 2).await, [(1, "error"), (3, "stderr")]);
        assert_eq!(message(&mut client).await, (0x82, vec![STDERR]));
        client.write_all(&masked(0x82, &[STDIN, b'x'])).await.unwrap();
        client.write_all(&masked(0x82, &[9, b'x'])).await.unwrap();
        client.write_all(&masked(0x82, &[])).await.unwrap();
        out.write_all(&spdy::SpdyEncoder::data(1, SUCCESS, true)).await.unwrap();
        // RST_STREAM of stderr.
        out.write_all(&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 5]).await.unwrap();
        assert_eq!(message(&mut client).await, (0x82, [&[STATUS], SUCCESS].concat()));
    })
    .await;
    assert_eq!(ended, StreamEnd::Closed);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_it() {
    let ended = with("io", Duration::from_secs(60), async |mut client, mut runtime, _out| {
        opened(&mut runtime, 3).await;
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        assert!(runtime.next().await.is_none());
    })
    .await;
    assert_eq!(ended, StreamEnd::Idle);
}
