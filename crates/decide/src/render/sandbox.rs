//! A pod's sandbox.

use std::collections::BTreeMap;

use model::cri::{LinuxSandboxConfig, SandboxConfig, SandboxMetadata};
use model::pod::PodView;

use model::sysctl::normalized;

use super::{RenderContext, RenderError, Rendered, annotations, dns, hostname, linux, ports, security};
use crate::cgroups::cgroup_parent;

/// The configuration of the pod's sandbox for its `attempt`th try.
pub fn sandbox_config(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    attempt: u32,
) -> Result<Rendered<SandboxConfig>, RenderError> {
    let dns = dns::pod_dns(ctx, pod)?;
    let hostname = if pod.host_network() {
        String::new()
    } else {
        hostname::kernel_hostname(pod, &hostname::pod_names(ctx, pod)?)?
    };
    let value = SandboxConfig {
        metadata: SandboxMetadata {
            name: pod.name().into(),
            uid: pod.uid.to_string(),
            namespace: pod.namespace().into(),
            attempt,
        },
        hostname,
        log_directory: ctx.config.pod_log_dir(&pod.full_name, &pod.uid),
        dns_config: Some(dns.value),
        port_mappings: ports::mappings(pod),
        labels: annotations::pod_labels(pod),
        annotations: pod.pod.metadata.annotations.clone().unwrap_or_default(),
        linux: Some(LinuxSandboxConfig {
            cgroup_parent: cgroup_parent(ctx.config, pod),
            security_context: Some(security::sandbox_context(ctx, pod)?),
            sysctls: sysctl_values(pod),
            overhead: Some(linux::overhead(ctx, pod)),
            resources: Some(linux::sandbox_resources(ctx, pod)),
        }),
    };
    Ok(Rendered { value, warnings: dns.warnings, node_warnings: dns.node_warnings })
}

fn sysctl_values(pod: &PodView) -> BTreeMap<String, String> {
    let context = pod.spec().security_context.as_ref();
    let wanted = context.and_then(|context| context.sysctls.as_deref()).unwrap_or_default();
    wanted.iter().map(|sysctl| (normalized(&sysctl.name), sysctl.value.clone())).collect()
}
