//! The connection against local servers: which servers it trusts, its errors, and its recovery.

mod tls_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver::{Api, ApiError, Connection, TlsFault, WatchEvent, WatchStart};
use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use ports::{Disposition, FinishedSpan, SpanKind, TraceContext, Tracer, Tracing};
use tls_server::{Authority, Body, Handler, Server, Setup, clock, kubeconfig, packed, serve, text};
use tokio_util::sync::CancellationToken;

const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

fn ok() -> Handler {
    Arc::new(|_, _| Box::pin(async { text(200, "ok") }))
}

fn trusting(server: &Server, authority: &Authority) -> String {
    format!("server: 'https://{}', certificate-authority-data: {}", server.address, packed(&authority.pem))
}

fn api(cluster: &str, user: &str) -> Api {
    let dir = tempfile::tempdir().expect("directory");
    let file = kubeconfig(dir.path(), cluster, user);
    Api::new(Connection::open(&file, "kubelet/test", clock()).expect("a connection"))
        .with_deadline(Duration::from_secs(10))
}

async fn fault(setup: Setup, cluster: impl FnOnce(&Server) -> String) -> (TlsFault, String) {
    let server = serve(setup, ok()).await;
    match api(&cluster(&server), "").get_raw("/healthz").await {
        Err(ApiError::Tls { fault, message, call }) => {
            assert_eq!(call, "get /healthz");
            (fault, message)
        }
        other => panic!("no TLS fault: {other:?}"),
    }
}

#[tokio::test]
async fn faults_of_certificates_are_told_apart() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let good = || ours.sign(&LOCAL, |_| {});

    let (found, message) = fault(Setup::new(good()), |server| trusting(server, &theirs)).await;
    assert_eq!(found, TlsFault::UntrustedServer, "{message}");
    let old = ours.sign(&LOCAL, |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let (found, message) = fault(Setup::new(old), |server| trusting(server, &ours)).await;
    assert_eq!(found, TlsFault::ServerCertificateNotInForce, "{message}");
    let other = ours.sign(&["elsewhere.example"], |_| {});
    let (found, message) = fault(Setup::new(other), |server| trusting(server, &ours)).await;
    assert_eq!(found, TlsFault::NameMismatch, "{message}");
    assert!(message.contains("elsewhere.example"), "{message}");
    let (found, message) =
        fault(Setup::new(good()).asking(&ours, true), |server| trusting(server, &ours)).await;
    assert_eq!(found, TlsFault::ClientRefused, "{message}");
}

#[tokio::test]
async fn plain_http_is_no_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.0 400 Bad Request\r\n\r\n").await;
    });
    let cluster = format!("server: 'https://{address}', insecure-skip-tls-verify: true");
    match api(&cluster, "").get_raw("/healthz").await {
        Err(ApiError::Tls { fault: TlsFault::NotTls, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn trust_has_its_exceptions() {
    let ours = Authority::new("ours");
    let answers = async |setup: Setup, cluster: &dyn Fn(&Server) -> String| {
        let server = serve(setup, ok()).await;
        api(&cluster(&server), "").get_raw("/healthz").await.expect("an answer")
    };
    let elsewhere = || ours.sign(&["elsewhere.example"], |_| {});
    // The server is not verified.
    let insecure =
        |server: &Server| format!("server: 'https://{}', insecure-skip-tls-verify: true", server.address);
    assert_eq!(answers(Setup::new(elsewhere()), &insecure).await, "ok");
    // Another name is checked.
    let named = |server: &Server| format!("{}, tls-server-name: elsewhere.example", trusting(server, &ours));
    assert_eq!(answers(Setup::new(elsewhere()), &named).await, "ok");
    // The server's own self-signed certificate stands in the place of an authority.
    let own = rcgen::generate_simple_self_signed(LOCAL.map(str::to_owned).to_vec()).expect("a certificate");
    let pair = (own.cert.pem(), own.signing_key.serialize_pem());
    let pinned = |server: &Server| {
        format!(
            "server: 'https://{}', certificate-authority-data: {}",
            server.address,
            packed(&own.cert.pem())
        )
    };
    assert_eq!(answers(Setup::new(pair), &pinned).await, "ok");
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let error = api(&format!("server: 'https://{address}', insecure-skip-tls-verify: true"), "")
        .get_raw("/healthz")
        .await
        .expect_err("nobody is there");
    assert!(
        matches!(&error, ApiError::Unavailable { message, .. } if message.contains("refused")),
        "{error}"
    );
    assert_eq!(error.disposition(), Disposition::Retry);
    assert!(!error.server_answered());
}

#[tokio::test]
async fn a_slow_server_is_given_up_at_the_deadline() {
    let ours = Authority::new("ours");
    let slow: Handler = Arc::new(|_, _| Box::pin(async { std::future::pending().await }));
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), slow).await;
    let deadline = Duration::from_millis(300);
    let error =
        api(&trusting(&server, &ours), "").with_deadline(deadline).get_node("n").await.expect_err("too slow");
    assert_eq!(error, ApiError::TimedOut { call: "get node n".into(), after: deadline });
}

#[tokio::test]
async fn calls_share_one_http2_connection_and_watches_another() {
    let ours = Authority::new("ours");
    let handler: Handler = Arc::new(|request, peer| {
        Box::pin(async move {
            assert!(peer.http2);
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                return endless(vec![added("a")]);
            }
            text(200, "ok")
        })
    });
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), handler).await;
    let api = api(&trusting(&server, &ours), "token: t");
    api.get_raw("/healthz").await.expect("an answer");
    let mut watches = Vec::new();
    for _ in 0..5 {
        let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
        watches.push(watch);
    }
    for _ in 0..5 {
        api.get_raw("/healthz").await.expect("an answer");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

/// A server allows a hundred concurrent requests per connection. A node with more ConfigMaps than that has more
/// watches.
#[tokio::test]
async fn more_watches_than_fit_on_a_connection_hold_up_nothing() {
    let ours = Authority::new("ours");
    let handler: Handler = Arc::new(|request, _| {
        Box::pin(async move {
            let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if watch { endless(vec![added("a")]) } else { text(200, "ok") }
        })
    });
    let mut setup = Setup::new(ours.sign(&LOCAL, |_| {}));
    setup.streams = 100;
    let server = serve(setup, handler).await;
    let api = api(&trusting(&server, &ours), "token: t");
    let mut watches = futures::future::join_all((0..300).map(|_| async {
        let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
        watch
    }))
    .await;
    api.get_raw("/healthz").await.expect("an answer beside them");
    let opened = server.connections.load(Ordering::SeqCst);
    assert!((4..=6).contains(&opened), "{opened} connections");
    // Places are given back.
    watches.truncate(200);
    for _ in 0..50 {
        watches.push(api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch"));
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), opened);
}

/// When a server drops its connections all watches come back at once, and share new ones.
#[tokio::test]
async fn watches_that_were_cut_off_come_back_together() {
    let ours = Authority::new("ours");
    let handler: Handler = Arc::new(|_, _| Box::pin(async { endless(vec![added("a")]) }));
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), handler).await;
    let api = api(&trusting(&server, &ours), "token: t");
    let all = || {
        futures::future::join_all((0..50).map(|_| async {
            let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
            assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
            watch
        }))
    };
    let mut watches = all().await;
    // One; on a machine so slow that some don't wait for it any longer a few more, but never one each.
    let opened = server.connections.load(Ordering::SeqCst);
    assert!(opened < 20, "{opened} connections");
    server.cut();
    for watch in &mut watches {
        assert!(matches!(watch.next().await, Some(Err(ApiError::Unavailable { .. }))));
    }
    let _again = all().await;
    let more = server.connections.load(Ordering::SeqCst) - opened;
    assert!((1..20).contains(&more), "{more} more connections");
}

/// The others don't wait for the first for ever.
#[tokio::test]
async fn a_watch_that_is_not_answered_holds_up_no_other() {
    let ours = Authority::new("ours");
    let (asked, first_is_there) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let there = first_is_there.clone();
    let handler: Handler = Arc::new(move |_, _| {
        let (first, there) = (asked.fetch_add(1, Ordering::SeqCst) == 0, there.clone());
        Box::pin(async move {
            if first {
                there.notify_one();
                std::future::pending::<()>().await;
            }
            endless(vec![added("a")])
        })
    });
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), handler).await;
    let api = api(&trusting(&server, &ours), "token: t");
    let slow = api.watch_pods("n", WatchStart::InitialEvents);
    let other = async {
        first_is_there.notified().await;
        let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
        watch.next().await
    };
    tokio::select! {
        _ = slow => panic!("it is not answered"),
        event = other => assert!(matches!(event, Some(Ok(WatchEvent::Added(_)))), "{event:?}"),
    }
}

fn added(name: &str) -> Bytes {
    format!("{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"{name}\"}}}}}}\n").into()
}

/// Says these, and then nothing more without ending.
fn endless(pieces: Vec<Bytes>) -> Response<Body> {
    let said = futures::stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    Response::new(BodyExt::boxed(StreamBody::new(said.chain(futures::stream::pending()))))
}

/// An event, and later the end of everything.
fn breaking() -> Response<Body> {
    let said = futures::stream::iter([Ok(Frame::data(added("a")))]);
    let broken = futures::stream::once(async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Err(std::io::Error::other("gone"))
    });
    Response::new(BodyExt::boxed(StreamBody::new(said.chain(Box::pin(broken)))))
}

fn ending(pieces: Vec<Bytes>) -> Response<Body> {
    let said = futures::stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    Response::new(BodyExt::boxed(StreamBody::new(said)))
}

async fn watched(http2: bool, answer: fn() -> Response<Body>) -> Vec<String> {
    let ours = Authority::new("ours");
    let handler: Handler = Arc::new(move |_, _| Box::pin(async move { answer() }));
    let mut setup = Setup::new(ours.sign(&LOCAL, |_| {}));
    setup.http2 = http2;
    let server = serve(setup, handler).await;
    let api = api(&trusting(&server, &ours), "");
    let watch = api.watch_pods("n", WatchStart::Version("5")).await.expect("a watch");
    let shown = |event: Result<WatchEvent<model::k8s::Pod>, ApiError>| match event {
        Ok(WatchEvent::Added(pod)) => format!("added {}", pod.metadata.name.unwrap_or_default()),
        Ok(other) => format!("{other:?}"),
        Err(ApiError::Gone { .. }) => "gone".into(),
        Err(ApiError::Unavailable { .. }) => "unavailable".into(),
        Err(ApiError::Decode { .. }) => "malformed".into(),
        Err(error) => error.to_string(),
    };
    watch.stream().map(shown).collect().await
}

#[tokio::test]
async fn watches_end_in_their_ways() {
    for http2 in [true, false] {
        // Lines come in any pieces, and empty ones are nothing.
        let pieces = || {
            let mut text = added("a").to_vec();
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(&added("b"));
            ending(text.chunks(7).map(Bytes::copy_from_slice).collect())
        };
        assert_eq!(watched(http2, pieces).await, ["added a", "added b"]);
        let cut = || ending(vec![added("a"), added("b").slice(..20)]);
        assert_eq!(watched(http2, cut).await, ["added a", "unavailable"]);
        assert_eq!(watched(http2, breaking).await, ["added a", "unavailable"]);
        let malformed = || ending(vec!["{\"type\":7}\n".into(), added("b")]);
        assert_eq!(watched(http2, malformed).await, ["malformed"]);
        let expired = || {
            let event = r#"{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"old"}}"#;
            ending(vec![event.into(), "\n".into()])
        };
        assert_eq!(watched(http2, expired).await, ["gone"]);
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_is_told() {
    let ours = Authority::new("ours");
    let pair = ours.sign(&LOCAL, |_| {});
    let handler: Handler = Arc::new(|_, _| Box::pin(async { endless(vec![added("a")]) }));
    let server = serve(Setup::new(pair.clone()), handler.clone()).await;
    let api = api(&trusting(&server, &ours), "");
    let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
    watch.next().await.expect("an event").expect("no error");
    server.stop.cancel();
    match watch.next().await {
        Some(Err(ApiError::Unavailable { .. })) => {}
        other => panic!("the cut was not told: {other:?}"),
    }
    assert!(watch.next().await.is_none());
}

/// Answers with the name in the client's certificate, or `nobody`.
fn who() -> Handler {
    Arc::new(|request, peer| {
        Box::pin(async move {
            if request.uri().query().is_some() {
                return endless(vec![added("a")]);
            }
            let name = peer.certificate.map(|der| {
                use x509_parser::prelude::FromDer;
                let (_, parsed) =
                    x509_parser::prelude::X509Certificate::from_der(&der).expect("a certificate");
                parsed
                    .subject()
                    .iter_common_name()
                    .next()
                    .and_then(|name| name.as_str().ok())
                    .map(str::to_owned)
            });
            let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            let said = name.flatten().or(token.map(str::to_owned)).unwrap_or_else(|| "nobody".into());
            let body = http_body_util::Full::new(Bytes::from(said)).map_err(|never| match never {});
            Response::new(body.boxed())
        })
    })
}

fn named(authority: &Authority, name: &str) -> String {
    let (certificate, key) = authority.sign(&[], |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
    });
    format!("{certificate}{key}")
}

#[tokio::test]
async fn a_new_certificate_is_used_at_once_and_old_connections_go() {
    let ours = Authority::new("ours");
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})).asking(&ours, false), who()).await;
    let dir = tempfile::tempdir().expect("directory");
    let link = dir.path().join("current.pem");
    std::fs::write(dir.path().join("1.pem"), named(&ours, "first")).expect("write");
    std::os::unix::fs::symlink("1.pem", &link).expect("link");
    let user = "client-certificate: current.pem, client-key: current.pem";
    let file = kubeconfig(dir.path(), &trusting(&server, &ours), user);
    let connection = Connection::open(&file, "kubelet/test", clock()).expect("a connection");
    let api = Api::new(connection.clone());
    let cancel = CancellationToken::new();
    let following = tokio::spawn({
        let (connection, cancel) = (connection.clone(), cancel.clone());
        async move { connection.watch_credential_files(cancel).await }
    });
    assert_eq!(api.get_raw("/who").await.expect("an answer"), "first");
    let mut watch = api.watch_pods("n", WatchStart::InitialEvents).await.expect("a watch");
    watch.next().await.expect("an event").expect("no error");

    let mut eras = connection.subscribe_generations();
    eras.mark_unchanged();
    // A broken certificate changes nothing.
    std::fs::write(dir.path().join("2.pem"), "broken").expect("write");
    replace_link(&link, "2.pem");
    assert_eq!(api.get_raw("/who").await.expect("an answer"), "first");
    std::fs::write(dir.path().join("3.pem"), named(&ours, "second")).expect("write");
    replace_link(&link, "3.pem");
    tokio::time::timeout(Duration::from_secs(30), eras.changed()).await.expect("a change").expect("an era");
    assert_eq!(api.get_raw("/who").await.expect("an answer"), "second");
    assert!(watch.next().await.is_none(), "watches end with their connection");
    cancel.cancel();
    following.await.expect("the end");
}

fn replace_link(link: &std::path::Path, to: &str) {
    let draft = link.with_extension("draft");
    std::os::unix::fs::symlink(to, &draft).expect("link");
    std::fs::rename(draft, link).expect("rename");
}

#[tokio::test]
async fn tokens_passwords_and_other_names_are_sent() {
    let ours = Authority::new("ours");
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), who()).await;
    let check = async |user: &str, expect: &str| {
        let said = api(&trusting(&server, &ours), user).get_raw("/who").await.expect("an answer");
        assert_eq!(said, expect, "for {user}");
    };
    check("", "nobody").await;
    check("token: abc", "Bearer abc").await;
    check("username: u, password: p", "Basic dTpw").await;
}

#[tokio::test]
async fn a_proxy_is_used() {
    let ours = Authority::new("ours");
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), ok()).await;
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = proxy.local_addr().expect("an address");
    let through = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut client, _) = proxy.accept().await.expect("a client");
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(client.read_u8().await.expect("a request"));
        }
        let asked = String::from_utf8_lossy(&asked).into_owned();
        let to = asked.split(' ').nth(1).expect("a target").to_owned();
        let mut server = tokio::net::TcpStream::connect(to).await.expect("the server");
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("an answer");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        asked
    });
    let cluster = format!("{}, proxy-url: 'http://u:p@{address}'", trusting(&server, &ours));
    let api = api(&cluster, "");
    assert_eq!(api.get_raw("/healthz").await.expect("an answer"), "ok");
    drop(api);
    server.stop.cancel();
    let asked = through.await.expect("the proxy");
    assert!(asked.starts_with(&format!("CONNECT {} ", server.address)), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("proxy-authorization: basic dtpw"), "{asked}");
}

/// A plugin whose certificate changes with each run, and whose every answer is old at once.
#[tokio::test]
async fn a_plugin_that_gives_another_certificate_changes_the_connection() {
    use std::os::unix::fs::PermissionsExt;
    let ours = Authority::new("ours");
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})).asking(&ours, false), who()).await;
    let dir = tempfile::tempdir().expect("directory");
    for name in ["first", "second"] {
        let pem = named(&ours, name);
        let (certificate, key) = pem.split_at(pem.find("-----BEGIN PRIVATE").expect("a key"));
        let status = serde_json::json!({
            "clientCertificateData": certificate,
            "clientKeyData": key,
            "expirationTimestamp": "2001-01-01T00:00:00Z",
        });
        let answer = serde_json::json!({
            "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status,
        });
        std::fs::write(dir.path().join(name), answer.to_string()).expect("write");
    }
    let plugin = dir.path().join("plugin");
    let script =
        "#!/bin/sh\ncd \"${0%/*}\" || exit 1\n[ -e second ] || exit 7\ncat first && mv second first\n";
    std::fs::write(&plugin, script).expect("write");
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let user =
        "exec: {command: ./plugin, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}";
    let file = kubeconfig(dir.path(), &trusting(&server, &ours), user);
    let connection = Connection::open(&file, "kubelet/test", clock()).expect("a connection");
    let api = Api::new(connection.clone());
    assert_eq!(api.get_raw("/who").await.expect("an answer"), "first");
    assert_eq!(*connection.subscribe_generations().borrow(), 2, "the plugin's certificate began an era");
    std::fs::write(dir.path().join("second"), "").expect("write");
    assert_eq!(api.get_raw("/who").await.expect("an answer"), "second");
    std::fs::remove_file(dir.path().join("second")).ok();
    match api.get_raw("/who").await {
        Err(ApiError::Credentials { message, .. }) => {
            assert!(message.contains("exit status: 7"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}

/// Every span is kept, and sent to the test.
struct Numbering(tokio::sync::mpsc::UnboundedSender<FinishedSpan>);

impl Tracer for Numbering {
    fn begin(&self, _: Option<TraceContext>) -> TraceContext {
        TraceContext { trace: 0xabc, span: 7, sampled: true }
    }
    fn finish(&self, span: FinishedSpan) {
        let _ = self.0.send(span);
    }
    fn now(&self) -> model::Wall {
        model::Wall(1)
    }
}

#[tokio::test]
async fn calls_are_parts_of_traces() {
    let ours = Authority::new("ours");
    let handler: Handler = Arc::new(|request, _| {
        Box::pin(async move {
            let heard = request.headers().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
            match heard.as_deref() {
                None => text(200, "nothing"),
                Some("00-00000000000000000000000000000abc-0000000000000007-01") => text(200, "the trace"),
                Some(_) => text(200, "another trace"),
            }
        })
    });
    let server = serve(Setup::new(ours.sign(&LOCAL, |_| {})), handler).await;
    let api = api(&trusting(&server, &ours), "token: t");
    assert_eq!(api.get_raw("/healthz").await.expect("an answer"), "nothing");
    let (ended, mut spans) = tokio::sync::mpsc::unbounded_channel();
    api.connection().set_tracing(Tracing::new(Arc::new(Numbering(ended))));
    assert_eq!(api.get_raw("/healthz").await.expect("an answer"), "the trace");
    let span = spans.try_recv().expect("a span");
    assert_eq!((span.span.name.as_ref(), span.span.kind, span.error), ("HTTP GET", SpanKind::Client, None));
    assert!(span.span.attributes.contains(&("url.path", "/healthz".into())), "{:?}", span.span.attributes);
    drop(server);
    let failed =
        api.with_deadline(Duration::from_secs(2)).get_raw("/livez").await.expect_err("nobody is there");
    let span = spans.recv().await.expect("a span");
    assert!(span.error.is_some(), "{failed}");
}
