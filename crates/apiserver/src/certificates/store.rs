//! Certificates in files, in upstream's layout.
//!
//! `<prefix>-<time>.pem` holds a chain and its key; `<prefix>-current.pem` is a symlink to the one in use. The symlink
//! is replaced by renaming `<prefix>-updated.pem` over it, so it always points to the old pair or to the new one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use model::Wall;

use super::loaded::LoadedCertificate;
use super::{CertificateError, failed};
use crate::atomic_file;
use crate::kubeconfig::{KeyPair, certificates};

pub struct CertificateStore {
    dir: PathBuf,
    prefix: &'static str,
    /// Certificate and key that are used while there is no current pair.
    configured_files: Option<(PathBuf, PathBuf)>,
}

impl CertificateStore {
    /// Also finishes a replacement that was interrupted.
    pub fn open(
        dir: &Path,
        prefix: &'static str,
        given: Option<(PathBuf, PathBuf)>,
    ) -> Result<CertificateStore, CertificateError> {
        // The target of the symlink must not depend on the working directory.
        let dir = std::path::absolute(dir).map_err(failed("find", dir))?;
        let store = CertificateStore { dir, prefix, configured_files: given };
        let (current, updated) = (store.current_path(), store.named("updated"));
        if exists(&current)? || !is_link(&updated)? {
            return Ok(store);
        }
        fs::rename(&updated, &current).map_err(failed("rename", &updated))?;
        Ok(store)
    }

    pub fn current_path(&self) -> PathBuf {
        self.named("current")
    }

    pub fn directory(&self) -> &Path {
        &self.dir
    }

    fn named(&self, part: &str) -> PathBuf {
        self.dir.join(format!("{}-{part}.pem", self.prefix))
    }

    /// The current pair, else the configured files, else `<prefix>.crt` and `<prefix>.key`. `None` if none exists.
    pub fn current(&self) -> Result<Option<LoadedCertificate>, CertificateError> {
        let current = self.current_path();
        let beside =
            (self.dir.join(format!("{}.crt", self.prefix)), self.dir.join(format!("{}.key", self.prefix)));
        let places = [Some((current.clone(), current)), self.configured_files.clone(), Some(beside)];
        for (certificate, key) in places.into_iter().flatten() {
            if exists(&certificate)? && exists(&key)? {
                return read(&certificate, &key).map(Some);
            }
        }
        Ok(None)
    }

    /// Stores a new pair and makes it the current one.
    pub fn update(
        &self,
        chain: &[u8],
        key_pem: &[u8],
        now: Wall,
    ) -> Result<LoadedCertificate, CertificateError> {
        atomic_file::make_directory(&self.dir).map_err(failed("make", &self.dir))?;
        let time = now.timestamp().to_zoned(TimeZone::system()).strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let path = self.named(&time);
        let chain = certificates(chain)
            .map_err(|problem| CertificateError::Issued { problem: problem.to_string() })?;
        let mut text: Vec<u8> = chain.iter().flat_map(|der| pem_block("CERTIFICATE", der)).collect();
        text.extend_from_slice(key_pem);
        // Check the pair before anything is stored.
        let pair = KeyPair::from_pem(&text, &text)
            .map_err(|problem| CertificateError::Pem { path: path.clone(), problem })?;
        let held = LoadedCertificate::new(pair, &path)?;
        atomic_file::replace_file(&path, &text).map_err(failed("write", &path))?;
        self.make_current(&path)?;
        Ok(held)
    }

    fn make_current(&self, path: &Path) -> Result<(), CertificateError> {
        let (current, updated) = (self.current_path(), self.named("updated"));
        for link in [&current, &updated] {
            if fs::symlink_metadata(link).is_ok() && !is_link(link)? {
                return Err(CertificateError::NotASymlink { path: link.clone() });
            }
        }
        match fs::remove_file(&updated) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &updated)(error));
            }
            _ => {}
        }
        std::os::unix::fs::symlink(path, &updated).map_err(failed("link", &updated))?;
        fs::rename(&updated, &current).map_err(failed("rename", &updated))?;
        atomic_file::sync_directory(&self.dir).map_err(failed("sync", &self.dir))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<LoadedCertificate, CertificateError> {
    let text = |path: &Path| fs::read(path).map_err(failed("read", path));
    let pair = KeyPair::from_pem(&text(certificate)?, &text(key)?)
        .map_err(|problem| CertificateError::Pem { path: certificate.to_owned(), problem })?;
    LoadedCertificate::new(pair, certificate)
}

/// Follows symlinks: a dangling one counts as missing.
fn exists(path: &Path) -> Result<bool, CertificateError> {
    match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(failed("examine", path)(error)),
    }
}

fn is_link(path: &Path) -> Result<bool, CertificateError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_symlink()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(failed("examine", path)(error)),
    }
}

pub fn pem_block(label: &str, der: &[u8]) -> Vec<u8> {
    let packed = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in packed.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text.into_bytes()
}
