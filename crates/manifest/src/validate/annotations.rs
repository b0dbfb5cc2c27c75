//! Annotations that mean something to a pod: old spellings of profiles, and the marks of mirror pods.

use k8s_openapi::api::core::v1::{AppArmorProfile, PodSpec, SeccompProfile};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::pod_context::all_containers;
use super::report::{Path, ValidationErrors};
use super::syntax;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const POD_SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const CONTAINER_SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const CONTAINER_APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
const MUST_MATCH: &str = "the annotation of the same meaning says otherwise";

pub(super) fn check(metadata: &ObjectMeta, spec: &PodSpec, report: &mut ValidationErrors) {
    let path = Path::new("metadata").child("annotations");
    for (key, value) in metadata.annotations.iter().flatten() {
        let path = path.key(key);
        if key == MIRROR && spec.node_name.as_ref().is_none_or(String::is_empty) {
            report.invalid(&path, value, "a mirror pod needs spec.nodeName");
        } else if key == DELETION_COST {
            deletion_cost(value, &path, report);
        } else if key == POD_SECCOMP || key.starts_with(CONTAINER_SECCOMP) {
            seccomp(value, &path, report);
        } else if let Some(name) = key.strip_prefix(CONTAINER_APP_ARMOR) {
            app_armor(name, value, spec, &path, report);
        }
    }
    fields_agree(metadata, spec, report);
}

fn deletion_cost(value: &str, path: &Path, report: &mut ValidationErrors) {
    let number = value.parse::<i32>().is_ok_and(|number| number.to_string() == value);
    if !number {
        report.invalid(path, value, "must be a 32 bit integer");
    }
}

fn seccomp(value: &str, path: &Path, report: &mut ValidationErrors) {
    match value.strip_prefix(LOCALHOST) {
        Some(local) => report.invalid_for_each(path, value, syntax::relative_path(local)),
        None if matches!(value, "runtime/default" | "docker/default" | "unconfined") => {}
        None => report.invalid(path, value, "is not a seccomp profile"),
    }
}

fn app_armor(name: &str, value: &str, spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    if !all_containers(spec, path).any(|(container, _)| container.name == name) {
        report.invalid(path, name, "there is no container of this name");
    }
    if !matches!(value, "" | "runtime/default" | "unconfined") && !value.starts_with(LOCALHOST) {
        report.invalid(path, value, "is not an AppArmor profile");
    }
}

/// Where both a field and its old annotation are given, they must say the same.
fn fields_agree(metadata: &ObjectMeta, spec: &PodSpec, report: &mut ValidationErrors) {
    let Some(annotations) = &metadata.annotations else { return };
    let path = Path::new("spec");
    let pod_context = spec.security_context.as_ref();
    if let (Some(value), Some(profile)) =
        (annotations.get(POD_SECCOMP), pod_context.and_then(|context| context.seccomp_profile.as_ref()))
    {
        seccomp_agrees(value, profile, &path.child("securityContext").child("seccompProfile"), report);
    }
    for (container, path) in all_containers(spec, &path) {
        let path = path.child("securityContext");
        let context = container.security_context.as_ref();
        let value = annotations.get(&format!("{CONTAINER_SECCOMP}{}", container.name));
        if let (Some(value), Some(profile)) =
            (value, context.and_then(|context| context.seccomp_profile.as_ref()))
        {
            seccomp_agrees(value, profile, &path.child("seccompProfile"), report);
        }
        let value = annotations.get(&format!("{CONTAINER_APP_ARMOR}{}", container.name));
        let own = context.and_then(|context| context.app_armor_profile.as_ref());
        let profile = own.or_else(|| pod_context.and_then(|context| context.app_armor_profile.as_ref()));
        if let (Some(value), Some(profile), true) = (value, profile, !is_windows(spec)) {
            app_armor_agrees(value, profile, &path.child("appArmorProfile"), report);
        }
    }
}

fn is_windows(spec: &PodSpec) -> bool {
    spec.os.as_ref().is_some_and(|os| os.name == "windows")
}

fn seccomp_agrees(value: &str, profile: &SeccompProfile, path: &Path, report: &mut ValidationErrors) {
    let agrees = match profile.type_.as_str() {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => matches!(value, "runtime/default" | "docker/default"),
        "Localhost" => value.strip_prefix(LOCALHOST) == profile.localhost_profile.as_deref(),
        _ => true,
    };
    if !agrees {
        report.forbidden(&path.child("type"), MUST_MATCH);
    }
}

fn app_armor_agrees(value: &str, profile: &AppArmorProfile, path: &Path, report: &mut ValidationErrors) {
    let agrees = match profile.type_.as_str() {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => value == "runtime/default",
        "Localhost" => value.strip_prefix(LOCALHOST) == profile.localhost_profile.as_deref(),
        _ => true,
    };
    if !agrees {
        report.forbidden(&path.child("type"), MUST_MATCH);
    }
}
