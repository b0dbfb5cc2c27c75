//! Clients that mean harm, and one that does not.

use std::net::SocketAddr;
use std::time::Duration;

use axum::middleware;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::access::{Access, authorize_request};
use crate::tls::tests::{TestAuthority, TestClient, hello};
use crate::{Authentication, Authorization, ServerHandle, ServingCertificate, TlsSettings, server_config};

async fn open_port() -> (ServerHandle, SocketAddr, TestClient, CancellationToken) {
    let authority = TestAuthority::new("servers");
    let signed = authority.server("node");
    let certificate = Arc::new(ServingCertificate::default());
    certificate.set_pem("test", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let access = Arc::new(Access {
        authentication: Authentication::new(None).with_anonymous(),
        authorization: Authorization::AlwaysAllow,
    });
    let router = hello().layer(middleware::from_fn_with_state(access, authorize_request));
    let stop = CancellationToken::new();
    let config = server_config(&TlsSettings::default(), certificate, None).unwrap();
    let tls = Tls { config, authority: None };
    let serving = serve_tls("secure port", "127.0.0.1", 0, tls, router, stop.clone()).await.unwrap();
    let at = serving.address().unwrap();
    (serving, at, TestClient::new(&authority.pem, None), stop)
}

#[tokio::test]
async fn a_thousand_silent_connections_hold_nobody_up() {
    let (_serving, at, client, _stop) = open_port().await;
    // One that was served before is not in the way, and stays.
    let mut kept = client.connect(at).await.unwrap();
    let mut answer = [0; 15];
    kept.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    kept.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");

    let mut silent = Vec::new();
    for number in 0..1000 {
        match number % 2 {
            0 => silent.push(TcpStream::connect(at).await.unwrap()),
            _ => {
                let mut half = TcpStream::connect(at).await.unwrap();
                // The beginning of a handshake that never goes on.
                half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
                silent.push(half);
            }
        }
    }
    assert_eq!(client.get(at, "/").await, (200, "hello".into()));
    let mut first = silent.swap_remove(0);
    // Sooner than its handshake would have run out of time.
    let read = tokio::time::timeout(HANDSHAKE_TIMEOUT * 4 / 5, first.read(&mut answer))
        .await
        .expect("closed for others");
    assert!(matches!(read, Ok(0) | Err(_)), "the oldest were closed");
    let mut rest = vec![0; 4096];
    kept.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let length = tokio::time::timeout(Duration::from_secs(20), kept.read(&mut rest)).await.unwrap().unwrap();
    assert!(length > 0, "who was served stays");
}

/// Somebody who asked, and about whom the API server is still being asked, does not go for those who ask nothing.
#[tokio::test]
async fn who_waits_for_an_answer_keeps_the_place() {
    let signed_by = TestAuthority::new("servers");
    let signed = signed_by.server("node");
    let certificate = Arc::new(ServingCertificate::default());
    certificate.set_pem("test", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let (asked, go) = (CancellationToken::new(), CancellationToken::new());
    let (tells, waits) = (asked.clone(), go.clone());
    // No connection is ever authorized here.
    let slow = async move || {
        tells.cancel();
        waits.cancelled().await;
        "at last"
    };
    let router = hello().route("/slow", axum::routing::get(slow));
    let (_serving, at) = crate::tls::tests::serve(certificate, None, router).await;
    let client = TestClient::new(&signed_by.pem, None);
    let waiting = tokio::spawn(async move { client.get(at, "/slow").await });
    asked.cancelled().await;
    let mut silent = Vec::new();
    for _ in 0..2 * crate::unauthenticated_connections::MAX_UNAUTHENTICATED_CONNECTIONS {
        silent.push(TcpStream::connect(at).await.unwrap());
    }
    let read = tokio::time::timeout(HANDSHAKE_TIMEOUT * 4 / 5, silent[0].read(&mut [0]))
        .await
        .expect("closed for others");
    assert!(matches!(read, Ok(0) | Err(_)));
    go.cancel();
    assert_eq!(waiting.await.unwrap(), (200, "at last".into()));
}

/// The longest that hyper reads, for whomever.
#[tokio::test]
async fn a_path_has_an_end() {
    let (_serving, at, client, _stop) = open_port().await;
    let long = format!("/?{}", "x".repeat(MAX_UNAUTHENTICATED_HEADER_BYTES));
    let mut stream = client.connect(at).await.unwrap();
    stream.write_all(format!("GET {long} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_exact(&mut answer)).await.unwrap();
    let status = String::from_utf8_lossy(&answer);
    assert!(["HTTP/1.1 414", "HTTP/1.1 431"].contains(&&*status), "{status}");
}

#[tokio::test]
async fn a_flood_of_headers_is_cut_off() {
    let (_serving, at, client, _stop) = open_port().await;
    let mut flood = client.connect(at).await.unwrap();
    flood.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let line = format!("x-{}: {}\r\n", "a".repeat(100), "b".repeat(4000));
    let mut sent = 0;
    while sent < 10 * MAX_UNAUTHENTICATED_HEADER_BYTES && flood.write_all(line.as_bytes()).await.is_ok() {
        let _ = flood.flush().await;
        sent += line.len();
    }
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), flood.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(client.get(at, "/").await, (200, "hello".into()));
}

/// Only a certificate that the CA vouches for makes room for long requests.
#[tokio::test]
async fn a_strangers_certificate_makes_no_room() {
    let (servers, clients) = (TestAuthority::new("servers"), TestAuthority::new("clients"));
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.crt");
    std::fs::write(&ca_file, &clients.pem).unwrap();
    let authority = crate::ClientAuthority::from_file(&ca_file, CancellationToken::new()).unwrap();
    let signed = servers.server("node");
    let certificate = Arc::new(ServingCertificate::default());
    certificate.set_pem("test", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let (_serving, at) = crate::tls::tests::serve(certificate, Some(authority), hello()).await;
    let long = "x".repeat(2 * MAX_UNAUTHENTICATED_HEADER_BYTES);
    let ask = async |shows: &crate::tls::tests::Signed| {
        let client = TestClient::new(&servers.pem, Some(shows));
        client.ask(at, http::Request::get("/").header("x-long", &long)).await.ok().map(|(status, _)| status)
    };
    assert_eq!(ask(&clients.client("admin", &[])).await, Some(200));
    for stranger in [TestAuthority::new("foreign").client("admin", &[]), clients.expired("admin")] {
        assert!(matches!(ask(&stranger).await, None | Some(431)));
    }
}

#[tokio::test]
async fn plain_words_are_not_answered_and_the_end_is_waited_for() {
    let (serving, at, client, stop) = open_port().await;
    let mut plain = TcpStream::connect(at).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), plain.read_to_end(&mut answer)).await.unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    let _idle = client.connect(at).await.unwrap();
    stop.cancel();
    serving.ended().await;
    assert!(TcpStream::connect(at).await.is_err());
}
