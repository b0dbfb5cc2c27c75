//! A local server with certificates of the test's choice, that answers as it is told to.

#![allow(dead_code)] // each test binary uses its part

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::Wall;
use ports::WallClock;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub type Body = BoxBody<Bytes, std::io::Error>;
pub type Handler = Arc<dyn Fn(Request<Incoming>, Peer) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

pub struct Clock;

impl WallClock for Clock {
    #[allow(clippy::disallowed_methods)] // The real one.
    fn wall(&self) -> Wall {
        Wall::from_timestamp(jiff::Timestamp::now())
    }
}

pub fn clock() -> Arc<dyn WallClock> {
    Arc::new(Clock)
}

pub fn text(code: u16, body: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}).boxed();
    Response::builder().status(code).body(body).expect("a response")
}

/// What the server knows of who asks.
#[derive(Clone)]
pub struct Peer {
    /// Counts connections.
    pub connection: usize,
    pub certificate: Option<CertificateDer<'static>>,
    pub http2: bool,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    der: CertificateDer<'static>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Authority { issuer: Issuer::new(params, key), pem, der }
    }

    /// Certificate and key as PEM. `change` may spoil it.
    pub fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "somebody");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    /// Connections end hard, and there are no more.
    pub stop: CancellationToken,
    cut: Arc<Notify>,
}

impl Server {
    /// The connections that there are end hard.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub struct Setup {
    pub certificate: (String, String),
    /// Clients are asked for certificates of this authority; true: and must have one.
    pub clients: Option<(CertificateDer<'static>, bool)>,
    pub http2: bool,
    /// How many requests at once one HTTP/2 connection may have.
    pub streams: u32,
}

impl Setup {
    pub fn new(certificate: (String, String)) -> Setup {
        Setup { certificate, clients: None, http2: true, streams: 200 }
    }

    pub fn asking(mut self, authority: &Authority, required: bool) -> Setup {
        self.clients = Some((authority.der.clone(), required));
        self
    }
}

pub async fn serve(setup: Setup, handler: Handler) -> Server {
    let acceptor = TlsAcceptor::from(Arc::new(config(&setup)));
    let streams = setup.streams;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (connections, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let cut = Arc::new(Notify::new());
    let server = Server { address, connections: connections.clone(), stop: stop.clone(), cut: cut.clone() };
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted.expect("a connection").0,
            };
            let (acceptor, handler, stop, cut) =
                (acceptor.clone(), handler.clone(), stop.clone(), cut.clone());
            let connection = connections.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let session = stream.get_ref().1;
                let certificate = session
                    .peer_certificates()
                    .and_then(|chain| chain.first().cloned())
                    .map(|c| c.into_owned());
                let http2 = session.alpn_protocol() == Some(b"h2");
                let peer = Peer { connection, certificate, http2 };
                let service = service_fn(move |request| {
                    let answer = handler(request, peer.clone());
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let io = TokioIo::new(stream);
                let http1 = hyper::server::conn::http1::Builder::new();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = cut.notified() => {}
                    _ = async {
                        if http2 {
                            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            builder.max_concurrent_streams(streams);
                            let _ = builder.serve_connection(io, service).await;
                        } else {
                            let _ = http1.serve_connection(io, service).await;
                        }
                    } => {}
                }
            });
        }
    });
    server
}

fn config(setup: &Setup) -> ServerConfig {
    use rustls::pki_types::pem::PemObject;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (certificate, key) = &setup.certificate;
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).map(|der| der.expect("a certificate"));
    let key = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match &setup.clients {
        None => builder.with_no_client_auth(),
        Some((authority, required)) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = if *required { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let mut config = builder.with_single_cert(chain.collect(), PrivateKeyDer::Pkcs8(key)).expect("a pair");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if setup.http2 {
        config.alpn_protocols.insert(0, b"h2".to_vec());
    }
    config
}

pub fn packed(text: &str) -> String {
    STANDARD.encode(text)
}

/// Writes a kubeconfig: the cluster's and the user's fields as YAML flow without braces.
pub fn kubeconfig(dir: &Path, cluster: &str, user: &str) -> PathBuf {
    let file = dir.join("kubeconfig");
    let text = format!(
        "current-context: c\nclusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
    );
    std::fs::write(&file, text).expect("write");
    file
}
