//! The HTTP feed against a real server on loopback, which plays a script: one answer per request, the last one for ever.

// Tests with real processes and servers live in real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ports::PodFeed;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::HttpFeed;
use super::testing::{next, toy_decoder};

const TICK: Duration = Duration::from_millis(10);

struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", body)
}

/// Serves until the test process ends.
fn serve(script: impl IntoIterator<Item = Vec<u8>>, tls: Option<Arc<ServerConfig>>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server { address: listener.local_addr().unwrap(), requests: Arc::default() };
    let requests = Arc::clone(&server.requests);
    let mut script: VecDeque<Vec<u8>> = script.into_iter().collect();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { continue };
            let answer = if script.len() > 1 { script.pop_front() } else { script.front().cloned() };
            let answer = answer.unwrap_or_default();
            // A client that refuses our certificate ends the connection.
            let _ = match &tls {
                None => play(&mut connection, &answer, &requests),
                Some(tls) => {
                    let mut session = ServerConnection::new(Arc::clone(tls)).unwrap();
                    play(&mut rustls::Stream::new(&mut session, &mut connection), &answer, &requests)
                }
            };
            close(connection);
        }
    });
    server
}

fn play(
    stream: &mut (impl Read + Write),
    answer: &[u8],
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        head.push(byte[0]);
    }
    requests.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
    stream.write_all(answer)?;
    stream.flush()
}

/// Lets the client read all before the connection is gone.
fn close(mut connection: TcpStream) {
    let _ = connection.shutdown(std::net::Shutdown::Write);
    let _ = connection.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = connection.read_to_end(&mut Vec::new());
}

fn no_headers() -> BTreeMap<String, Vec<String>> {
    BTreeMap::new()
}

/// `@` in what is expected stands for the server's URL.
async fn check(script: Vec<Vec<u8>>, expected: &[&str]) {
    let server = serve(script, None);
    let url = format!("http://{}/pods", server.address);
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    for expect in expected {
        assert_eq!(next(&mut feed).await.replace(&url, "@"), *expect);
    }
}

#[tokio::test]
async fn sets_are_told_when_they_change() {
    check(
        vec![ok("pod a"), ok("pod a"), ok("pod a\n"), ok("pod a\npod b"), ok("pod b 1")],
        &["set ns/a", "set ns/a ns/b", "set ns/b=1"],
    )
    .await;
}

#[tokio::test]
async fn failures_leave_the_set_as_it_is() {
    check(
        vec![
            answer("404 Not Found", "pod x"),
            answer("404 Not Found", "pod x"),
            answer("599 Odd Words", ""),
            answer("204 No Content", ""),
            ok("pod a"),
            answer("500 Internal Server Error", ""),
            ok("pod a"),
            ok("???"),
            ok("???"),
            ok("pod panic"),
            ok("pod a"),
            ok("pod a\n?"),
            ok("pod b"),
        ],
        &[
            "problem @: @: 404 Not Found",
            "problem @: @: 599 Odd Words",
            "problem @: @: 204 No Content",
            "set ns/a",
            "resolved @",
            "problem @: @: 500 Internal Server Error",
            "resolved @",
            "problem @: @: can't read \"???\"",
            "problem @: @: the manifest could not be decoded (internal error)",
            "resolved @",
            "problem @: @: can't read \"?\"",
            "set ns/b",
            "resolved @",
        ],
    )
    .await;
}

#[tokio::test]
async fn an_empty_answer_takes_all_pods_and_the_same_answer_brings_them_back() {
    check(
        vec![ok("pod a"), ok(""), ok(""), ok("pod a")],
        &["set ns/a", "set", "problem @: zero-length data received from @", "set ns/a", "resolved @"],
    )
    .await;
    check(vec![ok("")], &["set", "problem @: zero-length data received from @"]).await;
}

#[tokio::test]
async fn too_much_is_refused() {
    let body = |size: usize| format!("pod {}", "x".repeat(size - 4));
    let chunked = {
        let body = "x".repeat(11 << 20);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
    };
    check(
        vec![ok(&body(10 << 20)), ok("pod a"), chunked.into_bytes(), ok("pod b")],
        &[
            "problem @: @: the answer has 10 MiB or more",
            "set ns/a",
            "resolved @",
            "problem @: @: the answer has 10 MiB or more",
            "set ns/b",
            "resolved @",
        ],
    )
    .await;
    let largest = body((10 << 20) - 1);
    let server = serve([ok(&largest)], None);
    let url = format!("http://{}/", server.address);
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    assert_eq!(next(&mut feed).await.len(), "set ns/".len() + largest.len() - 4);
}

#[tokio::test]
async fn a_cut_answer_is_a_problem() {
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\npod a".to_vec();
    let server = serve([cut, b"nonsense\r\n\r\n".to_vec(), ok("pod a")], None);
    let url = format!("http://{}/", server.address);
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    for _ in 0..2 {
        let told = next(&mut feed).await;
        assert!(told.starts_with(&format!("problem {url}: {url}: ")), "{told}");
    }
    assert_eq!(next(&mut feed).await, "set ns/a");
}

#[tokio::test]
async fn a_server_that_is_away_is_a_problem() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    let told = next(&mut feed).await;
    assert!(told.starts_with(&format!("problem {url}: {url}: ")) && told.contains("refused"), "{told}");
}

/// With the clock stopped, tokio moves it on when nothing else can happen: the ten seconds pass at once.
#[tokio::test]
async fn a_silent_server_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    let first = next(&mut feed);
    tokio::pin!(first);
    let (connection, _) = tokio::select! {
        told = &mut first => panic!("{told}"),
        connection = listener.accept() => connection.unwrap(),
    };
    tokio::time::pause();
    assert_eq!(first.await, format!("problem {url}: {url}: no answer within 10 seconds"));
    drop(connection);
}

#[tokio::test]
async fn headers_are_sent_with_all_their_values() {
    let server = serve([ok("pod a")], None);
    let headers = BTreeMap::from([("Metadata-Flavor".to_owned(), vec!["one".to_owned(), "two".to_owned()])]);
    let url = format!("http://u:secret@{}/p?q=1", server.address);
    let mut feed = Box::new(HttpFeed::new(&url, &headers, TICK, toy_decoder()).unwrap()).stream();
    assert_eq!(next(&mut feed).await, "set ns/a");
    let request = server.requests.lock().unwrap()[0].to_lowercase();
    assert!(request.starts_with("get /p?q=1 http/1.1\r\n"), "{request}");
    for line in ["metadata-flavor: one", "metadata-flavor: two", "authorization: basic dtpzzwnyzxq="] {
        assert!(request.contains(line), "{request}");
    }
}

#[tokio::test]
async fn secrets_in_the_url_are_not_shown() {
    let server = serve([ok("???"), answer("403 Forbidden", "")], None);
    let url = format!("http://u:secret@{}/", server.address);
    let mut feed = Box::new(HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap()).stream();
    for _ in 0..2 {
        let told = next(&mut feed).await;
        assert!(told.contains("xxxxx@") && !told.contains("secret"), "{told}");
    }
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let to = |location: &str| {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    };
    check(vec![to("/other"), to("deeper"), ok("pod a")], &["set ns/a"]).await;
    check(vec![to("/again")], &["problem @: @: stopped after 10 redirects"]).await;
    check(vec![answer("302 Found", "")], &["problem @: @: 302 Found"]).await;
}

fn tls() -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_slice(include_bytes!("testdata/server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("testdata/server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

#[tokio::test]
async fn https_is_spoken_only_with_trusted_servers() {
    let server = serve([ok("pod a")], Some(tls()));
    let url = format!("https://localhost:{}/", server.address.port());
    let feed = || HttpFeed::new(&url, &no_headers(), TICK, toy_decoder()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(include_bytes!("testdata/ca.pem")).unwrap()).unwrap();
    let mut trusting = Box::new(feed().trusting(roots)).stream();
    assert_eq!(next(&mut trusting).await, "set ns/a");
    drop(trusting);

    let mut by_system = Box::new(feed()).stream();
    let told = next(&mut by_system).await;
    assert!(told.starts_with(&format!("problem {url}: {url}: ")) && told.contains("certificate"), "{told}");
}
