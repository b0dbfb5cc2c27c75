//! The node of the recorded run, and what it knew of the API.

use std::collections::BTreeMap;

use decide::render::{EnvObjects, ObjectError, ServicePort, ServiceView};
use model::k8s;
use model::node::{CgroupVersion, HostFacts, NodeConfig};
use serde_json::{Value, json};

pub fn config() -> NodeConfig {
    NodeConfig {
        node_name: "vm".into(),
        root_dir: "<dir>/root".into(),
        pod_logs_dir: "<dir>/logs".into(),
        cluster_dns: vec!["10.0.0.10".into()],
        cluster_domain: "cluster.local".into(),
        ..NodeConfig::default()
    }
}

pub fn facts() -> HostFacts {
    HostFacts {
        memory_bytes: 24_682_416 * 1024,
        cpus: 2,
        cgroup_version: CgroupVersion::V1,
        swap_controller: true,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        resolv_conf: "nameserver 10.255.255.53\n".into(),
        ..HostFacts::default()
    }
}

pub fn services() -> Vec<ServiceView> {
    vec![ServiceView {
        name: "kubernetes".into(),
        namespace: "default".into(),
        cluster_ip: "10.0.0.1".into(),
        ports: vec![ServicePort { name: "https".into(), protocol: "TCP".into(), port: 443 }],
    }]
}

pub fn objects() -> EnvObjects {
    let config_map = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
    let secret = BTreeMap::from([("k".to_owned(), b"v".to_vec())]);
    EnvObjects {
        config_maps: BTreeMap::from([
            ("cm".to_owned(), Ok(config_map)),
            ("none".to_owned(), Err(ObjectError::NotFound)),
        ]),
        secrets: BTreeMap::from([("sec".to_owned(), Ok(secret))]),
    }
}

/// The spec after the API server's defaults, as far as these pods' rendering depends on them.
pub fn defaulted(spec: &Value) -> k8s::PodSpec {
    let mut spec = spec.clone();
    let set = |object: &mut Value, key: &str, value: Value| {
        if object[key].is_null() {
            object[key] = value;
        }
    };
    set(&mut spec, "dnsPolicy", json!("ClusterFirst"));
    set(&mut spec, "enableServiceLinks", json!(true));
    set(&mut spec, "securityContext", json!({}));
    set(&mut spec, "terminationGracePeriodSeconds", json!(30));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            set(container, "terminationMessagePath", json!("/dev/termination-log"));
            set(container, "terminationMessagePolicy", json!("File"));
            for port in container["ports"].as_array_mut().into_iter().flatten() {
                set(port, "protocol", json!("TCP"));
            }
            for (name, limit) in container["resources"]["limits"].as_object().cloned().unwrap_or_default() {
                set(&mut container["resources"]["requests"], &name, limit);
            }
        }
        if spec[list].is_null() {
            spec.as_object_mut().expect("a spec").remove(list);
        }
    }
    serde_json::from_value(spec).expect("a pod spec")
}
