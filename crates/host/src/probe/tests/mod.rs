//! The prober against real servers on loopback, which play a script: one answer per connection.

mod grpc;
mod http;
mod https;
mod records;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

use model::probe::{HttpCheck, NetworkCheck, ProbeOutcome};
use ports::Prober;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::NetworkProber;

/// Long enough for a busy machine where an answer is to come.
pub const PATIENT: Duration = Duration::from_secs(30);
/// For tests in which no answer is to come.
pub const BRIEF: Duration = Duration::from_millis(300);

/// What a server does with a connection once it has read the request.
#[derive(Clone)]
pub enum Answer {
    Say(String),
    /// Says this much and then nothing more.
    SayAndHang(String),
    Hang,
    Close,
    /// The client sees a broken connection.
    Reset,
}

pub fn response(status: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    Answer::Say(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"))
}

pub fn redirect(status: &str, to: &str) -> Answer {
    response(status, &[("Location", to)], "moved")
}

/// A server that records its requests.
pub struct Server {
    pub port: u16,
    asked: mpsc::UnboundedReceiver<String>,
}

impl Server {
    /// The heads of all requests so far.
    pub fn requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

pub async fn serve(script: Vec<Answer>) -> Server {
    serve_at("127.0.0.1", script, None).await
}

pub async fn serve_at(host: &str, script: Vec<Answer>, tls: Option<tokio_rustls::TlsAcceptor>) -> Server {
    let listener = TcpListener::bind((host, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.expect("a connection");
            let answer = script.get(number).or(script.last()).cloned().unwrap_or(Answer::Close);
            let (tell, tls) = (tell.clone(), tls.clone());
            tokio::spawn(async move {
                if let Answer::Reset = answer {
                    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))
                        .expect("an option");
                }
                match tls {
                    None => play(stream, answer, &tell).await,
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        play(stream, answer, &tell).await;
                    }
                }
            });
        }
    });
    Server { port, asked }
}

async fn play(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: Answer,
    tell: &mpsc::UnboundedSender<String>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let _ = tell.send(String::from_utf8_lossy(&head).into_owned());
    match answer {
        Answer::Say(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        Answer::SayAndHang(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.flush().await;
            std::future::pending::<()>().await;
        }
        Answer::Hang => std::future::pending().await,
        Answer::Close | Answer::Reset => {}
    }
}

/// A port without a listener.
pub async fn deserted() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address").port()
}

/// Accepts connections and never answers.
pub async fn mute() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut held: Vec<TcpStream> = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    port
}

pub fn acceptor(protocols: &[&str]) -> tokio_rustls::TlsAcceptor {
    let chain =
        vec![CertificateDer::from_pem_slice(include_bytes!("../../feed/testdata/server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../feed/testdata/server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    Arc::new(config).into()
}

pub fn http(port: u16) -> HttpCheck {
    HttpCheck { https: false, host: "127.0.0.1".into(), port, target: "/".into(), headers: Vec::new() }
}

pub async fn ask(check: NetworkCheck, timeout: Duration) -> ProbeOutcome {
    NetworkProber::default().probe(&check, timeout).await
}

pub async fn ask_http(check: HttpCheck) -> ProbeOutcome {
    ask(NetworkCheck::Http(check), PATIENT).await
}

/// Success, warning, failure or error with its words, in which `@` stands for the server's address.
pub fn shown(outcome: &ProbeOutcome, port: u16) -> String {
    let text = match outcome {
        ProbeOutcome::Success => "good".to_owned(),
        ProbeOutcome::Warning { output } => format!("warning: {output}"),
        ProbeOutcome::Failure { output } => format!("bad: {output}"),
        ProbeOutcome::Errored { state, message } => format!("{} error: {message}", state.as_str()),
    };
    text.replace(&format!("127.0.0.1:{port}"), "@")
}
