//! A stream of events on its way through, message by message.

use std::collections::VecDeque;
use std::future::pending;

use futures::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use tokio::time::sleep;

use super::relay::{Body, Line};
use super::script::Fault;

/// A flag and the length.
const HEAD: usize = 5;

struct Passing {
    line: Line,
    /// `Subscribe message`: messages have rules and counts of their own.
    name: String,
    body: Incoming,
    /// Bytes of a message that is not whole yet.
    rest: Vec<u8>,
    ready: VecDeque<Frame<Bytes>>,
}

/// Messages may come late, twice or never, and any of them may end the connection.
pub fn relay(line: Line, method: &str, body: Incoming) -> Body {
    let name = format!("{method} message");
    let passing = Passing { line, name, body, rest: Vec::new(), ready: VecDeque::new() };
    let frames = unfold(passing, |mut passing| async move {
        let frame = passing.next().await?;
        Some((frame, passing))
    });
    StreamBody::new(frames).boxed_unsync()
}

impl Passing {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(Ok(frame));
            }
            match self.body.frame().await? {
                Err(error) => return Some(Err(error)),
                Ok(frame) => match frame.into_data() {
                    Ok(data) => self.take(&data).await,
                    Err(trailers) => return Some(Ok(trailers)),
                },
            }
        }
    }

    async fn take(&mut self, data: &[u8]) {
        self.rest.extend_from_slice(data);
        while let Some(message) = first_message(&mut self.rest) {
            let frame = Frame::data(Bytes::from(message.clone()));
            match self.line.fate(&self.name, &message) {
                Some(
                    Fault::Refused(_)
                    | Fault::RefusedWith(..)
                    | Fault::Forgotten(_)
                    | Fault::Swallowed
                    | Fault::Mute,
                ) => {}
                Some(Fault::Twice) => {
                    self.ready.push_back(frame);
                    self.ready.push_back(Frame::data(Bytes::from(message)));
                }
                Some(Fault::Slow(pause) | Fault::Late(pause)) => {
                    sleep(pause).await;
                    self.ready.push_back(frame);
                }
                Some(Fault::CutBefore | Fault::CutAfter | Fault::CutMidway) => {
                    self.line.cut.cancel();
                    pending::<()>().await;
                }
                Some(Fault::Garbled) => {
                    let mut bytes = message;
                    bytes[HEAD..].fill(0xff);
                    self.ready.push_back(Frame::data(Bytes::from(bytes)));
                }
                Some(Fault::Answered(_)) | None => self.ready.push_back(frame),
            }
        }
    }
}

/// Takes the first whole message, head included.
fn first_message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = bytes.get(1..HEAD)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    if bytes.len() < HEAD + length {
        return None;
    }
    let rest = bytes.split_off(HEAD + length);
    Some(std::mem::replace(bytes, rest))
}
