//! Seccomp and AppArmor profiles.

use model::cri::{ProfileType, SecurityProfile};
use model::k8s;
use model::pod::PodView;

use crate::render::{RenderContext, RenderError};

const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

fn profile(profile_type: ProfileType, localhost_ref: &str) -> SecurityProfile {
    SecurityProfile { profile_type, localhost_ref: localhost_ref.to_owned() }
}

/// The container's profile, else the pod's, else the node's default. Those of the host are below the root directory.
pub(super) fn seccomp(
    ctx: &RenderContext<'_>,
    pod: &k8s::PodSecurityContext,
    container: &k8s::SecurityContext,
) -> Result<SecurityProfile, RenderError> {
    let wanted = container.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
    let Some(wanted) = wanted else {
        let default =
            if ctx.config.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
        return Ok(profile(default, ""));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Localhost" => {
            let name = wanted.localhost_profile.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or(RenderError::SeccompProfileUnset)?;
            let path = format!("{}/seccomp/{name}", ctx.config.root_dir);
            Ok(profile(ProfileType::Localhost, &path))
        }
        _ => Ok(profile(ProfileType::Unconfined, "")),
    }
}

/// The profile and its older spelling, which runtimes still read. None when nothing was asked for.
pub(super) fn apparmor(
    pod: &PodView,
    container: &k8s::Container,
) -> Result<(Option<SecurityProfile>, String), RenderError> {
    let Some(wanted) = apparmor_wanted(pod, container) else {
        return Ok((None, String::new()));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => {
            Ok((Some(profile(ProfileType::RuntimeDefault, "")), "runtime/default".to_owned()))
        }
        "Unconfined" => Ok((Some(profile(ProfileType::Unconfined, "")), "unconfined".to_owned())),
        "Localhost" => {
            let name = wanted.localhost_profile.ok_or(RenderError::AppArmorProfileUnset)?;
            Ok((Some(profile(ProfileType::Localhost, &name)), format!("localhost/{name}")))
        }
        _ => Err(RenderError::AppArmorType { kind: wanted.type_ }),
    }
}

/// A static pod may still use the annotation that the field replaced.
fn apparmor_wanted(pod: &PodView, container: &k8s::Container) -> Option<k8s::AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    let of_pod =
        || pod.spec().security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    own.or_else(|| annotated(pod, &container.name)).or_else(of_pod)
}

fn annotated(pod: &PodView, container: &str) -> Option<k8s::AppArmorProfile> {
    let annotations = pod.pod.metadata.annotations.as_ref()?;
    let text = annotations.get(&format!("{APPARMOR_ANNOTATION}{container}"))?;
    let of_type = |kind: &str, name: Option<&str>| {
        Some(k8s::AppArmorProfile { type_: kind.to_owned(), localhost_profile: name.map(str::to_owned) })
    };
    match text.as_str() {
        "runtime/default" => of_type("RuntimeDefault", None),
        "unconfined" => of_type("Unconfined", None),
        other => other.strip_prefix("localhost/").and_then(|name| of_type("Localhost", Some(name))),
    }
}
