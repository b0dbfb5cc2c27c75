//! What is mounted into a container, and what must be on disk for it.

mod flags;
mod sub_path;

use std::collections::BTreeSet;

use model::cri::{Device, Mount};
use model::files::FileContent;
use model::k8s;
use model::pod::PodView;
use model::volume::SubPathMount;

use super::env::Environment;
use super::hostname::PodNames;
use super::{ContainerInputs, RenderContext, RenderError, hosts_file, pod_ips, termination_log_name};
use crate::pod_volumes::{VolumePath, host_path};

const ETC_HOSTS: &str = "/etc/hosts";

/// The mounts of a container with the files behind them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Mounts {
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub sub_paths: Vec<SubPathMount>,
    pub etc_hosts: Option<FileContent>,
    pub termination_log: Option<String>,
}

/// Volumes in spec order, then the hosts file, then the termination message file.
pub fn mounts(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &k8s::Container,
    names: &PodNames,
    env: &Environment,
    inputs: &ContainerInputs<'_>,
) -> Result<Mounts, RenderError> {
    let devices = devices(container, inputs)?;
    let mut result = Mounts { devices, ..Mounts::default() };
    let mut labelled = BTreeSet::new();
    let volume_mounts = container.volume_mounts.as_deref().unwrap_or_default();
    for (index, mount) in volume_mounts.iter().enumerate() {
        let renderer = VolumeMounter { ctx, pod, container, env, inputs };
        let (rendered, sub_path) = renderer.mount(index, mount, labelled.insert(mount.name.as_str()))?;
        result.mounts.push(rendered);
        result.sub_paths.extend(sub_path);
    }
    let ips = pod_ips(ctx, pod, inputs.sandbox_ips);
    let covered = volume_mounts.iter().any(|mount| mount.mount_path == ETC_HOSTS);
    if !covered && (pod.host_network() || !ips.is_empty()) {
        let path = format!("{}/etc-hosts", ctx.config.pod_dir(&pod.uid));
        result.mounts.push(own_file(ctx, ETC_HOSTS, &path));
        result.etc_hosts =
            Some(FileContent { path, text: hosts_file::hosts_file_text(ctx, pod, names, ips) });
    }
    if let Some(inside) = container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
        let name = termination_log_name(&pod.uid, &container.name, inputs.restart_count);
        let path = format!("{}/containers/{}/{name}", ctx.config.pod_dir(&pod.uid), container.name);
        result.mounts.push(own_file(ctx, inside, &path));
        result.termination_log = Some(path);
    }
    Ok(result)
}

/// A file that the agent made for this pod alone.
fn own_file(ctx: &RenderContext<'_>, container_path: &str, host_path: &str) -> Mount {
    Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_owned(),
        selinux_relabel: ctx.facts.selinux_enabled,
        ..Mount::default()
    }
}

/// Only claims can be devices.
fn devices(container: &k8s::Container, inputs: &ContainerInputs<'_>) -> Result<Vec<Device>, RenderError> {
    let place =
        |device: &k8s::VolumeDevice| inputs.volume_paths.and_then(|places| places.volumes.get(&device.name));
    let wanted = container.volume_devices.iter().flatten();
    let found = wanted.map(|device| match place(device) {
        Some(VolumePath::Device { path, read_only }) => Ok(Device {
            container_path: device.device_path.clone(),
            host_path: path.clone(),
            permissions: if *read_only { "mr" } else { "mrw" }.to_owned(),
        }),
        Some(VolumePath::Directory(_)) | None => Err(RenderError::DeviceVolumeMissing {
            volume: device.name.clone(),
            container: container.name.clone(),
        }),
    });
    found.collect()
}

struct VolumeMounter<'a> {
    ctx: &'a RenderContext<'a>,
    pod: &'a PodView,
    container: &'a k8s::Container,
    env: &'a Environment,
    inputs: &'a ContainerInputs<'a>,
}

impl VolumeMounter<'_> {
    /// `first`: no earlier mount of this container shows the volume, so it may be labelled now.
    fn mount(
        &self,
        index: usize,
        mount: &k8s::VolumeMount,
        first: bool,
    ) -> Result<(Mount, Option<SubPathMount>), RenderError> {
        let volume = self.volume(&mount.name)?;
        let sub_path = sub_path::sub_path_of_mount(mount, self.env)?;
        let propagation = flags::propagation(mount)?;
        let rendered = Mount {
            container_path: absolute(&mount.mount_path),
            readonly: mount.read_only.unwrap_or(false),
            propagation,
            recursive_read_only: flags::recursive_read_only(mount, self.inputs.recursive_read_only)?,
            ..Mount::default()
        };
        if volume.image.is_some() {
            return Ok((self.image_mount(mount, rendered, sub_path)?, None));
        }
        let source = match self.inputs.volume_paths.and_then(|places| places.volumes.get(&mount.name)) {
            Some(VolumePath::Directory(source)) => source.clone(),
            Some(VolumePath::Device { .. }) | None => host_path(self.ctx.config, self.pod, volume)?,
        };
        let rendered = Mount {
            host_path: source.path,
            readonly: rendered.readonly || source.read_only,
            selinux_relabel: self.ctx.facts.selinux_enabled && source.managed && first,
            ..rendered
        };
        let Some(sub_path) = sub_path else {
            return Ok((rendered, None));
        };
        let step = self.sub_path_step(index, mount, &rendered, sub_path);
        Ok((Mount { host_path: step.target.clone(), ..rendered }, Some(step)))
    }

    fn volume(&self, name: &str) -> Result<&k8s::Volume, RenderError> {
        let volumes = self.pod.spec().volumes.as_deref().unwrap_or_default();
        volumes.iter().find(|volume| volume.name == name).ok_or_else(|| RenderError::MountVolumeMissing {
            volume: name.to_owned(),
            container: self.container.name.clone(),
        })
    }

    /// The runtime mounts images itself, and never writable.
    fn image_mount(
        &self,
        mount: &k8s::VolumeMount,
        rendered: Mount,
        sub_path: Option<String>,
    ) -> Result<Mount, RenderError> {
        let image = self.inputs.image_volumes.and_then(|images| images.get(&mount.name));
        let image = image.ok_or_else(|| RenderError::ImageVolume { volume: mount.name.clone() })?;
        Ok(Mount {
            image: Some(image.clone()),
            image_sub_path: sub_path.unwrap_or_default(),
            readonly: true,
            ..rendered
        })
    }

    /// A sub-path could lead out of its volume while it is looked up, so the agent resolves it once and pins it.
    fn sub_path_step(
        &self,
        index: usize,
        mount: &k8s::VolumeMount,
        rendered: &Mount,
        sub_path: String,
    ) -> SubPathMount {
        let pod_dir = self.ctx.config.pod_dir(&self.pod.uid);
        let container = self.container.name.clone();
        SubPathMount {
            volume_path: rendered.host_path.clone(),
            sub_path,
            target: format!("{pod_dir}/volume-subpaths/{}/{container}/{index}", mount.name),
            mount_name: mount.name.clone(),
            container,
            create: true,
            read_only: rendered.readonly,
        }
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests;
