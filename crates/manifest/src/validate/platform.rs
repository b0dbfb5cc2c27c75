//! `spec.os`: fields of one operating system do not go with another.

use k8s_openapi::api::core::v1::{PodSpec, SecurityContext};

use super::pod_context::all_containers;
use super::report::{Path, ValidationErrors};

const NOT_ON_WINDOWS: &str = "must not be given for a windows pod";
const NOT_ON_LINUX: &str = "windows options must not be given for a linux pod";

pub(super) fn check(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None => {}
        Some("") => report.required(&path.child("os").child("name")),
        Some("linux") => linux(spec, path, report),
        Some("windows") => windows(spec, path, report),
        Some(other) => report.unsupported(&path.child("os").child("name"), other, &["linux", "windows"]),
    }
}

fn linux(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let context_path = path.child("securityContext");
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        report.forbidden(&context_path.child("windowsOptions"), NOT_ON_LINUX);
    }
    for (container, path) in all_containers(spec, path) {
        if container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
            report.forbidden(&path.child("securityContext").child("windowsOptions"), NOT_ON_LINUX);
        }
    }
}

fn windows(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    forbid(
        &[
            ("hostUsers", spec.host_users.is_some()),
            ("hostPID", spec.host_pid == Some(true)),
            ("hostIPC", spec.host_ipc == Some(true)),
            ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ],
        path,
        report,
    );
    if let Some(context) = &spec.security_context {
        forbid(
            &[
                ("appArmorProfile", context.app_armor_profile.is_some()),
                ("seLinuxOptions", context.se_linux_options.is_some()),
                ("seccompProfile", context.seccomp_profile.is_some()),
                ("fsGroup", context.fs_group.is_some()),
                ("fsGroupChangePolicy", context.fs_group_change_policy.is_some()),
                ("sysctls", context.sysctls.as_ref().is_some_and(|sysctls| !sysctls.is_empty())),
                ("runAsUser", context.run_as_user.is_some()),
                ("runAsGroup", context.run_as_group.is_some()),
                ("supplementalGroups", context.supplemental_groups.is_some()),
                ("supplementalGroupsPolicy", context.supplemental_groups_policy.is_some()),
                ("seLinuxChangePolicy", context.se_linux_change_policy.is_some()),
            ],
            &path.child("securityContext"),
            report,
        );
    }
    for (container, path) in all_containers(spec, path) {
        if let Some(context) = &container.security_context {
            windows_container(context, &path.child("securityContext"), report);
        }
    }
}

fn windows_container(context: &SecurityContext, path: &Path, report: &mut ValidationErrors) {
    forbid(
        &[
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("capabilities", context.capabilities.is_some()),
            ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
            ("privileged", context.privileged.is_some()),
            ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
            ("procMount", context.proc_mount.is_some()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
        ],
        path,
        report,
    );
}

fn forbid(fields: &[(&str, bool)], path: &Path, report: &mut ValidationErrors) {
    for (field, _) in fields.iter().filter(|(_, present)| *present) {
        report.forbidden(&path.child(field), NOT_ON_WINDOWS);
    }
}
