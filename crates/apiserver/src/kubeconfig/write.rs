//! Writes the kubeconfig after a bootstrap.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{KubeconfigError, ResolvedKubeconfig, Trust};
use crate::atomic_file;

/// Writes `file` for the server of `bootstrap` and the certificate in `pem`, which need not exist yet. The names of the
/// entries are upstream's.
pub fn write_bootstrapped_kubeconfig(
    file: &Path,
    bootstrap: &ResolvedKubeconfig,
    pem: &Path,
) -> Result<(), KubeconfigError> {
    let mut cluster = json!({ "server": bootstrap.server.to_string() });
    match &bootstrap.trust {
        Trust::System => {}
        Trust::SkipVerification => cluster["insecure-skip-tls-verify"] = true.into(),
        Trust::Authorities { file: Some(ca), .. } => {
            cluster["certificate-authority"] = ca.display().to_string().into();
        }
        Trust::Authorities { pem, file: None, .. } => {
            cluster["certificate-authority-data"] = STANDARD.encode(pem).into();
        }
    }
    // Upstream leaves these two out, and its node can't reconnect through its proxy.
    if let Some(name) = &bootstrap.tls_server_name {
        cluster["tls-server-name"] = name.as_str().into();
    }
    if let Some(proxy) = &bootstrap.proxy {
        cluster["proxy-url"] = proxy.to_string().into();
    }
    let pem = pem.display().to_string();
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "contexts": [{
            "name": "default-context",
            "context": { "cluster": "default-cluster", "namespace": "default", "user": "default-auth" },
        }],
        "current-context": "default-context",
        "users": [{ "name": "default-auth", "user": { "client-certificate": pem, "client-key": pem } }],
    });
    let failed = |source| KubeconfigError::Write { file: file.to_owned(), source };
    let text = serde_saphyr::to_string(&document).map_err(|error| failed(std::io::Error::other(error)))?;
    atomic_file::replace_file(file, text.as_bytes()).map_err(failed)
}
