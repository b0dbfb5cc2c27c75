//! Objects of the cluster: making them, seeing them.

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::Cluster;
use crate::support::harness::SLOW;

impl Cluster {
    /// A new namespace, ready for pods.
    #[track_caller]
    pub fn namespace(&self, prefix: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Other processes make namespaces in the same cluster.
        let name = format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.kubectl(&["create", "namespace", &name]);
        // Before its service account is there, a pod is refused.
        if self.fact("bare").is_empty() {
            self.wait_for("serviceaccount", &name, "default", SLOW, |_| true);
        }
        name
    }

    /// Makes the objects of a YAML or JSON text and gives them as the API server stored them (a list when
    /// there are several). `namespace` is for those that name none.
    #[track_caller]
    pub fn create(&self, namespace: &str, text: &str) -> Value {
        self.try_create(namespace, text).unwrap_or_else(|said| panic!("kubectl create: {said}\n{text}"))
    }

    /// The same; an error is what kubectl said.
    pub fn try_create(&self, namespace: &str, text: &str) -> Result<Value, String> {
        let args = ["create", "--namespace", namespace, "-o", "json", "-f", "-"];
        let said = self.kubectl_with_input(&args, text)?;
        // kubectl writes several one after the other.
        let objects = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
        let mut objects: Vec<Value> =
            objects.collect::<Result<_, _>>().map_err(|error| format!("{error} in: {said}"))?;
        match objects.len() {
            1 => Ok(objects.remove(0)),
            _ => Ok(json!({"kind": "List", "items": objects})),
        }
    }

    #[track_caller]
    pub fn create_pod(&self, namespace: &str, text: &str) -> Value {
        let pod = self.create(namespace, text);
        assert_eq!(pod["kind"], "Pod", "not one pod: {pod}");
        pod
    }

    fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut child = self
            .kubectl_command(&self.admin_kubeconfig(), args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start kubectl");
        child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("tell kubectl");
        let output = child.wait_with_output().expect("kubectl's end");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// The object, when there is one. For objects without a namespace, give an empty one.
    #[track_caller]
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let text =
            self.kubectl(&["get", kind, name, "--namespace", namespace, "--ignore-not-found", "-o", "json"]);
        (!text.is_empty()).then(|| serde_json::from_str(&text).expect("kubectl's JSON"))
    }

    #[track_caller]
    pub fn pod(&self, namespace: &str, name: &str) -> Value {
        self.get("pod", namespace, name).unwrap_or_else(|| panic!("no pod {namespace}/{name}"))
    }

    #[track_caller]
    pub fn pod_status(&self, namespace: &str, name: &str) -> Value {
        self.pod(namespace, name)["status"].clone()
    }

    /// Asks for the deletion and does not wait for it.
    #[track_caller]
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.kubectl(&["delete", kind, name, "--namespace", namespace, "--wait=false"]);
    }

    /// The events that tell of a pod, oldest first.
    #[track_caller]
    pub fn events(&self, namespace: &str, pod: &str) -> Vec<Value> {
        let about = format!("involvedObject.kind=Pod,involvedObject.name={pod}");
        let args = ["get", "events", "--namespace", namespace, "--field-selector", &about];
        let list = self.kubectl_json(&[&args[..], &["--sort-by", "metadata.creationTimestamp"]].concat());
        list["items"].as_array().cloned().unwrap_or_default()
    }
}
