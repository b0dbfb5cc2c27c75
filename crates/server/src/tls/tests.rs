//! Certificates that are made here, and the real client of the TLS library.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{ServerHandle, Tls, serve_tls};

/// An authority that signs what a test wants.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

pub(crate) struct Signed {
    pub certificate: String,
    pub key: String,
}

impl TestAuthority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    pub fn client(&self, name: &str, groups: &[&str]) -> Signed {
        self.sign(name, groups, ExtendedKeyUsagePurpose::ClientAuth, 2100)
    }

    pub fn expired(&self, name: &str) -> Signed {
        self.sign(name, &[], ExtendedKeyUsagePurpose::ClientAuth, 2001)
    }

    pub fn server(&self, name: &str) -> Signed {
        self.sign(name, &[], ExtendedKeyUsagePurpose::ServerAuth, 2100)
    }

    fn sign(&self, name: &str, groups: &[&str], usage: ExtendedKeyUsagePurpose, until: i32) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        if !name.is_empty() {
            parameters.distinguished_name.push(DnType::CommonName, name);
        }
        // One organization: this library keeps only one of each kind.
        for group in groups {
            parameters.distinguished_name.push(DnType::OrganizationName, *group);
        }
        parameters.extended_key_usages = vec![usage];
        parameters.not_before = rcgen::date_time_ymd(2000, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

pub(crate) struct TestClient {
    pub config: Arc<ClientConfig>,
}

impl TestClient {
    pub fn new(trusts: &str, shows: Option<&Signed>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusts.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(signed) => {
                let chain = CertificateDer::pem_slice_iter(signed.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
            }
        };
        Self { config: Arc::new(config) }
    }

    pub async fn connect(&self, to: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(to).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }

    pub async fn ask(
        &self,
        to: SocketAddr,
        request: http::request::Builder,
    ) -> Result<(u16, String), Box<dyn std::error::Error>> {
        let stream = TokioIo::new(self.connect(to).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        let request = request.header("host", "localhost").body(Body::empty())?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    }

    pub async fn get(&self, to: SocketAddr, path: &str) -> (u16, String) {
        self.ask(to, http::Request::get(path)).await.unwrap()
    }
}

pub(crate) async fn serve(
    certificate: Arc<ServingCertificate>,
    authority: Option<Arc<ClientAuthority>>,
    router: Router,
) -> (ServerHandle, SocketAddr) {
    let config = server_config(&TlsSettings::default(), certificate, authority.clone()).unwrap();
    let tls = Tls { config, authority };
    let serving =
        serve_tls("secure port", "127.0.0.1", 0, tls, router, CancellationToken::new()).await.unwrap();
    let address = serving.address().unwrap();
    (serving, address)
}

pub(crate) fn hello() -> Router {
    Router::new().route("/", axum::routing::get(async || "hello"))
}

struct Files {
    _dir: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(signed: &Signed) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files =
            Self { certificate: dir.path().join("tls.crt"), key: dir.path().join("tls.key"), _dir: dir };
        files.write(signed);
        files
    }
    fn write(&self, signed: &Signed) {
        std::fs::write(&self.certificate, &signed.certificate).unwrap();
        std::fs::write(&self.key, &signed.key).unwrap();
    }
}

#[tokio::test]
async fn changed_files_count_from_the_next_handshake_and_broken_ones_never() {
    let (old, new) = (TestAuthority::new("old"), TestAuthority::new("new"));
    let files = Files::new(&old.server("node"));
    let stop = CancellationToken::new();
    let serving = ServingCertificate::from_files(&files.certificate, &files.key, stop.clone()).unwrap();
    let (_serving, at) = serve(serving, None, hello()).await;
    let (trusts_old, trusts_new) = (TestClient::new(&old.pem, None), TestClient::new(&new.pem, None));
    assert_eq!(trusts_old.get(at, "/").await, (200, "hello".into()));
    assert!(trusts_new.connect(at).await.is_err());

    std::fs::write(&files.certificate, "broken").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(trusts_old.get(at, "/").await, (200, "hello".into()), "the old one is kept");

    files.write(&new.server("node"));
    let mut switched = false;
    for _ in 0..100 {
        switched = trusts_new.connect(at).await.is_ok();
        if switched {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(switched);
    assert_eq!(trusts_new.get(at, "/").await, (200, "hello".into()));
    stop.cancel();
}

#[tokio::test]
async fn without_a_certificate_no_handshake_succeeds_until_somebody_fills_the_slot() {
    let authority = TestAuthority::new("cluster");
    let slot = Arc::new(ServingCertificate::default());
    let (_serving, at) = serve(slot.clone(), None, hello()).await;
    let client = TestClient::new(&authority.pem, None);
    assert!(client.connect(at).await.is_err());
    let signed = authority.server("node");
    slot.set_pem("the cluster", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    assert_eq!(client.get(at, "/").await, (200, "hello".into()));
    let other = authority.server("node");
    let mixed = slot.set_pem("the cluster", signed.certificate.as_bytes(), other.key.as_bytes());
    assert!(matches!(mixed, Err(TlsError::Pair { .. })));
    let nothing = slot.set_pem("the cluster", b"", signed.key.as_bytes()).unwrap_err();
    assert_eq!(nothing.to_string(), "there is no certificate in the cluster");
}

#[tokio::test]
async fn a_self_signed_pair_is_made_once_and_is_for_the_host() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let now = model::Wall(1_800_000_000 * 1_000_000_000);
    let serving = ServingCertificate::self_signed(&pki, "localhost", now).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&pki.join("kubelet.key")), mode(&pki.join("kubelet.crt"))), (0o600, 0o644));
    let made = std::fs::read_to_string(pki.join("kubelet.crt")).unwrap();
    let chain: Vec<_> = CertificateDer::pem_slice_iter(made.as_bytes()).collect::<Result<_, _>>().unwrap();
    let (_, own) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
    assert_eq!(own.subject().to_string(), "CN=localhost@1800000000");
    assert_eq!(own.issuer().to_string(), "CN=localhost-ca@1800000000");
    let names = own.subject_alternative_name().unwrap().unwrap();
    assert_eq!(format!("{:?}", names.value.general_names), r#"[DNSName("localhost")]"#);
    let days = (own.validity().not_after.timestamp() - own.validity().not_before.timestamp()) / 86400;
    assert_eq!(days, 366);

    drop(serving);
    ServingCertificate::self_signed(&pki, "elsewhere", now).unwrap();
    assert_eq!(std::fs::read_to_string(pki.join("kubelet.crt")).unwrap(), made, "it is kept");
    let by_address = dir.path().join("by-address");
    ServingCertificate::self_signed(&by_address, "10.0.0.5", now).unwrap();
}
