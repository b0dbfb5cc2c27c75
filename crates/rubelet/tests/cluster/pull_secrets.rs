//! Pods that bring the password of a registry themselves, as secrets of a real API server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, ClusterNode, STAYS, ready};
use crate::support::harness::{self, PASSWORD, Registry, Runtime, SLOW, USER};
use serde_json::{Value, json};

fn waits_with(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
}

/// A pod of that image which shows the secrets.
fn pod(member: &ClusterNode, name: &str, image: &str, secrets: &[&str]) -> String {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
    let container = json!({
        "name": "main", "image": image, "command": ["sh", "-c", STAYS], "imagePullPolicy": "IfNotPresent",
    });
    let spec = json!({
        "containers": [container], "imagePullSecrets": secrets, "automountServiceAccountToken": false,
    });
    member.pod(name, STAYS, spec)
}

#[test]
fn the_secret_of_one_pod_is_no_door_for_another() {
    let cluster = Cluster::shared_bare();
    let member = ClusterNode::join(cluster, "puller");
    let registry = Registry::start_with_password(&member.node.runtime);
    let image = registry.push(&member.node.runtime, BUSYBOX, "secret/app:1");
    let namespace = cluster.namespace("pulls");
    let secret = |name: &str, password: &str| {
        let data = json!({ ".dockerconfigjson": registry.docker_config(password) });
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "type": "kubernetes.io/dockerconfigjson", "stringData": data,
        })
        .to_string()
    };
    cluster.create(&namespace, &secret("wrong", "not it"));

    cluster.create_pod(&namespace, &pod(&member, "none", &image, &[]));
    cluster.wait_for("pod", &namespace, "none", SLOW, waits_with("ImagePullBackOff"));
    // One secret is missing and another is wrong: the one that is right is found all the same, when it comes.
    cluster.create_pod(&namespace, &pod(&member, "shows", &image, &["missing", "wrong", "right"]));
    cluster.wait_for("pod", &namespace, "shows", SLOW, waits_with("ImagePullBackOff"));
    cluster.create(&namespace, &secret("right", PASSWORD));
    cluster.wait_for("pod", &namespace, "shows", SLOW, ready);
    harness::wait_until("the Event about the missing secret", SLOW, || {
        let events = cluster.events(&namespace, "shows");
        events.iter().any(|event| event["reason"] == "FailedToRetrieveImagePullSecret")
    });

    // The image is on the node now, but who shows nothing may not use it.
    cluster.create_pod(&namespace, &pod(&member, "sneaks", &image, &[]));
    cluster.wait_for("pod", &namespace, "sneaks", SLOW, waits_with("ImagePullBackOff"));
    let served = registry.served("secret/app", "1");
    cluster.create_pod(&namespace, &pod(&member, "also", &image, &["right"]));
    cluster.wait_for("pod", &namespace, "also", SLOW, ready);
    assert_eq!(registry.served("secret/app", "1"), served, "the same secret is believed without a pull");
    assert!(!member.agent().log().contains(PASSWORD), "the password is in the log");
}

/// A plugin that notes what it is asked, and gives the password to who shows a token. The flags that name it.
fn write_token_plugin(dir: &Path, registry: &Registry) -> [String; 2] {
    let (bin, config) = (dir.join("plugins-bin"), dir.join("plugins.json"));
    fs::create_dir_all(&bin).expect("make the plugins' directory");
    let answer = |auth: Value| {
        json!({
            "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": "Registry", "auth": auth,
        })
    };
    let (open, shut) = (
        answer(json!({ registry.address(): { "username": USER, "password": PASSWORD } })),
        answer(json!({})),
    );
    let script = format!(
        r#"#!/bin/sh
request=$(cat); echo "$request" >>"$1"
case "$request" in *serviceAccountToken*) echo '{open}' ;; *) echo '{shut}' ;; esac
"#
    );
    fs::write(bin.join("tokens"), script).expect("write the plugin");
    fs::set_permissions(bin.join("tokens"), fs::Permissions::from_mode(0o755)).expect("make it executable");
    let document = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "tokens",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": [registry.address()],
            "defaultCacheDuration": "10m",
            "args": [dir.join("asked")],
            "tokenAttributes": {
                "serviceAccountTokenAudience": "registry-of-the-test",
                "requireServiceAccount": true,
                "cacheType": "ServiceAccount",
                "requiredServiceAccountAnnotationKeys": ["example.test/pulls"],
                "optionalServiceAccountAnnotationKeys": ["example.test/other"],
            },
        }],
    });
    fs::write(&config, document.to_string()).expect("write the plugins' configuration");
    [
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", bin.display()),
    ]
}

/// What the token says about itself.
fn claims(token: &str) -> Value {
    use base64::Engine;
    let payload = token.split('.').nth(1).expect("a token of three parts");
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).expect("base64");
    serde_json::from_slice(&bytes).expect("JSON")
}

#[test]
fn a_plugin_gets_the_token_of_the_pods_service_account() {
    let cluster = Cluster::shared_bare();
    let runtime = Runtime::start();
    let registry = Registry::start_with_password(&runtime);
    let flags = write_token_plugin(&runtime.dir, &registry);
    let asked_file = runtime.dir.join("asked");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let member = ClusterNode::join_on(runtime, cluster, "token-puller", &flags, |_| {});
    let image = registry.push(&member.node.runtime, BUSYBOX, "secret/app:1");
    let namespace = cluster.namespace("tokens");
    // Nodes may ask for tokens of audiences that no pod names only where somebody lets them.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "tokens" },
        "rules": [{
            "apiGroups": [""], "resources": ["registry-of-the-test"],
            "verbs": ["request-serviceaccounts-token-audience"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "tokens" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tokens" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }],
    });
    cluster.create(&namespace, &role.to_string());
    cluster.create(&namespace, &binding.to_string());
    for (name, annotations) in
        [("puller", json!({ "example.test/pulls": "yes", "example.test/hidden": "h" })), ("plain", json!({}))]
    {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": name, "annotations": annotations },
        });
        cluster.create(&namespace, &account.to_string());
    }
    let with_account = |name: &str, account: &str| {
        let mut pod: Value = serde_json::from_str(&pod(&member, name, &image, &[])).expect("JSON");
        pod["spec"]["serviceAccountName"] = json!(account);
        pod.to_string()
    };
    cluster.create_pod(&namespace, &with_account("first", "puller"));
    cluster.wait_for("pod", &namespace, "first", SLOW, ready);

    let asked = fs::read_to_string(&asked_file).expect("the plugin's notes");
    let request: Value = serde_json::from_str(asked.lines().next().unwrap_or_default()).expect("JSON");
    assert_eq!(request["serviceAccountAnnotations"], json!({ "example.test/pulls": "yes" }));
    let told = claims(request["serviceAccountToken"].as_str().expect("a token"));
    assert_eq!(told["aud"], json!(["registry-of-the-test"]));
    assert_eq!(told["sub"], format!("system:serviceaccount:{namespace}:puller"));
    assert_eq!(told["kubernetes.io"]["pod"]["name"], "first");

    // The record names the account: its other pods may use what is there, without a pull or another question.
    let dir = member.agent().root_dir().join("image_manager/pulled");
    let record = fs::read_dir(dir).expect("records").flatten().next().expect("a record").path();
    let record: Value = serde_json::from_slice(&fs::read(record).expect("a record")).expect("JSON");
    let repository = image.rsplit_once(':').expect("a tag").0;
    let known = &record["credentialMapping"][repository];
    assert_eq!(known["kubernetesServiceAccounts"][0]["name"], "puller", "{record}");
    assert!(known["nodePodsAccessible"].is_null(), "{record}");
    let served = registry.served("secret/app", "1");
    cluster.create_pod(&namespace, &with_account("second", "puller"));
    cluster.wait_for("pod", &namespace, "second", SLOW, ready);
    assert_eq!(registry.served("secret/app", "1"), served, "the account is believed without a pull");
    let asked = fs::read_to_string(&asked_file).expect("the plugin's notes");
    assert_eq!(asked.lines().count(), 1, "the answer is kept for the account:\n{asked}");

    // An account without the annotation does not get the plugin's help, nor the image that is there.
    cluster.create_pod(&namespace, &with_account("third", "plain"));
    cluster.wait_for("pod", &namespace, "third", SLOW, waits_with("ImagePullBackOff"));
    let asked = fs::read_to_string(&asked_file).expect("the plugin's notes");
    assert_eq!(asked.lines().count(), 1, "{asked}");
    let token = request["serviceAccountToken"].as_str().unwrap_or_default();
    assert!(!member.agent().log().contains(token), "the token is in the log");
}
