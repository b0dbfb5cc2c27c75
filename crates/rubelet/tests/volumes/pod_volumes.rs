//! Volumes on the real runtime, with and without the real API server: contents and their updates, limits of size, images,
//! and mounts that can't be written to however deep. `pods/container_view` has what static pods see of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{self, ClusterNode, STAYS};
use crate::support::harness::{self, Agent, Node, Runtime, SLOW, wait};
use crate::support::pods::{Journal, UNTIL_TERM, is_running, manifest, printed, shell_with};
use serde_json::{Value, json};

fn mount(name: &str) -> Value {
    json!({"name": name, "mountPath": format!("/{name}")})
}

/// The pod's only container gets these fields too.
fn with_container(pod: &str, fields: Value) -> String {
    let mut pod: Value = serde_json::from_str(pod).expect("a pod");
    cluster_node::merge(&mut pod["spec"]["containers"][0], fields);
    pod.to_string()
}

fn object(kind: &str, name: &str, field: &str, data: Value, immutable: bool) -> String {
    let mut object =
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "immutable": immutable});
    object[field] = data;
    object.to_string()
}

/// Every kind of content with its modes and owners; what changes in the cluster changes in the container, at once and as
/// a whole, without a restart.
#[test]
fn contents_with_their_modes_follow_the_cluster() {
    let cluster = Cluster::shared();
    let member = ClusterNode::join(cluster, "volumes-contents");
    member.wait_ready();
    let namespace = cluster.namespace("contents");
    cluster.create(&namespace, &object("ConfigMap", "map", "data", json!({"k": "old", "other": "o"}), false));
    cluster.create(&namespace, &object("ConfigMap", "fixed", "data", json!({"k": "never changes"}), true));
    cluster.create(
        &namespace,
        &object("Secret", "secret", "stringData", json!({"k": "old", "gone": "x"}), false),
    );
    let script = "set -e
        echo \"$(stat -L -c %a-%g /map/deep/k) $(stat -L -c %a-%g /secret/k) $(stat -L -c %a-%g /all/secret/k)\"
        echo \"$(cat /fixed/k) $(ls /map) $(ls /none | wc -l) $(cat /all/name)\"
        echo \"$(awk '$2 == \"/map\" || $2 == \"/secret\" {print substr($4, 1, 2)}' /proc/mounts | sort -u)\"
        test $(tr -cd . </all/token | wc -c) = 2
        until test \"$(for k in /map/deep/k /secret/k /all/map/k /all/secret/k; do cat $k; echo; done | sort -u)\" = new; do sleep 0.1; done
        ls /secret; echo followed
        trap 'exit 0' TERM; sleep 3600 & wait";
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map", "items": [{"key": "k", "path": "deep/k", "mode": 0o400}]}},
        {"name": "fixed", "configMap": {"name": "fixed"}},
        {"name": "none", "configMap": {"name": "none", "optional": true}},
        {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 0o600}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "map", "items": [{"key": "k", "path": "map/k"}]}},
            {"secret": {"name": "secret", "items": [{"key": "k", "path": "secret/k", "mode": 0o440}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        ]}},
    ]);
    let spec = json!({"volumes": volumes, "securityContext": {"fsGroup": 4711}});
    let mounts: Vec<Value> = ["map", "fixed", "none", "secret", "all"].map(mount).into();
    let pod = with_container(&member.pod("contents", script, spec), json!({"volumeMounts": mounts}));
    cluster.create_pod(&namespace, &pod);
    let pod = cluster.wait_for("pod", &namespace, "contents", SLOW, cluster_node::ready);
    let said = |count: usize| {
        wait("the container's words", SLOW, || match printed(member.agent(), &pod, "main", 0) {
            lines if lines.len() >= count => Ok(lines),
            lines => Err(format!("{lines:?}")),
        })
    };
    let expect = ["440-4711 640-4711 440-4711", "never changes deep 0 contents", "ro"];
    assert_eq!(said(3)[..3], expect);
    let patch = |kind: &str, name: &str, patch: &str| {
        cluster.kubectl(&["patch", kind, name, "--namespace", &namespace, "--patch", patch]);
    };
    patch("configmap", "map", r#"{"data": {"k": "new"}}"#);
    patch("secret", "secret", r#"{"stringData": {"k": "new"}, "data": {"gone": null}}"#);
    assert_eq!(said(5)[3..5], ["k", "followed"]);
    let now = cluster.pod(&namespace, "contents");
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0);
    cluster.delete("pod", &namespace, "contents");
    cluster.wait_gone("pod", &namespace, "contents", SLOW);
}

/// Serves bundles of certificates, which is not so by default.
fn cluster_that_vouches() -> &'static Cluster {
    static ONE: OnceLock<Cluster> = OnceLock::new();
    ONE.get_or_init(|| {
        let gates = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true";
        let served = "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true";
        Cluster::start_with(&["--bare", "--apiserver", gates, "--apiserver", served])
    })
}

/// The certificate of a new authority.
fn authority(dir: &Path, name: &str) -> String {
    let to = dir.join(name);
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "10",
        ])
        .args(["-addext", "basicConstraints=critical,CA:TRUE", "-subj", &format!("/CN={name}"), "-keyout"])
        .args([dir.join(format!("{name}.key")), PathBuf::from("-out"), to.clone()])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read_to_string(to).unwrap()
}

#[test]
fn certificates_that_the_cluster_vouches_for_follow_it() {
    let cluster = cluster_that_vouches();
    let member = ClusterNode::join_with(cluster, "volumes-trust", |config| {
        config["featureGates"]["ClusterTrustBundle"] = json!(true);
        config["featureGates"]["ClusterTrustBundleProjection"] = json!(true);
    });
    let namespace = cluster.namespace("trust");
    let bundle = |name: &str, pem: &str| {
        let bundle = json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
            "metadata": {"name": format!("test.example:mine:{name}"), "labels": {"stage": "live"}},
            "spec": {"signerName": "test.example/mine", "trustBundle": pem},
        });
        cluster.create("default", &bundle.to_string());
    };
    let dir = &member.node.runtime.dir;
    let (one, two) = (authority(dir, "one"), authority(dir, "two"));
    bundle("a", &one);
    let script = "cat /trust/ca/live.pem; wc -c </trust/none.pem
        until test $(grep -c BEGIN /trust/ca/live.pem) = 2; do sleep 0.1; done; echo followed
        trap 'exit 0' TERM; sleep 3600 & wait";
    let live = json!({"signerName": "test.example/mine", "labelSelector": {"matchLabels": {"stage": "live"}}, "path": "ca/live.pem"});
    let none = json!({"name": "none", "optional": true, "path": "none.pem"});
    let sources = json!([{"clusterTrustBundle": live}, {"clusterTrustBundle": none}]);
    let spec = json!({"volumes": [{"name": "trust", "projected": {"sources": sources}}]});
    let pod = with_container(&member.pod("trust", script, spec), json!({"volumeMounts": [mount("trust")]}));
    cluster.create_pod(&namespace, &pod);
    let pod = cluster.wait_for("pod", &namespace, "trust", 2 * SLOW, cluster_node::ready);
    let said = |last: &str| {
        wait("the container's words", 2 * SLOW, || match printed(member.agent(), &pod, "main", 0) {
            lines if lines.last().is_some_and(|line| line.trim() == last) => Ok(lines),
            lines => Err(format!("{lines:?}")),
        })
    };
    let lines = said("0");
    assert_eq!(lines[..lines.len() - 1].join("\n"), one.trim_end());
    // One that is there twice is in the file once.
    bundle("b", &format!("{two}{one}"));
    said("followed");
    cluster.delete("pod", &namespace, "trust");
    cluster.wait_gone("pod", &namespace, "trust", 2 * SLOW);
}

/// `configMapAndSecretChangeDetectionStrategy: Get`: what changes arrives within the sync period, and nothing is watched.
#[test]
fn objects_that_are_asked_for_instead_of_watched() {
    let cluster = Cluster::shared();
    let member = ClusterNode::join_with(cluster, "volumes-asked", |config| {
        config["configMapAndSecretChangeDetectionStrategy"] = json!("Get");
        config["syncFrequency"] = json!("1s");
    });
    member.wait_ready();
    let namespace = cluster.namespace("asked");
    cluster.create(&namespace, &object("ConfigMap", "map", "data", json!({"k": "old"}), false));
    let script = "cat /map/k; echo; until test \"$(cat /map/k)\" = new; do sleep 0.1; done; echo followed
        trap 'exit 0' TERM; sleep 3600 & wait";
    let spec = json!({"volumes": [{"name": "map", "configMap": {"name": "map"}}], "automountServiceAccountToken": false});
    let pod = with_container(&member.pod("asked", script, spec), json!({"volumeMounts": [mount("map")]}));
    cluster.create_pod(&namespace, &pod);
    let pod = cluster.wait_for("pod", &namespace, "asked", SLOW, cluster_node::ready);
    let said = |count: usize| {
        wait("the container's words", SLOW, || match printed(member.agent(), &pod, "main", 0) {
            lines if lines.len() >= count => Ok(lines),
            lines => Err(format!("{lines:?}")),
        })
    };
    assert_eq!(said(1), ["old"]);
    cluster.kubectl(&[
        "patch",
        "configmap",
        "map",
        "--namespace",
        &namespace,
        "--patch",
        r#"{"data": {"k": "new"}}"#,
    ]);
    assert_eq!(said(2), ["old", "followed"]);
    let asked = cluster.api_request_counts(&member.user());
    assert!(asked.contains_key("get configmaps"), "{asked:?}");
    assert!(!asked.contains_key("watch configmaps") && !asked.contains_key("list configmaps"), "{asked:?}");
    cluster.delete("pod", &namespace, "asked");
    cluster.wait_gone("pod", &namespace, "asked", SLOW);
}

/// Files of a volume, of the container itself and (CVE-2020-8557) of its hosts file count, and end a pod that has too many.
#[test]
fn who_outgrows_local_storage_is_evicted() {
    let cluster = Cluster::shared();
    let member = ClusterNode::join(cluster, "volumes-storage");
    member.wait_ready();
    let namespace = cluster.namespace("storage");
    let volume = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let limit = |limit: &str| json!({"resources": {"limits": {"ephemeral-storage": limit}}});
    let fill = |path: &str| format!("dd if=/dev/zero of={path} bs=1M count=4; {STAYS}");
    let cases = [
        (
            "volume",
            fill("/v/x"),
            volume.clone(),
            json!({"volumeMounts": [mount("v")]}),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ",
        ),
        (
            "hosts",
            fill("/etc/hosts"),
            json!({}),
            limit("2Mi"),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
        ),
        (
            "layer",
            fill("/x"),
            json!({}),
            limit("2Mi"),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
        ),
    ];
    let fits = member.pod("fits", &format!("echo x >/v/x; {STAYS}"), volume);
    cluster.create_pod(&namespace, &with_container(&fits, json!({"volumeMounts": [mount("v")]})));
    for (name, script, spec, container, _) in &cases {
        let pod = member.pod(name, script, spec.clone());
        cluster.create_pod(&namespace, &with_container(&pod, container.clone()));
    }
    for (name, _, _, _, message) in &cases {
        let pod = cluster.wait_for("pod", &namespace, name, SLOW, |pod| pod["status"]["phase"] == "Failed");
        assert_eq!(pod["status"]["reason"], "Evicted", "{name}: {}", pod["status"]);
        assert_eq!(pod["status"]["message"].as_str(), Some(*message), "{name}");
        wait("the Event", SLOW, || {
            let events = cluster.events(&namespace, name);
            let found =
                events.iter().any(|e| e["reason"] == "Evicted" && e["message"].as_str() == Some(*message));
            if found { Ok(()) } else { Err(format!("{events:?}")) }
        });
    }
    let fits = cluster.wait_for("pod", &namespace, "fits", SLOW, cluster_node::ready);
    assert_eq!(fits["status"]["phase"], "Running", "who fits goes on");
}

/// The walk over a volume that is nested thousands of directories deep reaches the file at the bottom, other pods start
/// meanwhile, and nothing is left of the volume.
#[test]
fn a_volume_nested_thousands_of_directories_deep() {
    /// Of 1,024 directories each: no more fit into one path.
    const ROUNDS: usize = 16;
    let cluster = Cluster::shared();
    let member = ClusterNode::join_with(cluster, "volumes-deep", |config| {
        config["volumeStatsAggPeriod"] = json!("1s");
    });
    member.wait_ready();
    let namespace = cluster.namespace("deep");
    let journal = Journal::new(&member.node);
    // The chain grows at its top, and the file at its bottom stays open, since no path is as long as the chain.
    // The directories take 64 MiB on some filesystems and nothing on others.
    let script = format!(
        "set -e
        deep=d; for double in 1 2 3 4 5 6 7 8 9 10; do deep=$deep/$deep; done
        cd /v
        mkdir -p $deep; exec 3>$deep/file; mv d chain
        round=1; while [ $round -lt {ROUNDS} ]; do
            mkdir -p $deep; mv chain $deep/chain; mv d chain
            round=$((round + 1))
        done
        echo nested >>/journal/lines
        until [ -e /journal/grow ]; do sleep 0.1; done
        dd if=/dev/zero bs=1M count=88 >&3
        {STAYS}"
    );
    let volume = json!({"name": "v", "emptyDir": {"sizeLimit": "80Mi"}});
    let pod = member.pod("deep", &script, json!({"volumes": [journal.volume(), volume]}));
    let mounts = json!({"volumeMounts": [Journal::mount(), mount("v")]});
    cluster.create_pod(&namespace, &with_container(&pod, mounts));
    journal.wait_counts(&[("nested", 1)]);
    cluster.create_pod(&namespace, &member.pod("other", STAYS, json!({})));
    cluster.wait_for("pod", &namespace, "other", SLOW, cluster_node::ready);
    wait("the figures of the volume", SLOW, || match inodes(member.agent(), "deep", "v") {
        Some(inodes) if inodes > ROUNDS as u64 * 1024 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(cluster.pod(&namespace, "deep")["status"]["phase"], "Running", "it is below its limit");

    journal.put("grow");
    let pod = cluster.wait_for("pod", &namespace, "deep", SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "Evicted", "{}", pod["status"]);
    assert_eq!(pod["status"]["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"80Mi\". ");
    assert!(cluster_node::ready(&cluster.pod(&namespace, "other")), "it has not noticed");
    for name in ["deep", "other"] {
        cluster.delete("pod", &namespace, name);
        cluster.wait_gone("pod", &namespace, name, SLOW);
    }
    member.node.wait_clean(SLOW);
}

/// How many inodes a volume of a pod takes, as `/stats/summary` has it.
fn inodes(agent: &Agent, pod: &str, volume: &str) -> Option<u64> {
    let summary: Value = serde_json::from_slice(&agent.get("/stats/summary").ok()?.body).ok()?;
    let pod = summary["pods"].as_array()?.iter().find(|found| found["podRef"]["name"] == pod)?;
    pod["volume"].as_array()?.iter().find(|found| found["name"] == volume)?["inodesUsed"].as_u64()
}

/// A directory of the host with a filesystem mounted in it.
struct Nested(PathBuf);

impl Nested {
    fn make(dir: &Path) -> Nested {
        let inner = dir.join("inner");
        fs::create_dir_all(&inner).expect("make a directory");
        harness::run(Command::new("mount").args(["-t", "tmpfs", "nested"]).arg(&inner));
        Nested(inner)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// On a runtime that can: what is mounted below a read-only volume is read-only too, where that is asked for.
#[test]
fn read_only_to_the_last_mount_and_images_as_volumes() {
    let runc = harness::run(harness::hack("parts").arg("runc")).trim().to_owned();
    let runtime = Runtime::start_with_runc("2.1", &runc);
    let dir = runtime.dir.join("nested");
    let digests = |config: &mut Value| config["featureGates"] = json!({"ImageVolumeWithDigest": true});
    let node = Node { agent: Agent::start(&runtime, digests), runtime };
    let nested = Nested::make(&dir);
    let script = format!(
        "for way in plain whole if-possible; do
            echo x >/$way/inner/$way 2>/dev/null && echo $way written || echo $way refused
        done
        test -x /image/bin/busybox && echo image
        echo x >/image/new 2>/dev/null || echo image refused
        echo over; {UNTIL_TERM}"
    );
    let way = |name: &str, mode: Option<&str>| {
        let mut mount = json!({"name": "h", "mountPath": format!("/{name}"), "readOnly": true});
        if let Some(mode) = mode {
            mount["recursiveReadOnly"] = json!(mode);
        }
        mount
    };
    let mounts = json!([
        way("plain", None),
        way("whole", Some("Enabled")),
        way("if-possible", Some("IfPossible")),
        mount("image"),
    ]);
    let volumes = json!([
        {"name": "h", "hostPath": {"path": dir, "type": "Directory"}},
        {"name": "image", "image": {"reference": "rubelet.test/busybox:1", "pullPolicy": "Never"}},
    ]);
    let spec = json!({
        "containers": [shell_with("c", &script, json!({"volumeMounts": mounts}))],
        "volumes": volumes, "terminationGracePeriodSeconds": 2, "runtimeClassName": "younger",
    });
    node.agent.write_manifest(
        "class.yaml",
        "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: younger}, handler: younger}\n",
    );
    node.agent.write_manifest("r.json", &manifest("r", spec));
    let pod = node.wait_pod("r", SLOW, is_running);
    let lines = wait("the container's words", SLOW, || match printed(&node.agent, &pod, "c", 0) {
        lines if lines.last().is_some_and(|line| line == "over") => Ok(lines),
        lines => Err(format!("{lines:?}")),
    });
    let expect = ["plain written", "whole refused", "if-possible refused", "image", "image refused", "over"];
    assert_eq!(lines, expect);
    let status = node.agent.pod("r").expect("the pod");
    let status = &status["status"]["containerStatuses"][0];
    let mounts = status["volumeMounts"].as_array().expect("mounts in the status");
    let reference = |name: &str| {
        let mount = mounts.iter().find(|mount| mount["name"] == name).expect("the mount");
        mount["volumeStatus"]["image"]["imageRef"].clone()
    };
    // The container runs from the image that it also mounts.
    assert_eq!(reference("image"), status["imageID"], "{mounts:#?}");
    assert_eq!(reference("h"), Value::Null);
    node.agent.remove_manifest("r.json");
    wait("nothing but the host's own mount to be left", SLOW, || {
        let foreign: Vec<String> =
            node.leftovers().into_iter().filter(|left| !left.ends_with("nested/inner")).collect();
        if foreign.is_empty() { Ok(()) } else { Err(format!("{foreign:?}")) }
    });
    assert!(nested.0.join("plain").exists(), "the host's mount stays, with what is in it");
}
