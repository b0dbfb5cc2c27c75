use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::probe::{NetworkCheck, ProbeOutcome};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{BRIEF, PATIENT, ask, deserted, mute, response, serve, shown};

/// What a server does with a call.
#[derive(Clone)]
enum Reply {
    /// The answer's bytes, and a good end.
    Message(&'static [u8]),
    /// A bad end after an answer.
    Trailers(u32, &'static str),
    /// A bad end instead of one.
    TrailersOnly(u32, &'static str),
    Http(u16),
    Hang,
}

type Heard = mpsc::UnboundedReceiver<(String, HeaderMap, Bytes)>;

async fn grpc_server(reply: Reply) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (reply, tell) = (reply.clone(), tell.clone());
            let service = service_fn(move |request| answer(request, reply.clone(), tell.clone()));
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    (port, heard)
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    reply: Reply,
    tell: mpsc::UnboundedSender<(String, HeaderMap, Bytes)>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let _ = tell.send((head.uri.path().to_owned(), head.headers, body));
    let ends = |code: u32, message: &str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.into());
        if !message.is_empty() {
            trailers.insert("grpc-message", message.parse().unwrap());
        }
        trailers
    };
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(match reply {
        Reply::Message(message) => {
            let mut frame = vec![0, 0, 0, 0, message.len() as u8];
            frame.extend_from_slice(message);
            let body = Full::new(Bytes::from(frame)).with_trailers(async move { Some(Ok(ends(0, ""))) });
            response.body(body.boxed()).unwrap()
        }
        Reply::Trailers(code, message) => {
            let body = Full::new(Bytes::from_static(&[0; 5]))
                .with_trailers(async move { Some(Ok(ends(code, message))) });
            response.body(body.boxed()).unwrap()
        }
        Reply::TrailersOnly(code, message) => {
            let mut response = response.body(Full::default().boxed()).unwrap();
            response.headers_mut().extend(ends(code, message));
            response
        }
        Reply::Http(status) => Response::builder().status(status).body(Full::default().boxed()).unwrap(),
        Reply::Hang => std::future::pending().await,
    })
}

fn grpc(port: u16, service: &str) -> NetworkCheck {
    NetworkCheck::Grpc { host: "127.0.0.1".into(), port, service: service.into() }
}

async fn check(reply: Reply, expect: &str) {
    let (port, _heard) = grpc_server(reply).await;
    assert_eq!(shown(&ask(grpc(port, ""), PATIENT).await, port), expect);
}

#[tokio::test]
async fn only_serving_is_healthy() {
    let unhealthy = |name: &str| format!("bad: service unhealthy (responded with \"{name}\")");
    check(Reply::Message(&[0x08, 1]), "good").await;
    check(Reply::Message(&[]), &unhealthy("UNKNOWN")).await;
    check(Reply::Message(&[0x08, 0]), &unhealthy("UNKNOWN")).await;
    check(Reply::Message(&[0x08, 2]), &unhealthy("NOT_SERVING")).await;
    check(Reply::Message(&[0x08, 3]), &unhealthy("SERVICE_UNKNOWN")).await;
    check(Reply::Message(&[0x08, 0x96, 0x01]), &unhealthy("150")).await;
    // unknown fields
    check(Reply::Message(&[0x12, 2, 9, 9, 0x08, 1, 0x1d, 0, 0, 0, 0]), "good").await;
    check(
        Reply::Message(&[0xff]),
        "bad: error: health rpc probe failed: rpc error: code = Internal desc = grpc: failed to unmarshal the received message",
    )
    .await;
}

#[tokio::test]
async fn failures_are_told_by_their_code() {
    let failed = |code: &str, message: &str| {
        format!("bad: error: health rpc probe failed: rpc error: code = {code} desc = {message}")
    };
    let lacking =
        "bad: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ";
    check(
        Reply::TrailersOnly(12, "unknown service grpc.health.v1.Health"),
        &format!("{lacking}unknown service grpc.health.v1.Health"),
    )
    .await;
    check(Reply::TrailersOnly(5, "unknown service"), &failed("NotFound", "unknown service")).await;
    check(Reply::Trailers(5, "unknown service"), &failed("NotFound", "unknown service")).await;
    check(Reply::Trailers(14, "a%20b%25"), &failed("Unavailable", "a b%")).await;
    check(Reply::Trailers(99, "x"), &failed("Code(99)", "x")).await;
    check(Reply::TrailersOnly(4, "late"), "bad: timeout: health rpc did not complete within 30s").await;
    let status = "unexpected HTTP status code received from server: ";
    check(Reply::Http(503), &failed("Unavailable", &format!("{status}503 Service Unavailable"))).await;
    check(Reply::Http(404), &format!("{lacking}{status}404 Not Found")).await;
}

#[tokio::test]
async fn what_is_asked() {
    let (port, mut heard) = grpc_server(Reply::Message(&[0x08, 1])).await;
    let long = "s".repeat(200);
    for service in ["", "db", &long] {
        assert_eq!(ask(grpc(port, service), PATIENT).await, ProbeOutcome::Success);
        let (path, headers, body) = heard.recv().await.unwrap();
        assert_eq!(path, "/grpc.health.v1.Health/Check");
        for (name, value) in
            [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "kube-probe/1.36")]
        {
            assert_eq!(headers[name], value);
        }
        let message: Vec<u8> = match service.len() {
            0 => vec![],
            2 => [&[0x0a, 2][..], b"db"].concat(),
            _ => [&[0x0a, 0xc8, 0x01][..], service.as_bytes()].concat(),
        };
        let length = (message.len() as u32).to_be_bytes();
        assert_eq!(body, [&[0][..], &length, &message].concat());
    }
}

#[tokio::test]
async fn nobody_who_speaks_it() {
    let no_connection = "bad: timeout: failed to connect service \"@\" within 1s: context deadline exceeded";
    let brief = Duration::from_secs(1);
    let port = deserted().await;
    assert_eq!(shown(&ask(grpc(port, ""), brief).await, port), no_connection);
    let plain = serve(vec![response("200 OK", &[], "")]).await;
    assert_eq!(shown(&ask(grpc(plain.port, ""), brief).await, plain.port), no_connection);
    let port = mute().await;
    assert_eq!(shown(&ask(grpc(port, ""), brief).await, port), no_connection);
}

#[tokio::test]
async fn a_server_that_comes_up_in_time_is_reached() {
    let port = deserted().await;
    tokio::spawn(async move {
        tokio::time::sleep(BRIEF).await;
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let tell = mpsc::unbounded_channel().0;
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            let service = service_fn(move |r| answer(r, Reply::Message(&[0x08, 1]), tell.clone()));
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    assert_eq!(ask(grpc(port, ""), PATIENT).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn a_server_that_thinks_too_long() {
    let (port, mut heard) = grpc_server(Reply::Hang).await;
    let outcome = ask(grpc(port, ""), Duration::from_secs(1)).await;
    assert_eq!(shown(&outcome, port), "bad: timeout: health rpc did not complete within 1s");
    assert!(heard.try_recv().is_ok(), "it was asked");
}
