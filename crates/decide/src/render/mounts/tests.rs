use std::collections::BTreeMap;

use model::cri::{ImageSpec, MountPropagation};
use model::node::HostFacts;
use serde_json::{Value, json};

use super::*;
use crate::render::env::environment;
use crate::render::{ContainerRef, ResolvedImage, sample};

fn pod_of(volume_mounts: Value) -> PodView {
    sample::pod(json!({
        "enableServiceLinks": false,
        "containers": [{
            "name": "c",
            "env": [{"name": "SUB", "value": "a/b"}, {"name": "UP", "value": ".."}, {"name": "EMPTY", "value": ""}],
            "volumeMounts": volume_mounts,
        }],
        "volumes": [
            {"name": "dir", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/data"}},
            {"name": "cm", "configMap": {"name": "cm"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "x"}},
            {"name": "img", "image": {"reference": "r"}},
        ],
    }))
}

fn render_with(
    facts: &HostFacts,
    pod: &PodView,
    ips: &[&str],
    adjust: impl FnOnce(&mut ContainerInputs<'_>),
) -> Result<Mounts, String> {
    let (config, image) = (sample::config(), ResolvedImage::default());
    let ips: Vec<String> = ips.iter().map(|ip| ip.to_string()).collect();
    let mut inputs = ContainerInputs::new(&ips, &image, 0);
    adjust(&mut inputs);
    let ctx = RenderContext::new(&config, facts);
    let container = ContainerRef::find(pod, "c").unwrap();
    let env = environment(&ctx, pod, &container, &inputs).unwrap();
    let names = PodNames { hostname: "h".into(), domain: String::new() };
    mounts(&ctx, pod, container.container, &names, &env, &inputs).map_err(|error| error.to_string())
}

fn render(volume_mounts: Value) -> Result<Mounts, String> {
    render_with(&sample::facts(), &pod_of(volume_mounts), &[], |_| {})
}

fn one(mount: Value) -> Mount {
    render(json!([mount])).unwrap().mounts.remove(0)
}

#[test]
fn volumes() {
    let check = |mount: Value, expect: (&str, &str, bool)| {
        let got = one(mount.clone());
        assert_eq!((got.container_path.as_str(), got.host_path.as_str(), got.readonly), expect, "{mount}");
        assert!(!got.selinux_relabel);
    };
    let empty_dir = "/r/pods/u-1/volumes/kubernetes.io~empty-dir/dir";
    check(json!({"name": "dir", "mountPath": "/d"}), ("/d", empty_dir, false));
    check(json!({"name": "dir", "mountPath": "d"}), ("/d", empty_dir, false));
    check(json!({"name": "dir", "mountPath": "/d", "readOnly": true}), ("/d", empty_dir, true));
    check(json!({"name": "host", "mountPath": "/h"}), ("/h", "/data", false));
    check(
        json!({"name": "cm", "mountPath": "/c"}),
        ("/c", "/r/pods/u-1/volumes/kubernetes.io~configmap/cm", true),
    );
}

#[test]
fn volumes_that_can_not_be_mounted() {
    let check = |mount: Value, expect: &str| {
        assert_eq!(render(json!([mount])), Err(expect.to_owned()), "{mount}");
    };
    check(
        json!({"name": "none", "mountPath": "/n"}),
        "cannot find volume \"none\" to mount into container \"c\"",
    );
    check(
        json!({"name": "claim", "mountPath": "/n"}),
        "volume \"claim\" of type persistentVolumeClaim is not supported yet",
    );
    check(json!({"name": "img", "mountPath": "/n"}), "image volume \"img\" is not supported yet");
    check(
        json!({"name": "dir", "mountPath": "/n", "mountPropagation": "Odd"}),
        "invalid MountPropagation mode: \"Odd\"",
    );
    let pod = sample::pod(json!({
        "enableServiceLinks": false,
        "containers": [{"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}],
    }));
    assert_eq!(
        render_with(&sample::facts(), &pod, &[], |_| {}),
        Err("cannot find volume \"v\" to pass into container \"c\"".into())
    );
}

#[test]
fn propagation() {
    let check = |mode: Value, expect: MountPropagation| {
        let got = one(json!({"name": "dir", "mountPath": "/d", "mountPropagation": mode}));
        assert_eq!(got.propagation, expect);
    };
    check(Value::Null, MountPropagation::Private);
    check(json!("None"), MountPropagation::Private);
    check(json!("HostToContainer"), MountPropagation::HostToContainer);
    check(json!("Bidirectional"), MountPropagation::Bidirectional);
}

#[test]
fn recursive_read_only() {
    let check = |mode: &str,
                 read_only: bool,
                 propagation: Value,
                 supported: bool,
                 expect: Result<bool, &str>| {
        let mount = json!({
            "name": "dir", "mountPath": "/d", "readOnly": read_only,
            "recursiveReadOnly": mode, "mountPropagation": propagation,
        });
        let got = render_with(&sample::facts(), &pod_of(json!([mount])), &[], |inputs| {
            inputs.recursive_read_only = supported;
        });
        let got = got.map(|mounts| mounts.mounts[0].recursive_read_only);
        let prefix = "failed to resolve recursive read-only mode: ";
        assert_eq!(got, expect.map_err(|text| format!("{prefix}{text}")), "{mode} {read_only} {propagation}");
    };
    check("Disabled", false, Value::Null, true, Ok(false));
    check("IfPossible", true, Value::Null, true, Ok(true));
    check("IfPossible", true, json!("None"), false, Ok(false));
    check("Enabled", true, Value::Null, true, Ok(true));
    let text = |problem: &str| format!("volume \"dir\" requested recursive read-only mode, but {problem}");
    check("Enabled", true, Value::Null, false, Err(&text("it is not supported by the runtime")));
    check("Enabled", false, Value::Null, true, Err(&text("it is not read-only")));
    check(
        "IfPossible",
        true,
        json!("HostToContainer"),
        true,
        Err(&text("it is not compatible with propagation \"HostToContainer\"")),
    );
    check("Odd", true, Value::Null, true, Err("unknown recursive read-only mode \"Odd\""));
}

#[test]
fn sub_paths() {
    let mounts = render(json!([
        {"name": "host", "mountPath": "/h"},
        {"name": "dir", "mountPath": "/d", "subPath": "x/y", "readOnly": true},
        {"name": "host", "mountPath": "/e", "subPathExpr": "$(SUB)/c"},
    ]))
    .unwrap();
    let paths: Vec<&str> = mounts.mounts.iter().map(|mount| mount.host_path.as_str()).collect();
    let first = "/r/pods/u-1/volume-subpaths/dir/c/1";
    let second = "/r/pods/u-1/volume-subpaths/host/c/2";
    assert_eq!(paths, ["/data", first, second]);
    let step = |volume_path: &str, sub_path: &str, target: &str, name: &str, read_only| SubPathMount {
        volume_path: volume_path.into(),
        sub_path: sub_path.into(),
        target: target.into(),
        mount_name: name.into(),
        container: "c".into(),
        create: true,
        read_only,
    };
    let empty_dir = "/r/pods/u-1/volumes/kubernetes.io~empty-dir/dir";
    assert_eq!(
        mounts.sub_paths,
        [step(empty_dir, "x/y", first, "dir", true), step("/data", "a/b/c", second, "host", false)]
    );
}

#[test]
fn refused_sub_paths() {
    let check = |key: &str, path: &str, expect: &str| {
        let mut mount = json!({"name": "dir", "mountPath": "/d"});
        mount[key] = json!(path);
        assert_eq!(render(json!([mount])), Err(expect.to_owned()), "{path}");
    };
    check("subPath", "/x", "error SubPath `/x` must not be an absolute path");
    check("subPath", "a/../b", "unable to provision SubPath `a/../b`: must not contain '..'");
    check("subPathExpr", "$(UP)/b", "unable to provision SubPath `../b`: must not contain '..'");
    check("subPathExpr", "$(NONE)/$(EMPTY)/$(SUB)", "missing value for EMPTY, NONE");
}

#[test]
fn images() {
    let image = ImageSpec { image: "sha256:1".into(), ..ImageSpec::default() };
    let images = BTreeMap::from([("img".to_owned(), image.clone())]);
    let pod = pod_of(json!([{"name": "img", "mountPath": "/i", "subPath": "s"}]));
    let (config, facts, resolved) = (sample::config(), sample::facts(), ResolvedImage::default());
    let inputs = ContainerInputs { image_volumes: Some(&images), ..ContainerInputs::new(&[], &resolved, 0) };
    let ctx = RenderContext::new(&config, &facts);
    let names = PodNames { hostname: "h".into(), domain: String::new() };
    let env = Environment::default();
    let rendered = mounts(&ctx, &pod, &pod.containers()[0], &names, &env, &inputs).unwrap();
    let expect = Mount {
        container_path: "/i".into(),
        readonly: true,
        image: Some(image),
        image_sub_path: "s".into(),
        ..Mount::default()
    };
    assert_eq!((rendered.mounts, rendered.sub_paths), (vec![expect], vec![]));
}

#[test]
fn the_hosts_file() {
    let check = |host_network: bool, mount_path: &str, ips: &[&str], expect: bool| {
        let mut pod = (*pod_of(json!([{"name": "dir", "mountPath": mount_path}])).pod).clone();
        pod.spec.as_mut().unwrap().host_network = Some(host_network);
        let rendered = render_with(&sample::facts(), &sample::view(pod), ips, |_| {}).unwrap();
        let mounted = rendered.mounts.iter().any(|mount| mount.host_path == "/r/pods/u-1/etc-hosts");
        assert_eq!(mounted, expect, "{host_network} {mount_path} {ips:?}");
        assert_eq!(rendered.etc_hosts.is_some(), expect);
    };
    check(false, "/d", &["10.1.0.5"], true);
    check(false, "/d", &[], false);
    check(true, "/d", &[], true);
    check(false, "/etc/hosts", &["10.1.0.5"], false);
    check(false, "/etc/hosts/", &["10.1.0.5"], true);
    let rendered = render_with(&sample::facts(), &pod_of(json!([])), &["10.1.0.5"], |_| {}).unwrap();
    let file = rendered.etc_hosts.unwrap();
    assert_eq!(file.path, "/r/pods/u-1/etc-hosts");
    assert!(file.text.ends_with("10.1.0.5\th\n"), "{}", file.text);
}

#[test]
fn the_termination_message_file() {
    let with = |path: Value| {
        let pod = sample::pod(json!({
            "enableServiceLinks": false,
            "containers": [{"name": "c", "terminationMessagePath": path}],
        }));
        render_with(&sample::facts(), &pod, &[], |inputs| inputs.restart_count = 3).unwrap()
    };
    let name = termination_log_name(&"u-1".into(), "c", 3);
    let rendered = with(json!("/dev/log"));
    let expect = format!("/r/pods/u-1/containers/c/{name}");
    assert_eq!(rendered.termination_log.as_deref(), Some(expect.as_str()));
    let mount = &rendered.mounts[0];
    assert_eq!((mount.container_path.as_str(), &mount.host_path), ("/dev/log", &expect));
    assert_eq!(with(json!("")), Mounts::default());
}

#[test]
fn labels_are_changed_once_and_only_on_what_the_agent_made() {
    let facts = HostFacts { selinux_enabled: true, ..sample::facts() };
    let pod = pod_of(json!([
        {"name": "dir", "mountPath": "/a"},
        {"name": "dir", "mountPath": "/b"},
        {"name": "host", "mountPath": "/c"},
    ]));
    let rendered = render_with(&facts, &pod, &["10.1.0.5"], |_| {}).unwrap();
    let relabelled: Vec<bool> = rendered.mounts.iter().map(|mount| mount.selinux_relabel).collect();
    assert_eq!(relabelled, [true, false, false, true], "the hosts file is the agent's");
}
