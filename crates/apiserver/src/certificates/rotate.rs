//! Renews a certificate before it expires, and when its content should change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Wall;
use ports::{ApiError, WallClock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::CertificateError;
use super::issue::{self, SigningRequestId};
use super::key::CertificateKey;
use super::loaded::LoadedCertificate;
use super::pending::{PendingFile, PendingRequest};
use super::store::CertificateStore;
use super::template::{CertificatePurpose, CertificateTemplate};
use crate::calls::Api;
use crate::connection::Connection;
use crate::transport::error_chain;

/// How long one request may wait for its certificate.
const ISSUED_WITHIN: Duration = Duration::from_secs(15 * 60);
/// The delay after a failure: this, doubled with each failure, and from the sixth on `LATER`.
const SOON: Duration = Duration::from_secs(2);
const DOUBLINGS: u32 = 4;
const LATER: Duration = Duration::from_secs(32);
/// The minimum time between two requests, even for a certificate that is due at once.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Sleeps are short because the wall clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(600);

/// The rotator's state, for other tasks. Cheap to clone.
#[derive(Clone)]
pub struct RotationStatus {
    held: watch::Receiver<Option<Arc<LoadedCertificate>>>,
    healthy: watch::Receiver<bool>,
    renew_errors: Arc<AtomicU64>,
}

impl RotationStatus {
    #[cfg(test)]
    pub(super) fn seen(
        held: watch::Receiver<Option<Arc<LoadedCertificate>>>,
        healthy: watch::Receiver<bool>,
    ) -> RotationStatus {
        RotationStatus { held, healthy, renew_errors: Arc::default() }
    }

    /// The certificate in use; `None` until there is one.
    pub fn held(&self) -> watch::Receiver<Option<Arc<LoadedCertificate>>> {
        self.held.clone()
    }

    pub(super) fn healthy(&self) -> watch::Receiver<bool> {
        self.healthy.clone()
    }

    /// Attempts that failed, for the metric.
    pub fn renew_errors(&self) -> u64 {
        self.renew_errors.load(Ordering::Relaxed)
    }
}

/// Called with the age of a certificate when another one replaces it.
pub type ReplacedCertificateObserver = Box<dyn Fn(Duration) + Send + Sync>;

/// The APIs that requests are sent to.
pub(super) struct SigningApis {
    pub own: Api,
    /// Used while there is no valid certificate.
    pub bootstrap: Option<Api>,
}

pub struct CertificateRotator {
    purpose: CertificatePurpose,
    store: CertificateStore,
    pending: PendingFile,
    template: watch::Receiver<Option<CertificateTemplate>>,
    signing_apis: SigningApis,
    /// The connection that uses each new certificate.
    connection: Option<Arc<Connection>>,
    wall: Arc<dyn WallClock>,
    held: watch::Sender<Option<Arc<LoadedCertificate>>>,
    healthy: watch::Sender<bool>,
    renew_errors: Arc<AtomicU64>,
    on_replaced: Option<ReplacedCertificateObserver>,
    /// The present certificate is only good for requesting another one.
    renew_immediately: bool,
}

pub(super) struct RotatorSetup {
    pub purpose: CertificatePurpose,
    pub store: CertificateStore,
    pub held: Option<LoadedCertificate>,
    pub template: watch::Receiver<Option<CertificateTemplate>>,
    pub signing_apis: SigningApis,
    pub connection: Option<Arc<Connection>>,
    pub wall: Arc<dyn WallClock>,
    pub renew_immediately: bool,
}

impl CertificateRotator {
    pub(super) fn new(start: RotatorSetup) -> (CertificateRotator, RotationStatus) {
        let (held, seen_held) = watch::channel(start.held.map(Arc::new));
        let (healthy, seen_healthy) = watch::channel(false);
        let renew_errors = Arc::new(AtomicU64::new(0));
        let rotation =
            RotationStatus { held: seen_held, healthy: seen_healthy, renew_errors: renew_errors.clone() };
        let rotator = CertificateRotator {
            purpose: start.purpose,
            pending: PendingFile::new(start.store.directory(), start.purpose.prefix()),
            store: start.store,
            template: start.template,
            signing_apis: start.signing_apis,
            connection: start.connection,
            wall: start.wall,
            held,
            healthy,
            renew_errors,
            on_replaced: None,
            renew_immediately: start.renew_immediately,
        };
        (rotator, rotation)
    }

    /// The serving certificate. `template` is None while the node's addresses are not known
    /// ([`CertificateTemplate::serving`]); `given` are the configured files, which are used until the first certificate
    /// is issued.
    pub fn serving(
        api: Api,
        cert_dir: &std::path::Path,
        given: Option<(std::path::PathBuf, std::path::PathBuf)>,
        template: watch::Receiver<Option<CertificateTemplate>>,
        wall: Arc<dyn WallClock>,
    ) -> Result<(CertificateRotator, RotationStatus), CertificateError> {
        let store = CertificateStore::open(cert_dir, CertificatePurpose::Serving.prefix(), given)?;
        let now = wall.wall();
        let held = store.current()?.filter(|held| held.has_not_expired(now));
        let asked = SigningApis { own: api, bootstrap: None };
        let purpose = CertificatePurpose::Serving;
        Ok(CertificateRotator::new(RotatorSetup {
            purpose,
            store,
            held,
            template,
            signing_apis: asked,
            connection: None,
            wall,
            renew_immediately: false,
        }))
    }

    pub fn on_replaced(self, observer: ReplacedCertificateObserver) -> CertificateRotator {
        CertificateRotator { on_replaced: Some(observer), ..self }
    }

    pub async fn run(mut self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.rotate_until_cancelled() => {}
        }
    }

    async fn rotate_until_cancelled(&mut self) {
        loop {
            let template = self.wait_until_due().await;
            if !self.renew(&template).await {
                // The template has changed.
                continue;
            }
            tokio::time::sleep(AT_MOST_EVERY).await;
        }
    }

    /// Waits until a new certificate is due, and returns its template.
    async fn wait_until_due(&mut self) -> CertificateTemplate {
        let share = 0.7 + 0.2 * fastrand::f64();
        loop {
            let template = self.template.borrow_and_update().clone();
            let due = template.as_ref().map(|template| self.due_in(template, share));
            match (template, due) {
                (Some(template), Some(Duration::ZERO)) => {
                    self.renew_immediately = false;
                    return template;
                }
                (_, due) => {
                    let sleep = due.unwrap_or(MAX_SLEEP).min(MAX_SLEEP);
                    self.wait_for_template_change(sleep).await;
                }
            }
        }
    }

    fn due_in(&self, template: &CertificateTemplate, share: f64) -> Duration {
        let held = self.held.borrow().clone();
        match held.filter(|held| !self.renew_immediately && template.satisfied_by(held)) {
            None => Duration::ZERO,
            Some(held) => rotation_time(&held, share).since(self.wall.wall()),
        }
    }

    /// Waits until the template changes, at most for this time.
    async fn wait_for_template_change(&mut self, sleep: Duration) {
        let changed = async {
            // If the sender was dropped, the template never changes again.
            if self.template.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(sleep, changed).await;
    }

    /// Retries until there is a new certificate. Returns false if the template changed meanwhile.
    async fn renew(&mut self, template: &CertificateTemplate) -> bool {
        for failures in 0.. {
            let mut watched = self.template.clone();
            let another = watched.wait_for(|now| now.as_ref() != Some(template));
            let tried = tokio::select! {
                Ok(_) = another => return false,
                tried = self.attempt(template) => tried,
            };
            let error = match tried {
                Ok(()) => return true,
                Err(error) => error,
            };
            self.renew_errors.fetch_add(1, Ordering::Relaxed);
            let wait = back_off(failures, fastrand::f64());
            tracing::warn!(
                "no new {} certificate yet, next try in {wait:?}: {}",
                self.purpose.prefix(),
                error_chain(&error)
            );
            self.wait_for_template_change(wait).await;
            if self.template.borrow().as_ref() != Some(template) {
                return false;
            }
        }
        true
    }

    async fn attempt(&self, template: &CertificateTemplate) -> Result<(), CertificateError> {
        let now = self.wall.wall();
        let in_force = self.held.borrow().as_ref().is_some_and(|held| held.has_not_expired(now));
        let api =
            self.signing_apis.bootstrap.as_ref().filter(|_| !in_force).unwrap_or(&self.signing_apis.own);
        let pending = match self.pending.read().filter(|pending| pending.template == *template) {
            Some(pending) => pending,
            None => self.request(api, template).await?,
        };
        let made = SigningRequestId { name: pending.name, uid: pending.uid };
        let waited = issue::wait_until_issued(api, &made, ISSUED_WITHIN).await;
        // The request is decided or timed out; drop it, the next try makes a new one.
        let chain = waited.inspect_err(|_| self.pending.remove())?;
        let held = self.store.update(&chain, pending.key.as_bytes(), self.wall.wall());
        self.pending.remove();
        self.install_certificate(held?);
        Ok(())
    }

    async fn request(
        &self,
        api: &Api,
        template: &CertificateTemplate,
    ) -> Result<PendingRequest, CertificateError> {
        let key = CertificateKey::generate()?;
        let made = issue::create(api, &key, template, self.purpose).await;
        self.healthy.send_replace(match &made {
            Err(CertificateError::Api(error)) => shows_server_is_up(error),
            _ => true,
        });
        let SigningRequestId { name, uid } = made?;
        tracing::info!(
            "certificate signing request {name:?} made for the {} certificate",
            self.purpose.prefix()
        );
        let pending = PendingRequest { name, uid, template: template.clone(), key: key.pem() };
        self.pending.write(&pending)?;
        Ok(pending)
    }

    fn install_certificate(&self, held: LoadedCertificate) {
        tracing::info!(
            "new {} certificate, good until {}",
            self.purpose.prefix(),
            held.not_after.timestamp()
        );
        if let Some(connection) = &self.connection
            && let Err(error) = connection.use_certificate(held.pair.clone())
        {
            tracing::error!("the new client certificate can't be used: {}", error_chain(&error));
        }
        let replaced = self.held.send_replace(Some(Arc::new(held)));
        if let (Some(replaced), Some(observe)) = (replaced, &self.on_replaced) {
            observe(self.wall.wall().since(replaced.not_before));
        }
    }
}

/// These refusals come from the API server itself, so it is up.
fn shows_server_is_up(error: &ApiError) -> bool {
    matches!(error, ApiError::Unauthorized { .. } | ApiError::Forbidden { .. } | ApiError::NotFound { .. })
}

/// A certificate is renewed at this share of its lifetime.
pub(super) fn rotation_time(held: &LoadedCertificate, share: f64) -> Wall {
    held.not_before.plus(held.not_after.since(held.not_before).mul_f64(share))
}

/// `random` is in 0..1, and adds up to a tenth of the delay.
pub(super) fn back_off(failures: u32, random: f64) -> Duration {
    if failures >= DOUBLINGS { LATER } else { (SOON * 2u32.pow(failures)).mul_f64(1.0 + 0.1 * random) }
}
