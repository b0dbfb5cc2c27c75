use serde_json::{Value, json};

use super::*;
use crate::render::sample;

fn sample_pod() -> PodView {
    let mut pod = sample::api_pod(json!({
        "nodeName": "n1",
        "serviceAccountName": "sa",
        "containers": [
            {"name": "c", "resources": {
                "limits": {"cpu": "1500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "250m", "memory": "1000"},
            }},
            {"name": "bare"},
        ],
        "initContainers": [{"name": "i"}],
    }));
    pod.metadata.labels = Some(map(&[("app", "x"), ("a/b", "1")]));
    pod.metadata.annotations = Some(map(&[("note", "two\nlines \"quoted\" \\ \u{1}é")]));
    sample::view(pod)
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn field_value(path: &str, version: Option<&str>) -> Result<String, String> {
    let (config, facts) = (sample::config(), sample::facts());
    let ips = ["10.1.0.5".to_owned(), "fd00::5".to_owned()];
    let selector =
        k8s::ObjectFieldSelector { api_version: version.map(str::to_owned), field_path: path.to_owned() };
    field(&RenderContext::new(&config, &facts), &sample_pod(), &ips, &selector).map_err(|e| e.to_string())
}

#[test]
fn fields() {
    let check =
        |path: &str, expect: &str| assert_eq!(field_value(path, Some("v1")), Ok(expect.into()), "{path}");
    check("metadata.name", "p");
    check("metadata.namespace", "ns");
    check("metadata.uid", "u-1");
    check("metadata.labels", "a/b=\"1\"\napp=\"x\"");
    check("metadata.annotations", r#"note="two\nlines \"quoted\" \\ \x01é""#);
    check("metadata.labels['app']", "x");
    check("metadata.labels['none']", "");
    check("metadata.annotations['note']", "two\nlines \"quoted\" \\ \u{1}é");
    check("spec.nodeName", "n1");
    check("spec.host", "n1");
    check("spec.serviceAccountName", "sa");
    check("status.podIP", "10.1.0.5");
    check("status.podIPs", "10.1.0.5,fd00::5");
    check("status.hostIP", "192.0.2.1");
    check("status.hostIPs", "192.0.2.1");
    assert_eq!(field_value("metadata.name", None), Ok("p".into()));
}

#[test]
fn unknown_fields() {
    let check = |path: &str, version: &str, expect: &str| {
        assert_eq!(field_value(path, Some(version)), Err(expect.into()), "{path}");
    };
    check("spec.replicas", "v1", "field label not supported: spec.replicas");
    check("spec.restartPolicy", "v1", "unsupported fieldPath: spec.restartPolicy");
    check("spec.x['a']", "v1", "field label does not support subscript: spec.x['a']");
    check("metadata.name", "v2", "unsupported pod version: v2");
}

fn resource_value(container: &str, selector: Value) -> Result<String, String> {
    let (config, facts) = (sample::config(), sample::facts());
    let pod = sample_pod();
    let selector = serde_json::from_value(selector).unwrap();
    let container = ContainerRef::find(&pod, container).unwrap();
    resource(&RenderContext::new(&config, &facts), &pod, &container, &selector).map_err(|e| e.to_string())
}

#[test]
fn resources() {
    let check = |container: &str, selector: Value, expect: &str| {
        assert_eq!(resource_value(container, selector.clone()), Ok(expect.into()), "{container} {selector}");
    };
    let of = |resource: &str| json!({ "resource": resource });
    let by = |resource: &str, divisor: &str| json!({"resource": resource, "divisor": divisor});
    check("c", of("limits.cpu"), "2");
    check("c", by("limits.cpu", "1m"), "1500");
    check("c", by("limits.cpu", "0"), "2");
    check("c", of("requests.cpu"), "1");
    check("c", by("requests.cpu", "1m"), "250");
    check("c", of("limits.memory"), "67108864");
    check("c", by("limits.memory", "1Mi"), "64");
    check("c", by("requests.memory", "1Ki"), "1");
    check("c", of("limits.hugepages-2Mi"), "4194304");
    check("c", of("requests.ephemeral-storage"), "0");
    // without a limit the node is the limit
    check("bare", of("limits.cpu"), "4");
    check("bare", by("limits.memory", "1Gi"), "8");
    check("bare", of("requests.cpu"), "0");
    check("bare", of("limits.ephemeral-storage"), "0");
    // another container's
    check("bare", json!({"resource": "limits.cpu", "containerName": "c"}), "2");
    check("c", json!({"resource": "limits.cpu", "containerName": "bare"}), "4");
    check("c", json!({"resource": "limits.cpu", "containerName": "i"}), "0");
    check("i", of("limits.cpu"), "4");
}

#[test]
fn unknown_resources() {
    let check = |selector: Value, expect: &str| {
        assert_eq!(resource_value("c", selector.clone()), Err(expect.into()), "{selector}");
    };
    check(json!({"resource": "limits.gpu"}), "unsupported container resource : limits.gpu");
    check(json!({"resource": "cpu"}), "unsupported container resource : cpu");
    check(json!({"resource": "usage.cpu"}), "unsupported container resource : usage.cpu");
    check(json!({"resource": "limits.cpu", "containerName": "z"}), "container z not found");
}

#[test]
fn pod_level_limits_come_before_the_nodes() {
    let (config, facts) = (sample::config(), sample::facts());
    let pod = sample::pod(json!({
        "containers": [{"name": "c", "resources": {"limits": {"memory": "1Mi"}}}],
        "resources": {"limits": {"cpu": "3", "memory": "1Gi"}},
    }));
    let container = ContainerRef::find(&pod, "c").unwrap();
    let ctx = RenderContext::new(&config, &facts);
    let value = |name: &str| {
        let selector = serde_json::from_value(json!({ "resource": name })).unwrap();
        resource(&ctx, &pod, &container, &selector).unwrap()
    };
    assert_eq!((value("limits.cpu"), value("limits.memory")), ("3".into(), "1048576".into()));
}
