//! One GET request to a container, following redirects on the same host.

use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures::future::{Either, select};
use http::header::{ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERER};
use http::{Request, Response, Uri, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::probe::{HttpCheck, ProbeErrorState, ProbeOutcome};
use model::text_limits::TextLimit;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::url::{Url, is_relative};
use super::{USER_AGENT, dial, tls};

/// The part of the body that is kept for messages.
const MAX_BODY: usize = TextLimit::ProbeOutput.bytes();
const MAX_REQUESTS: usize = 10;

const NO_HEADERS_YET: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const NO_BODY_YET: &str =
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";

pub async fn check(tls: &tls::Connector, check: &HttpCheck, deadline: Instant) -> ProbeOutcome {
    let headers = match Headers::of(check) {
        Ok(headers) => headers,
        Err(words) => return failed(&Url::of(check), &words),
    };
    let mut url = Url::of(check);
    let mut host = headers.host.clone();
    let mut referer: Option<String> = None;
    for number in 1.. {
        let exchange = Exchange { tls, url: &url, host: host.as_deref(), headers: &headers, referer };
        let answer = match exchange.run(deadline).await {
            Ok(answer) => answer,
            Err(RequestFailure::NoAnswer(words)) => return failed(&url, &words),
            Err(RequestFailure::Body(message)) => {
                return ProbeOutcome::Errored { state: ProbeErrorState::Failure, message };
            }
        };
        let Some(location) = answer.location() else { return outcome_of(answer) };
        let next = match url.join(location) {
            Ok(next) => next,
            Err(words) => return failed(&url, &words),
        };
        if next.host != check.host {
            return outcome_of(answer);
        }
        if number >= MAX_REQUESTS {
            return failed(&url, &format!("stopped after {MAX_REQUESTS} redirects"));
        }
        if !is_relative(location) {
            host = None;
        }
        referer = (!url.https || next.https).then(|| url.to_string());
        url = next;
    }
    unreachable!("the number of requests is bounded")
}

fn failed(url: &Url, words: &str) -> ProbeOutcome {
    ProbeOutcome::failure(format!("Get \"{url}\": {words}"))
}

fn outcome_of(answer: Answer) -> ProbeOutcome {
    match answer.status {
        200..=299 => ProbeOutcome::Success,
        300..=399 => {
            let body = String::from_utf8_lossy(&answer.body);
            ProbeOutcome::Warning { output: format!("Probe terminated redirects, Response body: {body}") }
        }
        // The body may contain confidential data.
        status => ProbeOutcome::failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// Headers that are the same in every request of a probe.
struct Headers {
    map: HeaderMap,
    /// The probe's Host header, which replaces the URL's.
    host: Option<String>,
}

impl Headers {
    fn of(check: &HttpCheck) -> Result<Self, String> {
        let mut map = HeaderMap::new();
        let mut host = None;
        for (name, value) in &check.headers {
            let key: HeaderName =
                name.parse().map_err(|_| format!("net/http: invalid header field name {name:?}"))?;
            let value: HeaderValue =
                value.parse().map_err(|_| format!("net/http: invalid header field value for {name:?}"))?;
            match key.as_str() {
                "host" if host.is_none() => host = Some(value.to_str().unwrap_or_default().to_owned()),
                // The probe must not change the framing of the request.
                "host" | "content-length" | "transfer-encoding" | "trailer" => {}
                _ => drop(map.append(key, value)),
            }
        }
        for (name, usual) in [(http::header::USER_AGENT, USER_AGENT), (ACCEPT, "*/*")] {
            match map.get(&name) {
                Some(given) if given.is_empty() => drop(map.remove(&name)),
                Some(_) => {}
                None => drop(map.insert(name, HeaderValue::from_static(usual))),
            }
        }
        Ok(Self { map, host: host.filter(|host| !host.is_empty()) })
    }
}

struct Answer {
    status: u16,
    location: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    /// The target of the redirect, if the response is one.
    fn location(&self) -> Option<&str> {
        let redirects = matches!(self.status, 301 | 302 | 303 | 307 | 308);
        self.location.as_deref().filter(|location| redirects && !location.is_empty())
    }
}

enum RequestFailure {
    NoAnswer(String),
    Body(String),
}

/// One request on its own connection.
struct Exchange<'a> {
    tls: &'a tls::Connector,
    url: &'a Url,
    host: Option<&'a str>,
    headers: &'a Headers,
    referer: Option<String>,
}

impl Exchange<'_> {
    async fn run(&self, deadline: Instant) -> Result<Answer, RequestFailure> {
        let in_time = |words: String| RequestFailure::NoAnswer(words);
        let connecting = async {
            let stream = dial::dial(&self.url.host, self.url.port()).await?;
            // The last segment is a few bytes, so there is no reason to delay it.
            let _ = stream.set_nodelay(true);
            Ok::<_, String>(stream)
        };
        let stream = timeout_at(deadline, connecting).await.map_err(|_| in_time(NO_HEADERS_YET.into()))?;
        let stream = stream.map_err(in_time)?;
        let ends = connection_ends(&stream);
        if !self.url.https {
            return self.http1(stream, &ends, deadline).await;
        }
        let greeting = tls::connect(self.tls, &self.url.host, stream);
        let stream = timeout_at(deadline, greeting).await.map_err(|_| in_time(NO_HEADERS_YET.into()))?;
        let stream = stream.map_err(in_time)?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.http2(stream, &ends, deadline).await
        } else {
            self.http1(stream, &ends, deadline).await
        }
    }

    async fn http1<S>(&self, stream: S, ends: &str, deadline: Instant) -> Result<Answer, RequestFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut builder = http1::Builder::new();
        builder.title_case_headers(true);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            shaken.map_err(|e| RequestFailure::NoAnswer(error_text(&e, ends, "EOF")))?;
        let mut request = self.request(&self.url.target)?;
        let host = self.host.map_or_else(|| self.url.authority(), str::to_owned);
        let host = HeaderValue::from_str(&host).map_err(|_| invalid_host(&host))?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let work = async {
            let response = timeout_at(deadline, sender.send_request(request)).await;
            answered(response, ends, deadline).await
        };
        drive(connection, work).await
    }

    async fn http2<S>(&self, stream: S, ends: &str, deadline: Instant) -> Result<Answer, RequestFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
        let shaken = timeout_at(deadline, handshake).await;
        let shaken = shaken.map_err(|_| RequestFailure::NoAnswer(NO_HEADERS_YET.into()))?;
        let (mut sender, connection) =
            shaken.map_err(|e| RequestFailure::NoAnswer(error_text(&e, ends, "EOF")))?;
        let authority = self.host.map_or_else(|| self.url.authority(), str::to_owned);
        let mut request = self.request(&format!("https://{authority}{}", self.url.target))?;
        *request.version_mut() = Version::HTTP_2;
        let work = async {
            let response = timeout_at(deadline, sender.send_request(request)).await;
            answered(response, ends, deadline).await
        };
        drive(connection, work).await
    }

    fn request(&self, uri: &str) -> Result<Request<Empty<Bytes>>, RequestFailure> {
        let uri: Uri =
            uri.parse().map_err(|error| RequestFailure::NoAnswer(format!("invalid URL: {error}")))?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        request.headers_mut().clone_from(&self.headers.map);
        if let Some(Ok(referer)) = self.referer.as_deref().map(HeaderValue::from_str)
            && !self.headers.map.contains_key(REFERER)
        {
            request.headers_mut().insert(REFERER, referer);
        }
        Ok(request)
    }
}

fn invalid_host(host: &str) -> RequestFailure {
    RequestFailure::NoAnswer(format!("http: invalid Host header {host:?}"))
}

/// `local->remote`, as upstream's messages about broken connections show it.
fn connection_ends(stream: &TcpStream) -> String {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => format!("{local}->{peer}"),
        _ => String::new(),
    }
}

/// Drives the connection while the work on it lasts.
async fn drive<T>(connection: impl Future, work: impl Future<Output = T>) -> T {
    match select(pin!(work), pin!(connection)).await {
        Either::Left((done, _)) => done,
        Either::Right((_, work)) => work.await,
    }
}

type Sent = Result<Result<Response<Incoming>, hyper::Error>, tokio::time::error::Elapsed>;

async fn answered(sent: Sent, ends: &str, deadline: Instant) -> Result<Answer, RequestFailure> {
    let response = match sent {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(RequestFailure::NoAnswer(error_text(&error, ends, "EOF"))),
        Err(_) => return Err(RequestFailure::NoAnswer(NO_HEADERS_YET.into())),
    };
    let location = response.headers().get(LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned);
    let status = response.status().as_u16();
    let mut incoming = response.into_body();
    let mut body = Vec::new();
    while body.len() < MAX_BODY {
        match timeout_at(deadline, incoming.frame()).await {
            Ok(Some(Ok(frame))) => body.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                return Err(RequestFailure::Body(error_text(&error, ends, "unexpected EOF")));
            }
            Err(_) => return Err(RequestFailure::Body(NO_BODY_YET.into())),
        }
    }
    body.truncate(MAX_BODY);
    Ok(Answer { status, location, body })
}

/// A connection error, with upstream's text if there is one. `end`: the text for an early end.
fn error_text(error: &hyper::Error, ends: &str, end: &str) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        match inner.downcast_ref::<io::Error>() {
            Some(io) if io.raw_os_error().is_some() => {
                return format!("read tcp {ends}: read: {}", dial::os_error_text(io));
            }
            Some(io) if io.kind() == io::ErrorKind::UnexpectedEof => return end.into(),
            _ => cause = inner.source(),
        }
    }
    if error.is_incomplete_message() || error.is_canceled() {
        return end.into();
    }
    if error.is_parse() {
        return "net/http: HTTP/1.x transport connection broken: malformed HTTP response".into();
    }
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
