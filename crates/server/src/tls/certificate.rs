//! The serving certificate.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use model::Wall;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::{TlsError, provider, watch};

/// A self-signed certificate is valid for a year, as upstream's is.
const SELF_SIGNED_NANOS: i64 = 365 * 24 * 3600 * 1_000_000_000;

/// Holds the current serving certificate. While there is none, handshakes fail.
#[derive(Default)]
pub struct ServingCertificate {
    current: ArcSwapOption<CertifiedKey>,
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").field("is_set", &self.current.load().is_some()).finish()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load_full();
        if current.is_none() {
            tracing::info!("no serving certificate available for the kubelet");
        }
        current
    }
}

impl ServingCertificate {
    /// Used from the next handshake on. `place` says in errors where the certificate is from.
    pub fn set_pem(&self, place: &str, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        self.current.store(Some(Arc::new(certified_key(place, certificates, key)?)));
        Ok(())
    }

    /// From two files, read again when they change. If they can't be used, that is logged and the old one stays.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, TlsError> {
        let place = format!("{} and {}", certificate.display(), key.display());
        let mut last = (read(certificate)?, read(key)?);
        let serving = Arc::new(Self::default());
        serving.set_pem(&place, &last.0, &last.1)?;
        let (watched, files) = (serving.clone(), (certificate.to_owned(), key.to_owned()));
        watch::spawn_file_watch(vec![files.0.clone(), files.1.clone()], stop, move || {
            let now = match (read(&files.0), read(&files.1)) {
                (Ok(certificate), Ok(key)) => (certificate, key),
                (Err(error), _) | (_, Err(error)) => {
                    return tracing::warn!(%error, "reading the serving certificate failed");
                }
            };
            if now == last {
                return;
            }
            match watched.set_pem(&place, &now.0, &now.1) {
                Ok(()) => {
                    tracing::info!(%place, "the serving certificate was replaced");
                    last = now;
                }
                Err(error) => {
                    tracing::warn!(%error, "the new serving certificate is not usable; the old one stays in use")
                }
            }
        });
        Ok(serving)
    }

    /// `kubelet.crt` and `kubelet.key` in this directory; made now if they are not there.
    pub fn self_signed(directory: &Path, host: &str, now: Wall) -> Result<Arc<Self>, TlsError> {
        let (certificate, key) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
        if !(certificate.exists() && key.exists()) {
            let made = make_self_signed(host, now)
                .map_err(|source| TlsError::SelfSigned { host: host.to_owned(), source })?;
            let at = |path: &Path| {
                let path = path.to_owned();
                move |source| TlsError::Write { path, source }
            };
            fs::create_dir_all(directory).map_err(at(directory))?;
            write(&key, made.key.as_bytes(), 0o600).map_err(at(&key))?;
            write(&certificate, made.certificates.as_bytes(), 0o644).map_err(at(&certificate))?;
            tracing::info!(path = %certificate.display(), "created a self-signed serving certificate");
        }
        let serving = Arc::new(Self::default());
        let place = format!("{} and {}", certificate.display(), key.display());
        serving.set_pem(&place, &read(&certificate)?, &read(&key)?)?;
        Ok(serving)
    }
}

fn certified_key(place: &str, certificates: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsError> {
    let place = || place.to_owned();
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| TlsError::NoCertificate { origin: place() })?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey { origin: place() })?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|source| TlsError::Pair { origin: place(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

/// Whole or not at all, and never readable by others before it is closed to them.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

struct GeneratedCertificate {
    certificates: String,
    key: String,
}

/// Two certificates as upstream makes them: a CA whose key is thrown away, and the serving certificate.
fn make_self_signed(host: &str, now: Wall) -> Result<GeneratedCertificate, rcgen::Error> {
    let seconds = now.0.div_euclid(1_000_000_000);
    let authority_key = KeyPair::generate()?;
    let mut authority = parameters(&format!("{host}-ca@{seconds}"), now)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    let authority_certificate = authority.self_signed(&authority_key)?;

    let key = KeyPair::generate()?;
    let mut own = parameters(&format!("{host}@{seconds}"), now)?;
    own.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    own.subject_alt_names = vec![match host.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(host.try_into()?),
    }];
    let own = own.signed_by(&key, &Issuer::new(authority, &authority_key))?;
    Ok(GeneratedCertificate {
        certificates: own.pem() + &authority_certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn parameters(name: &str, now: Wall) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    // Clocks differ; upstream gives an hour.
    let (year, month, day) = day_of(Wall(now.0 - 24 * 3600 * 1_000_000_000));
    parameters.not_before = rcgen::date_time_ymd(year, month, day);
    let (year, month, day) = day_of(Wall(now.0 + SELF_SIGNED_NANOS));
    parameters.not_after = rcgen::date_time_ymd(year, month, day);
    Ok(parameters)
}

/// Certificates of ours begin and end at midnight.
fn day_of(at: Wall) -> (i32, u8, u8) {
    let day = at.timestamp().to_zoned(jiff::tz::TimeZone::UTC).date();
    (i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs())
}
