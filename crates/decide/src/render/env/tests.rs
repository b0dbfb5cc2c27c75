use model::pod::PodView;
use serde_json::{Value, json};

use super::*;
use crate::render::services::ServicePort;
use crate::render::{ResolvedImage, sample};

fn objects() -> EnvObjects {
    let text = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    let cm = text(&[("a", "1"), ("b", "2")]);
    let sec = BTreeMap::from([("k".to_owned(), b"v".to_vec()), ("raw".to_owned(), vec![0xff, b'x'])]);
    EnvObjects {
        config_maps: BTreeMap::from([
            ("cm".into(), Ok(cm)),
            ("gone".into(), Err(ObjectError::NotFound)),
            ("sick".into(), Err(ObjectError::Failed("etcd is on fire".into()))),
        ]),
        secrets: BTreeMap::from([("sec".into(), Ok(sec)), ("gone".into(), Err(ObjectError::NotFound))]),
    }
}

fn services() -> Vec<ServiceView> {
    let port = ServicePort { name: String::new(), protocol: "TCP".into(), port: 1 };
    let service = ServiceView {
        name: "s".into(),
        namespace: "ns".into(),
        cluster_ip: "10.0.0.7".into(),
        ports: vec![port],
    };
    vec![service]
}

fn pod_of(container: Value, service_links: Value) -> PodView {
    let mut container = container;
    container["name"] = json!("c");
    sample::pod(json!({"containers": [container], "enableServiceLinks": service_links}))
}

fn render(pod: &PodView, env: EnvSources<'_>) -> Result<Environment, String> {
    let (config, facts, image) = (sample::config(), sample::facts(), ResolvedImage::default());
    let ips = ["10.1.0.5".to_owned()];
    let inputs = ContainerInputs { env, ..ContainerInputs::new(&ips, &image, 0) };
    let container = ContainerRef::find(pod, "c").unwrap();
    environment(&RenderContext::new(&config, &facts), pod, &container, &inputs).map_err(|e| e.to_string())
}

fn lines(container: Value) -> Result<Vec<String>, String> {
    let (objects, services) = (objects(), services());
    let sources =
        EnvSources { objects: Some(&objects), services: Services::Read(&services), ..Default::default() };
    let env = render(&pod_of(container, json!(false)), sources)?;
    Ok(env.into_list().into_iter().map(|variable| format!("{}={}", variable.key, variable.value)).collect())
}

#[test]
fn order_and_overriding() {
    let check = |container: Value, expect: &[&str]| {
        assert_eq!(lines(container.clone()).unwrap(), expect, "{container}");
    };
    check(json!({}), &[]);
    check(
        json!({"env": [{"name": "Z", "value": "1"}, {"name": "A", "value": "2"}, {"name": "Z", "value": "$(Z)3"}]}),
        &["Z=13", "A=2"],
    );
    check(
        json!({
            "envFrom": [
                {"prefix": "P_", "configMapRef": {"name": "cm"}},
                {"secretRef": {"name": "sec"}},
                {"configMapRef": {"name": "cm"}},
            ],
            "env": [{"name": "b", "value": "mine"}],
        }),
        &["P_a=1", "P_b=2", "k=v", "raw=\u{fffd}x", "a=1", "b=mine"],
    );
}

#[test]
fn values_refer_to_what_came_before() {
    let check = |value: &str, expect: &str| {
        let container = json!({
            "envFrom": [{"configMapRef": {"name": "cm"}}],
            "env": [
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "V", "value": value},
                {"name": "LATER", "value": "x"},
            ],
        });
        let line = format!("V={expect}");
        assert!(lines(container).unwrap().contains(&line), "{value}");
    };
    check("", "");
    check("$(a)-$(POD)", "1-p");
    check("$(LATER)", "$(LATER)");
    check("$(V)", "$(V)");
    check("$$(a)", "$(a)");
}

#[test]
fn sources_of_values() {
    let check = |source: Value, expect: Result<Option<&str>, &str>| {
        let container = json!({"env": [{"name": "V", "valueFrom": source}]});
        let got = lines(container).map(|lines| lines.first().map(|line| line["V=".len()..].to_owned()));
        assert_eq!(got, expect.map(|v| v.map(str::to_owned)).map_err(str::to_owned), "{source}");
    };
    let config_map = |name: &str, key: &str, optional: bool| json!({"configMapKeyRef": {"name": name, "key": key, "optional": optional}});
    let secret = |name: &str, key: &str, optional: bool| json!({"secretKeyRef": {"name": name, "key": key, "optional": optional}});
    check(config_map("cm", "a", false), Ok(Some("1")));
    check(config_map("cm", "nokey", false), Err("couldn't find key nokey in ConfigMap ns/cm"));
    check(config_map("cm", "nokey", true), Ok(None));
    check(config_map("gone", "a", false), Err("configmap \"gone\" not found"));
    check(config_map("gone", "a", true), Ok(None));
    check(config_map("sick", "a", true), Err("etcd is on fire"));
    check(config_map("unread", "a", true), Err("object \"ns\"/\"unread\" not registered"));
    check(secret("sec", "k", false), Ok(Some("v")));
    check(secret("sec", "nokey", false), Err("couldn't find key nokey in Secret ns/sec"));
    check(secret("sec", "nokey", true), Ok(None));
    check(secret("gone", "k", false), Err("secret \"gone\" not found"));
    check(json!({"fieldRef": {"fieldPath": "status.podIP"}}), Ok(Some("10.1.0.5")));
    check(json!({"resourceFieldRef": {"resource": "limits.cpu"}}), Ok(Some("4")));
    // without its gate
    check(json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}), Ok(Some("")));
    check(json!({}), Ok(Some("")));
}

#[test]
fn whole_objects_may_be_optional() {
    let check = |source: Value, expect: Result<usize, &str>| {
        let got = lines(json!({"envFrom": [source]})).map(|lines| lines.len());
        assert_eq!(got, expect.map_err(str::to_owned), "{source}");
    };
    check(json!({"configMapRef": {"name": "gone", "optional": true}}), Ok(0));
    check(json!({"configMapRef": {"name": "gone"}}), Err("configmap \"gone\" not found"));
    check(json!({"secretRef": {"name": "gone", "optional": true}}), Ok(0));
    check(json!({"secretRef": {"name": "gone"}}), Err("secret \"gone\" not found"));
}

#[test]
fn without_an_api_there_are_no_objects() {
    let check = |container: Value, expect: &str| {
        let pod = pod_of(container, json!(true));
        assert_eq!(render(&pod, EnvSources::default()), Err(expect.to_owned()));
    };
    check(
        json!({"envFrom": [{"configMapRef": {"name": "n", "optional": true}}]}),
        "couldn't get configMap ns/n, no kubeClient defined",
    );
    check(
        json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}]}),
        "couldn't get secret ns/n, no kubeClient defined",
    );
}

#[test]
fn service_variables_come_last_and_override_nothing() {
    let services = services();
    let sources = EnvSources { objects: None, services: Services::Read(&services), ..Default::default() };
    let container = json!({"env": [
        {"name": "S_SERVICE_PORT", "value": "mine"},
        {"name": "URL", "value": "$(S_SERVICE_HOST):$(S_SERVICE_PORT)"},
    ]});
    let env = render(&pod_of(container, json!(true)), sources).unwrap();
    assert_eq!(env.get("URL"), Some("10.0.0.7:mine"));
    let names: Vec<String> = env.into_list().into_iter().map(|variable| variable.key).collect();
    assert_eq!(names[..3], ["S_SERVICE_PORT", "URL", "S_PORT"]);
    let mut sorted = names[2..].to_vec();
    sorted.sort();
    assert_eq!(names[2..], sorted);
}

#[test]
fn services_must_be_known_to_pods_of_the_api() {
    let not_read = EnvSources { objects: None, services: Services::NotRead, ..Default::default() };
    let spec = json!({"containers": [{"name": "c"}], "enableServiceLinks": true});
    assert_eq!(
        render(&sample::pod(spec.clone()), not_read),
        Err("services have not yet been read at least once, cannot construct envvars".into())
    );
    assert_eq!(render(&sample::static_pod(spec), not_read), Ok(Environment::default()));
    assert_eq!(
        render(&pod_of(json!({}), Value::Null), EnvSources::default()),
        Err("nil pod.spec.enableServiceLinks encountered, cannot construct envvars".into())
    );
}
