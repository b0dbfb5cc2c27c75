//! What we send: the model's values as CRI messages, field by field. Every field of the model's is here; the
//! test that fills them all would miss one that is not.

use model::cri as m;

use crate::pb;

/// Turns each element of a list.
fn all<A, B>(list: &[A], turn: impl Fn(&A) -> B) -> Vec<B> {
    list.iter().map(turn).collect()
}

pub(crate) fn sandbox_config(c: &m::SandboxConfig) -> pb::PodSandboxConfig {
    pb::PodSandboxConfig {
        metadata: Some(pb::PodSandboxMetadata {
            name: c.metadata.name.clone(),
            uid: c.metadata.uid.clone(),
            namespace: c.metadata.namespace.clone(),
            attempt: c.metadata.attempt,
        }),
        hostname: c.hostname.clone(),
        log_directory: c.log_directory.clone(),
        dns_config: c.dns_config.as_ref().map(|d| pb::DnsConfig {
            servers: d.servers.clone(),
            searches: d.searches.clone(),
            options: d.options.clone(),
        }),
        port_mappings: all(&c.port_mappings, |p| pb::PortMapping {
            protocol: p.protocol.number(),
            container_port: p.container_port,
            host_port: p.host_port,
            host_ip: p.host_ip.clone(),
        }),
        labels: c.labels.clone(),
        annotations: c.annotations.clone(),
        linux: c.linux.as_ref().map(|l| pb::LinuxPodSandboxConfig {
            cgroup_parent: l.cgroup_parent.clone(),
            security_context: l.security_context.as_ref().map(sandbox_security),
            sysctls: l.sysctls.clone(),
            overhead: l.overhead.as_ref().map(resources),
            resources: l.resources.as_ref().map(resources),
        }),
    }
}

fn sandbox_security(s: &m::SandboxSecurityContext) -> pb::LinuxSandboxSecurityContext {
    pb::LinuxSandboxSecurityContext {
        namespace_options: s.namespace_options.as_ref().map(namespace_options),
        selinux_options: s.selinux_options.as_ref().map(selinux),
        run_as_user: s.run_as_user.as_ref().map(int64),
        readonly_rootfs: s.readonly_rootfs,
        supplemental_groups: s.supplemental_groups.clone(),
        privileged: s.privileged,
        run_as_group: s.run_as_group.as_ref().map(int64),
        seccomp: s.seccomp.as_ref().map(profile),
        apparmor: s.apparmor.as_ref().map(profile),
        supplemental_groups_policy: s.supplemental_groups_policy.number(),
    }
}

pub(crate) fn container_config(c: &m::ContainerConfig) -> pb::ContainerConfig {
    pb::ContainerConfig {
        metadata: Some(pb::ContainerMetadata { name: c.metadata.name.clone(), attempt: c.metadata.attempt }),
        image: c.image.as_ref().map(image_spec),
        command: c.command.clone(),
        args: c.args.clone(),
        working_dir: c.working_dir.clone(),
        envs: all(&c.envs, |e| pb::KeyValue { key: e.key.clone(), value: e.value.clone().into_bytes() }),
        mounts: all(&c.mounts, mount),
        devices: all(&c.devices, |d| pb::Device {
            container_path: d.container_path.clone(),
            host_path: d.host_path.clone(),
            permissions: d.permissions.clone(),
        }),
        labels: c.labels.clone(),
        annotations: c.annotations.clone(),
        log_path: c.log_path.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        linux: c.linux.as_ref().map(|l| pb::LinuxContainerConfig {
            resources: l.resources.as_ref().map(resources),
            security_context: l.security_context.as_ref().map(container_security),
        }),
        cdi_devices: all(&c.cdi_devices, |name| pb::CdiDevice { name: name.clone() }),
        stop_signal: c.stop_signal,
    }
}

fn container_security(s: &m::ContainerSecurityContext) -> pb::LinuxContainerSecurityContext {
    pb::LinuxContainerSecurityContext {
        capabilities: s.capabilities.as_ref().map(|c| pb::Capability {
            add_capabilities: c.add_capabilities.clone(),
            drop_capabilities: c.drop_capabilities.clone(),
            add_ambient_capabilities: c.add_ambient_capabilities.clone(),
        }),
        privileged: s.privileged,
        namespace_options: s.namespace_options.as_ref().map(namespace_options),
        selinux_options: s.selinux_options.as_ref().map(selinux),
        run_as_user: s.run_as_user.as_ref().map(int64),
        run_as_username: s.run_as_username.clone(),
        readonly_rootfs: s.readonly_rootfs,
        supplemental_groups: s.supplemental_groups.clone(),
        apparmor_profile: s.apparmor_profile.clone(),
        no_new_privs: s.no_new_privs,
        run_as_group: s.run_as_group.as_ref().map(int64),
        masked_paths: s.masked_paths.clone(),
        readonly_paths: s.readonly_paths.clone(),
        seccomp: s.seccomp.as_ref().map(profile),
        apparmor: s.apparmor.as_ref().map(profile),
        supplemental_groups_policy: s.supplemental_groups_policy.number(),
    }
}

pub(crate) fn resources(r: &m::LinuxResources) -> pb::LinuxContainerResources {
    pb::LinuxContainerResources {
        cpu_period: r.cpu_period,
        cpu_quota: r.cpu_quota,
        cpu_shares: r.cpu_shares,
        memory_limit_in_bytes: r.memory_limit_in_bytes,
        oom_score_adj: r.oom_score_adj,
        cpuset_cpus: r.cpuset_cpus.clone(),
        cpuset_mems: r.cpuset_mems.clone(),
        hugepage_limits: all(&r.hugepage_limits, |h| pb::HugepageLimit {
            page_size: h.page_size.clone(),
            limit: h.limit,
        }),
        unified: r.unified.clone(),
        memory_swap_limit_in_bytes: r.memory_swap_limit_in_bytes,
    }
}

pub(crate) fn image_spec(i: &m::ImageSpec) -> pb::ImageSpec {
    pb::ImageSpec {
        image: i.image.clone(),
        annotations: i.annotations.clone(),
        user_specified_image: i.user_specified_image.clone(),
        runtime_handler: i.runtime_handler.clone(),
    }
}

pub(crate) fn auth(a: &m::RegistryAuth) -> pb::AuthConfig {
    pb::AuthConfig {
        username: a.username.clone(),
        password: a.password.clone(),
        auth: a.auth.clone(),
        server_address: a.server_address.clone(),
        identity_token: a.identity_token.clone(),
        registry_token: a.registry_token.clone(),
    }
}

fn mount(x: &m::Mount) -> pb::Mount {
    pb::Mount {
        container_path: x.container_path.clone(),
        host_path: x.host_path.clone(),
        readonly: x.readonly,
        selinux_relabel: x.selinux_relabel,
        propagation: x.propagation.number(),
        uid_mappings: all(&x.uid_mappings, id_mapping),
        gid_mappings: all(&x.gid_mappings, id_mapping),
        recursive_read_only: x.recursive_read_only,
        image: x.image.as_ref().map(image_spec),
        image_sub_path: x.image_sub_path.clone(),
    }
}

fn namespace_options(n: &m::NamespaceOptions) -> pb::NamespaceOption {
    pb::NamespaceOption {
        network: n.network.number(),
        pid: n.pid.number(),
        ipc: n.ipc.number(),
        target_id: n.target_id.clone(),
        userns_options: n.userns_options.as_ref().map(|u| pb::UserNamespace {
            mode: u.mode.number(),
            uids: all(&u.uids, id_mapping),
            gids: all(&u.gids, id_mapping),
        }),
    }
}

fn id_mapping(i: &m::IdMapping) -> pb::IdMapping {
    pb::IdMapping { host_id: i.host_id, container_id: i.container_id, length: i.length }
}

fn selinux(s: &m::SelinuxOptions) -> pb::SeLinuxOption {
    pb::SeLinuxOption {
        user: s.user.clone(),
        role: s.role.clone(),
        r#type: s.r#type.clone(),
        level: s.level.clone(),
    }
}

fn profile(p: &m::SecurityProfile) -> pb::SecurityProfile {
    pb::SecurityProfile { profile_type: p.profile_type.number(), localhost_ref: p.localhost_ref.clone() }
}

fn int64(v: &m::Int64Value) -> pb::Int64Value {
    pb::Int64Value { value: v.value }
}
