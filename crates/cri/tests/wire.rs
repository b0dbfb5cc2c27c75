//! Every field that the model can hold arrives at the other side of a socket under its name, and every field that
//! we read comes back.

// Tests with real processes and servers live in real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod false_runtime;

use std::sync::{Arc, Mutex};

use false_runtime::{FalseRuntime, LONG, client, pb, socket};
use model::cri::{ContainerConfig, ImageSpec, LinuxResources, RegistryAuth, SandboxConfig};
use model::observed::{ContainerState, ObservedUser};
use pb::image_service_server::{ImageService, ImageServiceServer};
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{ContainerFilter, Images, Runtime, SandboxFilter};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Keeps what it is asked, by name of the call; answers with canned JSON.
#[derive(Clone, Default)]
struct Recorder {
    asked: Arc<Mutex<Vec<Value>>>,
    answer: Value,
}

impl Recorder {
    fn take<A: Serialize, B: serde::de::DeserializeOwned>(
        &self,
        request: Request<A>,
    ) -> Result<Response<B>, Status> {
        let asked = serde_json::to_value(request.into_inner()).expect("JSON");
        self.asked.lock().expect("lock").push(asked);
        Ok(Response::new(serde_json::from_value(self.answer.clone()).expect("an answer of this call")))
    }

    fn last(&self) -> Value {
        self.asked.lock().expect("lock").pop().expect("a question")
    }
}

macro_rules! record {
    ($service:ident { $($method:ident: $request:ident -> $response:ident,)* }) => {
        #[tonic::async_trait]
        impl $service for Recorder {
            $(async fn $method(&self, r: Request<pb::$request>) -> Result<Response<pb::$response>, Status> {
                self.take(r)
            })*
        }
    };
}

record!(RuntimeService {
    run_pod_sandbox: RunPodSandboxRequest -> RunPodSandboxResponse,
    list_pod_sandbox: ListPodSandboxRequest -> ListPodSandboxResponse,
    pod_sandbox_status: PodSandboxStatusRequest -> PodSandboxStatusResponse,
    update_pod_sandbox_resources: UpdatePodSandboxResourcesRequest -> UpdatePodSandboxResourcesResponse,
    create_container: CreateContainerRequest -> CreateContainerResponse,
    list_containers: ListContainersRequest -> ListContainersResponse,
    container_status: ContainerStatusRequest -> ContainerStatusResponse,
    container_stats: ContainerStatsRequest -> ContainerStatsResponse,
    status: StatusRequest -> StatusResponse,
    runtime_config: RuntimeConfigRequest -> RuntimeConfigResponse,
    update_runtime_config: UpdateRuntimeConfigRequest -> UpdateRuntimeConfigResponse,
    exec: ExecRequest -> ExecResponse,
    attach: AttachRequest -> AttachResponse,
    port_forward: PortForwardRequest -> PortForwardResponse,
});

record!(ImageService {
    list_images: ListImagesRequest -> ListImagesResponse,
    pull_image: PullImageRequest -> PullImageResponse,
    image_fs_info: ImageFsInfoRequest -> ImageFsInfoResponse,
});

/// A client of a server that answers everything with `answer`.
struct Wire {
    client: cri::CriClient,
    recorder: Recorder,
    _server: FalseRuntime,
    _directory: tempfile::TempDir,
}

fn wire(answer: Value) -> Wire {
    let (directory, socket) = socket();
    let recorder = Recorder { answer, ..Default::default() };
    let routes = Routes::new(RuntimeServiceServer::new(recorder.clone()))
        .add_service(ImageServiceServer::new(recorder.clone()));
    let server = FalseRuntime::serve(&socket, routes);
    Wire { client: client(&socket, LONG), recorder, _server: server, _directory: directory }
}

/// Paths of values that are as if they had not been sent: a forgotten field, or one that the fixture forgot.
fn unset(value: &Value, path: &str, found: &mut Vec<String>) {
    let is_unset = match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| unset(item, &format!("{path}[{i}]"), found));
            items.is_empty()
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, item)| unset(item, &format!("{path}.{name}"), found));
            false
        }
    };
    if is_unset {
        found.push(path.into());
    }
}

/// What arrived has every field of the message set, and equals what the model says, but for these spellings.
fn check_arrived<T: Serialize>(arrived: &Value, sent: &T) {
    let mut found = Vec::new();
    unset(arrived, "", &mut found);
    assert_eq!(found, Vec::<String>::new(), "not set");
    let mut sent = serde_json::to_value(sent).expect("JSON");
    respell(&mut sent);
    assert_eq!(arrived, &sent);
}

/// The model's JSON follows the interface's names; prost's Rust fields differ from them here and there.
fn respell(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (from, to) in [
                ("uidMappings", "uid_mappings"),
                ("gidMappings", "gid_mappings"),
                ("CDI_devices", "cdi_devices"),
            ] {
                if let Some(field) = fields.remove(from) {
                    fields.insert(to.into(), field);
                }
            }
            if let Some(Value::Array(devices)) = fields.get_mut("cdi_devices") {
                devices.iter_mut().for_each(|name| *name = json!({"name": name}));
            }
            if let Some(Value::Array(envs)) = fields.get_mut("envs") {
                for env in envs {
                    let text = env["value"].as_str().expect("text").as_bytes().to_vec();
                    env["value"] = json!(text);
                }
            }
            fields.values_mut().for_each(respell);
        }
        Value::Array(items) => items.iter_mut().for_each(respell),
        _ => {}
    }
}

fn mapping(host: u32) -> Value {
    json!([{"host_id": host, "container_id": host + 1, "length": host + 2}])
}

fn namespace_options() -> Value {
    let userns = json!({"mode": 2, "uids": mapping(10), "gids": mapping(20)});
    json!({"network": 2, "pid": 3, "ipc": 1, "target_id": "target", "userns_options": userns})
}

fn resources(base: i64) -> Value {
    json!({
        "cpu_period": base + 1, "cpu_quota": -base, "cpu_shares": base + 3, "memory_limit_in_bytes": base + 4,
        "oom_score_adj": -999, "cpuset_cpus": format!("0-{base}"), "cpuset_mems": format!("{base}"),
        "hugepage_limits": [{"page_size": "2MB", "limit": u64::MAX}], "unified": {"memory.high": "7"},
        "memory_swap_limit_in_bytes": base + 5,
    })
}

fn selinux() -> Value {
    json!({"user": "u", "role": "r", "type": "t", "level": "l"})
}

fn image_spec() -> Value {
    json!({"image": "i", "annotations": {"a": "b"}, "user_specified_image": "said", "runtime_handler": "h"})
}

fn full_sandbox() -> SandboxConfig {
    let security = json!({
        "namespace_options": namespace_options(), "selinux_options": selinux(), "run_as_user": {"value": 1001},
        "run_as_group": {"value": 1002}, "readonly_rootfs": true, "supplemental_groups": [5, 6],
        "supplemental_groups_policy": 1, "privileged": true,
        "seccomp": {"profile_type": 2, "localhost_ref": "/seccomp"},
        "apparmor": {"profile_type": 1, "localhost_ref": "apparmor"},
    });
    let config = json!({
        "metadata": {"name": "pod", "uid": "uid", "namespace": "ns", "attempt": 3},
        "hostname": "host", "log_directory": "/logs",
        "dns_config": {"servers": ["1.1.1.1"], "searches": ["a.b"], "options": ["ndots:5"]},
        "port_mappings": [{"protocol": 2, "container_port": 80, "host_port": 8080, "host_ip": "10.0.0.1"}],
        "labels": {"l": "1", "m": "2"}, "annotations": {"a": "1"},
        "linux": {
            "cgroup_parent": "/kubepods", "security_context": security, "sysctls": {"net.x": "1"},
            "overhead": resources(100), "resources": resources(200),
        },
    });
    serde_json::from_value(config).expect("sandbox")
}

fn full_container() -> ContainerConfig {
    let security = json!({
        "capabilities": {
            "add_capabilities": ["A"], "drop_capabilities": ["ALL"], "add_ambient_capabilities": ["B"],
        },
        "privileged": true, "namespace_options": namespace_options(), "selinux_options": selinux(),
        "run_as_user": {"value": 11}, "run_as_group": {"value": 12}, "run_as_username": "name",
        "readonly_rootfs": true, "supplemental_groups": [7], "supplemental_groups_policy": 1,
        "no_new_privs": true, "masked_paths": ["/proc/kcore"], "readonly_paths": ["/proc/sys"],
        "seccomp": {"profile_type": 2, "localhost_ref": "s"}, "apparmor": {"profile_type": 2, "localhost_ref": "a"},
        "apparmor_profile": "localhost/a",
    });
    let mount = json!({
        "container_path": "/in", "host_path": "/out", "readonly": true, "selinux_relabel": true,
        "propagation": 2, "uidMappings": mapping(30), "gidMappings": mapping(40), "recursive_read_only": true,
        "image": image_spec(), "image_sub_path": "sub",
    });
    let config = json!({
        "metadata": {"name": "main", "attempt": 9}, "image": image_spec(), "command": ["sh"], "args": ["-c", "x"],
        "working_dir": "/w", "envs": [{"key": "K", "value": "v\u{e9}"}], "mounts": [mount],
        "devices": [{"container_path": "/dev/a", "host_path": "/dev/b", "permissions": "rwm"}],
        "labels": {"l": "1"}, "annotations": {"a": "1"}, "log_path": "main/0.log",
        "stdin": true, "stdin_once": true, "tty": true,
        "linux": {"resources": resources(300), "security_context": security},
        "CDI_devices": ["vendor.com/class=device"], "stop_signal": 23,
    });
    serde_json::from_value(config).expect("container")
}

#[tokio::test]
async fn a_sandbox_config_arrives_whole() {
    let wire = wire(json!({"pod_sandbox_id": "s"}));
    let config = full_sandbox();
    let id = wire.client.run_pod_sandbox(&config, "handler").await.expect("run");
    assert_eq!(id.as_str(), "s");
    let asked = wire.recorder.last();
    assert_eq!(asked["runtime_handler"], "handler");
    check_arrived(&asked["config"], &config);
}

#[tokio::test]
async fn a_container_config_arrives_whole() {
    let wire = wire(json!({"container_id": "c"}));
    let (config, sandbox) = (full_container(), full_sandbox());
    let id = wire.client.create_container(&"s".into(), &config, &sandbox).await.expect("create");
    assert_eq!(id.as_str(), "c");
    let asked = wire.recorder.last();
    assert_eq!(asked["pod_sandbox_id"], "s");
    check_arrived(&asked["config"], &config);
    check_arrived(&asked["sandbox_config"], &sandbox);
}

#[tokio::test]
async fn a_pull_carries_its_credentials() {
    let wire = wire(json!({"image_ref": "r"}));
    let image: ImageSpec = serde_json::from_value(image_spec()).expect("image");
    let auth = json!({
        "username": "u", "password": "p", "auth": "a", "server_address": "s", "identity_token": "i",
        "registry_token": "r",
    });
    let auth: RegistryAuth = serde_json::from_value(auth).expect("credentials");
    let sandbox = full_sandbox();
    let pulled = wire.client.pull_image(&image, Some(&auth), Some(&sandbox)).await;
    assert_eq!(pulled.as_deref(), Ok("r"));
    let asked = wire.recorder.last();
    check_arrived(&asked["image"], &image);
    check_arrived(&asked["auth"], &auth);
    check_arrived(&asked["sandbox_config"], &sandbox);
}

#[tokio::test]
async fn requests_say_what_was_asked() {
    let wire = wire(json!({"url": "http://127.0.0.1:1/x"}));
    let (client, recorder) = (&wire.client, &wire.recorder);
    let streams = ports::StreamFlags { stdin: true, stdout: true, stderr: false, tty: true };
    let flags = json!({"container_id": "c", "stdin": true, "stdout": true, "stderr": false, "tty": true});

    client.attach(&"c".into(), streams).await.expect("attach");
    assert_eq!(recorder.last(), flags);
    client.exec(&"c".into(), &["ls".into(), "-l".into()], streams).await.expect("exec");
    let mut with_command = flags;
    with_command["cmd"] = json!(["ls", "-l"]);
    assert_eq!(recorder.last(), with_command);
    client.port_forward(&"s".into(), &[80, 443]).await.expect("forward");
    assert_eq!(recorder.last(), json!({"pod_sandbox_id": "s", "port": [80, 443]}));

    client.update_runtime_config("10.1.0.0/16").await.expect("config");
    assert_eq!(recorder.last(), json!({"runtime_config": {"network_config": {"pod_cidr": "10.1.0.0/16"}}}));
    let limits: LinuxResources = serde_json::from_value(resources(1)).expect("resources");
    client.update_pod_sandbox_resources(&"s".into(), Some(&limits), None).await.expect("update");
    let asked = recorder.last();
    check_arrived(&asked["overhead"], &limits);
    assert_eq!(asked["resources"], Value::Null);
}

#[tokio::test]
async fn lists_are_filtered_by_the_label_of_the_pod() {
    let wire = wire(json!({}));
    let (client, recorder) = (&wire.client, &wire.recorder);
    let by_uid = json!({"id": "", "label_selector": {"io.kubernetes.pod.uid": "u1"}});
    let by_id = json!({"id": "x", "label_selector": {}});

    client.list_pod_sandboxes(&SandboxFilter { pod_uid: Some("u1".into()), id: None }).await.expect("list");
    assert_eq!(recorder.last()["filter"], by_uid);
    client.list_pod_sandboxes(&SandboxFilter { pod_uid: None, id: Some("x".into()) }).await.expect("list");
    assert_eq!(recorder.last()["filter"], by_id);
    client.list_containers(&ContainerFilter { pod_uid: Some("u1".into()), id: None }).await.expect("list");
    assert_eq!(recorder.last()["filter"], by_uid);
    client.list_containers(&ContainerFilter { pod_uid: None, id: Some("x".into()) }).await.expect("list");
    assert_eq!(recorder.last()["filter"], by_id);
}

#[tokio::test]
async fn a_container_status_comes_back_whole() {
    let mut mount = serde_json::to_value(&full_container().mounts[0]).expect("JSON");
    respell(&mut mount);
    let wire = wire(json!({"status": {
        "id": "c", "metadata": {"name": "main", "attempt": 4}, "state": 2, "created_at": 1, "started_at": 2,
        "finished_at": 3, "exit_code": 137, "image": image_spec(), "image_ref": "ref", "reason": "OOMKilled",
        "message": "m", "labels": {"l": "1"}, "annotations": {"a": "1"}, "mounts": [mount], "log_path": "/l",
        "resources": {"linux": resources(5)}, "image_id": "id",
        "user": {"linux": {"uid": 1, "gid": 2, "supplemental_groups": [3]}}, "stop_signal": 23,
    }}));
    let status = wire.client.container_status(&"c".into()).await.expect("status");
    assert_eq!(wire.recorder.last(), json!({"container_id": "c", "verbose": false}));
    assert_eq!((status.id.as_str(), status.name.as_str(), status.attempt), ("c", "main", 4));
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 137));
    assert_eq!((status.created_at, status.started_at, status.finished_at), (1, 2, 3));
    assert_eq!(
        (status.image.as_str(), status.image_ref.as_str(), status.image_id.as_str()),
        ("i", "ref", "id")
    );
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("OOMKilled", "m"));
    assert_eq!((status.labels["l"].as_str(), status.annotations["a"].as_str()), ("1", "1"));
    assert_eq!((status.log_path.as_str(), status.stop_signal), ("/l", 23));
    assert_eq!(status.mounts, full_container().mounts);
    assert_eq!(serde_json::to_value(status.resources).expect("JSON"), resources(5));
    assert_eq!(status.user, Some(ObservedUser { uid: 1, gid: 2, supplemental_groups: vec![3] }));
}

#[tokio::test]
async fn a_sandbox_status_comes_back_whole() {
    let wire = wire(json!({"status": {
        "id": "s", "metadata": {"name": "p", "uid": "u", "namespace": "n", "attempt": 2}, "state": 0, "created_at": 9,
        "network": {"ip": "10.0.0.1", "additional_ips": [{"ip": "fd00::1"}, {"ip": ""}]},
        "linux": {"namespaces": {"options": namespace_options()}},
        "labels": {"l": "1"}, "annotations": {"a": "1"}, "runtime_handler": "h",
    }}));
    let status = wire.client.pod_sandbox_status(&"s".into()).await.expect("status");
    let info = &status.info;
    assert_eq!((info.id.as_str(), info.name.as_str(), info.namespace.as_str()), ("s", "p", "n"));
    assert_eq!((info.uid.as_str(), info.attempt, info.ready, info.created_at), ("u", 2, true, 9));
    assert_eq!((info.labels["l"].as_str(), info.annotations["a"].as_str()), ("1", "1"));
    assert_eq!(info.runtime_handler, "h");
    assert!(status.has_network);
    assert_eq!(status.ips, ["10.0.0.1", "fd00::1"]);
    assert_eq!(serde_json::to_value(&status.namespaces).expect("JSON"), namespace_options());
}

#[tokio::test]
async fn runtime_facts_come_back_whole() {
    let wire = wire(json!({
        "status": {"conditions": [{"type": "NetworkReady", "status": true, "reason": "r", "message": "m"}]},
        "runtime_handlers": [
            {"name": "runc", "features": {"recursive_read_only_mounts": true, "user_namespaces": true}},
            {"name": "old"},
        ],
        "features": {"supplemental_groups_policy": true, "user_namespaces_host_network": true},
        "linux": {"cgroup_driver": 1},
    }));
    let status = serde_json::to_value(wire.client.status().await.expect("status")).expect("JSON");
    let expect = json!({
        "conditions": [{"type": "NetworkReady", "status": true, "reason": "r", "message": "m"}],
        "handlers": [
            {"name": "runc", "recursive_read_only_mounts": true, "user_namespaces": true}, {"name": "old"},
        ],
        "supplemental_groups_policy": true,
        "user_namespaces_host_network": true,
    });
    assert_eq!(status, expect);
    let driver = wire.client.cgroup_driver().await;
    assert_eq!(driver, Ok(model::cgroup::CgroupDriver::Cgroupfs));
}

#[tokio::test]
async fn numbers_come_back_whole_and_absent_ones_stay_absent() {
    let layer = json!({"timestamp": 7, "fs_id": {"mountpoint": "/fs"}, "used_bytes": {"value": 8}});
    let wire = wire(json!({"stats": {
        "attributes": {
            "id": "c", "metadata": {"name": "n", "attempt": 1}, "labels": {"l": "1"}, "annotations": {"a": "1"},
        },
        "cpu": {"timestamp": 5, "usage_core_nano_seconds": {"value": 1}, "usage_nano_cores": {"value": 2}},
        "memory": {
            "timestamp": 6, "working_set_bytes": {"value": 3}, "available_bytes": {"value": 4},
            "usage_bytes": {"value": 5}, "rss_bytes": {"value": 6}, "page_faults": {"value": 7},
        },
        "swap": {"swap_usage_bytes": {"value": 9}},
        "writable_layer": layer,
    }}));
    let stats = wire.client.container_stats(&"c".into()).await.expect("stats");
    let expect = json!({
        "id": "c", "name": "n", "attempt": 1, "labels": {"l": "1"}, "annotations": {"a": "1"},
        "usage": {
            "timestamp": 5, "cpu_usage_core_nano_seconds": 1, "cpu_usage_nano_cores": 2,
            "memory_working_set_bytes": 3, "memory_available_bytes": 4, "memory_usage_bytes": 5,
            "memory_rss_bytes": 6, "memory_page_faults": 7, "swap_usage_bytes": 9,
        },
        "writable_layer": {"timestamp": 7, "mountpoint": "/fs", "used_bytes": 8},
    });
    assert_eq!(serde_json::to_value(stats).expect("JSON"), expect);
}

#[tokio::test]
async fn images_and_their_filesystems_come_back_whole() {
    let usage = |at: &str| {
        let mountpoint = json!({"mountpoint": at});
        json!({"timestamp": 1, "fs_id": mountpoint, "used_bytes": {"value": 2}, "inodes_used": {"value": 3}})
    };
    let image = json!({
        "id": "sha256:1", "repo_tags": ["t"], "repo_digests": ["d"], "size": 5, "uid": {"value": 0}, "username": "n",
        "spec": image_spec(), "pinned": true,
    });
    let wire = wire(json!({
        "images": [image, {"repo_tags": ["without an id"]}],
        "image_filesystems": [usage("/images")], "container_filesystems": [usage("/containers")],
    }));
    let images = wire.client.list_images().await.expect("list");
    let [image] = images.as_slice() else { panic!("{images:?}") };
    assert_eq!((image.id.as_str(), image.size, image.pinned), ("sha256:1", 5, true));
    assert_eq!(
        (image.repo_tags.as_slice(), image.repo_digests.as_slice()),
        (&["t".into()][..], &["d".into()][..])
    );
    assert_eq!(image.uid.as_ref().map(|u| u.value), Some(0), "user 0 is not the same as none");
    assert_eq!(image.username, "n");
    assert_eq!(serde_json::to_value(&image.spec).expect("JSON"), image_spec());

    let (of_images, of_containers) = wire.client.image_fs_info().await.expect("filesystems");
    let expect = |at: &str| json!([{"timestamp": 1, "mountpoint": at, "used_bytes": 2, "inodes_used": 3}]);
    assert_eq!(serde_json::to_value(of_images).expect("JSON"), expect("/images"));
    assert_eq!(serde_json::to_value(of_containers).expect("JSON"), expect("/containers"));
}
