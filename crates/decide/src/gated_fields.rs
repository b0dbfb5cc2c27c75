//! Fields of a pod that belong to a feature gate. With the gate off they are as if nobody had set them, which is what an
//! API server makes of them too.

use std::sync::Arc;

use model::k8s::{Container, Pod};
use model::node::NodeConfig;
use model::pod::PodView;

/// A sidecar is an init container with this policy. It is older than the gate.
const SIDECAR: &str = "Always";

/// The pod as far as the gates of this node let it say something.
pub(crate) fn without_gated_fields(view: PodView, config: &NodeConfig) -> PodView {
    let is_off = |gate: &str| config.features.get(gate) == Some(&false);
    let (rules, hostname) = (is_off("ContainerRestartRules"), is_off("HostnameOverride"));
    if !rules && !hostname {
        return view;
    }
    let mut pod = Pod::clone(&view.pod);
    let Some(spec) = &mut pod.spec else { return view };
    if hostname {
        spec.hostname_override = None;
    }
    if rules {
        spec.containers.iter_mut().for_each(|container| drop_restart_rules(container, false));
        let init = spec.init_containers.iter_mut().flatten();
        init.for_each(|container| drop_restart_rules(container, true));
    }
    PodView::new(Arc::new(pod), view.source)
}

fn drop_restart_rules(container: &mut Container, may_be_sidecar: bool) {
    container.restart_policy_rules = None;
    let is_sidecar = may_be_sidecar && container.restart_policy.as_deref() == Some(SIDECAR);
    container.restart_policy = container.restart_policy.take().filter(|_| is_sidecar);
}

#[cfg(test)]
mod tests {
    use model::pod::Source;
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_go_with_their_gates() {
        let pod = json!({"spec": {
            "hostnameOverride": "h",
            "containers": [{"name": "a", "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}],
            "initContainers": [
                {"name": "i", "restartPolicy": "OnFailure", "restartPolicyRules": [{"action": "Restart"}]},
                {"name": "s", "restartPolicy": "Always"},
            ],
        }});
        let seen = |gates: &[(&str, bool)]| {
            let view =
                PodView::new(Arc::new(model::codec::pod_from_value(pod.clone()).unwrap()), Source::Api);
            let features = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
            let config = NodeConfig { features, ..NodeConfig::default() };
            model::codec::pod_to_value(&without_gated_fields(view, &config).pod)["spec"].clone()
        };
        let whole = seen(&[]);
        assert_eq!(whole["hostnameOverride"], "h");
        assert_eq!(seen(&[("ContainerRestartRules", true), ("HostnameOverride", true)]), whole);
        let mut expect = whole.clone();
        expect["containers"] = json!([{"name": "a"}]);
        expect["initContainers"] = json!([{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]);
        assert_eq!(seen(&[("ContainerRestartRules", false)]), expect);
        let mut expect = whole;
        expect.as_object_mut().unwrap().remove("hostnameOverride");
        assert_eq!(seen(&[("HostnameOverride", false)]), expect);
    }
}
