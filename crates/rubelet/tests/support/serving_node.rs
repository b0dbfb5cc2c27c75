//! A node of a cluster whose API is asked: by the API server for kubectl, and directly with whatever credentials.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::cluster::{Cluster, KeyPair};
use crate::support::harness::{Agent, Runtime, SLOW, run};

pub const BUSYBOX: &str = "rubelet.test/busybox:1";

pub struct ServingNode {
    pub agent: Agent,
    pub runtime: Runtime,
    pub cluster: &'static Cluster,
    pub name: &'static str,
    pub namespace: String,
}

impl ServingNode {
    /// A node whose callers the API server vouches for, and an object for it that says where it listens.
    pub fn join(name: &'static str) -> ServingNode {
        ServingNode::join_with(name, |_| {})
    }

    /// With changes to the agent's KubeletConfiguration.
    pub fn join_with(name: &'static str, adjust: impl FnOnce(&mut Value)) -> ServingNode {
        let cluster = Cluster::shared_bare();
        let runtime = Runtime::start();
        let kubeconfig = cluster.node_kubeconfig(name);
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", name];
        let serving = cluster.serving_certificate(name);
        let agent = Agent::start_with_flags(&runtime, &flags, |config| {
            // Where the node says it is, once it tells itself.
            config["address"] = json!("0.0.0.0");
            config["tlsCertFile"] = json!(serving.certificate);
            config["tlsPrivateKeyFile"] = json!(serving.key);
            config["authentication"] =
                json!({ "x509": { "clientCAFile": cluster.ca() }, "webhook": { "enabled": true } });
            config["authorization"] = json!({ "mode": "Webhook" });
            adjust(config);
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": agent.port } },
            },
        });
        // The agent may register its node itself; then only the place is told.
        let _ = cluster.try_create("default", &node.to_string());
        let status = json!({ "status": node["status"] }).to_string();
        cluster.kubectl(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &status]);
        let namespace = cluster.namespace(name);
        ServingNode { agent, runtime, cluster, name, namespace }
    }

    pub fn start(&self, name: &str, container: Value) -> Value {
        let mut main = json!({ "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never" });
        main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": self.name, "containers": [main], "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
            },
        });
        self.cluster.create_pod(&self.namespace, &pod.to_string());
        self.cluster.wait_for("pod", &self.namespace, name, SLOW, |pod| {
            pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        })
    }

    pub fn kubectl(&self, args: &[&str]) -> Command {
        let args = [&["--namespace", &self.namespace], args].concat();
        self.cluster.kubectl_command(&self.cluster.admin_kubeconfig(), &args)
    }

    #[track_caller]
    pub fn said(&self, args: &[&str]) -> String {
        run(&mut self.kubectl(args))
    }

    pub fn output(&self, args: &[&str], input: &[u8], websocket: bool) -> Output {
        let mut child = self
            .kubectl(args)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket.to_string())
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start kubectl");
        let mut stdin = child.stdin.take().expect("its input");
        let input = input.to_vec();
        let writing = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("kubectl's end");
        writing.join().expect("the input");
        output
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks the node itself.
pub struct Curl<'a> {
    pub member: &'a ServingNode,
    pub certificate: Option<KeyPair>,
    pub token: Option<String>,
}

impl Curl<'_> {
    pub fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-w", "\n%{http_code}", "--cacert"]).arg(self.member.cluster.ca());
        match method {
            // Told so, it does not wait for a body.
            "HEAD" => curl.args(["--head", "-o", "/dev/null"]),
            other => curl.args(["-X", other]),
        };
        if let Some(pair) = &self.certificate {
            curl.arg("--cert").arg(&pair.certificate).arg("--key").arg(&pair.key);
        }
        if let Some(token) = &self.token {
            curl.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        let output =
            curl.arg(format!("https://127.0.0.1:{}{path}", self.member.agent.port)).output().unwrap();
        let said = text(&output.stdout);
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or_default(), body.to_owned())
    }
}

/// A certificate of the right name that nobody vouches for.
pub fn foreign(member: &ServingNode) -> KeyPair {
    let dir = &member.runtime.dir;
    let pair = KeyPair { certificate: dir.join("foreign.crt"), key: dir.join("foreign.key") };
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj"]);
    openssl.args(["/O=system:masters/CN=kube-apiserver-kubelet-client", "-out"]);
    run(openssl.arg(&pair.certificate).arg("-keyout").arg(&pair.key).stderr(Stdio::null()));
    pair
}
