//! Which kernel namespaces a pod shares, and with whom.

use model::cri::{NamespaceMode, NamespaceOptions, UserNamespace};
use model::pod::PodView;

use super::{RenderContext, RenderError};

/// The namespaces of a pod's sandbox and containers.
pub fn options(ctx: &RenderContext<'_>, pod: &PodView) -> Result<NamespaceOptions, RenderError> {
    let spec = pod.spec();
    let node_or_pod = |host: bool| if host { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = if spec.host_pid.unwrap_or(false) {
        NamespaceMode::Node
    } else if spec.share_process_namespace.unwrap_or(false) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    Ok(NamespaceOptions {
        network: network(pod),
        pid,
        ipc: node_or_pod(spec.host_ipc.unwrap_or(false)),
        target_id: String::new(),
        userns_options: Some(user_namespace(ctx, pod)?),
    })
}

/// The network namespace that the pod's sandbox must have.
pub fn network(pod: &PodView) -> NamespaceMode {
    if pod.host_network() { NamespaceMode::Node } else { NamespaceMode::Pod }
}

fn user_namespace(ctx: &RenderContext<'_>, pod: &PodView) -> Result<UserNamespace, RenderError> {
    if pod.spec().host_users.unwrap_or(true) {
        return Ok(UserNamespace { mode: NamespaceMode::Node, ..UserNamespace::default() });
    }
    let ids = ctx.user_namespace.ok_or(RenderError::UserNamespaces)?;
    Ok(UserNamespace { mode: NamespaceMode::Pod, uids: vec![ids.clone()], gids: vec![ids.clone()] })
}

#[cfg(test)]
mod tests {
    use model::cri::IdMapping;
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn rendered(spec: Value, ids: Option<&IdMapping>) -> Result<NamespaceOptions, RenderError> {
        let (config, facts) = (sample::config(), sample::facts());
        let mut spec = spec;
        spec["containers"] = json!([]);
        let ctx = RenderContext { user_namespace: ids, ..RenderContext::new(&config, &facts) };
        options(&ctx, &sample::pod(spec))
    }

    #[test]
    fn shared_with_the_node_or_the_pod() {
        use NamespaceMode::{Container, Node, Pod};
        let check = |spec: Value, network, pid, ipc| {
            let options = rendered(spec.clone(), None).unwrap();
            assert_eq!((options.network, options.pid, options.ipc), (network, pid, ipc), "{spec}");
            assert_eq!(options.userns_options.unwrap().mode, Node, "{spec}");
        };
        check(json!({}), Pod, Container, Pod);
        check(json!({"hostNetwork": true}), Node, Container, Pod);
        check(json!({"hostPID": true}), Pod, Node, Pod);
        check(json!({"hostIPC": true, "hostUsers": true}), Pod, Container, Node);
        check(json!({"shareProcessNamespace": true}), Pod, Pod, Pod);
        check(json!({"shareProcessNamespace": true, "hostPID": true}), Pod, Node, Pod);
    }

    #[test]
    fn own_users_need_reserved_ids() {
        let ids = IdMapping { host_id: 65536, container_id: 0, length: 65536 };
        let options = rendered(json!({"hostUsers": false}), Some(&ids)).unwrap();
        let expect = UserNamespace { mode: NamespaceMode::Pod, uids: vec![ids.clone()], gids: vec![ids] };
        assert_eq!(options.userns_options, Some(expect));
        assert_eq!(
            rendered(json!({"hostUsers": false}), None).unwrap_err().to_string(),
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
    }
}
