//! Claims of a real API server, bound by its real controllers to directories and disks of this machine.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, ClusterNode, merge};
use crate::support::harness::{loop_devices_below, mounts_below, run, wait};
use serde_json::{Value, json};

/// Much happens here, by controllers that have their own pace.
const LONG: Duration = Duration::from_secs(240);

/// A node with directories and disks, and a namespace whose claims are for them.
struct Storage {
    member: ClusterNode,
    namespace: String,
    loops: Vec<String>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        for mount in mounts_below(&self.member.agent().root_dir()) {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
        for device in &self.loops {
            // A device keeps this setting when it is attached to another file.
            let _ = Command::new("blockdev").args(["--setrw", device]).status();
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

impl Storage {
    fn join(name: &'static str) -> Storage {
        let member = ClusterNode::join(Cluster::shared(), name);
        let namespace = member.cluster.namespace(name);
        Storage { member, namespace, loops: Vec::new() }
    }

    /// A directory of the machine that outlives pods.
    fn directory(&self, name: &str) -> PathBuf {
        let dir = self.member.agent().root_dir().join("test-data").join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    /// A loop device over an empty file.
    fn disk(&mut self, name: &str) -> String {
        let file = self.directory("disks").join(name);
        std::fs::File::create(&file).and_then(|f| f.set_len(32 << 20)).expect("a file");
        let device = run(Command::new("losetup").args(["-f", "--show"]).arg(&file)).trim().to_owned();
        // A test that was killed may have left it read-only.
        run(Command::new("blockdev").args(["--setrw", &device]));
        self.loops.push(device.clone());
        device
    }

    /// A persistent volume of this node; `more` is added to its spec.
    fn volume(&self, name: &str, path: &Path, more: Value) {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [self.member.name]});
        let mut spec = json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.class(),
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        });
        merge(&mut spec, more);
        let annotations = spec.as_object_mut().unwrap().remove("annotations").unwrap_or_default();
        let metadata = json!({"name": self.pv(name), "annotations": annotations});
        let pv = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec});
        self.member.cluster.create("", &pv.to_string());
    }

    /// Volumes of all tests are in one room.
    fn pv(&self, name: &str) -> String {
        format!("{}-{name}", self.member.name)
    }

    /// So that no claim is bound to another test's volume.
    fn class(&self) -> String {
        format!("class-{}", self.member.name)
    }

    fn claim_spec(&self, more: Value) -> Value {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": self.class(),
            "resources": {"requests": {"storage": "1Gi"}},
        });
        merge(&mut spec, more);
        spec
    }

    fn claim(&self, name: &str, more: Value) {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": self.claim_spec(more),
        });
        self.member.cluster.create(&self.namespace, &claim.to_string());
    }

    fn pod(&self, name: &str, script: &str, container: Value, volume: Value) {
        self.pod_with(name, script, container, volume, json!({}));
    }

    fn pod_with(&self, name: &str, script: &str, container: Value, volume: Value, spec: Value) {
        let script = format!("set -e; {script}");
        let mut main = json!({
            "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        });
        merge(&mut main, container);
        let mut volume = volume;
        volume["name"] = json!("data");
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": self.member.name, "containers": [main], "restartPolicy": "Never", "volumes": [volume],
                "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            },
        });
        merge(&mut pod["spec"], spec);
        self.member.cluster.create_pod(&self.namespace, &pod.to_string());
    }

    /// What the container of a pod that succeeded has said.
    fn said(&self, name: &str) -> String {
        let over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let pod = self.member.cluster.wait_for("pod", &self.namespace, name, LONG, over);
        assert_eq!(pod["status"]["phase"], "Succeeded", "{pod}\n{}", self.member.agent().log_tail());
        let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        ended["message"].as_str().unwrap_or_default().trim().to_owned()
    }

    fn running(&self, name: &str) {
        let running = |pod: &Value| pod["status"]["phase"] == "Running";
        self.member.cluster.wait_for("pod", &self.namespace, name, LONG, running);
    }

    fn wait_why(&self, pod: &str, expect: &str) {
        wait(expect, LONG, || {
            let answer = self.member.agent().command(&["why", pod]);
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            if text.contains(expect) { Ok(()) } else { Err(text) }
        });
    }

    /// A filesystem on a disk of its own, mounted on a directory that outlives pods.
    fn filesystem(&mut self, name: &str) -> PathBuf {
        let (disk, dir) = (self.disk(name), self.directory(name));
        run(Command::new("mkfs.ext4").args(["-q", &disk]));
        run(Command::new("mount").arg(&disk).arg(&dir));
        dir
    }

    fn wait_event(&self, expect: &str) {
        wait(expect, LONG, || {
            let events = self.member.cluster.kubectl_json(&["get", "events", "--namespace", &self.namespace]);
            if events.to_string().contains(expect) { Ok(()) } else { Err(events.to_string()) }
        });
    }

    fn delete(&self, pod: &str) {
        self.member.cluster.kubectl(&["delete", "pod", pod, "--namespace", &self.namespace, "--timeout=4m"]);
    }

    /// The figures of the filesystem behind a claim are told, with the claim's name.
    fn wait_figures(&self, claim: &str, dir: &Path) {
        let size = run(Command::new("df").args(["-B1", "--output=size"]).arg(dir));
        let size: u64 = size.lines().last().expect("a size").trim().parse().expect("a number");
        let named = json!({"name": claim, "namespace": self.namespace});
        wait("the claim's figures", LONG, || {
            let answer = self.member.agent().get("/stats/summary").map_err(|error| error.to_string())?;
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
        let metrics = self.member.agent().get("/metrics").expect("metrics").text();
        assert!(metrics.contains(&line), "{line} in\n{metrics}");
    }

    fn delete_soon(&self, pod: &str) {
        self.member.cluster.kubectl(&["delete", "pod", pod, "--namespace", &self.namespace, "--wait=false"]);
    }

    fn wait_gone(&self, pod: &str) {
        self.member.cluster.wait_gone("pod", &self.namespace, pod, LONG);
    }

    fn uid(&self, pod: &str) -> String {
        let pod = self.member.cluster.get("pod", &self.namespace, pod).expect("the pod");
        pod["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// What the agent's loop devices keep open.
    fn pinned(&self) -> Vec<PathBuf> {
        let mut maps: Vec<PathBuf> = loop_devices_below(&self.member.agent().root_dir().join("plugins"))
            .into_iter()
            .map(|(_, map)| map)
            .collect();
        maps.sort();
        maps
    }

    /// Nothing of a persistent volume is mounted any more.
    fn wait_unmounted(&self) {
        wait("nothing to be mounted", LONG, || {
            let mounted = mounts_below(&self.member.agent().root_dir());
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
    let storage = Storage::join("claims-a");
    let dir = storage.directory("kept");
    storage.pod("first", "id -G >/data/groups; echo one >/data/text", mounted(), claimed("c"));
    storage.wait_why("first", "persistentvolumeclaims \"c\" not found");
    let told = "failed to process volumes=[data]: error processing PVC ";
    storage.wait_event(told);
    storage.claim("c", json!({}));
    storage.wait_why("first", "PVC is not bound");
    storage.volume("v", &dir, json!({"annotations": {"pv.beta.kubernetes.io/gid": "4321"}}));
    storage.said("first");
    assert_eq!(std::fs::read_to_string(dir.join("text")).unwrap(), "one\n");
    let groups = std::fs::read_to_string(dir.join("groups")).unwrap();
    assert!(groups.split_whitespace().any(|group| group == "4321"), "{groups}");

    // The next one finds it, and may only read: the claim's use says so, and the mount keeps to it.
    let volume = json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}});
    let script =
        "if touch /data/x 2>/dev/null; then echo wrote; else cat /data/text; fi >/dev/termination-log";
    storage.pod("second", script, mounted(), volume);
    assert_eq!(storage.said("second"), "one");
    storage.delete("first");
    storage.delete("second");
    storage.wait_unmounted();
    assert_eq!(std::fs::read_to_string(dir.join("text")).unwrap(), "one\n", "it outlives its pods");
}

/// Whoever came first has its files in his group; the other is told.
#[test]
fn a_volume_that_another_pod_has_for_another_group() {
    let storage = Storage::join("claims-d");
    storage.volume("v", &storage.directory("shared"), json!({}));
    storage.claim("c", json!({"volumeName": storage.pv("v")}));
    let group = |id: u32| json!({"securityContext": {"fsGroup": id}});
    storage.pod_with("first", UNTIL_TERM, mounted(), claimed("c"), group(4321));
    storage.running("first");
    storage.pod_with("second", UNTIL_TERM, mounted(), claimed("c"), group(5432));
    storage.running("second");
    let told = format!(
        "The requested fsGroup is 5432, but the volume {} has GID 4321. The volume may not be shareable.",
        storage.pv("v")
    );
    storage.wait_event(&told);
    storage.wait_event("AlreadyMountedVolume");
    storage.delete("first");
    storage.delete("second");
    storage.wait_unmounted();
}

#[test]
fn a_claim_of_the_pod_itself_and_a_claim_for_one_pod_only() {
    let mut storage = Storage::join("claims-b");
    storage.volume("own", &storage.directory("own"), json!({"capacity": {"storage": "2Gi"}}));
    let template =
        json!({"spec": storage.claim_spec(json!({"resources": {"requests": {"storage": "2Gi"}}}))});
    let volume = json!({"ephemeral": {"volumeClaimTemplate": template}});
    storage.pod("with-own", "echo mine >/data/text", mounted(), volume);
    storage.said("with-own");
    let written = std::fs::read_to_string(storage.directory("own").join("text")).unwrap();
    assert_eq!(written, "mine\n");

    let one_pod = json!(["ReadWriteOncePod"]);
    let dir = storage.directory("one");
    storage.volume("one", &dir, json!({"accessModes": one_pod}));
    storage.claim("one", json!({"accessModes": one_pod}));
    storage.pod("holder", &format!("echo held >/data/text; {UNTIL_TERM}"), mounted(), claimed("one"));
    storage.running("holder");
    storage.wait_figures("one", &dir);
    storage.pod("other", "cat /data/text >/dev/termination-log", mounted(), claimed("one"));
    let refusal = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    storage.wait_why("other", refusal);
    storage.wait_event(refusal);

    // Also by an agent that did not mount it.
    storage.member.node.agent.kill9();
    storage.member.node.agent.restart();
    storage.wait_why("other", refusal);
    storage.running("holder");
    storage.delete("holder");
    assert_eq!(storage.said("other"), "held");
    storage.delete("other");
    storage.delete("with-own");
    storage.wait_unmounted();
}

#[test]
fn a_disk_is_formatted_once() {
    let mut storage = Storage::join("claims-c");
    let disk = storage.disk("disk");
    storage.volume("disk", Path::new(&disk), json!({}));
    storage.claim("disk", json!({"volumeName": storage.pv("disk")}));
    storage.pod(
        "writer",
        "grep ' /data ext4 ' /proc/mounts; echo kept >/data/text",
        mounted(),
        claimed("disk"),
    );
    storage.said("writer");
    storage.delete("writer");
    storage.wait_unmounted();
    storage.pod("reader", "cat /data/text >/dev/termination-log", mounted(), claimed("disk"));
    assert_eq!(storage.said("reader"), "kept", "a disk with something on it is not formatted");
    storage.delete("reader");
    storage.wait_unmounted();
}

/// Two pods share a device. It stays pinned while the agent is dead, and until the last of them is gone.
#[test]
fn a_device_is_pinned_while_pods_use_it() {
    let mut storage = Storage::join("claims-g");
    let device = storage.disk("device");
    storage.volume("device", Path::new(&device), json!({"volumeMode": "Block"}));
    storage.claim("device", json!({"volumeMode": "Block", "volumeName": storage.pv("device")}));
    let container = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/own"}]});
    for (pod, block) in [("first", 0), ("other", 1)] {
        let script = format!(
            "test -b /dev/own; printf {pod} >/tmp/text; \
             dd if=/tmp/text of=/dev/own conv=notrunc,fsync seek={block}; {UNTIL_TERM}"
        );
        storage.pod(pod, &script, container.clone(), claimed("device"));
    }
    for pod in ["first", "other"] {
        storage.running(pod);
    }
    let maps = storage.member.agent().root_dir().join("plugins/kubernetes.io~local-volume/volumeDevices");
    let maps = maps.join(storage.pv("device"));
    storage.wait_event(&format!("globalMapPath \\\"{}", maps.display()));
    storage.wait_event("volumeMapPath");
    let told = |offset: u32| {
        run(Command::new("dd").args([
            &format!("if={device}"),
            "bs=512",
            "count=1",
            &format!("skip={offset}"),
        ]))
    };
    wait("both pods to have written", LONG, || match (told(0), told(1)) {
        (first, other) if first.starts_with("first") && other.starts_with("other") => Ok(()),
        told => Err(format!("{told:?}")),
    });
    let mut expect: Vec<PathBuf> = ["first", "other"].iter().map(|pod| maps.join(storage.uid(pod))).collect();
    expect.sort();
    assert_eq!(storage.pinned(), expect);

    // Somebody takes the disk away while the agent is dead.
    storage.member.node.agent.kill9();
    run(Command::new("losetup").args(["-d", &device]));
    // By then its number may be that of another test's disk.
    storage.loops.clear();
    let disks = storage.directory("disks");
    let is_there = || loop_devices_below(&disks).iter().any(|(attached, _)| *attached == Path::new(&device));
    assert!(is_there(), "the kernel keeps it for those who use it");
    storage.delete_soon("first");
    storage.member.node.agent.restart();
    storage.wait_gone("first");
    let of_other = vec![expect.iter().find(|map| map.ends_with(storage.uid("other"))).unwrap().clone()];
    assert_eq!(storage.pinned(), of_other);
    assert!(told(1).starts_with("other"));

    storage.pod("wrong", "true", mounted(), claimed("device"));
    storage.wait_why("wrong", "volume data has volumeMode Block, but is specified in volumeMounts");
    storage.delete("wrong");
    storage.delete("other");
    storage.wait_unmounted();
    assert_eq!(storage.pinned(), Vec::<PathBuf>::new());
    assert!(!maps.exists());
    wait("the disk to be taken away", LONG, || if is_there() { Err("it is attached") } else { Ok(()) });
}

#[test]
fn sub_paths_of_a_claim_and_files_that_are_the_groups_already() {
    let storage = Storage::join("claims-e");
    let dir = storage.directory("grouped");
    let below = dir.join("below");
    std::fs::write(&below, "of somebody").unwrap();
    let give = |path: &Path, group: u32, mode: u32| {
        std::os::unix::fs::chown(path, None, Some(group)).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let group_of = |path: &Path| std::fs::metadata(path).unwrap().gid();
    give(&below, 99, 0o600);
    give(&dir, 4321, 0o2770);
    storage.volume("v", &dir, json!({}));
    storage.claim("c", json!({"volumeName": storage.pv("v")}));
    let container = json!({
        "env": [{"name": "WHO", "value": "me"}],
        "volumeMounts": [
            {"name": "data", "mountPath": "/one", "subPath": "a/one"},
            {"name": "data", "mountPath": "/two", "subPathExpr": "$(WHO)/two"},
        ],
    });
    let group = |policy: &str| json!({"securityContext": {"fsGroup": 4321, "fsGroupChangePolicy": policy}});
    let script = "echo 1 >/one/text; echo 2 >/two/text";
    storage.pod_with("first", script, container.clone(), claimed("c"), group("OnRootMismatch"));
    storage.said("first");
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!((text("a/one/text"), text("me/two/text")), ("1\n".into(), "2\n".into()));
    assert_eq!(group_of(&below), 99, "the root was the group's: nothing below it is looked at");
    storage.delete("first");
    storage.wait_unmounted();
    let script = "cat /one/text /two/text >/dev/termination-log";
    storage.pod_with("second", script, container, claimed("c"), group("Always"));
    assert_eq!(storage.said("second"), "1\n2");
    assert_eq!(group_of(&below), 4321);
    storage.delete("second");
    storage.wait_unmounted();
    assert_eq!(text("below"), "of somebody");
}

/// Writes to the filesystem wait until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(dir: &Path) -> Frozen {
        run(Command::new("fsfreeze").arg("--freeze").arg(dir));
        Frozen(dir.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status();
    }
}

/// Whether a thread of the agent that works on volumes waits for the disk.
fn waits_for_disk(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.into_iter().any(|stat| stat.contains("(volume) D "))
}

/// A disk that takes no change for half a minute, which is when a walk over files is worth telling.
#[test]
fn giving_files_to_a_group_is_told_when_it_takes_long() {
    let mut storage = Storage::join("claims-f");
    let dir = storage.filesystem("slow");
    for number in 0..200 {
        std::fs::write(dir.join(format!("f{number}")), "").unwrap();
    }
    storage.volume("v", &dir, json!({}));
    storage.claim("c", json!({"volumeName": storage.pv("v")}));
    let frozen = Frozen::new(&dir);
    let group = json!({"securityContext": {"fsGroup": 4321}});
    storage.pod_with("p", UNTIL_TERM, mounted(), claimed("c"), group);
    let pid = storage.member.agent().pid().expect("an agent");
    wait("the walk to wait for the disk", LONG, || match waits_for_disk(pid) {
        true => Ok(()),
        false => Err(storage.member.agent().log_tail()),
    });
    // The time after which users are told.
    std::thread::sleep(Duration::from_secs(31));
    drop(frozen);
    storage.running("p");
    storage.wait_event("VolumePermissionChangeInProgress");
    let given = |number: u32| std::fs::metadata(dir.join(format!("f{number}"))).unwrap().gid() == 4321;
    assert!((0..200).all(given));
    storage.delete("p");
    storage.wait_unmounted();
}

#[test]
fn a_disk_that_can_not_be_formatted_is_told_and_tried_again() {
    let mut storage = Storage::join("claims-h");
    let disk = storage.disk("stubborn");
    let allow = |how: &str| run(Command::new("blockdev").args([how, &disk]));
    allow("--setro");
    storage.volume("v", Path::new(&disk), json!({}));
    storage.claim("c", json!({"volumeName": storage.pv("v")}));
    storage.pod("p", "echo written >/data/text", mounted(), claimed("c"));
    storage.wait_why("p", "mkfs.ext4 failed: ");
    let expect = format!("MountVolume.MountDevice failed for volume \\\"{}\\\" : ", storage.pv("v"));
    storage.wait_event(&expect);
    allow("--setrw");
    storage.said("p");
    storage.delete("p");
    storage.wait_unmounted();
}
