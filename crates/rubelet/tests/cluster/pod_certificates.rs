//! Certificates of pods (`podCertificate` in a projected volume) against a real API server, whose node authorizer and
//! NodeRestriction judge what the agent asks for. The test is the signer.

use crate::support::cluster_node;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::ClusterNode;
use crate::support::harness::{SLOW, hack, run, wait};
use crate::support::pods::printed;
use serde_json::{Value, json};

const SIGNER: &str = "test.example/mine";
const KEY_TYPES: [&str; 6] = ["ED25519", "ECDSAP256", "ECDSAP384", "ECDSAP521", "RSA3072", "RSA4096"];

/// What it stores can be read and changed by hand: no signer may give certificates that are refreshed within minutes.
fn cluster() -> &'static Cluster {
    static ONE: OnceLock<Cluster> = OnceLock::new();
    ONE.get_or_init(|| {
        let flags = [
            "--feature-gates=PodCertificateRequest=true",
            "--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true",
            "--storage-media-type=application/json",
        ];
        let flags: Vec<&str> = flags.iter().flat_map(|flag| ["--apiserver", *flag]).collect();
        Cluster::start_with(&[&["--bare"], &flags[..]].concat())
    })
}

fn join(name: &'static str) -> ClusterNode {
    ClusterNode::join_with(cluster(), name, |config| {
        config["featureGates"]["PodCertificateRequest"] = json!(true);
    })
}

/// A namespace with the service account `sa`.
fn namespace(prefix: &str) -> String {
    let namespace = cluster().namespace(prefix);
    cluster().kubectl(&["create", "serviceaccount", "sa", "--namespace", &namespace]);
    namespace
}

fn pod(node: &ClusterNode, name: &str, script: &str, sources: &Value, more: Value) -> String {
    let volumes = json!([{"name": "certs", "projected": {"defaultMode": 0o440, "sources": sources}}]);
    let mut spec =
        json!({"serviceAccountName": "sa", "automountServiceAccountToken": false, "volumes": volumes});
    cluster_node::merge(&mut spec, more);
    let mut pod: Value = serde_json::from_str(&node.pod(name, script, spec)).expect("a pod");
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "certs", "mountPath": "/certs"}]);
    pod.to_string()
}

/// What a program says, given this.
fn said(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program");
    child.stdin.take().expect("its input").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn openssl(args: &[&str], input: &str) -> String {
    String::from_utf8(said(Command::new("openssl").args(args), input.as_bytes())).expect("text")
}

/// The public key, as PEM, of a private one and of the first certificate in the text.
fn public_keys(pem: &str) -> (String, String) {
    let certificate = openssl(&["x509", "-noout", "-pubkey"], pem);
    (openssl(&["pkey", "-pubout"], pem), openssl(&["pkey", "-pubin", "-pubout"], &certificate))
}

/// An authority, whose files are below a directory.
struct Signer {
    dir: PathBuf,
}

impl Signer {
    fn new(dir: &Path) -> Signer {
        let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (key, certificate) = (path("signer.key"), path("signer.crt"));
        let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=signer"];
        let out = ["req", "-x509", "-days", "10", "-keyout", &key, "-out", &certificate];
        openssl(&[&out[..], &ec].concat(), "");
        Signer { dir: dir.to_owned() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// The status of an issued request. With `begin` and `end` its times are these many seconds from now, and not those of
    /// the certificate.
    fn issue(&self, request: &Value, times: Option<(u32, u32)>) -> Value {
        use base64::Engine;
        let stub = request["spec"]["stubPKCS10Request"].as_str().expect("a request");
        let stub = base64::engine::general_purpose::STANDARD.decode(stub).expect("base64");
        let verify = ["req", "-inform", "DER", "-verify", "-noout", "-pubkey"];
        let public = said(Command::new("openssl").args(verify), &stub);
        fs::write(self.dir.join("public.pem"), public).expect("write");
        let (public, ca, key) = (self.path("public.pem"), self.path("signer.crt"), self.path("signer.key"));
        let new = ["x509", "-new", "-force_pubkey", &public, "-CA", &ca, "-CAkey", &key];
        let leaf = openssl(&[&new[..], &["-subj", "/CN=pod", "-days", "1"]].concat(), "");
        let shown = openssl(&["x509", "-noout", "-dates", "-dateopt", "iso_8601"], &leaf);
        let time = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.expect("a date").replace(' ', "T")
        };
        let later = |seconds: u32| {
            let at = format!("+{seconds} seconds");
            let text = run(Command::new("date").args(["-u", "-d", &at, "+%Y-%m-%dT%H:%M:%SZ"]));
            text.trim().to_owned()
        };
        let chain = format!("a remark\n{leaf}{}", fs::read_to_string(&ca).expect("the authority"));
        let mut status = json!({
            "conditions": [condition("Issued")], "certificateChain": chain.trim_start_matches("a remark\n"),
            "notBefore": time("notBefore"), "notAfter": time("notAfter"), "beginRefreshAt": later(12 * 3600),
        });
        if let Some((begin, end)) = times {
            // Nobody checks what is written behind the API server's back.
            status["certificateChain"] = json!(chain);
            status["beginRefreshAt"] = json!(later(begin));
            status["notAfter"] = json!(later(end));
        }
        status
    }
}

fn condition(kind: &str) -> Value {
    let now = run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]));
    json!({"type": kind, "status": "True", "reason": "ByTest", "message": "not \"you\"", "lastTransitionTime": now.trim()})
}

fn name_of(request: &Value) -> &str {
    request["metadata"]["name"].as_str().expect("a name")
}

/// Requests in the namespace that nobody has answered, when there are so many.
#[track_caller]
fn open_requests(namespace: &str, count: usize) -> Vec<Value> {
    wait("requests for certificates", 2 * SLOW, || {
        let list = cluster().kubectl_json(&["get", "podcertificaterequests", "--namespace", namespace]);
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let open: Vec<_> =
            all.into_iter().filter(|request| request["status"]["conditions"].is_null()).collect();
        if open.len() == count { Ok(open) } else { Err(format!("{} of {count}", open.len())) }
    })
}

/// As a signer does it.
fn answer(namespace: &str, request: &Value, status: &Value) {
    let patch = json!({ "status": status }).to_string();
    let name = name_of(request);
    let args = ["patch", "podcertificaterequest", name, "--namespace", namespace, "--subresource=status"];
    cluster().kubectl(&[&args[..], &["--type=merge", "--patch", &patch]].concat());
}

/// Past the API server's checks, which want hours between an answer and its refresh.
fn answer_in_the_store(namespace: &str, request: &Value, status: &Value) {
    let etcdctl = Path::new(run(hack("parts").arg("etcd")).trim()).join("etcdctl");
    let endpoints = format!("--endpoints={}", cluster().fact("etcd"));
    let etcdctl = |args: &[&str], input: &str| {
        let text =
            said(Command::new(&etcdctl).env("ETCDCTL_API", "3").arg(&endpoints).args(args), input.as_bytes());
        String::from_utf8(text).expect("text")
    };
    let end = format!("/{namespace}/{}", name_of(request));
    let keys = etcdctl(&["get", "--prefix", "/registry/podcertificaterequests", "--keys-only"], "");
    let key = keys.lines().find(|key| key.ends_with(&end)).expect("the request").to_owned();
    let stored = etcdctl(&["get", &key, "--print-value-only"], "");
    let mut stored: Value = serde_json::from_str(&stored).expect("stored as JSON");
    stored["status"] = status.clone();
    etcdctl(&["put", &key], &stored.to_string());
}

/// The text of the pod's container between these marks, once it is there.
#[track_caller]
fn between(node: &ClusterNode, pod: &Value, mark: &str) -> String {
    wait(&format!("the container's words for {mark}"), 2 * SLOW, || {
        let lines = printed(node.agent(), pod, "main", 0);
        let place = |word: String| lines.iter().position(|line| *line == word);
        match (place(format!("begin {mark}")), place(format!("end {mark}"))) {
            (Some(begin), Some(end)) => Ok(lines[begin + 1..end].join("\n") + "\n"),
            _ => Err(lines.join("\n")),
        }
    })
}

#[track_caller]
fn wait_event(namespace: &str, pod: &str, reason: &str, message: &str) {
    wait(&format!("an Event {reason}: {message}"), 2 * SLOW, || {
        let events = cluster().events(namespace, pod);
        let found = |event: &Value| {
            event["reason"] == reason && event["message"].as_str().is_some_and(|text| text.contains(message))
        };
        let seen =
            || events.iter().map(|event| format!("{} {}\n", event["reason"], event["message"])).collect();
        if events.iter().any(found) { Ok(()) } else { Err::<(), String>(seen()) }
    });
}

/// Keys of every type: the API server takes the proof that the agent holds them, the pod waits until all are certified, and
/// what it reads belongs together, with its mode and owner, in memory only.
#[test]
fn keys_of_every_type_are_certified() {
    let node = join("certs-types");
    let namespace = namespace("types");
    let signer = Signer::new(&node.node.runtime.dir);
    let sources: Vec<Value> = KEY_TYPES
        .iter()
        .map(|key_type| {
            json!({"podCertificate": {
                "signerName": SIGNER, "keyType": key_type, "maxExpirationSeconds": 86400,
                "credentialBundlePath": format!("{key_type}/bundle"), "keyPath": format!("{key_type}/key"),
                "certificateChainPath": format!("{key_type}/chain"),
                "userAnnotations": {"test.example/kind": key_type},
            }})
        })
        .collect();
    let script = "cd /certs; for kind in *; do
            cat $kind/key $kind/chain | cmp - $kind/bundle || exit 1
            echo \"begin $kind\"; cat $kind/bundle; echo \"end $kind\"
        done
        echo \"begin modes\"; stat -L -c %a-%u */key */chain */bundle | sort -u; echo \"end modes\"
        trap 'exit 0' TERM; sleep 3600 & wait";
    let more = json!({"securityContext": {"runAsUser": 4711}});
    let made = cluster().create_pod(&namespace, &pod(&node, "types", script, &json!(sources), more));
    let requests = open_requests(&namespace, KEY_TYPES.len());
    wait_event(&namespace, "types", "FailedMount", "credential bundle is not issued yet");

    let uid = |kind: &str, namespace: &str, name: &str| {
        cluster().get(kind, namespace, name).expect("it is there")["metadata"]["uid"].clone()
    };
    let (account, node_uid) = (uid("serviceaccount", &namespace, "sa"), uid("node", "", node.name));
    let mut kinds: Vec<&str> = Vec::new();
    for request in &requests {
        let spec = &request["spec"];
        assert_eq!((&spec["signerName"], &spec["maxExpirationSeconds"]), (&json!(SIGNER), &json!(86400)));
        assert_eq!((&spec["podName"], &spec["podUID"]), (&json!("types"), &made["metadata"]["uid"]));
        assert_eq!((&spec["serviceAccountName"], &spec["serviceAccountUID"]), (&json!("sa"), &account));
        assert_eq!((&spec["nodeName"], &spec["nodeUID"]), (&json!(node.name), &node_uid));
        let owner = &request["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Pod"), &made["metadata"]["uid"]));
        kinds.push(spec["unverifiedUserAnnotations"]["test.example/kind"].as_str().expect("its type"));
        answer(&namespace, request, &signer.issue(request, None));
    }
    kinds.sort_unstable();
    let mut expect = KEY_TYPES;
    expect.sort_unstable();
    assert_eq!(kinds, expect);

    let pod = cluster().wait_for("pod", &namespace, "types", 2 * SLOW, cluster_node::ready);
    for key_type in KEY_TYPES {
        let (of_key, of_certificate) = public_keys(&between(&node, &pod, key_type));
        assert_eq!(of_key, of_certificate, "{key_type}");
    }
    assert_eq!(between(&node, &pod, "modes"), "600-4711\n");
    let metrics = node.agent().get("/metrics").expect("metrics").text();
    let states = format!("kubelet_podcertificate_states{{signer_name=\"{SIGNER}\",state=\"fresh\"}} 6");
    assert!(metrics.contains(&states), "{metrics}");
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    let is_volume =
        |line: &&str| line.contains(pod["metadata"]["uid"].as_str().unwrap()) && line.contains("/certs ");
    let volume = mounts.lines().find(is_volume).expect("the volume is a mount");
    assert!(volume.starts_with("tmpfs "), "{volume}");
    assert!(!node.agent().log().contains("PRIVATE KEY"));
    cluster().delete("pod", &namespace, "types");
    cluster().wait_gone("pod", &namespace, "types", 2 * SLOW);
}

/// A signer's no is for good: the pod says so and waits, and nobody is asked again.
#[test]
fn a_signer_may_say_no() {
    let node = join("certs-denied");
    let namespace = namespace("denied");
    let sources = json!([{"podCertificate": {"signerName": SIGNER, "keyType": "ED25519", "keyPath": "key"}}]);
    for (name, kind, words) in [("no", "Denied", "denied"), ("fails", "Failed", "failed")] {
        cluster().create_pod(&namespace, &pod(&node, name, "sleep 3600", &sources, json!({})));
        let requests = open_requests(&namespace, 1);
        answer(&namespace, &requests[0], &json!({"conditions": [condition(kind)]}));
        let reason = "reason=\"ByTest\" message=\"not \\\"you\\\"\"";
        let failed = format!("PodCertificateRequest was permanently {words}: {reason}");
        wait_event(&namespace, name, "FailedMount", &failed);
        wait_event(
            &namespace,
            name,
            kind,
            &format!("PodCertificateRequest {namespace}/{} ", name_of(&requests[0])),
        );
        assert_eq!(cluster().pod_status(&namespace, name)["phase"], "Pending");
        let metrics = node.agent().get("/metrics").expect("metrics").text();
        let states = format!("kubelet_podcertificate_states{{signer_name=\"{SIGNER}\",state=\"{words}\"}} 1");
        assert!(metrics.contains(&states), "{metrics}");
    }
    assert_eq!(open_requests(&namespace, 0), [Value::Null; 0]);
    for name in ["no", "fails"] {
        cluster().delete("pod", &namespace, name);
        cluster().wait_gone("pod", &namespace, name, 2 * SLOW);
    }
}

/// An agent that dies loses its keys, and asks for new certificates: an answer to the old request is of no use, and the
/// files of a pod that runs stay as they are until there are new ones. A refresh leaves the old pair until the new one is there.
#[test]
fn keys_are_replaced_as_a_whole_over_refreshes_and_crashes() {
    let mut node = join("certs-refresh");
    let namespace = namespace("refresh");
    let signer = Signer::new(&node.node.runtime.dir);
    let sources = json!([{"podCertificate": {
        "signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle", "keyPath": "key",
    }}]);
    // Every state of the bundle is printed, once.
    let script = "n=1; while true; do
            cp /certs/bundle /tmp/now; echo \"begin $n\"; cat /tmp/now; echo \"end $n\"
            while cmp -s /certs/bundle /tmp/now; do sleep 0.1; done
            n=$((n + 1))
        done & trap 'exit 0' TERM; wait";
    cluster().create_pod(&namespace, &pod(&node, "refresh", script, &sources, json!({})));
    let first = open_requests(&namespace, 1).remove(0);
    node.node.agent.kill9();
    answer(&namespace, &first, &signer.issue(&first, None));
    node.node.agent.restart();
    let second = open_requests(&namespace, 1).remove(0);
    assert_ne!(second["spec"]["stubPKCS10Request"], first["spec"]["stubPKCS10Request"], "another key");
    answer_in_the_store(&namespace, &second, &signer.issue(&second, Some((5, 15))));
    let pod = cluster().wait_for("pod", &namespace, "refresh", 2 * SLOW, cluster_node::ready);
    let check = |node: &ClusterNode, number: &str| {
        let bundle = between(node, &pod, number);
        assert!(!bundle.contains("a remark"), "{bundle}");
        let (of_key, of_certificate) = public_keys(&bundle);
        assert_eq!(of_key, of_certificate, "state {number} of the files");
        of_key
    };
    let mut keys = vec![check(&node, "1")];

    let third = open_requests(&namespace, 1).remove(0);
    wait_event(&namespace, "refresh", "CertificateExpired", "PodCertificate expired");
    assert!(!printed(node.agent(), &pod, "main", 0).contains(&"begin 2".to_owned()), "the old ones stay");
    answer(&namespace, &third, &signer.issue(&third, None));
    keys.push(check(&node, "2"));

    node.node.agent.restart();
    let fourth = open_requests(&namespace, 1).remove(0);
    assert!(!printed(node.agent(), &pod, "main", 0).contains(&"begin 3".to_owned()), "the old ones stay");
    // Whoever deletes a request is asked again.
    cluster().kubectl(&["delete", "podcertificaterequest", name_of(&fourth), "--namespace", &namespace]);
    let fifth = open_requests(&namespace, 1).remove(0);
    assert_ne!(name_of(&fifth), name_of(&fourth));
    answer(&namespace, &fifth, &signer.issue(&fifth, None));
    keys.push(check(&node, "3"));

    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "a new key each time");
    let status = cluster().pod_status(&namespace, "refresh");
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert!(!node.agent().log().contains("PRIVATE KEY"));
    cluster().delete("pod", &namespace, "refresh");
    cluster().wait_gone("pod", &namespace, "refresh", 2 * SLOW);
}
