//! Claims of a real API server, bound by its real controllers to directories and disks of this machine.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cluster::Cluster;
use harness::{Agent, Runtime, mounts_below, run, wait};
use serde_json::{Value, json};

const BUSYBOX: &str = "rubelet.test/busybox:1";
/// Much happens here, by controllers that have their own pace.
const LONG: Duration = Duration::from_secs(240);

struct Member {
    agent: Agent,
    #[allow(dead_code)]
    runtime: Runtime,
    cluster: &'static Cluster,
    name: &'static str,
    namespace: String,
    loops: Vec<String>,
}

impl Drop for Member {
    fn drop(&mut self) {
        for mount in mounts_below(&self.agent.root_dir()) {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
        for device in &self.loops {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

impl Member {
    fn join(name: &'static str) -> Member {
        let cluster = Cluster::shared();
        let runtime = Runtime::start();
        let kubeconfig = cluster.node_kubeconfig(name);
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", name];
        let agent = Agent::start_with_flags(&runtime, &flags, |_| {});
        let namespace = cluster.namespace(name);
        Member { agent, runtime, cluster, name, namespace, loops: Vec::new() }
    }

    /// A directory of the machine that outlives pods.
    fn directory(&self, name: &str) -> PathBuf {
        let dir = self.agent.root_dir().join("test-data").join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    /// A loop device over an empty file.
    fn disk(&mut self, name: &str) -> String {
        let file = self.directory("disks").join(name);
        std::fs::File::create(&file).and_then(|f| f.set_len(32 << 20)).expect("a file");
        let device = run(Command::new("losetup").args(["-f", "--show"]).arg(&file)).trim().to_owned();
        self.loops.push(device.clone());
        device
    }

    /// A persistent volume of this node; `more` is added to its spec.
    fn volume(&self, name: &str, path: &Path, more: Value) {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [self.name]});
        let mut spec = json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.class(),
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let annotations = spec.as_object_mut().unwrap().remove("annotations").unwrap_or_default();
        let metadata = json!({"name": self.pv(name), "annotations": annotations});
        let pv = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec});
        self.cluster.create("", &pv.to_string());
    }

    /// Volumes of all tests are in one room.
    fn pv(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// So that no claim is bound to another test's volume.
    fn class(&self) -> String {
        format!("class-{}", self.name)
    }

    fn claim_spec(&self, more: Value) -> Value {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": self.class(),
            "resources": {"requests": {"storage": "1Gi"}},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    }

    fn claim(&self, name: &str, more: Value) {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": self.claim_spec(more),
        });
        self.cluster.create(&self.namespace, &claim.to_string());
    }

    fn pod(&self, name: &str, script: &str, container: Value, volume: Value) {
        let script = format!("set -e; {script}");
        let mut main = json!({
            "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        });
        main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let mut volume = volume;
        volume["name"] = json!("data");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": self.name, "containers": [main], "restartPolicy": "Never", "volumes": [volume],
                "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            },
        });
        self.cluster.create_pod(&self.namespace, &pod.to_string());
    }

    /// What the container of a pod that succeeded has said.
    fn said(&self, name: &str) -> String {
        let over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let pod = self.cluster.wait_for("pod", &self.namespace, name, LONG, over);
        assert_eq!(pod["status"]["phase"], "Succeeded", "{pod}\n{}", self.agent.log_tail());
        let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        ended["message"].as_str().unwrap_or_default().trim().to_owned()
    }

    fn running(&self, name: &str) {
        let running = |pod: &Value| pod["status"]["phase"] == "Running";
        self.cluster.wait_for("pod", &self.namespace, name, LONG, running);
    }

    fn wait_why(&self, pod: &str, expect: &str) {
        wait(expect, LONG, || {
            let answer = self.agent.command(&["why", pod]);
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            if text.contains(expect) { Ok(()) } else { Err(text) }
        });
    }

    fn wait_event(&self, expect: &str) {
        wait(expect, LONG, || {
            let events = self.cluster.kubectl_json(&["get", "events", "--namespace", &self.namespace]);
            if events.to_string().contains(expect) { Ok(()) } else { Err(events.to_string()) }
        });
    }

    fn delete(&self, pod: &str) {
        self.cluster.kubectl(&["delete", "pod", pod, "--namespace", &self.namespace, "--timeout=4m"]);
    }

    /// The figures of the filesystem behind a claim are told, with the claim's name.
    fn wait_figures(&self, claim: &str, dir: &Path) {
        let size = run(Command::new("df").args(["-B1", "--output=size"]).arg(dir));
        let size: u64 = size.lines().last().expect("a size").trim().parse().expect("a number");
        let named = json!({"name": claim, "namespace": self.namespace});
        wait("the claim's figures", LONG, || {
            let answer = self.agent.get("/stats/summary").map_err(|error| error.to_string())?;
            let summary: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
            let pods = summary["pods"].as_array().into_iter().flatten();
            let mut volumes = pods.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
            match volumes.find(|volume| volume["pvcRef"] == named) {
                Some(volume) if volume["capacityBytes"] == size => Ok(()),
                other => Err(format!("{other:?} of {size} bytes")),
            }
        });
        let labels = format!("namespace={:?},persistentvolumeclaim={claim:?}", self.namespace);
        let line = format!("kubelet_volume_stats_capacity_bytes{{{labels}}} {size}\n");
        let metrics = self.agent.get("/metrics").expect("metrics").text();
        assert!(metrics.contains(&line), "{line} in\n{metrics}");
    }

    /// Nothing of a persistent volume is mounted any more.
    fn wait_unmounted(&self) {
        wait("nothing to be mounted", LONG, || {
            let mounted = mounts_below(&self.agent.root_dir());
            let left: Vec<_> =
                mounted.iter().filter(|path| path.to_string_lossy().contains("local-volume")).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
}

fn claimed(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn mounted() -> Value {
    json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]})
}

const UNTIL_TERM: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

#[test]
fn a_pod_waits_for_its_claim_and_what_it_writes_stays() {
    let member = Member::join("claims-a");
    let dir = member.directory("kept");
    member.pod("first", "id -G >/data/groups; echo one >/data/text", mounted(), claimed("c"));
    member.wait_why("first", "persistentvolumeclaims \"c\" not found");
    let told = "failed to process volumes=[data]: error processing PVC ";
    member.wait_event(told);
    member.claim("c", json!({}));
    member.wait_why("first", "PVC is not bound");
    member.volume("v", &dir, json!({"annotations": {"pv.beta.kubernetes.io/gid": "4321"}}));
    member.said("first");
    assert_eq!(std::fs::read_to_string(dir.join("text")).unwrap(), "one\n");
    let groups = std::fs::read_to_string(dir.join("groups")).unwrap();
    assert!(groups.split_whitespace().any(|group| group == "4321"), "{groups}");

    // The next one finds it, and may only read: the claim's use says so, and the mount keeps to it.
    let volume = json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}});
    let script =
        "if touch /data/x 2>/dev/null; then echo wrote; else cat /data/text; fi >/dev/termination-log";
    member.pod("second", script, mounted(), volume);
    assert_eq!(member.said("second"), "one");
    member.delete("first");
    member.delete("second");
    member.wait_unmounted();
    assert_eq!(std::fs::read_to_string(dir.join("text")).unwrap(), "one\n", "it outlives its pods");
}

#[test]
fn a_claim_of_the_pod_itself_and_a_claim_for_one_pod_only() {
    let mut member = Member::join("claims-b");
    member.volume("own", &member.directory("own"), json!({"capacity": {"storage": "2Gi"}}));
    let template = json!({"spec": member.claim_spec(json!({"resources": {"requests": {"storage": "2Gi"}}}))});
    let volume = json!({"ephemeral": {"volumeClaimTemplate": template}});
    member.pod("with-own", "echo mine >/data/text", mounted(), volume);
    member.said("with-own");
    let written = std::fs::read_to_string(member.directory("own").join("text")).unwrap();
    assert_eq!(written, "mine\n");

    let one_pod = json!(["ReadWriteOncePod"]);
    let dir = member.directory("one");
    member.volume("one", &dir, json!({"accessModes": one_pod}));
    member.claim("one", json!({"accessModes": one_pod}));
    member.pod("holder", &format!("echo held >/data/text; {UNTIL_TERM}"), mounted(), claimed("one"));
    member.running("holder");
    member.wait_figures("one", &dir);
    member.pod("other", "cat /data/text >/dev/termination-log", mounted(), claimed("one"));
    let refusal = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    member.wait_why("other", refusal);
    member.wait_event(refusal);

    // Also by an agent that did not mount it.
    member.agent.kill9();
    member.agent.restart();
    member.wait_why("other", refusal);
    member.running("holder");
    member.delete("holder");
    assert_eq!(member.said("other"), "held");
    member.delete("other");
    member.delete("with-own");
    member.wait_unmounted();
}

#[test]
fn a_disk_is_formatted_once_and_a_device_is_a_device() {
    let mut member = Member::join("claims-c");
    let disk = member.disk("disk");
    member.volume("disk", Path::new(&disk), json!({}));
    member.claim("disk", json!({"volumeName": member.pv("disk")}));
    member.pod(
        "writer",
        "grep ' /data ext4 ' /proc/mounts; echo kept >/data/text",
        mounted(),
        claimed("disk"),
    );
    member.said("writer");
    member.delete("writer");
    member.wait_unmounted();
    member.pod("reader", "cat /data/text >/dev/termination-log", mounted(), claimed("disk"));
    assert_eq!(member.said("reader"), "kept", "a disk with something on it is not formatted");
    member.delete("reader");
    member.wait_unmounted();

    let device = member.disk("device");
    member.volume("device", Path::new(&device), json!({"volumeMode": "Block"}));
    member.claim("device", json!({"volumeMode": "Block", "volumeName": member.pv("device")}));
    let container = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/own"}]});
    let script =
        "test -b /dev/own; printf 'from the pod' >/tmp/text; dd if=/tmp/text of=/dev/own conv=notrunc,fsync";
    member.pod("raw", script, container, claimed("device"));
    member.said("raw");
    let written = run(Command::new("dd").args([&format!("if={device}"), "bs=12", "count=1"]));
    assert_eq!(written, "from the pod");
    member.pod("wrong", "true", mounted(), claimed("device"));
    member.wait_why("wrong", "volume data has volumeMode Block, but is specified in volumeMounts");
    member.delete("raw");
    member.delete("wrong");
}
