//! Regular and init containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use super::pod_context::{PodContext, all_containers, port_number, pull_policy};
use super::report::{Path, ValidationErrors};
use super::{environment, handlers, mounts, resources, security, syntax};
use crate::totals::is_sidecar;

const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const RULE_ACTIONS: &[&str] = &["Restart", "RestartAllContainers"];
const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

pub(super) fn check(spec: &PodSpec, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    let path = path.child("containers");
    if spec.containers.is_empty() {
        return report.required(&path);
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let path = path.index(index);
        common(container, pod, &path, report);
        if !names.insert(&container.name) {
            report.duplicate(&path.child("name"), &container.name);
        }
        handlers::check(container, pod, &path, report);
        restart_policy(container, &path, report);
        unique_host_ports(container, &mut host_ports, &path, report);
        host_network_ports(container, spec, &path, report);
    }
}

pub(super) fn check_init(spec: &PodSpec, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    let path = path.child("initContainers");
    let mut names: BTreeSet<&String> = spec.containers.iter().map(|container| &container.name).collect();
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = path.index(index);
        common(container, pod, &path, report);
        restart_policy(container, &path, report);
        if !container.name.is_empty() && !names.insert(&container.name) {
            report.duplicate(&path.child("name"), &container.name);
        }
        // Init containers run one after the other, so only their own ports can collide.
        unique_host_ports(container, &mut BTreeSet::new(), &path, report);
        if is_sidecar(container) {
            handlers::check(container, pod, &path, report);
        } else {
            only_for_sidecars(container, &path, report);
        }
    }
}

fn only_for_sidecars(container: &Container, path: &Path, report: &mut ValidationErrors) {
    let present = [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ];
    for (field, _) in present.into_iter().filter(|(_, present)| *present) {
        report.forbidden(&path.child(field), "only init containers with restartPolicy Always may have it");
    }
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            let path = path.child("resizePolicy").index(index).child("restartPolicy");
            report.invalid(
                &path,
                &policy.restart_policy,
                "only init containers with restartPolicy Always may have it",
            );
        }
    }
}

fn common(container: &Container, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    if report.require_text(&path.child("name"), &container.name) {
        report.invalid_for_each(&path.child("name"), &container.name, syntax::dns_label(&container.name));
    }
    report.require_text(&path.child("image"), container.image.as_deref().unwrap_or_default());
    let message_policy = container.termination_message_policy.as_deref();
    let message_policies = ["File", "FallbackToLogsOnError"];
    report.one_of_required(&path.child("terminationMessagePolicy"), message_policy, &message_policies);
    ports(container.ports.as_deref().unwrap_or_default(), &path.child("ports"), report);
    environment::check(container, path, report);
    mounts::check(container, &pod.volumes, path, report);
    pull_policy(container.image_pull_policy.as_deref(), &path.child("imagePullPolicy"), report);
    if let Some(requirements) = &container.resources {
        resources::container(requirements, pod.claims(), &path.child("resources"), report);
    }
    resize_policies(container, pod, &path.child("resizePolicy"), report);
    if let Some(context) = &container.security_context {
        security::container_context(context, pod.on_host_users(), &path.child("securityContext"), report);
    }
}

fn ports(ports: &[ContainerPort], path: &Path, report: &mut ValidationErrors) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let objections = syntax::port_name(name);
            if objections.is_empty() && !names.insert(name) {
                report.duplicate(&path.child("name"), name);
            }
            report.invalid_for_each(&path.child("name"), name, objections);
        }
        match port.container_port {
            0 => report.required(&path.child("containerPort")),
            number => port_number(number, &path.child("containerPort"), report),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            port_number(number, &path.child("hostPort"), report);
        }
        report.one_of_required(&path.child("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
    }
}

fn unique_host_ports(
    container: &Container,
    taken: &mut BTreeSet<String>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        let (protocol, address) = (port.protocol.as_deref(), port.host_ip.as_deref());
        let key = format!("{}/{}/{number}", protocol.unwrap_or_default(), address.unwrap_or_default());
        if taken.contains(&key) {
            report.duplicate(&path.child("ports").index(index).child("hostPort"), &key);
        }
        taken.insert(key);
    }
}

fn host_network_ports(container: &Container, spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    if spec.host_network != Some(true) {
        return;
    }
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let host_port = port.host_port.unwrap_or(0);
        if host_port != 0 && host_port != port.container_port {
            let path = path.child("ports").index(index).child("hostPort");
            report.invalid(&path, host_port, "must be the containerPort when hostNetwork is true");
        }
    }
}

fn resize_policies(container: &Container, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    let mut seen = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let path = path.index(index);
        if !seen.insert(&policy.resource_name) {
            report.duplicate(&path.child("resourceName"), &policy.resource_name);
        }
        report.one_of_required(&path.child("resourceName"), Some(&policy.resource_name), &["cpu", "memory"]);
        let restart_path = path.child("restartPolicy");
        let restart_policies = ["NotRequired", "RestartContainer"];
        report.one_of_required(&restart_path, Some(&policy.restart_policy), &restart_policies);
        if pod.spec.restart_policy.as_deref() == Some("Never") && policy.restart_policy == "RestartContainer"
        {
            let why = "must be NotRequired when the pod's restartPolicy is Never";
            report.invalid(&restart_path, &policy.restart_policy, why);
        }
    }
}

fn restart_policy(container: &Container, path: &Path, report: &mut ValidationErrors) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => {}
        None => report.required_because(&path.child("restartPolicy"), "restart rules need it"),
        Some(policy) => report.one_of(&path.child("restartPolicy"), policy, RESTART_POLICIES),
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        report.too_many(&path, rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        report.one_of(&path.child("action"), &rule.action, RULE_ACTIONS);
        let path = path.child("exitCodes");
        let Some(exit_codes) = &rule.exit_codes else {
            report.required(&path);
            continue;
        };
        report.one_of(&path.child("operator"), &exit_codes.operator, &["In", "NotIn"]);
        let count = exit_codes.values.as_ref().map_or(0, Vec::len);
        if count > MAX_EXIT_CODES {
            report.too_many(&path.child("values"), count, MAX_EXIT_CODES);
        }
    }
}

/// An image with blanks around it would be pulled under another name than the one that is shown.
pub(super) fn image_whitespace(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    for (container, path) in all_containers(spec, path) {
        let image = container.image.as_deref().unwrap_or_default();
        if image.trim() != image {
            report.invalid(&path.child("image"), image, "must not have blanks around it");
        }
    }
}
