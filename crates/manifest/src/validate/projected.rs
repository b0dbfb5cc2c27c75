//! Downward API and projected volumes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, DownwardAPIVolumeSource, PodCertificateProjection,
    PodSpec, ProjectedVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
};

use model::volume_source::ProjectedSource;

use super::environment::{self, DownwardUse};
use super::report::{Path, ValidationErrors};
use super::volume_files::{file_mode, items};
use super::{selectors, syntax};

const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const KEY_TYPES: &[&str] = &["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];
const MIN_CERTIFICATE_SECONDS: i64 = 3600;
const MAX_CERTIFICATE_SECONDS: i64 = 91 * 86400;
const MAX_KUBERNETES_CERTIFICATE_SECONDS: i64 = 86400;

pub(super) fn downward(source: &DownwardAPIVolumeSource, path: &Path, report: &mut ValidationErrors) {
    file_mode(source.default_mode, &path.child("defaultMode"), report);
    for (index, file) in source.items.iter().flatten().enumerate() {
        downward_file(file, &path.child("items").index(index), report);
    }
}

fn downward_file(file: &DownwardAPIVolumeFile, path: &Path, report: &mut ValidationErrors) {
    local_path(&file.path, &path.child("path"), report);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(_), Some(_)) => {
            report.invalid(path, &file.path, "must have only one of fieldRef and resourceFieldRef")
        }
        (Some(field), None) => {
            environment::field(field, DownwardUse::VolumeFile, &path.child("fieldRef"), report)
        }
        (None, Some(field)) => {
            environment::resource_field(
                field,
                DownwardUse::VolumeFile,
                &path.child("resourceFieldRef"),
                report,
            );
        }
        (None, None) => report.required_because(path, "one of fieldRef and resourceFieldRef must be given"),
    }
    file_mode(file.mode, &path.child("mode"), report);
}

fn local_path(file: &str, path: &Path, report: &mut ValidationErrors) {
    if report.require_text(path, file) {
        report.invalid_for_each(path, file, syntax::unreserved_path(file));
    }
}

pub(super) fn check(source: &ProjectedVolumeSource, path: &Path, report: &mut ValidationErrors) {
    file_mode(source.default_mode, &path.child("defaultMode"), report);
    let mut taken = BTreeSet::new();
    for (index, projection) in source.sources.iter().flatten().enumerate() {
        let path = path.child("sources").index(index);
        let files = check_projection(projection, &path, report);
        for file in files.into_iter().filter(|file| !file.is_empty()) {
            if !taken.insert(file) {
                report.invalid(&path, file, "another source writes this path already");
            }
        }
    }
}

/// Checks one source and returns the paths it writes, where they are known.
fn check_projection<'a>(
    source: &'a VolumeProjection,
    path: &Path,
    report: &mut ValidationErrors,
) -> Vec<&'a str> {
    let mut files: Vec<&str> = Vec::new();
    for given in ProjectedSource::given(source) {
        match given {
            ProjectedSource::Secret(secret) => {
                let path = path.child("secret");
                report.require_text(&path.child("name"), &secret.name);
                items(secret.items.as_deref(), &path.child("items"), report);
                files.extend(secret.items.iter().flatten().map(|item| item.path.as_str()));
            }
            ProjectedSource::ConfigMap(map) => {
                let path = path.child("configMap");
                report.require_text(&path.child("name"), &map.name);
                items(map.items.as_deref(), &path.child("items"), report);
                files.extend(map.items.iter().flatten().map(|item| item.path.as_str()));
            }
            ProjectedSource::DownwardApi(downward) => {
                for (index, file) in downward.items.iter().flatten().enumerate() {
                    downward_file(file, &path.child("downwardAPI").child("items").index(index), report);
                    files.push(&file.path);
                }
            }
            ProjectedSource::ServiceAccountToken(source) => {
                token(source, &path.child("serviceAccountToken"), report);
            }
            ProjectedSource::ClusterTrustBundle(bundle) => {
                trust_bundle(bundle, &path.child("clusterTrustBundle"), report);
                files.push(&bundle.path);
            }
            ProjectedSource::PodCertificate(source) => {
                files.extend(certificate(source, &path.child("podCertificate"), report));
            }
        }
    }
    if ProjectedSource::given(source).count() > 1 {
        report.forbidden(path, "each entry has only one source");
    }
    files
}

fn token(token: &ServiceAccountTokenProjection, path: &Path, report: &mut ValidationErrors) {
    let seconds = token.expiration_seconds.unwrap_or_default();
    report.in_range(&path.child("expirationSeconds"), seconds, MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS);
    local_path(&token.path, &path.child("path"), report);
}

fn trust_bundle(bundle: &ClusterTrustBundleProjection, path: &Path, report: &mut ValidationErrors) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => report.invalid(path, &bundle.path, "must have only one of name and signerName"),
        (Some(name), None) => {
            let object = name.rsplit_once(':').map_or(name.as_str(), |(_, object)| object);
            if report.require_text(&path.child("name"), name) {
                report.invalid_for_each(&path.child("name"), name, syntax::dns_subdomain(object));
            }
            if bundle.label_selector.is_some() {
                report.forbidden(&path.child("labelSelector"), "must not be given together with name");
            }
        }
        (None, Some(signer)) => {
            signer_name(signer, &path.child("signerName"), report);
            selectors::label_selector(bundle.label_selector.as_ref(), &path.child("labelSelector"), report);
        }
        (None, None) => report.required_because(path, "one of name and signerName must be given"),
    }
    local_path(&bundle.path, &path.child("path"), report);
}

fn certificate<'a>(
    source: &'a PodCertificateProjection,
    path: &Path,
    report: &mut ValidationErrors,
) -> Vec<&'a str> {
    signer_name(&source.signer_name, &path.child("signerName"), report);
    user_annotations(source.user_annotations.as_ref(), &path.child("userAnnotations"), report);
    report.one_of(&path.child("keyType"), &source.key_type, KEY_TYPES);
    if let Some(seconds) = source.max_expiration_seconds {
        let kubernetes = source.signer_name.starts_with("kubernetes.io/");
        let most = if kubernetes { MAX_KUBERNETES_CERTIFICATE_SECONDS } else { MAX_CERTIFICATE_SECONDS };
        report.in_range(
            &path.child("maxExpirationSeconds"),
            i64::from(seconds),
            MIN_CERTIFICATE_SECONDS,
            most,
        );
    }
    let files = [
        ("credentialBundlePath", &source.credential_bundle_path),
        ("keyPath", &source.key_path),
        ("certificateChainPath", &source.certificate_chain_path),
    ];
    let given: Vec<&str> =
        files.iter().filter_map(|(_, file)| file.as_deref()).filter(|file| !file.is_empty()).collect();
    for (field, file) in files {
        let file = file.as_deref().unwrap_or_default();
        report.invalid_for_each(&path.child(field), file, syntax::unreserved_path(file));
    }
    if given.is_empty() {
        report.required_because(
            path,
            "one of credentialBundlePath, keyPath and certificateChainPath must be given",
        );
    }
    given
}

fn user_annotations(
    annotations: Option<&BTreeMap<String, String>>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    for key in annotations.into_iter().flat_map(BTreeMap::keys) {
        report.invalid_for_each(path, key, syntax::qualified_name(&key.to_lowercase()));
        if !key.contains('/') {
            report.invalid(path, key, "must have a domain before a '/'");
        }
    }
}

/// `example.com/name`
fn signer_name(signer: &str, path: &Path, report: &mut ValidationErrors) {
    if !report.require_text(path, signer) {
        return;
    }
    match signer.split_once('/') {
        Some((domain, name)) if !name.contains('/') => {
            report.invalid_for_each(path, signer, syntax::dns_subdomain(domain));
            report.invalid_for_each(path, signer, syntax::dns_subdomain(&name.to_lowercase()));
            if !domain.contains('.') {
                report.invalid(path, signer, "the domain must have at least two parts");
            }
        }
        _ => report.invalid(path, signer, "must be a domain and a name with a '/' between them"),
    }
}

/// A token is a service account's.
pub(super) fn tokens_need_an_account(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return;
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        for (entry, _) in sources.enumerate().filter(|(_, source)| source.service_account_token.is_some()) {
            let path = path.child("volumes").index(index).child("projected").child("sources").index(entry);
            report.forbidden(&path.child("serviceAccountToken"), "needs serviceAccountName");
        }
    }
}
