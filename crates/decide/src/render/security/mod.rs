//! What a container may do, and as whom.

mod profiles;

use model::cri::{
    Capabilities, ContainerSecurityContext, Int64Value, NamespaceMode, ProfileType, SandboxSecurityContext,
    SecurityProfile, SelinuxOptions, SupplementalGroupsPolicy,
};
use model::k8s;
use model::pod::PodView;

use super::{ContainerInputs, RenderContext, RenderError, ResolvedImage, namespaces};

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The sandbox's own security context. Its process does nothing, so it always runs confined.
pub(crate) fn sandbox_context(
    ctx: &RenderContext<'_>,
    pod: &PodView,
) -> Result<SandboxSecurityContext, RenderError> {
    let context = pod.spec().security_context.clone().unwrap_or_default();
    let groups = context.fs_group.into_iter().chain(ctx.volume_groups.iter().copied());
    Ok(SandboxSecurityContext {
        namespace_options: Some(namespaces::options(ctx, pod)?),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| Int64Value { value }),
        readonly_rootfs: false,
        supplemental_groups: groups.chain(context.supplemental_groups.iter().flatten().copied()).collect(),
        supplemental_groups_policy: groups_policy(&context)?,
        privileged: has_privileged_container(pod),
        seccomp: Some(SecurityProfile {
            profile_type: ProfileType::RuntimeDefault,
            localhost_ref: String::new(),
        }),
        apparmor: None,
    })
}

/// A container's security context: the pod's settings, overridden by its own.
pub fn container_context(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &k8s::Container,
    inputs: &ContainerInputs<'_>,
) -> Result<ContainerSecurityContext, RenderError> {
    let user = image_user(inputs.image);
    require_non_root(pod, container, &user)?;
    let pod_context = pod.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let mut namespace_options = namespaces::options(ctx, pod)?;
    if let Some(target) = inputs.target.filter(|_| namespace_options.pid == NamespaceMode::Container) {
        namespace_options.pid = NamespaceMode::Target;
        namespace_options.target_id = target.to_string();
    }
    let run_as_user = own.run_as_user.or(pod_context.run_as_user);
    let (image_uid, image_username) = match (run_as_user, user) {
        (None, ImageUser::Uid(uid)) => (Some(uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name),
        (Some(_), _) => (None, String::new()),
    };
    let groups =
        pod_context.fs_group.into_iter().chain(pod_context.supplemental_groups.iter().flatten().copied());
    let (apparmor, apparmor_profile) = profiles::apparmor(pod, container)?;
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    Ok(ContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(capabilities),
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(namespace_options),
        selinux_options: own.se_linux_options.as_ref().or(pod_context.se_linux_options.as_ref()).map(selinux),
        run_as_user: run_as_user.or(image_uid).map(|value| Int64Value { value }),
        run_as_group: own.run_as_group.or(pod_context.run_as_group).map(|value| Int64Value { value }),
        run_as_username: image_username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups.chain(ctx.volume_groups.iter().copied()).collect(),
        supplemental_groups_policy: groups_policy(&pod_context)?,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if unmasked { Vec::new() } else { masked_paths(ctx) },
        readonly_paths: if unmasked { Vec::new() } else { READONLY_PATHS.map(str::to_owned).into() },
        seccomp: Some(profiles::seccomp(ctx, &pod_context, &own)?),
        apparmor,
        apparmor_profile,
    })
}

/// Who the image asks to be run as.
enum ImageUser {
    Uid(i64),
    Name(String),
}

fn image_user(image: &ResolvedImage) -> ImageUser {
    match image.user_uid {
        Some(uid) => ImageUser::Uid(uid),
        None if image.username.is_empty() => ImageUser::Uid(0),
        None => ImageUser::Name(image.username.clone()),
    }
}

fn require_non_root(pod: &PodView, container: &k8s::Container, user: &ImageUser) -> Result<(), RenderError> {
    let pod_context = pod.spec().security_context.as_ref();
    let own = container.security_context.as_ref();
    let non_root = own.and_then(|c| c.run_as_non_root).or(pod_context.and_then(|c| c.run_as_non_root));
    if non_root != Some(true) {
        return Ok(());
    }
    let (pod_text, container) = (pod.display_name(), container.name.clone());
    let run_as_user = own.and_then(|c| c.run_as_user).or(pod_context.and_then(|c| c.run_as_user));
    match (run_as_user, user) {
        (Some(0), _) => Err(RenderError::RunAsRoot { pod: pod_text, container }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Name(user)) => {
            Err(RenderError::ImageUserNotNumeric { user: user.clone(), pod: pod_text, container })
        }
        (None, ImageUser::Uid(0)) => Err(RenderError::ImageRunsAsRoot { pod: pod_text, container }),
        (None, ImageUser::Uid(_)) => Ok(()),
    }
}

fn masked_paths(ctx: &RenderContext<'_>) -> Vec<String> {
    let thermal = ctx.facts.thermal_throttle_paths.iter().cloned();
    MASKED_PATHS.iter().map(|path| path.to_string()).chain(thermal).collect()
}

fn has_privileged_container(pod: &PodView) -> bool {
    let ephemeral = pod.spec().ephemeral_containers.iter().flatten().map(|c| &c.security_context);
    let others = pod.containers().iter().chain(pod.init_containers()).map(|c| &c.security_context);
    others.chain(ephemeral).any(|context| context.as_ref().and_then(|c| c.privileged) == Some(true))
}

fn groups_policy(context: &k8s::PodSecurityContext) -> Result<SupplementalGroupsPolicy, RenderError> {
    match context.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(SupplementalGroupsPolicy::Strict),
        Some(other) => Err(RenderError::SupplementalGroupsPolicy { policy: other.to_owned() }),
    }
}

fn capabilities(capabilities: &k8s::Capabilities) -> Capabilities {
    Capabilities {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    }
}

fn selinux(options: &k8s::SELinuxOptions) -> SelinuxOptions {
    SelinuxOptions {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
