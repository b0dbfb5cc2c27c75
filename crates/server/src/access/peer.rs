//! The other end of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Wall;
use rustls::pki_types::CertificateDer;

/// What is known from the connection. Each of its requests carries it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The leaf first. Only the possession of its key was verified.
    pub certificates: Arc<Vec<CertificateDer<'static>>>,
    /// When the leaf expires.
    pub expires: Option<Wall>,
    authorized: Arc<AtomicBool>,
}

impl Peer {
    pub fn new(certificates: Vec<CertificateDer<'static>>, welcome: Arc<AtomicBool>) -> Self {
        let leaf = certificates.first().and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
        let expires = leaf.map(|(_, leaf)| Wall::from_seconds(leaf.validity().not_after.timestamp()));
        Self { certificates: Arc::new(certificates), expires, authorized: welcome }
    }

    /// One of its requests was allowed: the connection is no longer one of those that can be closed for others.
    pub fn mark_authorized(&self) {
        self.authorized.store(true, Ordering::Relaxed);
    }
}
