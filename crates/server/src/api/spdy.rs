//! The client's side of SPDY/3.1, as far as streams of a runtime need it: open, send, receive, end.
//!
//! ```text
//!   control frame   1 | version 3 | type | flags | length | ...
//!   data frame      0 | stream id        | flags | length | bytes
//! ```
//!
//! Header blocks are one zlib stream per direction. Ours is made of blocks that are stored and not compressed, which is
//! just as valid and needs no compressor. Those of the runtime tell nothing that matters and are skipped unread. Runtimes
//! know no flow control of SPDY's own; TCP holds up who is too fast.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What both sides call the protocol when they upgrade.
pub(super) const UPGRADE: &str = "SPDY/3.1";
/// The header with the protocol inside of it.
pub(super) const PROTOCOL_VERSION: &str = "x-stream-protocol-version";

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const FIN: u8 = 1;
/// zlib's two first bytes with a preset dictionary, and which one: the Adler-32 of SPDY/3's.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// Payload of one piece at most.
const MAX_PIECE_BYTES: usize = 16 * 1024;
const HEADER_BYTES: usize = 8;
/// The length of a frame has 24 bits.
const MAX_FRAME_BYTES: usize = 0xff_ffff;

/// Makes the frames that we send.
#[derive(Default)]
pub(super) struct SpdyEncoder {
    /// The zlib stream of header blocks has begun.
    begun: bool,
}

impl SpdyEncoder {
    /// Opens a stream; ids of ours are odd and grow.
    pub(super) fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> BytesMut {
        let mut pairs = BytesMut::new();
        pairs.put_u32(headers.len() as u32);
        for (name, value) in headers {
            for text in [name, value] {
                pairs.put_u32(text.len() as u32);
                pairs.extend_from_slice(text.as_bytes());
            }
        }
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        // Belongs to no other stream, has the highest priority, and no slot.
        payload.put_bytes(0, 6);
        if !std::mem::replace(&mut self.begun, true) {
            payload.extend_from_slice(&ZLIB_HEAD);
        }
        put_stored(&mut payload, &pairs);
        // An empty block flushes, so that the reader has all of the one before.
        put_stored(&mut payload, &[]);
        control(SYN_STREAM, &payload)
    }

    /// Sends bytes on a stream, and ends our side of it if that was all.
    pub(super) fn data(stream: u32, bytes: &[u8], ends: bool) -> BytesMut {
        let mut frame = BytesMut::with_capacity(HEADER_BYTES + bytes.len());
        frame.put_u32(stream & 0x7fff_ffff);
        frame.put_u8(if ends { FIN } else { 0 });
        frame.put_uint(bytes.len().min(MAX_FRAME_BYTES) as u64, 3);
        frame.extend_from_slice(&bytes[..bytes.len().min(MAX_FRAME_BYTES)]);
        frame
    }

    /// A ping, or the answer to one: the same number goes back.
    pub(super) fn ping(id: u32) -> BytesMut {
        control(PING, &id.to_be_bytes())
    }
}

fn control(kind: u16, payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    frame.put_u16(0x8000 | VERSION);
    frame.put_u16(kind);
    frame.put_u8(0);
    frame.put_uint(payload.len() as u64, 3);
    frame.extend_from_slice(payload);
    frame
}

/// A block of deflate that is stored as it is, and not the last one.
fn put_stored(to: &mut BytesMut, bytes: &[u8]) {
    // Our headers are a few dozen bytes.
    let length = bytes.len() as u16;
    to.put_u8(0);
    to.put_u16_le(length);
    to.put_u16_le(!length);
    to.extend_from_slice(bytes);
}

/// A part of what a runtime sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpdyEvent {
    Data {
        stream: u32,
        bytes: Bytes,
        ends: bool,
    },
    /// The stream is over, whatever was said before.
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
}

/// Why a runtime's bytes are no SPDY.
#[derive(thiserror::Error, Debug)]
pub(super) enum SpdyError {
    #[error("the container runtime sent an invalid SPDY frame: {0}")]
    Protocol(&'static str),
    #[error("the connection to the container runtime failed")]
    Connection(#[from] std::io::Error),
}

/// Takes frames of a runtime apart.
#[derive(Default)]
pub(super) struct SpdyDecoder {
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Head,
    Data {
        stream: u32,
        left: usize,
        ends: bool,
    },
    Skip {
        left: usize,
    },
}

impl tokio_util::codec::Decoder for SpdyDecoder {
    type Item = SpdyEvent;
    type Error = SpdyError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<SpdyEvent>, SpdyError> {
        loop {
            match &mut self.state {
                State::Data { stream, left, ends } => {
                    if *left > 0 && bytes.is_empty() {
                        return Ok(None);
                    }
                    let piece = bytes.split_to(bytes.len().min(*left).min(MAX_PIECE_BYTES)).freeze();
                    *left -= piece.len();
                    let (stream, over) = (*stream, *left == 0);
                    let ends = *ends && over;
                    if over {
                        self.state = State::Head;
                    }
                    return Ok(Some(SpdyEvent::Data { stream, bytes: piece, ends }));
                }
                State::Skip { left } => {
                    let skipped = bytes.len().min(*left);
                    bytes.advance(skipped);
                    *left -= skipped;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Head => match self.head(bytes)? {
                    Next::Incomplete => return Ok(None),
                    Next::Payload => {}
                    Next::Event(piece) => return Ok(Some(piece)),
                },
            }
        }
    }
}

enum Next {
    Incomplete,
    /// The state says what follows.
    Payload,
    Event(SpdyEvent),
}

impl SpdyDecoder {
    fn head(&mut self, bytes: &mut BytesMut) -> Result<Next, SpdyError> {
        if bytes.len() < HEADER_BYTES {
            return Ok(Next::Incomplete);
        }
        let mut head = &bytes[..HEADER_BYTES];
        let (first, flags, length) = (head.get_u32(), head.get_u8(), head.get_uint(3) as usize);
        if first & 0x8000_0000 == 0 {
            bytes.advance(HEADER_BYTES);
            self.state = State::Data { stream: first, left: length, ends: flags & FIN != 0 };
            return Ok(Next::Payload);
        }
        if (first >> 16) & 0x7fff != u32::from(VERSION) {
            return Err(SpdyError::Protocol("another version"));
        }
        let kind = (first & 0xffff) as u16;
        let wanted = match kind {
            RST_STREAM => 8,
            PING => 4,
            // Replies, settings and farewells: nothing depends on them.
            _ => {
                bytes.advance(HEADER_BYTES);
                self.state = State::Skip { left: length };
                return Ok(Next::Payload);
            }
        };
        if length != wanted {
            return Err(SpdyError::Protocol("control frame with a wrong length"));
        }
        if bytes.len() < HEADER_BYTES + wanted {
            return Ok(Next::Incomplete);
        }
        bytes.advance(HEADER_BYTES);
        let number = bytes.split_to(wanted).get_u32();
        Ok(Next::Event(match kind {
            PING => SpdyEvent::Ping { id: number },
            _ => SpdyEvent::Reset { stream: number & 0x7fff_ffff },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::codec::Decoder as _;

    fn pieces(bytes: &[u8], part: usize) -> Result<Vec<SpdyEvent>, String> {
        let (mut decoder, mut buffer, mut found) = (SpdyDecoder::default(), BytesMut::new(), Vec::new());
        for part in bytes.chunks(part) {
            buffer.extend_from_slice(part);
            while let Some(piece) = decoder.decode(&mut buffer).map_err(|error| error.to_string())? {
                found.push(piece);
            }
        }
        Ok(found)
    }

    /// A reader that knows the dictionary takes it out again; a real runtime does in `server/streams`.
    #[test]
    fn header_blocks_are_one_stream_of_zlib() {
        let mut encoder = SpdyEncoder::default();
        let first = encoder.open(1, &[("streamtype", "error")]);
        let second = encoder.open(3, &[("streamtype", "stdin")]);
        assert_eq!(first[..8], [0x80, 3, 0, 1, 0, 0, 0, (first.len() - 8) as u8]);
        assert_eq!(first[8..18], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(first[18..24], ZLIB_HEAD);
        assert_eq!(second[8..18], [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]);
        // What follows zlib's head is plain deflate.
        let deflated = [&first[24..], &second[18..]].concat();
        let mut plain = Vec::new();
        let mut inflate = flate2::Decompress::new(false);
        plain.reserve(1000);
        inflate.decompress_vec(&deflated, &mut plain, flate2::FlushDecompress::Sync).unwrap();
        assert_eq!(inflate.total_in(), deflated.len() as u64);
        let block =
            |value: &str| [&b"\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05"[..], value.as_bytes()].concat();
        assert_eq!(plain, [block("error"), block("stdin")].concat());
        // zlib's own check of its first two bytes.
        assert_eq!(u16::from_be_bytes([ZLIB_HEAD[0], ZLIB_HEAD[1]]) % 31, 0);
        assert_eq!(ZLIB_HEAD[1] & 0x20, 0x20, "a dictionary is announced");
    }

    #[test]
    fn frames_in_parts_of_any_size_are_the_same() {
        let sent = [
            &control(2, &[0; 40])[..],
            &SpdyEncoder::data(5, b"hello", false),
            &SpdyEncoder::ping(2),
            &SpdyEncoder::data(5, b"", true),
            &control(RST_STREAM, &[0, 0, 0, 7, 0, 0, 0, 5]),
            &control(7, &[0; 8]),
            &SpdyEncoder::data(1, &[9; 40_000], true),
        ]
        .concat();
        for part in [1, 3, 8, 9, 1000, sent.len()] {
            let mut said: Vec<(u32, String, bool)> = Vec::new();
            for piece in pieces(&sent, part).unwrap() {
                match piece {
                    SpdyEvent::Data { stream, bytes, ends } => {
                        let joins = said.last().is_some_and(|(last, _, ended)| *last == stream && !ended);
                        if !joins {
                            said.push((stream, String::new(), false));
                        }
                        let last = said.last_mut().unwrap();
                        last.1.push_str(&String::from_utf8_lossy(&bytes));
                        last.2 = ends;
                    }
                    other => said.push((0, format!("{other:?}"), true)),
                }
            }
            let expect = [
                (5, "hello".to_owned(), false),
                (0, "Ping { id: 2 }".to_owned(), true),
                (5, String::new(), true),
                (0, "Reset { stream: 7 }".to_owned(), true),
                (1, "\t".repeat(40_000), true),
            ];
            assert_eq!(said, expect, "parts of {part}");
        }
    }

    #[test]
    fn what_breaks_the_protocol_ends_it() {
        assert!(pieces(&[0x80, 2, 0, 1, 0, 0, 0, 0], 8).unwrap_err().contains("version"));
        assert!(pieces(&control(PING, &[0; 5]), 64).unwrap_err().contains("length"));
    }
}
