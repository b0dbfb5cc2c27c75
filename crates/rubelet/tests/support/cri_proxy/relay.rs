//! One call on its way through.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::script::{Book, Fault};
use super::stream;

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// gRPC's code for "nobody answers".
const UNAVAILABLE: u16 = 14;
/// Long enough for bytes to be on their way before the connection ends.
const A_MOMENT: Duration = Duration::from_millis(20);
/// Calls whose answer is a stream of messages.
const STREAMS: [&str; 2] = ["GetContainerEvents", "Subscribe"];

/// A connection of the agent, with its counterpart to the runtime.
#[derive(Clone)]
pub struct Line {
    pub sender: SendRequest<Full<Bytes>>,
    pub book: Arc<watch::Sender<Book>>,
    /// Ends the agent's connection.
    pub cut: CancellationToken,
}

/// A whole answer of the runtime.
#[derive(Clone)]
struct Answer {
    head: http::response::Parts,
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Line {
    pub async fn relay(self, request: Request<Incoming>) -> Response<Body> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let (mut head, body) = request.into_parts();
        // A caller that gives up must not cancel the runtime's work.
        head.headers.remove("grpc-timeout");
        let Ok(body) = body.collect().await else { return refusal(UNAVAILABLE) };
        let body = body.to_bytes();
        let fate = self.fate(&method, &body);
        if method == "PullImage" {
            self.book.send_modify(|book| book.keep_pull(&body));
        }
        let request = Request::from_parts(head, Full::new(body));
        match STREAMS.contains(&method.as_str()) {
            true => self.stream(&method, fate, request).await,
            // To its end, also when the caller is gone meanwhile.
            false => tokio::spawn(self.call(fate, request)).await.unwrap_or_else(|_| refusal(UNAVAILABLE)),
        }
    }

    pub fn fate(&self, method: &str, request: &[u8]) -> Option<Fault> {
        let mut fate = None;
        // Nobody needs to be told that a call was counted.
        self.book.send_if_modified(|book| {
            fate = book.fate(method, request);
            false
        });
        fate
    }

    async fn call(self, fate: Option<Fault>, request: Request<Full<Bytes>>) -> Response<Body> {
        match fate {
            Some(Fault::Refused(code)) => return refusal(code),
            Some(Fault::RefusedWith(code, message)) => return refusal_with(code, message),
            Some(Fault::Swallowed) => return self.hold().await,
            Some(Fault::Answered(message)) => return answer(message),
            Some(Fault::CutBefore) => return self.end().await,
            Some(Fault::Slow(pause)) => sleep(pause).await,
            _ => {}
        }
        let copy = request.clone();
        let Some(answer) = self.carry_out(request).await else { return refusal(UNAVAILABLE) };
        match fate {
            Some(Fault::Forgotten(code)) => refusal(code),
            Some(Fault::Mute) => self.hold().await,
            Some(Fault::CutAfter) => self.end().await,
            Some(Fault::CutMidway) => self.half(answer),
            Some(Fault::Garbled) => garbled(answer).whole(),
            Some(Fault::Late(pause)) => {
                sleep(pause).await;
                answer.whole()
            }
            Some(Fault::Twice) => match self.carry_out(copy).await {
                Some(second) => second.whole(),
                None => refusal(UNAVAILABLE),
            },
            _ => answer.whole(),
        }
    }

    async fn carry_out(&self, request: Request<Full<Bytes>>) -> Option<Answer> {
        let (head, body) = self.sender.clone().send_request(request).await.ok()?.into_parts();
        let body = body.collect().await.ok()?;
        let trailers = body.trailers().cloned();
        Some(Answer { head, data: body.to_bytes(), trailers })
    }

    /// A subscription has no effect that could be cut in its middle: it ends with its caller.
    async fn stream(
        self,
        method: &str,
        fate: Option<Fault>,
        request: Request<Full<Bytes>>,
    ) -> Response<Body> {
        match fate {
            Some(Fault::Refused(code) | Fault::Forgotten(code)) => return refusal(code),
            Some(Fault::RefusedWith(code, message)) => return refusal_with(code, message),
            Some(Fault::Swallowed | Fault::Mute) => return self.hold().await,
            Some(Fault::CutBefore | Fault::CutAfter | Fault::CutMidway) => return self.end().await,
            Some(Fault::Slow(pause) | Fault::Late(pause)) => sleep(pause).await,
            Some(Fault::Twice | Fault::Garbled | Fault::Answered(_)) | None => {}
        }
        match self.sender.clone().send_request(request).await {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                Response::from_parts(head, stream::relay(self, method, body))
            }
            Err(_) => refusal(UNAVAILABLE),
        }
    }

    /// Until another script is played.
    async fn hold(&self) -> Response<Body> {
        let mut book = self.book.subscribe();
        let edition = book.borrow_and_update().edition;
        let _ = book.wait_for(|book| book.edition != edition).await;
        refusal(UNAVAILABLE)
    }

    async fn end(&self) -> Response<Body> {
        self.cut.cancel();
        // Nobody hears what comes after the end of the connection.
        sleep(A_MOMENT * 50).await;
        refusal(UNAVAILABLE)
    }

    /// The first half of the answer, and then the end of the connection.
    fn half(self, answer: Answer) -> Response<Body> {
        let half = answer.data.slice(..answer.data.len() / 2);
        let frames = futures::stream::unfold(Some(half), move |rest| {
            let cut = self.cut.clone();
            async move {
                match rest {
                    Some(half) => Some((Ok(Frame::data(half)), None)),
                    None => {
                        sleep(A_MOMENT).await;
                        cut.cancel();
                        pending().await
                    }
                }
            }
        });
        Response::from_parts(answer.head, StreamBody::new(frames).boxed_unsync())
    }
}

impl Answer {
    fn whole(self) -> Response<Body> {
        let never = |never: std::convert::Infallible| match never {};
        let body = Full::new(self.data).map_err(never);
        let trailers = self.trailers.map(Ok);
        Response::from_parts(self.head, body.with_trailers(async { trailers }).boxed_unsync())
    }
}

/// One frame of the right length whose content is no message.
fn garbled(mut answer: Answer) -> Answer {
    if answer.data.len() > 5 {
        let mut bytes = answer.data.to_vec();
        bytes[5..].fill(0xff);
        answer.data = bytes.into();
    }
    answer
}

/// A frame with this message, and success.
fn answer(message: &[u8]) -> Response<Body> {
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).expect("a length").to_be_bytes());
    frame.extend_from_slice(message);
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from(frame)).map_err(|never: std::convert::Infallible| match never {});
    let mut response = Response::new(body.with_trailers(async { Some(Ok(trailers)) }).boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// An answer that is nothing but a status.
fn refusal(code: u16) -> Response<Body> {
    refusal_with(code, "the proxy was told to")
}

fn refusal_with(code: u16, message: &'static str) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    response
}
