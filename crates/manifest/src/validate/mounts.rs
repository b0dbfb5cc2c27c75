//! Volume mounts and block devices of a container.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::pod_context::ValidVolumes;
use super::report::{Path, ValidationErrors};
use super::syntax;

pub(super) fn check(
    container: &Container,
    volumes: &ValidVolumes,
    path: &Path,
    report: &mut ValidationErrors,
) {
    mounts(container, volumes, &path.child("volumeMounts"), report);
    devices(container, volumes, &path.child("volumeDevices"), report);
}

fn mounts(container: &Container, volumes: &ValidVolumes, path: &Path, report: &mut ValidationErrors) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let mut places = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.index(index);
        if report.require_text(&path.child("name"), &mount.name) && !volumes.contains_key(mount.name.as_str())
        {
            report.not_found(&path.child("name"), &mount.name);
        }
        report.require_text(&path.child("mountPath"), &mount.mount_path);
        if !places.insert(&mount.mount_path) {
            report.invalid(&path.child("mountPath"), &mount.mount_path, "must be unique");
        }
        if devices.iter().any(|device| device.name == mount.name) {
            report.invalid(&path.child("name"), &mount.name, "is used in volumeDevices already");
        }
        if devices.iter().any(|device| device.device_path == mount.mount_path) {
            report.invalid(&path.child("mountPath"), &mount.mount_path, "is a path in volumeDevices already");
        }
        sub_paths(mount, &path, report);
        propagation(mount, container, &path, report);
        recursive_read_only(mount, &path, report);
    }
}

fn sub_paths(mount: &VolumeMount, path: &Path, report: &mut ValidationErrors) {
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    report.invalid_for_each(&path.child("subPath"), sub_path, syntax::relative_path(sub_path));
    if !sub_path.is_empty() && !expression.is_empty() {
        report.invalid(&path.child("subPathExpr"), expression, "must not be given together with subPath");
    }
    report.invalid_for_each(&path.child("subPathExpr"), expression, syntax::relative_path(expression));
}

fn propagation(mount: &VolumeMount, container: &Container, path: &Path, report: &mut ValidationErrors) {
    let Some(propagation) = mount.mount_propagation.as_deref() else { return };
    let path = path.child("mountPropagation");
    report.one_of(&path, propagation, &["Bidirectional", "HostToContainer", "None"]);
    let privileged =
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    if propagation == "Bidirectional" && !privileged {
        report.forbidden(&path, "only privileged containers may propagate their mounts to the host");
    }
}

fn recursive_read_only(mount: &VolumeMount, path: &Path, report: &mut ValidationErrors) {
    let Some(mode) = mount.recursive_read_only.as_deref() else { return };
    let path = path.child("recursiveReadOnly");
    report.one_of(&path, mode, &["Disabled", "Enabled", "IfPossible"]);
    if !matches!(mode, "Enabled" | "IfPossible") {
        return;
    }
    if mount.read_only != Some(true) {
        report.forbidden(&path, "needs readOnly to be true");
    }
    if mount.mount_propagation.as_ref().is_some_and(|propagation| propagation != "None") {
        report.forbidden(&path, "needs mountPropagation to be None or not given");
    }
}

fn devices(container: &Container, volumes: &ValidVolumes, path: &Path, report: &mut ValidationErrors) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let path = path.index(index);
        let name_path = path.child("name");
        if report.require_text(&name_path, &device.name) && !names.insert(&device.name) {
            report.invalid(&name_path, &device.name, "must be unique");
        }
        match volumes.get(device.name.as_str()) {
            Some(kind) if kind.is_claim => {}
            Some(_) => report.invalid(&name_path, &device.name, "only claims can be block devices"),
            None => report.not_found(&name_path, &device.name),
        }
        let place_path = path.child("devicePath");
        if report.require_text(&place_path, &device.device_path)
            && syntax::has_parent_element(&device.device_path)
        {
            report.invalid(&place_path, &device.device_path, "must not contain '..'");
        }
        if !places.insert(&device.device_path) {
            report.invalid(&place_path, &device.device_path, "must be unique");
        }
        if mounts.iter().any(|mount| mount.name == device.name) {
            report.invalid(&name_path, &device.name, "is used in volumeMounts already");
        }
        if mounts.iter().any(|mount| mount.mount_path == device.device_path) {
            report.invalid(&place_path, &device.device_path, "is a path in volumeMounts already");
        }
    }
}
