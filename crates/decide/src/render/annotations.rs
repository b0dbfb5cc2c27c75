//! What a container carries with it for an agent that no longer has its pod: labels and annotations.

use std::collections::BTreeMap;

use model::k8s;
use model::pod::{
    ANNOTATION_CONTAINER_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_PORTS,
    ANNOTATION_PRE_STOP, ANNOTATION_RESTART_COUNT, ANNOTATION_TERMINATION_PATH,
    ANNOTATION_TERMINATION_POLICY, LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID,
    PodView,
};
use serde::Serialize;

use super::hash::{container_hash, html_safe};

pub(super) fn pod_labels(pod: &PodView) -> BTreeMap<String, String> {
    let mut labels = pod.pod.metadata.labels.clone().unwrap_or_default();
    labels.insert(LABEL_POD_NAME.into(), pod.name().into());
    labels.insert(LABEL_POD_NAMESPACE.into(), pod.namespace().into());
    labels.insert(LABEL_POD_UID.into(), pod.uid.to_string());
    labels
}

pub(super) fn container_labels(pod: &PodView, container: &k8s::Container) -> BTreeMap<String, String> {
    BTreeMap::from([
        (LABEL_CONTAINER_NAME.into(), container.name.clone()),
        (LABEL_POD_NAME.into(), pod.name().into()),
        (LABEL_POD_NAMESPACE.into(), pod.namespace().into()),
        (LABEL_POD_UID.into(), pod.uid.to_string()),
    ])
}

pub(super) fn container_annotations(
    pod: &PodView,
    container: &k8s::Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = BTreeMap::from([
        (ANNOTATION_CONTAINER_HASH.into(), format!("{:x}", container_hash(&container.name, image))),
        (ANNOTATION_RESTART_COUNT.into(), restart_count.to_string()),
        (ANNOTATION_TERMINATION_PATH.into(), text(&container.termination_message_path)),
        (ANNOTATION_TERMINATION_POLICY.into(), text(&container.termination_message_policy)),
    ]);
    let mut add = |name: &str, value: Option<String>| {
        annotations.extend(value.map(|value| (name.to_owned(), value)));
    };
    add(ANNOTATION_POD_GRACE, pod.spec().termination_grace_period_seconds.map(|s| s.to_string()));
    add(ANNOTATION_POD_DELETION_GRACE, pod.pod.metadata.deletion_grace_period_seconds.map(|s| s.to_string()));
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    add(ANNOTATION_PRE_STOP, pre_stop.and_then(|handler| json(&HandlerText::from(handler))));
    let ports = container.ports.as_deref().unwrap_or_default();
    let texts: Vec<PortText<'_>> = ports.iter().map(PortText::from).collect();
    add(ANNOTATION_PORTS, if texts.is_empty() { None } else { json(&texts) });
    annotations
}

fn json(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok().map(html_safe)
}

fn is_empty(text: &Option<&str>) -> bool {
    text.is_none_or(str::is_empty)
}

// The API's own serialisation sorts fields; these texts keep the order in which upstream writes them.

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortText<'a> {
    #[serde(skip_serializing_if = "is_empty")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    host_port: i32,
    container_port: i32,
    #[serde(skip_serializing_if = "is_empty")]
    protocol: Option<&'a str>,
    #[serde(rename = "hostIP", skip_serializing_if = "is_empty")]
    host_ip: Option<&'a str>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl<'a> From<&'a k8s::ContainerPort> for PortText<'a> {
    fn from(port: &'a k8s::ContainerPort) -> Self {
        Self {
            name: port.name.as_deref(),
            host_port: port.host_port.unwrap_or(0),
            container_port: port.container_port,
            protocol: port.protocol.as_deref(),
            host_ip: port.host_ip.as_deref(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HandlerText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<&'a k8s::ExecAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpGetText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpSocketText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<&'a k8s::SleepAction>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpGetText<'a> {
    #[serde(skip_serializing_if = "is_empty")]
    path: Option<&'a str>,
    port: &'a k8s::IntOrString,
    #[serde(skip_serializing_if = "is_empty")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "is_empty")]
    scheme: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    http_headers: &'a [k8s::HTTPHeader],
}

#[derive(Serialize)]
struct TcpSocketText<'a> {
    port: &'a k8s::IntOrString,
    #[serde(skip_serializing_if = "is_empty")]
    host: Option<&'a str>,
}

impl<'a> From<&'a k8s::LifecycleHandler> for HandlerText<'a> {
    fn from(handler: &'a k8s::LifecycleHandler) -> Self {
        let http_get = handler.http_get.as_ref().map(|get| HttpGetText {
            path: get.path.as_deref(),
            port: &get.port,
            host: get.host.as_deref(),
            scheme: get.scheme.as_deref(),
            http_headers: get.http_headers.as_deref().unwrap_or_default(),
        });
        let tcp_socket = handler
            .tcp_socket
            .as_ref()
            .map(|tcp| TcpSocketText { port: &tcp.port, host: tcp.host.as_deref() });
        Self { exec: handler.exec.as_ref(), http_get, tcp_socket, sleep: handler.sleep.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn annotation(container: Value, name: &str) -> Option<String> {
        let mut container = container;
        container["name"] = json!("c");
        let pod = sample::pod(json!({"containers": [container]}));
        container_annotations(&pod, &pod.containers()[0], 0).remove(name)
    }

    #[test]
    fn ports_as_text() {
        let check = |ports: Value, expect: Option<&str>| {
            assert_eq!(annotation(json!({ "ports": ports }), ANNOTATION_PORTS).as_deref(), expect);
        };
        check(json!([]), None);
        check(
            json!([
                {"containerPort": 80, "hostPort": 8080, "name": "web", "protocol": "TCP", "hostIP": "::1"},
                {"containerPort": 81},
            ]),
            Some(
                r#"[{"name":"web","hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"::1"},{"containerPort":81}]"#,
            ),
        );
    }

    #[test]
    fn pre_stop_handlers_as_text() {
        let check = |handler: Value, expect: &str| {
            let text = annotation(json!({"lifecycle": {"preStop": handler}}), ANNOTATION_PRE_STOP);
            assert_eq!(text.as_deref(), Some(expect));
        };
        check(
            json!({"exec": {"command": ["sh", "-c", "a && b"]}}),
            r#"{"exec":{"command":["sh","-c","a \u0026\u0026 b"]}}"#,
        );
        check(
            json!({"httpGet": {"host": "h", "port": "web", "path": "/x", "scheme": "HTTP", "httpHeaders": [{"name": "n", "value": "v"}]}}),
            r#"{"httpGet":{"path":"/x","port":"web","host":"h","scheme":"HTTP","httpHeaders":[{"name":"n","value":"v"}]}}"#,
        );
        check(json!({"tcpSocket": {"port": 80, "host": "h"}}), r#"{"tcpSocket":{"port":80,"host":"h"}}"#);
        check(json!({"sleep": {"seconds": 3}}), r#"{"sleep":{"seconds":3}}"#);
        assert_eq!(
            annotation(json!({"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}), ANNOTATION_PRE_STOP),
            None
        );
    }

    #[test]
    fn graces() {
        let mut pod =
            sample::api_pod(json!({"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 7}));
        pod.metadata.deletion_grace_period_seconds = Some(3);
        let pod = sample::view(pod);
        let annotations = container_annotations(&pod, &pod.containers()[0], 12);
        assert_eq!(annotations[ANNOTATION_POD_GRACE], "7");
        assert_eq!(annotations[ANNOTATION_POD_DELETION_GRACE], "3");
        assert_eq!(annotations[ANNOTATION_RESTART_COUNT], "12");
        assert_eq!(annotation(json!({}), ANNOTATION_POD_DELETION_GRACE), None);
    }

    #[test]
    fn a_pods_own_labels_do_not_hide_its_identity() {
        let mut pod = sample::api_pod(json!({"containers": []}));
        let own = [("app", "x"), (LABEL_POD_NAME, "forged")];
        pod.metadata.labels = Some(own.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        let labels = pod_labels(&sample::view(pod));
        assert_eq!((labels["app"].as_str(), labels[LABEL_POD_NAME].as_str()), ("x", "p"));
    }
}
