//! The test cluster itself: each of its parts does what tests of the agent build on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::support::cluster::Cluster;
use crate::support::harness::{self, SLOW, hack, live_processes, run};
use serde_json::{Value, json};

const PAUSE: &str = "rubelet.test/pause:1";

fn node(name: &str) -> String {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }).to_string()
}

fn bound_pod(name: &str, node: &str) -> String {
    let spec = json!({ "nodeName": node, "containers": [{ "name": "main", "image": PAUSE }] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

/// Puts text where kubectl can read it for whatever user.
fn file(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.dir.join(name);
    fs::write(&path, text).expect("write a file for kubectl");
    path.to_string_lossy().into_owned()
}

#[track_caller]
fn assert_forbidden(result: Result<String, String>, because: &str) {
    let said = result.expect_err("it was allowed");
    assert!(said.contains("Forbidden") || said.contains("forbidden"), "another error: {said}");
    assert!(said.contains(because), "forbidden, and not because of {because:?}: {said}");
}

#[test]
fn a_deployment_yields_pods_that_wait_for_a_node() {
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("deployment");
    let deployment = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{replicas: 2, selector: {{matchLabels: {{app: web}}}}, \
         template: {{metadata: {{labels: {{app: web}}}}, spec: {{nodeSelector: {{only: nowhere}}, containers: [{{name: main, image: \"{PAUSE}\"}}]}}}}}}}}"
    );
    cluster.create(&namespace, &deployment);
    cluster.wait_for("deployment", &namespace, "web", SLOW, |web| web["status"]["replicas"] == 2);
    let pods = cluster.kubectl_json(&["get", "pods", "--namespace", &namespace]);
    let pods = pods["items"].as_array().expect("a list");
    assert_eq!(pods.len(), 2);
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let waiting = cluster.wait_for("pod", &namespace, name, SLOW, |pod| {
            pod["status"]["conditions"][0]["reason"] == "Unschedulable"
        });
        assert_eq!(waiting["status"]["phase"], "Pending");
        // The controller-manager's part of a pod's volumes.
        let volumes = waiting["spec"]["volumes"].to_string();
        assert!(volumes.contains("kube-root-ca.crt"), "no service account token: {volumes}");
        // Nodes of other tests come and go, and the scheduler's message with them.
        assert_eq!(cluster.pod_status(&namespace, name)["phase"], "Pending");
        wait_for_event(cluster, &namespace, name, "FailedScheduling");
    }
}

/// An event is written after the status that it explains.
#[track_caller]
fn wait_for_event(cluster: &Cluster, namespace: &str, pod: &str, reason: &str) {
    harness::wait("the event", SLOW, || {
        let reasons: Vec<_> =
            cluster.events(namespace, pod).iter().map(|event| event["reason"].clone()).collect();
        if reasons.iter().any(|seen| seen == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
    });
}

#[test]
fn the_scheduler_binds_to_a_ready_node_and_a_deleted_object_goes() {
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("scheduled");
    let ready = json!({ "status": {
        "conditions": [{ "type": "Ready", "status": "True" }],
        "allocatable": { "cpu": "2", "memory": "1Gi", "pods": "10" },
        "capacity": { "cpu": "2", "memory": "1Gi", "pods": "10" },
    }});
    let name = "scheduled-to";
    cluster.create("", &node(name));
    cluster.kubectl(&["patch", "node", name, "--subresource=status", "-p", &ready.to_string()]);
    // The controller-manager takes the taint of an unready node away.
    cluster.wait_for("node", "", name, SLOW, |node| {
        !node["spec"]["taints"].to_string().contains("node.kubernetes.io/not-ready")
    });
    let mut pod: Value = serde_json::from_str(&bound_pod("lucky", name)).expect("JSON");
    pod["spec"]["nodeName"] = Value::Null;
    pod["spec"]["nodeSelector"] = json!({ "only": "here" });
    cluster.kubectl(&["label", "node", name, "only=here"]);
    cluster.create_pod(&namespace, &pod.to_string());
    cluster.wait_for("pod", &namespace, "lucky", SLOW, |pod| pod["spec"]["nodeName"] == name);

    // Nobody runs on that node: only force ends the pod.
    cluster.kubectl(&["delete", "pod", "lucky", "--namespace", &namespace, "--force", "--grace-period=0"]);
    cluster.wait_gone("pod", &namespace, "lucky", SLOW);
    cluster.delete("node", "", name);
    cluster.wait_gone("node", "", name, SLOW);
}

#[test]
fn a_node_may_write_its_own_objects_only() {
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("nodes");
    let kubeconfig = cluster.node_kubeconfig("own");
    let own = file(cluster, "own.json", &node("own"));
    cluster.kubectl_as(&kubeconfig, &["create", "-f", &own]).expect("a node makes its own object");
    cluster
        .kubectl_as(&kubeconfig, &["annotate", "node", "own", "a=b"])
        .expect("a node writes its own object");

    // Past kubectl's habit of reading first: a node may not even read what is not its own.
    cluster.create("", &node("other"));
    let read = cluster.kubectl_as(&kubeconfig, &["get", "node", "other"]);
    assert_forbidden(read, "only its own Node object");
    let other = file(cluster, "other.json", &node("other"));
    let write = cluster.kubectl_as(&kubeconfig, &["replace", "--raw", "/api/v1/nodes/other", "-f", &other]);
    assert_forbidden(write, "is not allowed to modify node");
    let another = file(cluster, "another.json", &node("another"));
    assert_forbidden(
        cluster.kubectl_as(&kubeconfig, &["create", "-f", &another]),
        "is not allowed to modify node",
    );

    let replace_status = |name: &str, node: &str| {
        let mut pod = cluster.create_pod(&namespace, &bound_pod(name, node));
        pod["status"]["phase"] = json!("Running");
        let text = file(cluster, &format!("{name}.json"), &pod.to_string());
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        cluster.kubectl_as(&kubeconfig, &["replace", "--raw", &path, "-f", &text])
    };
    replace_status("mine", "own").expect("a node writes the status of its pod");
    assert_eq!(cluster.pod_status(&namespace, "mine")["phase"], "Running");
    assert_forbidden(
        replace_status("theirs", "other"),
        "can only update pod status for pods with spec.nodeName",
    );
}

/// A private key, and a request for a certificate of that node in Kubernetes' form.
fn signing_request(cluster: &Cluster, node: &str) -> (PathBuf, Value) {
    let (key, request) = (cluster.dir.join(format!("{node}.key")), cluster.dir.join(format!("{node}.csr")));
    run(Command::new("openssl")
        .args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"])
        .args(["-subj", &format!("/O=system:nodes/CN=system:node:{node}"), "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&request));
    let request = run(Command::new("base64").arg("-w0").arg(&request));
    let spec = json!({
        "request": request,
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    });
    let kind = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": node }, "spec": spec,
    });
    (key, kind)
}

fn lasts(certificate: &Path, seconds: u32) -> bool {
    let check = Command::new("openssl")
        .args(["x509", "-noout", "-checkend", &seconds.to_string(), "-in"])
        .arg(certificate)
        .output();
    check.expect("run openssl").status.success()
}

#[test]
fn a_bootstrap_token_leads_to_a_certificate_of_the_wanted_life() {
    let cluster = Cluster::start_with(&["--signing-duration", "5h"]);
    let bootstrap = cluster.bootstrap_kubeconfig();
    assert_forbidden(cluster.kubectl_as(&bootstrap, &["get", "secrets"]), "system:bootstrap:");

    let (key, request) = signing_request(&cluster, "newcomer");
    let request = file(&cluster, "csr.json", &request.to_string());
    cluster.kubectl_as(&bootstrap, &["create", "-f", &request]).expect("a newcomer asks for a certificate");
    let signed =
        cluster.wait_for("csr", "", "newcomer", SLOW, |csr| csr["status"]["certificate"].is_string());
    assert_eq!(signed["status"]["conditions"][0]["type"], "Approved");
    let certificate = cluster.dir.join("newcomer.crt");
    let encoded = file(&cluster, "newcomer.b64", signed["status"]["certificate"].as_str().expect("text"));
    fs::write(&certificate, run(Command::new("base64").args(["-d", &encoded])))
        .expect("keep the certificate");
    assert!(lasts(&certificate, 4 * 3600) && !lasts(&certificate, 6 * 3600), "its life is not as asked for");

    let pair = [
        format!("--client-certificate={}", certificate.display()),
        format!("--client-key={}", key.display()),
        format!("--certificate-authority={}", cluster.ca().display()),
        format!("--server={}", cluster.server()),
    ];
    let pair: Vec<&str> = pair.iter().map(String::as_str).collect();
    let nobody = PathBuf::from("/dev/null");
    let me = cluster.kubectl_as(&nobody, &[&pair[..], &["auth", "whoami", "-o", "json"]].concat());
    let me: Value = serde_json::from_str(&me.expect("the new certificate is accepted")).expect("JSON");
    assert_eq!(me["status"]["userInfo"]["username"], "system:node:newcomer");
}

#[test]
fn the_credentials_are_what_their_users_need() {
    let cluster = Cluster::shared();
    let auditor = cluster.user_kubeconfig("jane", &["readers", "auditors"]);
    let me = cluster.kubectl_as(&auditor, &["auth", "whoami", "-o", "json"]).expect("a user is known");
    let me: Value = serde_json::from_str(&me).expect("JSON");
    assert_eq!(me["status"]["userInfo"]["username"], "jane");
    assert_eq!(me["status"]["userInfo"]["groups"], json!(["readers", "auditors", "system:authenticated"]));

    for (pair, purpose) in
        [(cluster.serving_certificate("served"), "sslserver"), (cluster.kubelet_client(), "sslclient")]
    {
        let verdict = run(Command::new("openssl")
            .args(["verify", "-purpose", purpose, "-CAfile"])
            .arg(cluster.ca())
            .arg(&pair.certificate));
        assert!(verdict.trim().ends_with(": OK"), "{verdict}");
        assert!(pair.key.exists());
    }
}

#[test]
fn every_request_is_counted_by_user() {
    let cluster = Cluster::shared();
    let counter = cluster.user_kubeconfig("counter", &[]);
    for _ in 0..2 {
        assert_forbidden(
            cluster.kubectl_as(&counter, &["get", "--raw", "/api/v1/namespaces/default/pods/gone"]),
            "counter",
        );
    }
    let watch = "/api/v1/nodes?watch=true&timeoutSeconds=1";
    assert_forbidden(cluster.kubectl_as(&counter, &["get", "--raw", watch]), "counter");
    let requests = cluster.api_requests("counter");
    let seen: Vec<_> = requests
        .iter()
        .map(|request| {
            (request.verb.as_str(), request.resource.as_str(), request.name.as_str(), request.code)
        })
        .collect();
    assert_eq!(
        seen,
        [("get", "pods", "gone", 403), ("get", "pods", "gone", 403), ("watch", "nodes", "", 403)]
    );
    let counts: Vec<_> = cluster.api_request_counts("counter").into_iter().collect();
    assert_eq!(counts, [("get pods".to_owned(), 2), ("watch nodes".to_owned(), 1)]);
}

#[test]
fn the_api_server_goes_and_comes_back_with_its_data() {
    let cluster = Cluster::start_bare();
    let pod = cluster.create_pod("default", &bound_pod("kept", "nowhere"));
    assert!(pod["spec"]["serviceAccountName"].is_null(), "a bare cluster gives no service account: {pod}");

    cluster.stop_api_server();
    let said = cluster.try_kubectl(&["get", "pods"]).expect_err("the API server is away");
    assert!(said.contains("refused"), "{said}");
    cluster.start_api_server();
    assert_eq!(cluster.pod("default", "kept")["metadata"], pod["metadata"]);

    cluster.hang_api_server();
    let asked = cluster.try_kubectl(&["get", "pods", "--request-timeout=500ms"]);
    cluster.resume_api_server();
    let said = asked.expect_err("the API server hangs");
    assert!(said.contains("Timeout") || said.contains("deadline"), "{said}");
    assert_eq!(cluster.pod("default", "kept")["metadata"], pod["metadata"]);
}

#[test]
fn after_a_compaction_old_revisions_are_gone() {
    let cluster = Cluster::start_bare();
    let old = cluster.create_pod("default", &bound_pod("old", "nowhere"));
    let revision = old["metadata"]["resourceVersion"].as_str().expect("a revision");
    let watch = format!("/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion={revision}");
    let exact = format!("/api/v1/pods?resourceVersion={revision}&resourceVersionMatch=Exact");
    cluster.kubectl(&["annotate", "pod", "old", "a=b"]);
    let events = cluster.kubectl(&["get", "--raw", &watch]);
    assert!(events.contains("MODIFIED"), "the watch still knows the change: {events}");
    cluster.kubectl(&["get", "--raw", &exact]);

    let kept = cluster.compact();
    assert!(kept > revision.parse().expect("a number"));
    // Until now the API server's own cache knew that revision as well.
    cluster.stop_api_server();
    cluster.start_api_server();
    let said = cluster.try_kubectl(&["get", "--raw", &exact]).expect_err("that revision is gone");
    assert!(said.contains("(Expired)"), "{said}");
    let said = match cluster.try_kubectl(&["get", "--raw", &watch]) {
        Ok(events) => events,
        Err(said) => said,
    };
    assert!(said.contains("410") || said.contains("too old resource version"), "{said}");
    assert!(!said.contains("MODIFIED"), "{said}");
}

/// What can still be seen of a cluster on the machine.
fn traces(dir: &Path) -> Vec<String> {
    let mut found = live_processes(&format!("{}/", dir.display()));
    // As the last argument.
    found.extend(live_processes(&format!("{} ", dir.display())));
    found.extend(dir.exists().then(|| dir.display().to_string()));
    found
}

#[test]
fn a_cluster_goes_without_a_trace() {
    let cluster = Cluster::start_bare();
    let dir = cluster.dir.clone();
    cluster.hang_api_server();
    let used = traces(&dir).join("\n");
    for kind in ["kube-apiserver", "etcd", "cluster guard"] {
        assert!(used.contains(kind), "no {kind} among:\n{used}");
    }
    drop(cluster);
    assert_eq!(traces(&dir), [""; 0]);
}

/// A process on whose behalf a cluster runs.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_whose_owner_died_is_swept() {
    let owner = Owner(Command::new("sleep").arg("600").spawn().expect("start an owner"));
    let dir = std::env::temp_dir().join(format!("rubelet-swept-cluster-{}", std::process::id()));
    let id = owner.0.id().to_string();
    run(hack("cluster").arg("start").arg(&dir).arg("--bare").env("RUBELET_TEST_OWNER", id));
    run(hack("cluster").arg("sweep"));
    assert!(dir.exists(), "its owner lives, and it was swept");
    drop(owner);
    run(hack("cluster").arg("sweep"));
    assert_eq!(traces(&dir), [""; 0]);
}
