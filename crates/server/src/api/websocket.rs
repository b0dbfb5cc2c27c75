//! The server's side of WebSocket (RFC 6455): the handshake and frames.
//!
//! Messages are taken in pieces as they arrive, so that a large one needs no memory of its size:
//!
//! ```text
//!   bytes ─> Decoder ─> Piece::Data { begins, bytes, ends } ─> whoever carries them on
//!                   └─> Piece::Ping (answered by the writer), Piece::Close
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use ring::digest;

/// RFC 6455 has it appended to the client's key.
const HANDSHAKE_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Payload of one piece at most.
const MAX_PIECE_BYTES: usize = 16 * 1024;
/// Control frames have no more.
const MAX_CONTROL_BYTES: u64 = 125;
/// The status code of an ordinary end.
const NORMAL_CLOSURE: u16 = 1000;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Why a request can't be answered with a WebSocket.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeError {
    #[error("a WebSocket handshake needs method GET")]
    Method,
    #[error("unsupported Sec-WebSocket-Version, only 13 is supported")]
    Version,
    #[error("Sec-WebSocket-Key is missing or can't be read")]
    Key,
}

impl HandshakeError {
    pub(super) fn status(self) -> StatusCode {
        match self {
            HandshakeError::Method => StatusCode::METHOD_NOT_ALLOWED,
            HandshakeError::Version | HandshakeError::Key => StatusCode::BAD_REQUEST,
        }
    }
}

/// The headers of a 101 that accepts a request under one of the protocols that it offers.
pub(super) fn accept(
    method: &Method,
    headers: &HeaderMap,
    protocol: Option<&str>,
) -> Result<HeaderMap, HandshakeError> {
    if method != Method::GET {
        return Err(HandshakeError::Method);
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(HandshakeError::Version);
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let proof = accept_key(key.ok_or(HandshakeError::Key)?);
    let mut answer = HeaderMap::new();
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::SEC_WEBSOCKET_ACCEPT, proof.parse().map_err(|_| HandshakeError::Key)?);
    if let Some(protocol) = protocol.and_then(|protocol| protocol.parse().ok()) {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(answer)
}

fn accept_key(key: &str) -> String {
    let joined = format!("{key}{HANDSHAKE_SUFFIX}");
    STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, joined.as_bytes()))
}

/// A binary message of one frame, whose payload is `prefix` and `bytes`.
pub(super) fn message(prefix: &[u8], bytes: &[u8]) -> BytesMut {
    frame(BINARY, prefix, bytes)
}

/// The answer to a ping.
pub(super) fn pong(payload: &[u8]) -> BytesMut {
    frame(PONG, &[], payload)
}

/// The end of a WebSocket that went as it should.
pub(super) fn close() -> BytesMut {
    frame(CLOSE, &NORMAL_CLOSURE.to_be_bytes(), &[])
}

fn frame(opcode: u8, prefix: &[u8], bytes: &[u8]) -> BytesMut {
    let length = prefix.len() + bytes.len();
    let mut frame = BytesMut::with_capacity(length + 10);
    frame.put_u8(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => frame.put_u8(short),
        (_, Ok(medium)) => {
            frame.put_u8(126);
            frame.put_u16(medium);
        }
        _ => {
            frame.put_u8(127);
            frame.put_u64(length as u64);
        }
    }
    frame.extend_from_slice(prefix);
    frame.extend_from_slice(bytes);
    frame
}

/// A part of what a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WebSocketEvent {
    /// Of a message. An empty message is one piece without bytes.
    Data {
        begins: bool,
        bytes: Bytes,
        ends: bool,
    },
    Ping(Bytes),
    Close,
}

/// Why a client's bytes are no WebSocket.
#[derive(thiserror::Error, Debug)]
pub(super) enum WebSocketError {
    #[error("the client sent an invalid WebSocket frame: {0}")]
    Protocol(&'static str),
    #[error("the connection failed")]
    Connection(#[from] std::io::Error),
}

/// Takes frames of a client apart.
#[derive(Default)]
pub(super) struct WebSocketDecoder {
    /// A message has begun, and its last frame has not come.
    in_message: bool,
    payload: Option<Payload>,
}

/// What is left of a data frame.
struct Payload {
    left: u64,
    mask: [u8; 4],
    /// Bytes of the mask that were used, modulo four.
    mask_offset: usize,
    begins: bool,
    /// This is the last frame of its message.
    last_frame: bool,
}

/// The head of a frame.
struct Head {
    last_frame: bool,
    opcode: u8,
    mask: [u8; 4],
    length: u64,
    /// Bytes of the head itself.
    size: usize,
}

impl tokio_util::codec::Decoder for WebSocketDecoder {
    type Item = WebSocketEvent;
    type Error = WebSocketError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<WebSocketEvent>, WebSocketError> {
        loop {
            if let Some(payload) = &mut self.payload {
                let Some(piece) = payload.take(bytes) else { return Ok(None) };
                if payload.left == 0 {
                    self.payload = None;
                }
                return Ok(Some(piece));
            }
            let Some(head) = Head::read(bytes)? else { return Ok(None) };
            if head.opcode >= CLOSE {
                match control(&head, bytes)? {
                    Control::Incomplete => return Ok(None),
                    Control::Nothing => continue,
                    Control::Event(piece) => return Ok(Some(piece)),
                }
            }
            let begins = match (head.opcode, self.in_message) {
                (TEXT | BINARY, false) => true,
                (CONTINUATION, true) => false,
                (TEXT | BINARY | CONTINUATION, _) => {
                    return Err(WebSocketError::Protocol("fragments of a message are not in order"));
                }
                _ => return Err(WebSocketError::Protocol("unknown opcode")),
            };
            self.in_message = !head.last_frame;
            bytes.advance(head.size);
            let Head { last_frame, mask, length: left, .. } = head;
            self.payload = Some(Payload { left, mask, mask_offset: 0, begins, last_frame });
        }
    }
}

impl Head {
    /// `None`: more bytes have to come first.
    fn read(bytes: &BytesMut) -> Result<Option<Head>, WebSocketError> {
        let mut rest = &bytes[..];
        let (Ok(first), Ok(second)) = (rest.try_get_u8(), rest.try_get_u8()) else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(WebSocketError::Protocol("reserved bits are set"));
        }
        if second & 0x80 == 0 {
            return Err(WebSocketError::Protocol("frame is not masked"));
        }
        let length = match second & 0x7f {
            126 => rest.try_get_u16().map(u64::from),
            127 => rest.try_get_u64(),
            short => Ok(u64::from(short)),
        };
        let (Ok(length), Ok(mask)) = (length, rest.try_get_u32()) else { return Ok(None) };
        Ok(Some(Head {
            last_frame: first & 0x80 != 0,
            opcode: first & 0x0f,
            mask: mask.to_be_bytes(),
            length,
            size: bytes.len() - rest.len(),
        }))
    }
}

impl Payload {
    /// The next piece; `None` while there is no byte of it.
    fn take(&mut self, bytes: &mut BytesMut) -> Option<WebSocketEvent> {
        if self.left > 0 && bytes.is_empty() {
            return None;
        }
        let length = bytes.len().min(MAX_PIECE_BYTES).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut piece = bytes.split_to(length);
        unmask(&mut piece, self.mask, self.mask_offset);
        self.mask_offset = (self.mask_offset + length) % 4;
        self.left -= length as u64;
        let begins = std::mem::take(&mut self.begins);
        Some(WebSocketEvent::Data { begins, bytes: piece.freeze(), ends: self.last_frame && self.left == 0 })
    }
}

enum Control {
    Incomplete,
    /// Nobody needs to know of it.
    Nothing,
    Event(WebSocketEvent),
}

fn control(head: &Head, bytes: &mut BytesMut) -> Result<Control, WebSocketError> {
    if !head.last_frame || head.length > MAX_CONTROL_BYTES {
        return Err(WebSocketError::Protocol("control frame is too long or fragmented"));
    }
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    if bytes.len() - head.size < length {
        return Ok(Control::Incomplete);
    }
    bytes.advance(head.size);
    let mut payload = bytes.split_to(length);
    unmask(&mut payload, head.mask, 0);
    match head.opcode {
        CLOSE => Ok(Control::Event(WebSocketEvent::Close)),
        PING => Ok(Control::Event(WebSocketEvent::Ping(payload.freeze()))),
        PONG => Ok(Control::Nothing),
        _ => Err(WebSocketError::Protocol("unknown opcode")),
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4], turn: usize) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte ^= mask[(turn + index) % 4];
    }
}

/// What a client sends: the same frames, masked.
#[cfg(test)]
pub(super) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x5a, 0, 0xff, 0x13];
    let plain = frame(first & 0x0f, &[], payload);
    let head = plain.len() - payload.len();
    let mut bytes = plain[..head].to_vec();
    (bytes[0], bytes[1]) = (first, bytes[1] | 0x80);
    bytes.extend(MASK);
    let mut payload = payload.to_vec();
    unmask(&mut payload, MASK, 0);
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::codec::Decoder as _;

    /// All pieces of these bytes, given in parts of a size.
    fn pieces(bytes: &[u8], part: usize) -> Result<Vec<WebSocketEvent>, String> {
        let (mut decoder, mut buffer, mut found) = (WebSocketDecoder::default(), BytesMut::new(), Vec::new());
        for part in bytes.chunks(part) {
            buffer.extend_from_slice(part);
            while let Some(piece) = decoder.decode(&mut buffer).map_err(|error| error.to_string())? {
                found.push(piece);
            }
        }
        Ok(found)
    }

    /// The messages that pieces make, and what is between them.
    fn messages(pieces: Vec<WebSocketEvent>) -> Vec<String> {
        let (mut said, mut whole) = (Vec::new(), Vec::new());
        for piece in pieces {
            match piece {
                WebSocketEvent::Data { begins, bytes, ends } => {
                    assert_eq!(begins, whole.is_empty(), "{bytes:?}");
                    whole.extend(bytes);
                    if ends {
                        said.push(String::from_utf8(std::mem::take(&mut whole)).unwrap());
                    }
                }
                other => said.push(format!("{other:?}")),
            }
        }
        said
    }

    #[test]
    fn frames_in_parts_of_any_size_are_the_same_messages() {
        let long = "x".repeat(70_000);
        let sent = [
            masked(0x82, b"one"),
            masked(0x02, b"two "),
            masked(0x89, b"are you there"),
            masked(0x8a, b""),
            masked(0x80, b"parts"),
            masked(0x81, long.as_bytes()),
            masked(0x82, "y".repeat(300).as_bytes()),
            masked(0x88, &[3, 232]),
        ]
        .concat();
        let expect = ["one", "Ping(b\"are you there\")", "two parts", &long, &"y".repeat(300), "Close"];
        for part in [1, 2, 3, 7, 1000, sent.len()] {
            assert_eq!(messages(pieces(&sent, part).unwrap()), expect, "parts of {part}");
        }
        let empty = pieces(&masked(0x82, b""), 64).unwrap();
        assert_eq!(empty, [WebSocketEvent::Data { begins: true, bytes: Bytes::new(), ends: true }]);
    }

    #[test]
    fn a_large_frame_is_taken_in_pieces() {
        let pieces = pieces(&masked(0x82, &vec![7; 100_000]), 50_000).unwrap();
        assert!(pieces.len() > 5, "{}", pieces.len());
        assert!(pieces.iter().all(
            |piece| matches!(piece, WebSocketEvent::Data { bytes, .. } if bytes.len() <= MAX_PIECE_BYTES)
        ));
    }

    #[test]
    fn what_breaks_the_protocol_ends_it() {
        let check = |bytes: Vec<u8>, expect: &str| {
            let error = pieces(&bytes, 64).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check(vec![0x82, 1, b'x'], "not masked");
        check(masked(0xc2, b"x"), "reserved");
        check(masked(0x80, b"x"), "in order");
        check([masked(0x02, b"x"), masked(0x82, b"y")].concat(), "in order");
        check(masked(0x83, b"x"), "unknown");
        check(masked(0x8b, b"x"), "unknown");
        check(masked(0x09, b"x"), "control");
        check(masked(0x89, &[0; 126]), "control");
    }

    #[test]
    fn the_handshake_proves_that_the_key_was_read() {
        // The example of RFC 6455.
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let request = |key: &str, version: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::SEC_WEBSOCKET_KEY, key.parse().unwrap());
            headers.insert(header::SEC_WEBSOCKET_VERSION, version.parse().unwrap());
            headers
        };
        let good = request("dGhlIHNhbXBsZSBub25jZQ==", "13");
        let answer = accept(&Method::GET, &good, Some("v5.channel.k8s.io")).unwrap();
        assert_eq!(answer[header::SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
        assert_eq!(answer[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accept(&Method::POST, &good, None), Err(HandshakeError::Method));
        let old = request("dGhlIHNhbXBsZSBub25jZQ==", "8");
        assert_eq!(accept(&Method::GET, &old, None), Err(HandshakeError::Version));
        assert_eq!(accept(&Method::GET, &request("short", "13"), None), Err(HandshakeError::Key));
    }
}
