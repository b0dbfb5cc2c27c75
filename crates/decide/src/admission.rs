//! Whether a pod may run here at all. The first refusal wins.
//!
//! Present: operating system, pod count, sysctls, AppArmor. Resource predicates, eviction, devices and node shutdown
//! join with their capabilities (see `docs/gaps.md`).

use model::node::{HostFacts, NodeConfig};
use model::pod::PodView;

/// A refusal, as it is shown in the pod's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

impl Refusal {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}

/// `others`: pods that already count on this node.
pub fn admit(pod: &PodView, others: usize, config: &NodeConfig, facts: &HostFacts) -> Result<(), Refusal> {
    crate::render::sysctls::admission(pod, &config.allowed_unsafe_sysctls, &facts.kernel_release)
        .map_err(|(reason, message)| Refusal::new(reason, message))?;
    operating_system(pod)?;
    pod_count(others, config)?;
    app_armor(pod, facts)
}

fn operating_system(pod: &PodView) -> Result<(), Refusal> {
    let label = pod.pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Err(Refusal::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if pod.spec().os.as_ref().is_some_and(|os| os.name != "linux") {
        return Err(Refusal::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

fn pod_count(others: usize, config: &NodeConfig) -> Result<(), Refusal> {
    let capacity = config.max_pods as usize;
    if others + 1 > capacity {
        return Err(Refusal::new(
            "OutOfpods",
            format!(
                "Node didn't have enough resource: pods, requested: 1, used: {others}, capacity: {capacity}"
            ),
        ));
    }
    Ok(())
}

fn app_armor(pod: &PodView, facts: &HostFacts) -> Result<(), Refusal> {
    if !facts.apparmor_enabled && wants_app_armor(pod) {
        return Err(Refusal::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"));
    }
    Ok(())
}

fn wants_app_armor(pod: &PodView) -> bool {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let containers = pod.containers().iter().chain(pod.init_containers());
    let of_containers =
        containers.filter_map(|c| c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()));
    let annotated = pod
        .pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, value)| key.starts_with(ANNOTATION) && value != "unconfined");
    annotated || of_pod.into_iter().chain(of_containers).any(|p| p.type_ != "Unconfined")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::k8s;
    use model::pod::Source;
    use std::sync::Arc;

    fn check(pod: serde_json::Value, others: usize, expect: Result<(), &str>) {
        let pod: k8s::Pod = serde_json::from_value(pod).expect("a pod");
        let view = PodView::new(Arc::new(pod), Source::File);
        let config = NodeConfig { max_pods: 2, ..Default::default() };
        let got = admit(&view, others, &config, &HostFacts::default()).map_err(|r| r.reason);
        assert_eq!(got, expect.map_err(str::to_owned), "{view:?}");
    }

    #[test]
    fn table() {
        use serde_json::json;
        let plain = json!({"spec": {"containers": [{"name": "c"}]}});
        check(plain.clone(), 0, Ok(()));
        check(plain.clone(), 1, Ok(()));
        check(plain, 2, Err("OutOfpods"));
        check(json!({"spec": {"os": {"name": "windows"}, "containers": []}}), 0, Err("PodOSNotSupported"));
        check(
            json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}, "spec": {"containers": []}}),
            0,
            Err("PodOSSelectorNodeLabelDoesNotMatch"),
        );
        check(
            json!({"spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}, "containers": []}}),
            0,
            Err("AppArmor"),
        );
        check(
            json!({"spec": {"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]}}),
            0,
            Ok(()),
        );
        check(
            json!({"spec": {"securityContext": {"sysctls": [{"name": "kernel.panic", "value": "1"}]}, "containers": []}}),
            0,
            Err("SysctlForbidden"),
        );
    }
}
