//! The rules an API server applies when a pod is created, for pods that never meet one.
//!
//! Every rule that is broken is reported, each with the path of its field. The paths name the element that is
//! wrong (`spec.containers[0].volumeMounts[1].subPath`), also where the reference leaves out an index.

mod annotations;
mod containers;
mod environment;
mod handlers;
mod mounts;
mod network;
mod platform;
mod pod_context;
mod projected;
mod report;
mod resources;
mod scheduling;
mod security;
mod selectors;
mod storage;
pub(super) mod syntax;
mod volume_files;
mod volumes;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use self::pod_context::PodContext;
pub use self::report::FieldError;
use self::report::{Path, ValidationErrors};
pub use self::syntax::qualified_name;

const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Checks a defaulted pod as the API server would on creation. `own_users_on_host_network`: the gate that lets a pod
/// have both.
pub(crate) fn validate_with_gate(pod: &Pod, own_users_on_host_network: bool) -> Result<(), Vec<FieldError>> {
    let mut report = ValidationErrors::under(own_users_on_host_network);
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    metadata(&pod.metadata, &mut report);
    annotations::check(&pod.metadata, spec, &mut report);
    pod_spec(spec, &pod.metadata, &mut report);
    only_on_creation(spec, &mut report);
    report.into_result()
}

fn metadata(metadata: &ObjectMeta, report: &mut ValidationErrors) {
    let path = Path::new("metadata");
    match metadata.name.as_deref().unwrap_or_default() {
        "" => report.required_because(&path.child("name"), "a pod needs a name"),
        name => report.invalid_for_each(&path.child("name"), name, syntax::dns_subdomain(name)),
    }
    match metadata.namespace.as_deref().unwrap_or_default() {
        "" => report.required(&path.child("namespace")),
        namespace => {
            report.invalid_for_each(&path.child("namespace"), namespace, syntax::dns_label(namespace))
        }
    }
    if let Some(prefix) = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // a random part follows it, so it may end where a name may not
        let complete = format!("{}a", prefix.strip_suffix('-').unwrap_or(prefix));
        report.invalid_for_each(&path.child("generateName"), prefix, syntax::dns_subdomain(&complete));
    }
    if metadata.generation.is_some_and(|generation| generation < 0) {
        report.invalid(
            &path.child("generation"),
            metadata.generation.unwrap_or_default(),
            syntax::NOT_NEGATIVE,
        );
    }
    selectors::labels(metadata.labels.as_ref(), &path.child("labels"), report);
    annotation_syntax(metadata, &path.child("annotations"), report);
    owners(metadata, &path, report);
    for (index, finalizer) in metadata.finalizers.iter().flatten().enumerate() {
        let path = path.child("finalizers").index(index);
        report.invalid_for_each(&path, finalizer, syntax::qualified_name(finalizer));
    }
}

fn annotation_syntax(metadata: &ObjectMeta, path: &Path, report: &mut ValidationErrors) {
    let mut bytes = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        bytes += key.len() + value.len();
        report.invalid_for_each(path, key, syntax::qualified_name(&key.to_lowercase()));
    }
    if bytes > MAX_ANNOTATION_BYTES {
        report.too_long(path, MAX_ANNOTATION_BYTES);
    }
}

fn owners(metadata: &ObjectMeta, path: &Path, report: &mut ValidationErrors) {
    let path = path.child("ownerReferences");
    let mut controllers = 0;
    for (index, owner) in metadata.owner_references.iter().flatten().enumerate() {
        let path = path.index(index);
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                report.invalid(&path.child(field), value.as_str(), "must not be empty");
            }
        }
        controllers += usize::from(owner.controller == Some(true));
        if controllers > 1 {
            report.invalid(&path.child("controller"), true, "only one owner may be the controller");
        }
    }
}

fn pod_spec(spec: &PodSpec, metadata: &ObjectMeta, report: &mut ValidationErrors) {
    let path = &Path::new("spec");
    let sound_volumes = volumes::check(spec, metadata, path, report);
    let pod = PodContext::new(spec, sound_volumes);
    resources::claims(spec, path, report);
    containers::check(spec, &pod, path, report);
    containers::check_init(spec, &pod, path, report);
    resources::pod_level(spec, path, report);
    policies(spec, path, report);
    security::pod_context(spec, path, report);
    scheduling::check(spec, path, report);
    network::check(spec, path, report);
    platform::check(spec, path, report);
    object_names(spec, path, report);
    deadlines(spec, path, report);
    if let Some(overhead) = &spec.overhead {
        resources::overhead(overhead, &path.child("overhead"), report);
    }
    environment::file_volumes(spec, path, report);
    projected::tokens_need_an_account(spec, path, report);
    containers::image_whitespace(spec, path, report);
}

fn policies(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let restart = spec.restart_policy.as_deref();
    report.one_of_required(&path.child("restartPolicy"), restart, &["Always", "OnFailure", "Never"]);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    report.one_of_required(&path.child("dnsPolicy"), spec.dns_policy.as_deref(), &dns);
    if spec.preemption_policy.is_some() {
        let preemption = spec.preemption_policy.as_deref();
        report.one_of_required(
            &path.child("preemptionPolicy"),
            preemption,
            &["PreemptLowerPriority", "Never"],
        );
    }
}

/// Names of other objects, where the pod names any.
fn object_names(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let named = [
        ("serviceAccountName", spec.service_account_name.as_deref()),
        ("nodeName", spec.node_name.as_deref()),
        ("priorityClassName", spec.priority_class_name.as_deref()),
    ];
    for (field, name) in named {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            report.invalid_for_each(&path.child(field), name, syntax::dns_subdomain(name));
        }
    }
    if let Some(class) = &spec.runtime_class_name {
        report.invalid_for_each(&path.child("runtimeClassName"), class, syntax::dns_subdomain(class));
    }
    if let Some(group) = &spec.scheduling_group {
        let path = path.child("schedulingGroup").child("podGroupName");
        match &group.pod_group_name {
            Some(name) => report.invalid_for_each(&path, name, syntax::dns_subdomain(name)),
            None => report.required(&path),
        }
    }
}

fn deadlines(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let grace_path = path.child("terminationGracePeriodSeconds");
    match spec.termination_grace_period_seconds {
        None => report.required(&grace_path),
        Some(grace) if grace < 0 => report.invalid(&grace_path, grace, syntax::NOT_NEGATIVE),
        Some(_) => {}
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        let path = path.child("activeDeadlineSeconds");
        report.in_range(&path, deadline, 1, i64::from(i32::MAX));
    }
}

fn only_on_creation(spec: &PodSpec, report: &mut ValidationErrors) {
    let path = Path::new("spec");
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        report
            .forbidden(&path.child("ephemeralContainers"), "can only be added to a pod that exists already");
    }
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    if gated && spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
        report.forbidden(&path.child("nodeName"), "a pod with schedulingGates has no node yet");
    }
}

#[cfg(test)]
mod tests;
