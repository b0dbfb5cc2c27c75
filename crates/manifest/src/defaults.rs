//! The defaults that the API gives a Pod, for pods that never pass through an API server.
//!
//! Go knows no difference between an absent and an empty text or a zero number, so both are defaulted here.
//! Ephemeral containers get nothing: they are refused in a manifest.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, Container, HTTPGetAction, LifecycleHandler, ObjectFieldSelector, Pod, PodSpec,
    Probe, ProjectedVolumeSource, RBDVolumeSource, ResourceRequirements, ScaleIOVolumeSource, Volume,
};
use model::quantity::Quantity;
use model::volume_source::VolumeSource;

use super::image::default_pull_policy;
use super::totals;

type Amounts = std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

const DEFAULT_FILE_MODE: i32 = 0o644;

/// Fills in every API default. Applying it twice changes nothing more.
pub fn defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    pod_fields(spec);
    spec.volumes.iter_mut().flatten().for_each(volume);
    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).for_each(container);
    if let Some(resources) = &mut spec.resources {
        round_resources(resources);
    }
    round_amounts(&mut spec.overhead);
    pod_level_resources(spec);
    if spec.host_network == Some(true) {
        host_network_ports(spec);
    }
}

fn pod_fields(spec: &mut PodSpec) {
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    spec.termination_grace_period_seconds = Some(if grace < 0 { 1 } else { grace });
    spec.enable_service_links.get_or_insert(true);
    // The old name of the field still counts.
    if let Some(account) = spec.service_account.clone().filter(|account| !account.is_empty()) {
        fill(&mut spec.service_account_name, &account);
    }
}

fn container(container: &mut Container) {
    let policy = default_pull_policy(container.image.as_deref().unwrap_or_default());
    fill(&mut container.image_pull_policy, policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
    }
    for variable in container.env.iter_mut().flatten() {
        if let Some(source) = &mut variable.value_from {
            source.field_ref.iter_mut().for_each(field_ref);
        }
    }
    let probes =
        [&mut container.startup_probe, &mut container.liveness_probe, &mut container.readiness_probe];
    probes.into_iter().flatten().for_each(probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        hooks
            .into_iter()
            .flatten()
            .for_each(|LifecycleHandler { http_get, .. }| http_get.iter_mut().for_each(http));
    }
    if let Some(resources) = &mut container.resources {
        round_resources(resources);
        requests_from_limits(resources);
    }
}

fn probe(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn http(action: &mut HTTPGetAction) {
    fill(&mut action.path, "/");
    fill(&mut action.scheme, "HTTP");
}

fn field_ref(reference: &mut ObjectFieldSelector) {
    fill(&mut reference.api_version, "v1");
}

fn volume(volume: &mut Volume) {
    if VolumeSource::given(volume).next().is_none() {
        volume.empty_dir = Some(Default::default());
    }
    let Volume {
        secret,
        config_map,
        downward_api,
        projected,
        host_path,
        image,
        ephemeral,
        iscsi,
        rbd,
        scale_io,
        azure_disk,
        // nothing to fill in
        name: _,
        aws_elastic_block_store: _,
        azure_file: _,
        cephfs: _,
        cinder: _,
        csi: _,
        empty_dir: _,
        fc: _,
        flex_volume: _,
        flocker: _,
        gce_persistent_disk: _,
        git_repo: _,
        glusterfs: _,
        nfs: _,
        persistent_volume_claim: _,
        photon_persistent_disk: _,
        portworx_volume: _,
        quobyte: _,
        storageos: _,
        vsphere_volume: _,
    } = volume;
    if let Some(secret) = secret {
        secret.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(config_map) = config_map {
        config_map.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(downward) = downward_api {
        downward.default_mode.get_or_insert(DEFAULT_FILE_MODE);
        downward.items.iter_mut().flatten().filter_map(|item| item.field_ref.as_mut()).for_each(field_ref);
    }
    if let Some(host_path) = host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(image) = image {
        let policy = default_pull_policy(image.reference.as_deref().unwrap_or_default());
        fill(&mut image.pull_policy, policy);
    }
    if let Some(template) = ephemeral.as_mut().and_then(|claim| claim.volume_claim_template.as_mut()) {
        template.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    }
    projected.iter_mut().for_each(projected_sources);
    iscsi.iter_mut().for_each(|iscsi| fill(&mut iscsi.iscsi_interface, "default"));
    rbd.iter_mut().for_each(rados_block_device);
    scale_io.iter_mut().for_each(scale_io_volume);
    azure_disk.iter_mut().for_each(azure_disk_volume);
}

fn projected_sources(projected: &mut ProjectedVolumeSource) {
    projected.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    for source in projected.sources.iter_mut().flatten() {
        if let Some(token) = &mut source.service_account_token {
            token.expiration_seconds.get_or_insert(3600);
        }
        let files = source.downward_api.iter_mut().filter_map(|downward| downward.items.as_mut()).flatten();
        files.filter_map(|file| file.field_ref.as_mut()).for_each(field_ref);
    }
}

fn rados_block_device(rbd: &mut RBDVolumeSource) {
    fill(&mut rbd.pool, "rbd");
    fill(&mut rbd.user, "admin");
    fill(&mut rbd.keyring, "/etc/ceph/keyring");
}

fn scale_io_volume(volume: &mut ScaleIOVolumeSource) {
    fill(&mut volume.storage_mode, "ThinProvisioned");
    fill(&mut volume.fs_type, "xfs");
}

fn azure_disk_volume(disk: &mut AzureDiskVolumeSource) {
    disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
    disk.kind.get_or_insert_with(|| "Shared".to_owned());
    disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
    disk.read_only.get_or_insert(false);
}

/// Whoever limits a resource and says no more asks for all of it.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// A pod with resources of its own: what its containers ask for fills the gaps, then its limits do.
fn pod_level_resources(spec: &mut PodSpec) {
    let Some(mut resources) = spec.resources.take() else { return };
    if resources.limits.as_ref().is_some_and(|limits| !limits.is_empty())
        || resources.requests.as_ref().is_some_and(|requests| !requests.is_empty())
    {
        pod_level_huge_page_limits(spec, &mut resources);
    }
    if let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) {
        let mut requests = resources.requests.take().unwrap_or_default();
        for (name, amount) in totals::container_requests(spec) {
            if totals::is_pod_level(&name) && totals::may_overcommit(&name) {
                requests.entry(name).or_insert_with(|| amount.to_api());
            }
        }
        for (name, limit) in limits.iter().filter(|(name, _)| totals::is_pod_level(name)) {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
        resources.requests = Some(requests).filter(|requests| !requests.is_empty());
    }
    spec.resources = Some(resources);
}

fn pod_level_huge_page_limits(spec: &PodSpec, resources: &mut ResourceRequirements) {
    let mut limits = resources.limits.take().unwrap_or_default();
    for (name, amount) in totals::container_limits(spec) {
        let requested = resources.requests.as_ref().is_some_and(|requests| requests.contains_key(&name));
        if totals::is_huge_page(&name) && !requested {
            limits.entry(name).or_insert_with(|| amount.to_api());
        }
    }
    resources.limits = Some(limits).filter(|limits| !limits.is_empty());
}

/// On the host's network a container's port is the host's port.
fn host_network_ports(spec: &mut PodSpec) {
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for port in containers.flat_map(|container| container.ports.iter_mut().flatten()) {
        let container_port = port.container_port;
        fill_number(&mut port.host_port, container_port);
    }
}

fn round_resources(resources: &mut ResourceRequirements) {
    round_amounts(&mut resources.limits);
    round_amounts(&mut resources.requests);
}

/// The API stores resource amounts in canonical form and no finer than a thousandth.
fn round_amounts(amounts: &mut Option<Amounts>) {
    for amount in amounts.iter_mut().flat_map(|amounts| amounts.values_mut()) {
        if let Ok(exact) = Quantity::try_from(&*amount) {
            *amount = exact.rounded_up_to_milli().to_api();
        }
    }
}

fn fill(field: &mut Option<String>, default: &str) {
    if field.as_ref().is_none_or(String::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn fill_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

#[cfg(test)]
mod tests;
