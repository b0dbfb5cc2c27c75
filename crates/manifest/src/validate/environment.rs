//! Environment variables and where their values come from.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};
use model::quantity::Quantity;

use super::pod_context::all_containers;
use super::report::{Path, ValidationErrors};
use super::syntax;

/// Fields that an environment variable may take its value from.
const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields that a file of a downward API volume may hold.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const BYTE_DIVISORS: &[&str] =
    &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Where a downward API reference is used; files name their container, variables have one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DownwardUse {
    EnvVariable,
    VolumeFile,
}

pub(super) fn check(container: &Container, path: &Path, report: &mut ValidationErrors) {
    for (index, variable) in container.env.iter().flatten().enumerate() {
        check_variable(variable, &path.child("env").index(index), report);
    }
    for (index, import) in container.env_from.iter().flatten().enumerate() {
        check_import(import, &path.child("envFrom").index(index), report);
    }
}

fn check_variable(variable: &EnvVar, path: &Path, report: &mut ValidationErrors) {
    let name = &variable.name;
    if report.require_text(&path.child("name"), name) {
        report.invalid_for_each(&path.child("name"), name, syntax::variable_name(name));
    }
    let Some(source) = &variable.value_from else { return };
    let path = path.child("valueFrom");
    let sources = check_source(source, &path, report);
    if sources == 0 {
        let why = "must have one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef";
        report.invalid(&path, "", why);
    } else if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
        report.invalid(&path, "", "must not be given together with value");
    } else if sources > 1 {
        report.invalid(&path, "", "must have only one source");
    }
}

fn check_source(source: &EnvVarSource, path: &Path, report: &mut ValidationErrors) -> usize {
    let mut sources = 0;
    if let Some(reference) = &source.field_ref {
        sources += 1;
        field(reference, DownwardUse::EnvVariable, &path.child("fieldRef"), report);
    }
    if let Some(reference) = &source.resource_field_ref {
        sources += 1;
        resource_field(reference, DownwardUse::EnvVariable, &path.child("resourceFieldRef"), report);
    }
    if let Some(reference) = &source.config_map_key_ref {
        sources += 1;
        key_of_object(&reference.name, &reference.key, &path.child("configMapKeyRef"), report);
    }
    if let Some(reference) = &source.secret_key_ref {
        sources += 1;
        key_of_object(&reference.name, &reference.key, &path.child("secretKeyRef"), report);
    }
    if let Some(reference) = &source.file_key_ref {
        sources += 1;
        let path = path.child("fileKeyRef");
        if report.require_text(&path.child("key"), &reference.key) {
            report.invalid_for_each(
                &path.child("key"),
                &reference.key,
                syntax::variable_name(&reference.key),
            );
        }
        if report.require_text(&path.child("volumeName"), &reference.volume_name) {
            report.invalid_for_each(
                &path.child("volumeName"),
                &reference.volume_name,
                syntax::dns_label(&reference.volume_name),
            );
        }
        if report.require_text(&path.child("path"), &reference.path)
            && syntax::has_parent_element(&reference.path)
        {
            report.invalid(&path.child("path"), &reference.path, "must not contain '..'");
        }
    }
    sources
}

fn key_of_object(name: &str, key: &str, path: &Path, report: &mut ValidationErrors) {
    report.invalid_for_each(&path.child("name"), name, syntax::dns_subdomain(name));
    if report.require_text(&path.child("key"), key) {
        report.invalid_for_each(&path.child("key"), key, syntax::data_key(key));
    }
}

fn check_import(import: &EnvFromSource, path: &Path, report: &mut ValidationErrors) {
    if let Some(prefix) = import.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        report.invalid_for_each(&path.child("prefix"), prefix, syntax::variable_name(prefix));
    }
    let sources = [
        ("configMapRef", import.config_map_ref.as_ref().map(|source| &source.name)),
        ("secretRef", import.secret_ref.as_ref().map(|source| &source.name)),
    ];
    for (field, name) in sources {
        let path = path.child(field).child("name");
        if let Some(name) = name.filter(|name| report.require_text(&path, name)) {
            report.invalid_for_each(&path, name, syntax::dns_subdomain(name));
        }
    }
    match sources.iter().filter(|(_, name)| name.is_some()).count() {
        0 => report.invalid(path, "", "must have one of configMapRef or secretRef"),
        1 => {}
        _ => report.invalid(path, "", "must have only one source"),
    }
}

/// A reference to a field of the pod.
pub(super) fn field(
    reference: &ObjectFieldSelector,
    used: DownwardUse,
    path: &Path,
    report: &mut ValidationErrors,
) {
    if reference.api_version.as_ref().is_none_or(String::is_empty) {
        return report.required(&path.child("apiVersion"));
    }
    let field = reference.field_path.as_str();
    if !report.require_text(&path.child("fieldPath"), field) {
        return;
    }
    if reference.api_version.as_deref() != Some("v1") {
        return report.invalid(
            &path.child("apiVersion"),
            reference.api_version.as_deref().unwrap_or_default(),
            "must be v1",
        );
    }
    let path = path.child("fieldPath");
    if let Some((map, key)) = subscript(field) {
        return match map {
            "metadata.annotations" => {
                report.invalid_for_each(&path, field, syntax::qualified_name(&key.to_lowercase()))
            }
            "metadata.labels" => report.invalid_for_each(&path, field, syntax::qualified_name(key)),
            _ => report.invalid(&path, field, "takes no key in brackets"),
        };
    }
    report.one_of(&path, field, if used == DownwardUse::EnvVariable { VARIABLE_FIELDS } else { FILE_FIELDS });
}

/// `metadata.labels['app']` as its map and key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['")
}

/// A reference to a resource of a container.
pub(super) fn resource_field(
    reference: &ResourceFieldSelector,
    used: DownwardUse,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let resource = reference.resource.as_str();
    let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if used == DownwardUse::VolumeFile && reference.container_name.as_ref().is_none_or(String::is_empty) {
        report.required(&path.child("containerName"));
    } else if report.require_text(&path.child("resource"), resource) && !huge {
        report.one_of(&path.child("resource"), resource, RESOURCES);
    }
    let Some(divisor) = reference.divisor.as_ref().and_then(|divisor| Quantity::try_from(divisor).ok())
    else {
        return;
    };
    let allowed = match resource {
        "limits.cpu" | "requests.cpu" => &["1m", "1"],
        _ if huge || RESOURCES.contains(&resource) => BYTE_DIVISORS,
        _ => return,
    };
    let shown = divisor.to_string();
    if !divisor.is_zero() && !allowed.contains(&shown.as_str()) {
        report.unsupported(&path.child("divisor"), &shown, allowed);
    }
}

/// Variables read from a file need a volume that a container can write to.
pub(super) fn file_volumes(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let volumes: BTreeMap<&str, bool> = spec
        .volumes
        .iter()
        .flatten()
        .map(|volume| (volume.name.as_str(), volume.empty_dir.is_some()))
        .collect();
    for (container, path) in all_containers(spec, path) {
        for (index, variable) in container.env.iter().flatten().enumerate() {
            let Some(file) = variable.value_from.as_ref().and_then(|source| source.file_key_ref.as_ref())
            else {
                continue;
            };
            let path =
                path.child("env").index(index).child("valueFrom").child("fileKeyRef").child("volumeName");
            match volumes.get(file.volume_name.as_str()) {
                None => report.not_found(&path, &file.volume_name),
                Some(false) => report.invalid(&path, &file.volume_name, "must be a volume of type emptyDir"),
                Some(true) => {}
            }
        }
    }
}
