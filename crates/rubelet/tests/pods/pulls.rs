//! Pulling images from a real registry, with and without a password.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::cri_proxy::Proxy;
use crate::support::harness::{Agent, Node, PASSWORD, Registry, Runtime, SLOW, USER, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const LOCAL: &str = "rubelet.test/busybox:1";
const OTHER: &str = "rubelet.test/busybox:2";
const THIRD: &str = "rubelet.test/user1000:1";

fn pod(name: &str, image: &str, policy: &str) -> String {
    let container = json!({
        "name": "main", "image": image, "imagePullPolicy": policy, "command": ["sleep", "3600"],
    });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [container] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

fn waiting(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["state"]["waiting"]
}

fn waits_with(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| waiting(pod)["reason"] == reason
}

fn runs(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["ready"] == true
}

fn write_docker_config(node: &Node, registry: &Registry, password: &str) {
    let path = node.agent.root_dir().join("config.json");
    fs::write(path, registry.docker_config(password)).expect("write Docker's configuration");
}

/// Names of the files in a directory of the records.
fn records(node: &Node, dir: &str) -> Vec<PathBuf> {
    let dir = node.agent.root_dir().join("image_manager").join(dir);
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn pulled_records(node: &Node) -> Vec<Value> {
    let read =
        |path: &PathBuf| serde_json::from_slice(&fs::read(path).expect("read a record")).expect("JSON");
    records(node, "pulled").iter().map(read).collect()
}

fn logged(node: &Node, text: &str) -> usize {
    node.agent.log().matches(text).count()
}

#[track_caller]
fn wait_logged(node: &Node, text: &str, times: usize) {
    wait(&format!("{times} times {text:?} in the log"), SLOW, || match logged(node, text) {
        seen if seen >= times => Ok(()),
        seen => Err(format!("{seen} times")),
    });
}

#[test]
fn an_open_registry_needs_no_credentials() {
    let node = Node::start();
    let registry = Registry::start(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "team/app:1");
    node.agent.write_manifest("open", &pod("open", &image, "IfNotPresent"));
    let running = node.wait_pod("open", SLOW, runs);
    assert_eq!(running["status"]["containerStatuses"][0]["image"], image.as_str());
    wait_logged(&node, &format!("Pulling image \"{image}\""), 1);
    let log = node.agent.log();
    let told = log.split(&format!("Successfully pulled image \"{image}\" in ")).nth(1).expect("the event");
    let told = told.lines().next().unwrap_or_default();
    assert!(told.contains(" including waiting). Image size: ") && told.contains(" bytes."), "{told}");

    // What was pulled by nobody in particular may be used by everybody.
    assert_eq!(records(&node, "pulling"), Vec::<PathBuf>::new());
    let [record] = &pulled_records(&node)[..] else { panic!("{:?}", pulled_records(&node)) };
    let name = image.rsplit_once(':').expect("a tag").0;
    assert_eq!(record["kind"], "ImagePulledRecord");
    assert_eq!(record["credentialMapping"], json!({ name: { "nodePodsAccessible": true } }));
    node.agent.write_manifest("second", &pod("second", &image, "IfNotPresent"));
    node.wait_pod("second", SLOW, runs);
    let text =
        format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(logged(&node, &text), 1);
    assert_eq!(registry.served("team/app", "1"), 1);
}

#[test]
fn a_password_is_needed_and_its_arrival_is_noticed() {
    let node = Node::start();
    let registry = Registry::start_with_password(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    let refused = node.wait_pod("app", SLOW, waits_with("ErrImagePull"));
    let message = waiting(&refused)["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("401 Unauthorized") || message.contains("authorization failed"), "{message}");
    let backs_off = node.wait_pod("app", SLOW, waits_with("ImagePullBackOff"));
    assert_eq!(
        waiting(&backs_off)["message"],
        format!("Back-off pulling image \"{image}\": ErrImagePull: {message}")
    );
    for event in [
        format!("Failed to pull image \"{image}\": {message}"),
        "Error: ErrImagePull".to_owned(),
        format!("Back-off pulling image \"{image}\""),
        "Error: ImagePullBackOff".to_owned(),
    ] {
        wait_logged(&node, &event, 1);
    }
    assert_eq!(records(&node, "pulling"), Vec::<PathBuf>::new(), "a failed pull is not begun any more");

    // A wrong password first, then the right one: each counts at the next try.
    write_docker_config(&node, &registry, "wrong");
    wait_logged(&node, &format!("Pulling image \"{image}\""), 2);
    write_docker_config(&node, &registry, PASSWORD);
    node.wait_pod("app", SLOW, runs);
    let name = image.rsplit_once(':').expect("a tag").0;
    assert_eq!(pulled_records(&node)[0]["credentialMapping"][name]["nodePodsAccessible"], true);
    assert!(!node.agent.log().contains(PASSWORD), "the password is in the log");
}

#[test]
fn an_old_dockercfg_serves_as_well() {
    let node = Node::start();
    let registry = Registry::start_with_password(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    let whole: Value = serde_json::from_str(&registry.docker_config(PASSWORD)).expect("JSON");
    let path = node.agent.root_dir().join(".dockercfg");
    fs::write(path, whole["auths"].to_string()).expect("write .dockercfg");
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    node.wait_pod("app", SLOW, runs);
}

/// A plugin's program and its configuration; the flags that name them.
fn write_plugin(dir: &Path, registry_port_pattern: &str, script: &str) -> Vec<String> {
    let (bin, config) = (dir.join("plugins-bin"), dir.join("plugins.yaml"));
    fs::create_dir_all(&bin).expect("make the plugins' directory");
    let program = bin.join("vault");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("write the plugin");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it executable");
    let document = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "vault",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": [registry_port_pattern],
            "defaultCacheDuration": "10m",
            "args": ["--note", dir.join("asked")],
            "env": [{ "name": "VAULT_USER", "value": USER }],
        }],
    });
    fs::write(&config, document.to_string()).expect("write the plugins' configuration");
    let text = |path: &Path| path.to_string_lossy().into_owned();
    vec![
        format!("--image-credential-provider-config={}", text(&config)),
        format!("--image-credential-provider-bin-dir={}", text(&bin)),
    ]
}

fn start_with_plugin(script: &str) -> (Node, Registry) {
    let runtime = Runtime::start();
    let registry = Registry::start_with_password(&runtime);
    let flags = write_plugin(&runtime.dir, &registry.address().replace("127.0", "*.*"), script);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent = Agent::start_with_flags(&runtime, &flags, |_| {});
    (Node { agent, runtime }, registry)
}

#[test]
fn a_plugin_serves_the_password() {
    let answer = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry",
        "auth": { "*.*.*.*:PORT": { "username": "NAME", "password": PASSWORD } },
    });
    // The request names the registry: the answer is for its port.
    let script = format!(
        r#"request=$(cat); echo "$request" >>"$2"
port=$(echo "$request" | sed 's/.*"image":"[^:]*:\([0-9]*\).*/\1/')
echo '{answer}' | sed "s/PORT/$port/; s/NAME/$VAULT_USER/""#
    );
    let (node, registry) = start_with_plugin(&script);
    for (name, local) in [("one", LOCAL), ("two", OTHER)] {
        let image = registry.push(&node.runtime, local, &format!("secret/{name}:1"));
        node.agent.write_manifest(name, &pod(name, &image, "IfNotPresent"));
        node.wait_pod(name, SLOW, runs);
    }
    let asked = fs::read_to_string(node.runtime.dir.join("asked")).expect("the plugin's notes");
    assert_eq!(asked.lines().count(), 1, "an answer for the registry is kept:\n{asked}");
    let request: Value = serde_json::from_str(&asked).expect("JSON");
    let expect = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": format!("{}/secret/one", registry.address()),
    });
    assert_eq!(request, expect);
    assert!(!node.agent.log().contains(PASSWORD), "the password is in the log");
}

#[test]
fn a_plugin_that_fails_is_named_and_other_credentials_serve() {
    let (node, registry) = start_with_plugin("echo the vault is closed >&2; exit 3");
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    node.wait_pod("app", SLOW, waits_with("ImagePullBackOff"));
    let repository = image.rsplit_once(':').expect("a tag").0;
    let complaint = format!(
        "error execing credential provider plugin vault for image {repository}: exit status: 3: the vault is closed"
    );
    assert_eq!(logged(&node, &complaint), 1, "{}", node.agent.log_tail());
    write_docker_config(&node, &registry, PASSWORD);
    node.wait_pod("app", SLOW, runs);
}

#[test]
fn a_plugin_that_hangs_holds_up_no_other_pull() {
    let (node, registry) = start_with_plugin("echo $$ >\"$2\"; exec sleep 600");
    let open = Registry::start(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    wait("the plugin to hang", SLOW, || match fs::read_to_string(node.runtime.dir.join("asked")) {
        Ok(pid) if pid.ends_with('\n') => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // Pulls are serial, and this one is not the plugin's.
    let other = open.push(&node.runtime, OTHER, "team/app:1");
    node.agent.write_manifest("other", &pod("other", &other, "IfNotPresent"));
    node.wait_pod("other", SLOW / 2, runs);
    // It ends without an answer, and what it would have said is found elsewhere.
    write_docker_config(&node, &registry, PASSWORD);
    assert_eq!(logged(&node, "credential provider plugin vault for image"), 0, "it has ended before");
    let pid = fs::read_to_string(node.runtime.dir.join("asked")).expect("the plugin's pid");
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::KILL).expect("end the plugin");
    node.wait_pod("app", SLOW, runs);
    assert_eq!(logged(&node, "credential provider plugin vault for image"), 1);
}

#[test]
fn three_pods_that_want_one_image_share_a_pull() {
    let node = Node::start();
    let registry = Registry::start(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "team/app:1");
    registry.shut();
    let names = ["a", "b", "c"];
    for name in names {
        node.agent.write_manifest(name, &pod(name, &image, "Always"));
    }
    wait_logged(&node, &format!("Pulling image \"{image}\""), 3);
    registry.open();
    for name in names {
        node.wait_pod(name, SLOW, runs);
    }
    assert_eq!(registry.served("team/app", "1"), 1);
    wait_logged(&node, &format!("Successfully pulled image \"{image}\""), 3);
}

/// Three pods with an image each while the registry answers nobody: which images are being pulled?
fn pulls_at_once(adjust: impl FnOnce(&mut Value), expect: usize) {
    let node = Node::start_with(adjust);
    let registry = Registry::start(&node.runtime);
    let images = [("a", LOCAL), ("b", OTHER), ("c", THIRD)]
        .map(|(name, local)| (name, registry.push(&node.runtime, local, &format!("team/{name}:1"))));
    registry.shut();
    for (name, image) in &images {
        node.agent.write_manifest(name, &pod(name, image, "IfNotPresent"));
    }
    for (_, image) in &images {
        wait_logged(&node, &format!("Pulling image \"{image}\""), 1);
    }
    wait("the pulls to begin", SLOW, || match registry.seen().held_repositories() {
        held if held.len() == expect => Ok(()),
        held => Err(format!("{held:?}")),
    });
    // Nothing else may begin while these are held: give it the time to do so.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let held: BTreeSet<String> = registry.seen().held_repositories();
    assert_eq!(held.len(), expect, "{held:?}");
    registry.open();
    for (name, _) in &images {
        node.wait_pod(name, SLOW, runs);
    }
}

#[test]
fn serial_pulls_come_one_after_the_other() {
    pulls_at_once(|_| {}, 1);
}

#[test]
fn parallel_pulls_keep_their_limit() {
    pulls_at_once(|config| config["maxParallelImagePulls"] = json!(2), 2);
}

#[test]
fn parallel_pulls_without_a_limit() {
    pulls_at_once(|config| config["serializeImagePulls"] = json!(false), 3);
}

#[test]
fn pulls_that_begin_too_often_fail_and_come_again() {
    let node = Node::start_with(|config| {
        config["serializeImagePulls"] = json!(false);
        config["registryPullQPS"] = json!(1);
        config["registryBurst"] = json!(1);
    });
    let registry = Registry::start(&node.runtime);
    let images = [("a", LOCAL), ("b", OTHER), ("c", THIRD)]
        .map(|(name, local)| (name, registry.push(&node.runtime, local, &format!("team/{name}:1"))));
    let whole: Vec<String> = images.iter().map(|(name, image)| pod(name, image, "IfNotPresent")).collect();
    node.agent.write_manifest("all", &whole.join("\n---\n"));
    wait_logged(&node, ": pull QPS exceeded", 1);
    for (name, _) in &images {
        node.wait_pod(name, SLOW, runs);
    }
}

#[test]
fn an_agent_that_dies_while_it_pulls_ends_where_it_would_have() {
    let mut node = Node::start();
    let registry = Registry::start_with_password(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    write_docker_config(&node, &registry, PASSWORD);
    registry.shut();
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    wait("the pull to begin", SLOW, || match registry.seen().held_repositories() {
        held if held.is_empty() => Err("nothing came to the registry"),
        _ => Ok(()),
    });
    assert_eq!(records(&node, "pulling").len(), 1, "the pull is on record before it begins");
    node.agent.kill9();
    registry.open();
    assert_eq!(records(&node, "pulled"), Vec::<PathBuf>::new());
    node.agent.restart();
    let running = node.wait_pod("app", SLOW, runs);
    assert_eq!(running["status"]["containerStatuses"][0]["restartCount"], 0);
    wait("the records to be in order", SLOW, || match (records(&node, "pulling"), pulled_records(&node)) {
        (begun, pulled) if begun.is_empty() && pulled.len() == 1 => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    assert_eq!(node.runtime.tasks().len(), 2, "one sandbox and one container: {:?}", node.runtime.tasks());
    node.agent.remove_manifest("app");
    node.wait_clean(SLOW);
}

#[test]
fn with_always_verify_an_image_that_was_there_before_is_pulled_all_the_same() {
    let node =
        Node::start_with(|config| config["imagePullCredentialsVerificationPolicy"] = json!("AlwaysVerify"));
    let registry = Registry::start_with_password(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    // It is on the node, but nobody has shown that he may have it.
    node.runtime.ctr(&["images", "tag", LOCAL, &image]);
    node.agent.write_manifest("never", &pod("never", &image, "Never"));
    let refused = node.wait_pod("never", SLOW, waits_with("ErrImageNeverPull"));
    let expect = format!("Container image \"{image}\" is not present with pull policy of Never");
    assert_eq!(waiting(&refused)["message"], expect.as_str());
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    node.wait_pod("app", SLOW, waits_with("ImagePullBackOff"));
    write_docker_config(&node, &registry, PASSWORD);
    node.wait_pod("app", SLOW, runs);
    // The node's password has opened it, and so for everybody.
    node.wait_pod("never", SLOW, runs);
}

#[test]
fn an_image_whose_pull_ended_without_the_agent_has_to_be_pulled_again() {
    let mut node = Node::start();
    let registry = Registry::start_with_password(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "secret/app:1");
    node.agent.kill9();
    // As if it had died between the runtime's answer and the record.
    let dir = node.agent.root_dir().join("image_manager/pulling");
    fs::create_dir_all(&dir).expect("make the records' directory");
    let intent = json!({
        "kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": image,
    });
    fs::write(dir.join("sha256-0"), intent.to_string()).expect("write an intent");
    node.runtime.ctr(&["images", "tag", LOCAL, &image]);
    node.agent.restart();
    let record = wait("the pull to be settled", SLOW, || match &pulled_records(&node)[..] {
        [record] => Ok(record.clone()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(record.get("credentialMapping"), None, "{record}");
    node.agent.write_manifest("app", &pod("app", &image, "IfNotPresent"));
    node.wait_pod("app", SLOW, waits_with("ErrImagePull"));
    write_docker_config(&node, &registry, PASSWORD);
    node.wait_pod("app", SLOW, runs);
}

/// A pod that mounts an image and says what is in it.
fn reader(name: &str, image: &str) -> String {
    let command = "cat /data/etc/rubelet-image; touch /data/x || echo read-only; sleep 3600";
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    let container = json!({
        "name": "main", "image": LOCAL, "imagePullPolicy": "Never", "command": ["sh", "-c", command],
        "volumeMounts": mounts,
    });
    let bystander = json!({
        "name": "other", "image": LOCAL, "imagePullPolicy": "Never", "command": ["sleep", "3600"],
    });
    let volume = json!({ "name": "data", "image": { "reference": image, "pullPolicy": "IfNotPresent" } });
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "containers": [container, bystander], "volumes": [volume],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

#[test]
fn an_image_is_mounted_as_a_volume() {
    let runtime = Runtime::start_version("2.1");
    let registry = Registry::start_with_password(&runtime);
    let node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
    let image = registry.push(&node.runtime, OTHER, "secret/data:1");
    node.agent.write_manifest("reader", &reader("reader", &image));
    // Who mounts it waits for it, with the reasons of an image; the other does not.
    let refused = node.wait_pod("reader", SLOW, |pod| {
        waits_with("ImagePullBackOff")(pod) && pod["status"]["containerStatuses"][1]["ready"] == true
    });
    let message = waiting(&refused)["message"].as_str().unwrap_or_default();
    let prefix = format!("Back-off pulling image \"{image}\": ErrImagePull: ");
    assert!(message.starts_with(&prefix), "{message}");
    for event in ["Error: ErrImagePull", "Error: ImagePullBackOff"] {
        wait_logged(&node, event, 1);
    }
    write_docker_config(&node, &registry, PASSWORD);
    let running = node.wait_pod("reader", SLOW, runs);
    wait("the content of the volume", SLOW, || {
        let log = node.agent.container_log(&running, "main", 0);
        match log.contains("busybox:2") && log.contains("read-only") {
            true => Ok(()),
            false => Err(log),
        }
    });
    wait_logged(&node, &format!("Successfully pulled image \"{image}\""), 1);
    node.agent.remove_manifest("reader");
    node.wait_clean(SLOW);
}

#[test]
fn a_runtime_that_can_not_mount_images_says_so() {
    for version in ["1.6", "1.7"] {
        let runtime = Runtime::start_version(version);
        let node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
        node.agent.write_manifest("reader", &reader("reader", OTHER));
        let refused = node.wait_pod("reader", SLOW, waits_with("CreateContainerError"));
        let message = waiting(&refused)["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("the container runtime can't mount images as volumes: "), "{message}");
        node.wait_pod("reader", SLOW, |pod| pod["status"]["containerStatuses"][1]["ready"] == true);
    }
}

fn occurrences(text: &[u8], part: &str) -> usize {
    text.windows(part.len()).filter(|window| *window == part.as_bytes()).count()
}

/// A runtime chooses the storage that it unpacks an image into by what it is told of the pod.
#[test]
fn the_runtime_is_told_of_the_pod_that_an_image_is_pulled_for() {
    let runtime = Runtime::start();
    let proxy = Proxy::start(&runtime);
    let agent = Agent::start(&runtime, |config| {
        config["containerRuntimeEndpoint"] = proxy.endpoint().into();
    });
    let node = Node { agent, runtime };
    let registry = Registry::start(&node.runtime);
    let image = registry.push(&node.runtime, LOCAL, "team/app:1");
    for (name, namespace) in [("one", "first-space"), ("two", "second-space")] {
        let mut manifest: Value = serde_json::from_str(&pod(name, &image, "Always")).expect("JSON");
        manifest["metadata"]["namespace"] = json!(namespace);
        manifest["metadata"]["annotations"] = json!({ "snapshotter.example": "of-its-own" });
        node.agent.write_manifest(name, &manifest.to_string());
        node.wait_pod(name, SLOW, runs);
    }
    let pulls = proxy.pulls();
    let [one, two] = &pulls[..] else { panic!("{} pulls", pulls.len()) };
    for (pull, namespace, other) in
        [(one, "first-space", "second-space"), (two, "second-space", "first-space")]
    {
        // In the image's own annotations, and in the sandbox's.
        assert_eq!(occurrences(pull, "snapshotter.example"), 2);
        assert!(occurrences(pull, namespace) > 1 && occurrences(pull, other) == 0);
        // Where the sandbox's logs and cgroup are: only its configuration tells that.
        assert!(occurrences(pull, &node.agent.logs_dir().to_string_lossy()) == 1);
        assert!(occurrences(pull, "kubepods") > 0);
    }
}
