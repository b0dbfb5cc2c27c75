//! Pods and nodes for tests.

use std::sync::Arc;

use model::k8s;
use model::node::{HostFacts, NodeConfig};
use model::pod::{PodView, Source};
use serde_json::{Value, json};

pub(crate) fn api_pod(spec: Value) -> k8s::Pod {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u-1"}, "spec": spec});
    serde_json::from_value(pod).expect("a pod")
}

pub(crate) fn view(pod: k8s::Pod) -> PodView {
    PodView::new(Arc::new(pod), Source::Api)
}

/// A pod of the API with this spec, named `p` in `ns`, with the UID `u-1`.
pub(crate) fn pod(spec: Value) -> PodView {
    view(api_pod(spec))
}

pub(crate) fn static_pod(spec: Value) -> PodView {
    PodView::new(Arc::new(api_pod(spec)), Source::File)
}

pub(crate) fn config() -> NodeConfig {
    NodeConfig {
        root_dir: "/r".into(),
        pod_logs_dir: "/logs".into(),
        cluster_domain: "cluster.local".into(),
        cluster_dns: vec!["10.0.0.10".into()],
        ..NodeConfig::default()
    }
}

pub(crate) fn facts() -> HostFacts {
    HostFacts {
        memory_bytes: 8 << 30,
        cpus: 4,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        node_ips: vec!["192.0.2.1".into()],
        kernel_release: "6.1.0-13-amd64".into(),
        etc_hosts: "127.0.0.1 localhost\n".into(),
        ..HostFacts::default()
    }
}
