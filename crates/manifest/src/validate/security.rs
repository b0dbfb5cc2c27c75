//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use model::sysctl::{SysctlNamespace, normalized};

use super::pod_context::all_containers;
use super::report::{Path, ValidationErrors};
use super::syntax;

const PROFILE_TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const MAX_PROFILE_PATH: usize = 4095;

pub(super) fn pod_context(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    user_namespace(spec, path, report);
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        report.invalid(&path.child("shareProcessNamespace"), true, "must not be true when hostPID is true");
    }
    let Some(context) = &spec.security_context else { return };
    let path = path.child("securityContext");
    identity(context.run_as_user, &path.child("runAsUser"), report);
    identity(context.run_as_group, &path.child("runAsGroup"), report);
    identity(context.fs_group, &path.child("fsGroup"), report);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        identity(Some(*group), &path.child("supplementalGroups").index(index), report);
    }
    sysctls(context, spec, &path.child("sysctls"), report);
    let choices: [(&str, &Option<String>, &[&str]); 3] = [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, &["Recursive"]),
    ];
    for (field, value, supported) in choices {
        if let Some(value) = value {
            report.one_of(&path.child(field), value, supported);
        }
    }
    seccomp(context.seccomp_profile.as_ref(), &path.child("seccompProfile"), report);
    app_armor(context.app_armor_profile.as_ref(), &path.child("appArmorProfile"), report);
}

/// A user namespace of its own does not go with the host's other namespaces.
fn user_namespace(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    if spec.host_users != Some(false) {
        return;
    }
    let shared = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let allows_network = report.user_namespace_with_host_network;
    let refused = |field: &str| field != "hostNetwork" || !allows_network;
    for (field, _) in shared.into_iter().filter(|(field, shared)| *shared == Some(true) && refused(field)) {
        report.forbidden(&path.child(field), "must not be true when hostUsers is false");
    }
    for (container, path) in all_containers(spec, path) {
        if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
            report.forbidden(&path.child("volumeDevices"), "must not be given when hostUsers is false");
        }
    }
}

pub(super) fn container_context(
    context: &SecurityContext,
    on_host_users: bool,
    path: &Path,
    report: &mut ValidationErrors,
) {
    identity(context.run_as_user, &path.child("runAsUser"), report);
    identity(context.run_as_group, &path.child("runAsGroup"), report);
    if let Some(proc_mount) = &context.proc_mount {
        let path = path.child("procMount");
        report.one_of(&path, proc_mount, &["Default", "Unmasked"]);
        if on_host_users && proc_mount == "Unmasked" {
            report.invalid(&path, proc_mount, "needs hostUsers to be false");
        }
    }
    seccomp(context.seccomp_profile.as_ref(), &path.child("seccompProfile"), report);
    if context.allow_privilege_escalation == Some(false) {
        let path = path.child("allowPrivilegeEscalation");
        if context.privileged == Some(true) {
            report.invalid(&path, false, "must not be false when privileged is true");
        }
        let added = context.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_ref());
        if added.into_iter().flatten().any(|capability| capability == "CAP_SYS_ADMIN") {
            report.invalid(&path, false, "must not be false when the capability CAP_SYS_ADMIN is added");
        }
    }
    app_armor(context.app_armor_profile.as_ref(), &path.child("appArmorProfile"), report);
}

/// User and group ids.
fn identity(id: Option<i64>, path: &Path, report: &mut ValidationErrors) {
    if let Some(id) = id {
        report.in_range(path, id, 0, i64::from(i32::MAX));
    }
}

fn sysctls(context: &PodSecurityContext, spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let mut names = BTreeSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.index(index).child("name");
        let name = sysctl.name.as_str();
        if !report.require_text(&path, name) {
            continue;
        }
        report.invalid_for_each(&path, name, syntax::sysctl_name(name));
        if !names.insert(name) {
            report.duplicate(&path, name);
        }
        let namespace = SysctlNamespace::of(&normalized(name));
        if spec.host_network == Some(true) && namespace == Some(SysctlNamespace::Net) {
            report.invalid(&path, name, "must not be set on the host's network");
        }
        if spec.host_ipc == Some(true) && namespace == Some(SysctlNamespace::Ipc) {
            report.invalid(&path, name, "must not be set for the host's IPC");
        }
    }
}

fn seccomp(profile: Option<&SeccompProfile>, path: &Path, report: &mut ValidationErrors) {
    let Some(profile) = profile else { return };
    report.one_of_required(&path.child("type"), Some(&profile.type_), PROFILE_TYPES);
    let path = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => report.required_because(&path, "the type Localhost needs it"),
        ("Localhost", Some(local)) => report.invalid_for_each(&path, local, syntax::relative_path(local)),
        (_, Some(local)) => report.invalid(&path, local, "goes only with the type Localhost"),
        (_, None) => {}
    }
}

fn app_armor(profile: Option<&AppArmorProfile>, path: &Path, report: &mut ValidationErrors) {
    let Some(profile) = profile else { return };
    report.one_of_required(&path.child("type"), Some(&profile.type_), PROFILE_TYPES);
    let path = path.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None | Some("")) => report.required_because(&path, "the type Localhost needs it"),
        ("Localhost", Some(local)) => {
            if local.trim() != local {
                report.invalid(&path, local, "must not have blanks around it");
            }
            if local.len() > MAX_PROFILE_PATH {
                report.too_long(&path, MAX_PROFILE_PATH);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            report.invalid(&path, local, "goes only with the type Localhost");
        }
        _ => {}
    }
}
