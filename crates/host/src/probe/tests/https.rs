use std::convert::Infallible;

use ::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::probe::{HttpCheck, NetworkCheck, ProbeOutcome};
use tokio::net::TcpListener;

use super::{Answer, BRIEF, acceptor, ask, ask_http, http, mute, redirect, response, serve, serve_at, shown};

fn https(port: u16) -> HttpCheck {
    HttpCheck { https: true, ..http(port) }
}

#[tokio::test]
async fn any_certificate_will_do() {
    for protocols in [&[][..], &["http/1.1"]] {
        let mut server =
            serve_at("127.0.0.1", vec![response("200 OK", &[], "")], Some(acceptor(protocols))).await;
        assert_eq!(ask_http(https(server.port)).await, ProbeOutcome::Success);
        let head = server.requests().remove(0);
        assert!(
            head.starts_with("GET / HTTP/1.1\r\n") && head.contains("User-Agent: kube-probe/1.36"),
            "{head}"
        );
    }
}

#[tokio::test]
async fn status_codes_count_behind_tls_too() {
    let server = serve_at("127.0.0.1", vec![response("500 Oh", &[], "")], Some(acceptor(&[]))).await;
    assert_eq!(
        shown(&ask_http(https(server.port)).await, server.port),
        "bad: HTTP probe failed with statuscode: 500"
    );
}

#[tokio::test]
async fn a_redirect_may_lead_to_tls() {
    let secure = serve_at("127.0.0.1", vec![response("200 OK", &[], "")], Some(acceptor(&[]))).await;
    let plain = serve(vec![redirect("301 Moved", &format!("https://127.0.0.1:{}/", secure.port))]).await;
    assert_eq!(ask_http(http(plain.port)).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_told_so() {
    let plain = serve(vec![Answer::Hang]).await;
    // its answer to a greeting that is no request
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        std::future::pending::<()>().await;
    });
    let expect = "bad: Get \"https://@/\": http: server gave HTTP response to HTTPS client";
    assert_eq!(shown(&ask_http(https(port)).await, port), expect);
    let outcome = ask(NetworkCheck::Http(https(plain.port)), BRIEF).await;
    let silent = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(shown(&outcome, plain.port), format!("bad: Get \"https://@/\": {silent}"));
    let port = mute().await;
    let outcome = ask(NetworkCheck::Http(https(port)), BRIEF).await;
    assert_eq!(shown(&outcome, port), format!("bad: Get \"https://@/\": {silent}"));
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let told = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let agent = request.headers().get("user-agent").map_or("", |a| a.to_str().unwrap_or_default());
    let status = match (request.uri().path(), agent) {
        ("/ok", "kube-probe/1.36") => 200,
        ("/host", _) if told == "h.test" => 200,
        _ => 500,
    };
    Ok(Response::builder().status(status).body(Full::default()).unwrap())
}

#[tokio::test]
async fn a_server_that_prefers_http2_gets_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = acceptor(&["h2"]);
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    let check = |target: &str, headers: &[(&str, &str)]| HttpCheck {
        target: target.into(),
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        ..https(port)
    };
    assert_eq!(ask_http(check("/ok", &[])).await, ProbeOutcome::Success);
    assert_eq!(ask_http(check("/host", &[("Host", "h.test")])).await, ProbeOutcome::Success);
    let outcome = ask_http(check("/bad", &[])).await;
    assert_eq!(shown(&outcome, port), "bad: HTTP probe failed with statuscode: 500");
}
