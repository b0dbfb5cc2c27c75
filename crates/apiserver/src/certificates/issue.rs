//! A certificate signing request: created, and watched until it is decided.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use model::Wall;
use model::k8s::ObjectMeta;
use ports::{ApiError, Disposition};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::CertificateError;
use super::key::CertificateKey;
use super::template::{CertificatePurpose, CertificateTemplate};
use crate::CertificateSigningRequest;
use crate::calls::{Api, Freshness};
use crate::certificate_chain;
use crate::kubeconfig::certificates;
use crate::watch::WatchStart;
use crate::watch_event::WatchEvent;

/// The delay between two attempts to read the state of a request.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A request that exists in the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct SigningRequestId {
    pub name: String,
    pub uid: String,
}

fn signing_request_id(request: CertificateSigningRequest) -> SigningRequestId {
    SigningRequestId {
        name: request.metadata.name.unwrap_or_default(),
        uid: request.metadata.uid.unwrap_or_default(),
    }
}

/// The server generates the name.
pub async fn create(
    api: &Api,
    key: &CertificateKey,
    template: &CertificateTemplate,
    purpose: CertificatePurpose,
) -> Result<SigningRequestId, CertificateError> {
    let metadata = ObjectMeta { generate_name: Some("csr-".into()), ..ObjectMeta::default() };
    let request = request(metadata, key, template, purpose)?;
    Ok(signing_request_id(api.create_signing_request(&request).await?))
}

/// The name depends only on key and subject, so an existing request is used again.
pub async fn create_named(
    api: &Api,
    key: &CertificateKey,
    template: &CertificateTemplate,
    purpose: CertificatePurpose,
    now: Wall,
) -> Result<SigningRequestId, CertificateError> {
    let name = template.request_name(&key.public(), &purpose.usages(key.is_rsa()));
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let request = request(metadata, key, template, purpose)?;
    match api.create_signing_request(&request).await {
        Ok(created) => Ok(signing_request_id(created)),
        Err(ApiError::AlreadyExists { .. }) => {
            let found = api.get_signing_request(&name).await?;
            check_existing_request(&found, key, purpose, now)
                .map_err(|problem| CertificateError::Incompatible { name, problem })?;
            Ok(signing_request_id(found))
        }
        Err(error) => Err(error.into()),
    }
}

fn request(
    metadata: ObjectMeta,
    key: &CertificateKey,
    template: &CertificateTemplate,
    purpose: CertificatePurpose,
) -> Result<CertificateSigningRequest, CertificateError> {
    let spec = CertificateSigningRequestSpec {
        request: ByteString(key.request(template)?.into_bytes()),
        signer_name: purpose.signer().to_owned(),
        usages: Some(purpose.usages(key.is_rsa())),
        ..CertificateSigningRequestSpec::default()
    };
    Ok(CertificateSigningRequest { metadata, spec, status: None })
}

/// Checks whether an existing request of our name is ours. The name covers the subject; this compares the rest.
fn check_existing_request(
    found: &CertificateSigningRequest,
    key: &CertificateKey,
    purpose: CertificatePurpose,
    now: Wall,
) -> Result<(), String> {
    if found.spec.signer_name != purpose.signer() {
        return Err(format!("it is for the signer {:?}", found.spec.signer_name));
    }
    let (_, pem) = x509_parser::pem::parse_x509_pem(&found.spec.request.0)
        .map_err(|error| format!("its request is no PEM: {error}"))?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|error| format!("its request can't be read: {error}"))?;
    if request.certification_request_info.subject_pki.raw != key.public() {
        return Err("it is for another key".into());
    }
    let issued = found.status.as_ref().and_then(|status| status.certificate.as_ref());
    if let Some(issued) = issued.filter(|issued| !issued.0.is_empty()) {
        let chain = certificates(&issued.0).map_err(|problem| format!("its certificate {problem}"))?;
        if certificate_chain::earliest_expiry(&chain).is_none_or(|end| now > end) {
            return Err("its certificate has expired".into());
        }
    }
    Ok(())
}

/// Waits until the request is decided; returns the chain as PEM.
pub async fn wait_until_issued(
    api: &Api,
    made: &SigningRequestId,
    within: Duration,
) -> Result<Vec<u8>, CertificateError> {
    let decided = async {
        loop {
            match watch_until_decided(api, made).await {
                Err(CertificateError::Api(error)) if is_retryable(&error) => {
                    tracing::debug!("following certificate signing request {:?}: {error}", made.name);
                }
                Err(error) => return Err(error),
                Ok(Some(chain)) => return Ok(chain),
                Ok(None) => continue,
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    match tokio::time::timeout(within, decided).await {
        Ok(result) => result,
        Err(_) => Err(CertificateError::NotIssued { name: made.name.clone(), after: within }),
    }
}

/// Includes Forbidden: a server whose RBAC rules are not loaded yet may answer so, and the request itself was accepted.
fn is_retryable(error: &ApiError) -> bool {
    error.disposition() == Disposition::Retry
        || matches!(error, ApiError::Forbidden { .. } | ApiError::Unauthorized { .. } | ApiError::Tls { .. })
}

/// One list and one watch. `None` if the watch ended before the request was decided.
async fn watch_until_decided(
    api: &Api,
    made: &SigningRequestId,
) -> Result<Option<Vec<u8>>, CertificateError> {
    let deleted = || CertificateError::Deleted { name: made.name.clone() };
    let listed = api.list_signing_request(&made.name, Freshness::Latest).await?;
    if let Some(odd) = listed.unreadable.first() {
        let call = format!("list certificatesigningrequest {}", made.name);
        return Err(ApiError::Decode { call, message: odd.problem.clone() }.into());
    }
    let found = listed.items.first().ok_or_else(deleted)?;
    if let Some(chain) = issued_chain(found, made)? {
        return Ok(Some(chain));
    }
    let mut watch =
        api.watch_signing_request(&made.name, WatchStart::Version(&listed.resource_version)).await?;
    while let Some(event) = watch.next().await {
        match event? {
            WatchEvent::Added(found) | WatchEvent::Modified(found) => {
                if let Some(chain) = issued_chain(&found, made)? {
                    return Ok(Some(chain));
                }
            }
            WatchEvent::Deleted(_) => return Err(deleted()),
            // The decided version may be readable in the next list.
            WatchEvent::Unreadable(_) | WatchEvent::Bookmark { .. } => {}
        }
    }
    Ok(None)
}

fn issued_chain(
    found: &CertificateSigningRequest,
    made: &SigningRequestId,
) -> Result<Option<Vec<u8>>, CertificateError> {
    let name = || made.name.clone();
    if found.metadata.uid.as_deref() != Some(&made.uid) {
        return Err(CertificateError::Replaced { name: name() });
    }
    let Some(status) = &found.status else { return Ok(None) };
    let mut approved = false;
    for condition in status.conditions.iter().flatten() {
        let reason = condition.reason.clone().unwrap_or_default();
        let message = condition.message.clone().unwrap_or_default();
        match condition.type_.as_str() {
            "Denied" => return Err(CertificateError::Denied { name: name(), reason, message }),
            "Failed" => return Err(CertificateError::Failed { name: name(), reason, message }),
            "Approved" => approved = true,
            _ => {}
        }
    }
    let chain = status.certificate.as_ref().filter(|chain| approved && !chain.0.is_empty());
    Ok(chain.map(|chain| chain.0.clone()))
}
