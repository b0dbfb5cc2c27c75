//! TLS bootstrap: uses the bootstrap kubeconfig to request the node's first client certificate and writes the
//! kubeconfig that uses it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ports::WallClock;
use tokio::sync::watch;

use super::key::CertificateKey;
use super::loaded::LoadedCertificate;
use super::rotate::{CertificateRotator, RotationStatus, RotatorSetup, SigningApis};
use super::store::{CertificateStore, pem_block};
use super::template::{CertificatePurpose, CertificateTemplate};
use super::{CertificateError, der, issue};
use crate::atomic_file;
use crate::calls::Api;
use crate::certificate_chain::earliest_expiry;
use crate::connection::{ConnectError, Connection};
use crate::kubeconfig::{self, KubeconfigError, ResolvedKubeconfig};
use crate::transport::error_chain;

/// The key of a bootstrap that has not finished.
const KEY_FILE: &str = "kubelet-client.key.tmp";
const SERVER_WITHIN: Duration = Duration::from_secs(60);
const SERVER_EVERY: Duration = Duration::from_secs(2);
const SERVER_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
const ISSUED_WITHIN: Duration = Duration::from_secs(3600);

#[derive(thiserror::Error, Debug)]
pub enum BootstrapError {
    #[error("kubeconfig {}: can't be examined", file.display())]
    Look {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("no client certificate")]
    Certificate(#[from] CertificateError),
}

/// What is needed to obtain the node's client identity.
pub struct ClientIdentity<'a> {
    pub kubeconfig: &'a Path,
    pub bootstrap_kubeconfig: Option<&'a Path>,
    pub cert_dir: &'a Path,
    pub node: &'a str,
    /// `rotateCertificates`
    pub rotate: bool,
    pub agent: &'a str,
    pub wall: Arc<dyn WallClock>,
}

pub struct EstablishedIdentity {
    pub connection: Arc<Connection>,
    /// With `rotateCertificates`: the caller has to run the rotator.
    pub rotation: Option<(CertificateRotator, RotationStatus)>,
}

impl ClientIdentity<'_> {
    /// Without rotation this waits for the certificate, up to an hour. With it, the connection can be used when the
    /// rotator has received the first certificate.
    pub async fn establish(self) -> Result<EstablishedIdentity, BootstrapError> {
        if let Some(bootstrap) = self.bootstrap_kubeconfig
            && !still_valid(self.kubeconfig, self.wall.as_ref())?
        {
            let access = kubeconfig::load(bootstrap)?;
            if !self.rotate {
                self.bootstrap(bootstrap, &access).await?;
            } else {
                let pem = CertificateStore::open(self.cert_dir, CertificatePurpose::Client.prefix(), None)?
                    .current_path();
                kubeconfig::write_bootstrapped_kubeconfig(self.kubeconfig, &access, &pem)?;
            }
        }
        if self.rotate {
            return self.rotating();
        }
        let connection = Connection::open(self.kubeconfig, self.agent, self.wall)?;
        Ok(EstablishedIdentity { connection, rotation: None })
    }

    fn rotating(self) -> Result<EstablishedIdentity, BootstrapError> {
        let connection = Connection::open_rotating(self.kubeconfig, self.agent, self.wall.clone())?;
        let access = connection.kubeconfig();
        let store = CertificateStore::open(
            self.cert_dir,
            CertificatePurpose::Client.prefix(),
            access.certificate_files.clone(),
        )?;
        let (held, at_once) = initial_certificate(&store, &access, self.wall.as_ref())?;
        if let Some(held) = &held {
            connection.use_certificate(held.pair.clone())?;
        }
        let bootstrap = match self.bootstrap_kubeconfig {
            None => None,
            // The bootstrap kubeconfig may have been deleted when it was no longer needed.
            Some(file) => match Connection::open(file, self.agent, self.wall.clone()) {
                Ok(bootstrap) => Some(Api::new(bootstrap)),
                Err(_) if held.is_some() => None,
                Err(error) => return Err(error.into()),
            },
        };
        let (_, template) = watch::channel(Some(CertificateTemplate::client(self.node)));
        let rotation = CertificateRotator::new(RotatorSetup {
            purpose: CertificatePurpose::Client,
            store,
            held,
            template,
            signing_apis: SigningApis { own: Api::new(connection.clone()), bootstrap },
            connection: Some(connection.clone()),
            wall: self.wall,
            renew_immediately: at_once,
        });
        Ok(EstablishedIdentity { connection, rotation: Some(rotation) })
    }

    /// Requests a certificate, stores it, and writes the kubeconfig that uses it.
    async fn bootstrap(&self, bootstrap: &Path, access: &ResolvedKubeconfig) -> Result<(), BootstrapError> {
        let api = Api::new(Connection::open(bootstrap, self.agent, self.wall.clone())?);
        let store = CertificateStore::open(self.cert_dir, CertificatePurpose::Client.prefix(), None)?;
        let kept = self.cert_dir.join(KEY_FILE);
        let mut key = match store.current() {
            Ok(Some(held)) => {
                CertificateKey::from_der(&held.pair.key).or_else(|_| load_or_make_key(&kept))?
            }
            Ok(None) | Err(_) => load_or_make_key(&kept)?,
        };
        wait_for_server(&api).await;
        let template = CertificateTemplate::client(self.node);
        let now = || self.wall.wall();
        let mut made = issue::create_named(&api, &key, &template, CertificatePurpose::Client, now()).await;
        if let Err(error @ CertificateError::Incompatible { .. }) = &made {
            // The name of a request depends on the key, so a new key avoids the old request.
            tracing::info!("asking with a new key: {error}");
            key = new_key(&kept)?;
            made = issue::create_named(&api, &key, &template, CertificatePurpose::Client, now()).await;
        }
        let made = made?;
        tracing::info!("waiting for certificate signing request {:?} to be issued", made.name);
        let chain = issue::wait_until_issued(&api, &made, ISSUED_WITHIN).await?;
        store.update(&chain, key.pem().as_bytes(), now())?;
        kubeconfig::write_bootstrapped_kubeconfig(self.kubeconfig, access, &store.current_path())?;
        // Delete the key only now: until the kubeconfig exists, the next start must be able to repeat all of this.
        let _ = std::fs::remove_file(&kept);
        Ok(())
    }
}

/// Whether the kubeconfig has client certificates, all of them valid now.
fn still_valid(file: &Path, wall: &dyn WallClock) -> Result<bool, BootstrapError> {
    match file.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(BootstrapError::Look { file: file.to_owned(), source }),
        Ok(_) => {}
    }
    let certificate = match kubeconfig::load(file) {
        Ok(access) => access.certificate,
        Err(error) => {
            tracing::warn!("bootstrapping again: {}", error_chain(&error));
            return Ok(false);
        }
    };
    let end = certificate.and_then(|pair| earliest_expiry(&pair.chain));
    let valid = end.is_some_and(|end| wall.wall() <= end);
    if !valid {
        tracing::info!("bootstrapping: {} has no client certificate that is in force", file.display());
    }
    Ok(valid)
}

/// The certificate to start with, and whether it is only good for requesting another one.
fn initial_certificate(
    store: &CertificateStore,
    access: &ResolvedKubeconfig,
    wall: &dyn WallClock,
) -> Result<(Option<LoadedCertificate>, bool), CertificateError> {
    let now = wall.wall();
    if let Some(held) = store.current()?.filter(|held| held.has_not_expired(now)) {
        return Ok((Some(held), false));
    }
    let Some(pair) = &access.certificate else { return Ok((None, false)) };
    let held = LoadedCertificate::new(pair.clone(), &access.file)?;
    let chain: Vec<u8> = pair.chain.iter().flat_map(|der| pem_block("CERTIFICATE", der)).collect();
    let key = pem_block("PRIVATE KEY", &der::pkcs8(&pair.key));
    if let Err(error) = store.update(&chain, &key, now) {
        tracing::warn!("the kubeconfig's certificate can't be kept: {}", error_chain(&error));
    }
    Ok((Some(held), true))
}

/// The key is on disk before a certificate for it is requested.
fn load_or_make_key(path: &Path) -> Result<CertificateKey, CertificateError> {
    match std::fs::read(path) {
        Ok(pem) => match CertificateKey::from_pem(&pem) {
            Ok(key) => Ok(key),
            Err(error) => {
                tracing::warn!("making a new key: {}: {error}", path.display());
                new_key(path)
            }
        },
        Err(_) => new_key(path),
    }
}

fn new_key(path: &Path) -> Result<CertificateKey, CertificateError> {
    let key = CertificateKey::generate()?;
    atomic_file::replace_file(path, key.pem().as_bytes()).map_err(super::failed("write", path))?;
    Ok(key)
}

/// Gives up after the deadline; the CSR call then reports the actual error.
async fn wait_for_server(api: &Api) {
    let api = api.with_deadline(SERVER_ANSWERS_WITHIN);
    let answers = async {
        while let Err(error) = api.get_raw("/healthz").await {
            tracing::info!("waiting for the API server: {error}");
            tokio::time::sleep(SERVER_EVERY.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
        }
    };
    let _ = tokio::time::timeout(SERVER_WITHIN, answers).await;
}
