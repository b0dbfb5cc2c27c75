//! emptyDir volumes that are measured by project quotas of XFS: with users of their own on a runtime that can give them, and
//! with an API server, because static pods are never evicted.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::guest::{Form, Guest, GuestNode};
use crate::support::harness::{hack, run, wait};
use crate::support::pods::{container_id, is_running};

const GATE: &str = "LocalStorageCapacityIsolationFSQuotaMonitoring";
const CONTAINERD: &str = r#"version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "rubelet.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = false
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
  BinaryName = "/share/runc"
"#;
const CONTAINERD_UNIT: &str = "[Service]
Environment=PATH=/share:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=
ExecStart=/share/containerd --config /etc/containerd/younger.toml
";
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": true}}],
    "users": [{"name": "u", "user": {"token": "secret"}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}"#;
const KUBECTL: &str = "/share/kubectl --kubeconfig /root/api/kubeconfig";
/// Whoever may do anything, and no network but loopback: the API server's own security is not what is tested.
const API_SERVER: &str = "set -e
ip link set lo up
echo secret,admin,admin,system:masters >/root/api/tokens
systemd-run --quiet --unit etcd /share/etcd --data-dir=/root/api/etcd --unsafe-no-fsync --log-level=warn
systemd-run --quiet --unit apiserver /share/kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 \
    --advertise-address=127.0.0.1 --secure-port=6443 --cert-dir=/root/api/certificates --token-auth-file=/root/api/tokens \
    --authorization-mode=AlwaysAllow --service-cluster-ip-range=10.96.0.0/16 --endpoint-reconciler-type=none \
    --disable-admission-plugins=ServiceAccount --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file=/root/api/key --service-account-signing-key-file=/root/api/key
until /share/kubectl --kubeconfig /root/api/kubeconfig get --raw /readyz >/dev/null 2>&1; do
    sleep 0.5
    systemctl is-active --quiet etcd apiserver
done
until /share/kubectl --kubeconfig /root/api/kubeconfig get namespace default >/dev/null 2>&1; do sleep 0.5; done";
/// Two lines of an administrator.
const BY_HAND: [(&str, &str); 2] =
    [("/etc/projects", "1048577:/srv/data\n"), ("/etc/projid", "data:1048577\n")];

struct QuotaNode(GuestNode);

impl QuotaNode {
    fn start() -> QuotaNode {
        let guest = Guest::start_with_disks(Form::Uml, &["1G"]);
        guest.run("set -e; mkfs.xfs -q /dev/ubdb; mkdir -p /var/lib/kubelet; mount -o prjquota /dev/ubdb /var/lib/kubelet");
        for (path, text) in BY_HAND {
            guest.write(path, text);
        }
        let part = |args: &[&str]| run(hack("parts").args(args)).trim().to_owned();
        share(&guest, Path::new(&part(&["runc"])));
        let containerd = part(&["containerd", "2.1"]);
        share(&guest, Path::new(&containerd));
        share(&guest, &Path::new(&containerd).with_file_name("containerd-shim-runc-v2"));
        guest.write("/etc/containerd/younger.toml", CONTAINERD);
        guest.run("mkdir -p /etc/systemd/system/containerd.service.d /root/api");
        guest.write("/etc/systemd/system/containerd.service.d/10-younger.conf", CONTAINERD_UNIT);
        guest.run("systemctl daemon-reload && systemctl restart containerd");
        start_api_server(&guest, &part(&["kubernetes"]), &part(&["etcd"]));
        guest.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--kubeconfig=/root/api/kubeconfig\n");
        QuotaNode(GuestNode::start_with(guest, |config| {
            config["featureGates"] = json!({ GATE: true });
            config["volumeStatsAggPeriod"] = json!("1s");
        }))
    }

    fn run(&self, script: &str) -> String {
        self.0.guest.run(script)
    }

    /// `script` runs beside a volume at `/data`.
    fn create(&self, name: &str, host_users: bool, script: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": "guest", "hostUsers": host_users, "terminationGracePeriodSeconds": 1,
                "volumes": [{ "name": "data", "emptyDir": { "sizeLimit": "20Mi" } }],
                "containers": [{
                    "name": "c", "image": "rubelet.test/busybox:1", "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
            },
        });
        self.0.guest.write(&format!("/root/{name}.json"), &pod.to_string());
        self.run(&format!("{KUBECTL} create -f /root/{name}.json"));
    }

    fn wait_pod(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait(&format!("the pod {name}"), self.0.patience(), || {
            let text = self.0.guest.output(60, &format!("{KUBECTL} get pod {name} -o json")).stdout;
            let pod: Value = serde_json::from_slice(&text).map_err(|error| format!("no pod: {error}"))?;
            if wanted(&pod) { Ok(pod) } else { Err(format!("{}\n{}", pod["status"], self.0.journal())) }
        })
    }

    fn volume(&self, pod: &Value) -> String {
        let uid = pod["metadata"]["uid"].as_str().expect("a UID");
        format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data")
    }

    /// The lines that are not the administrator's, whose own have to be there.
    fn lines(&self) -> Vec<String> {
        let own = |(path, by_hand): (&str, &str)| {
            let text = self.run(&format!("cat {path}"));
            let own = text.strip_prefix(by_hand).unwrap_or_else(|| panic!("{path}: {text}"));
            own.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        BY_HAND.into_iter().flat_map(own).collect()
    }

    /// Bytes and inodes, file by file.
    fn walked(&self, volume: &str) -> (u64, u64) {
        let text = self.run(&format!("sync; du -s --block-size=1 {volume} | cut -f1; find {volume} | wc -l"));
        let mut numbers = text.lines().map(|line| line.trim().parse().expect("a number"));
        (numbers.next().expect("bytes"), numbers.next().expect("inodes"))
    }

    /// The same from `/stats/summary`, once it is as expected.
    fn wait_told(&self, pod: &str, expected: impl Fn(u64, u64) -> bool) {
        wait("the figures of the volume", self.0.patience(), || {
            let text =
                self.0.guest.output(60, "busybox wget -qO- http://127.0.0.1:10255/stats/summary").stdout;
            let summary: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            let pods = summary["pods"].as_array().map(Vec::as_slice).unwrap_or_default();
            let stats = pods.iter().find(|stats| stats["podRef"]["name"] == pod).ok_or("no pod")?;
            let told = &stats["volume"][0];
            match (told["usedBytes"].as_u64(), told["inodesUsed"].as_u64()) {
                (Some(bytes), Some(inodes)) if expected(bytes, inodes) => Ok(()),
                _ => Err(format!("{told}")),
            }
        });
    }

    /// How many times volumes were measured that way.
    fn measured_by(&self, source: &str) -> u64 {
        let text = self.run("busybox wget -qO- http://127.0.0.1:10255/metrics");
        let name =
            format!("kubelet_volume_metric_collection_duration_seconds_count{{metric_source=\"{source}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }

    /// systemd starts the agent again.
    fn kill9(&self) {
        self.run("systemctl kill --kill-who=main --signal=KILL kubelet");
    }

    fn wait_gone(&self) {
        wait("everything of the pods to go", self.0.patience(), || {
            let left = self.run("ls /var/lib/kubelet/pods; xfs_quota -x -c 'report -p -i -N' /var/lib/kubelet | awk '$2 > 0 && $1 != \"#0\"'");
            let lines = self.lines();
            if left.is_empty() && lines.is_empty() {
                Ok(())
            } else {
                Err(format!("{left}{lines:?}\n{}", self.0.journal()))
            }
        });
    }
}

/// Under its own name in `/share`.
fn share(guest: &Guest, program: &Path) {
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    guest.share(&fs::canonicalize(program).expect("the program"), &name);
}

fn start_api_server(guest: &Guest, kubernetes: &str, etcd: &str) {
    for program in
        [format!("{kubernetes}/kube-apiserver"), format!("{kubernetes}/kubectl"), format!("{etcd}/etcd")]
    {
        share(guest, Path::new(&program));
    }
    let key = run(Command::new("openssl").args(["genpkey", "-quiet", "-algorithm", "RSA"]));
    guest.write("/root/api/key", &key);
    guest.write("/root/api/kubeconfig", KUBECONFIG);
    guest.run(API_SERVER);
}

/// One boot for everything.
#[test]
fn a_volume_is_measured_by_its_quota_and_who_outgrows_it_is_evicted() {
    let node = QuotaNode::start();
    let fill = "for i in $(seq 300); do echo $i >/data/$i; done; dd if=/dev/zero of=/data/big bs=1M count=5
        until [ -e /data/go ]; do sleep 0.2; done; dd if=/dev/zero of=/data/more bs=1M count=30; sleep 3600";
    node.create("own", false, fill);
    node.create("hosts", true, "echo x >/data/x; sleep 3600");
    let own = node.wait_pod("own", is_running);
    let volume = node.volume(&own);
    node.wait_pod("hosts", is_running);
    node.run(&format!("until [ $(stat -c %s {volume}/big) = 5242880 ]; do sleep 0.2; done"));
    // The pod on the host's users could change project ids, so it has none.
    let expect = [format!("1048578:{volume}"), "volume1048578:1048578".to_owned()];
    assert_eq!(node.lines(), expect);
    let figures = node.walked(&volume);
    assert!(figures.0 > 5 << 20 && figures.1 == 302, "{figures:?}");
    node.wait_told("own", |bytes, inodes| (bytes, inodes) == figures);
    assert!(node.measured_by("fsquota") > 0 && node.measured_by("du") > 0);

    // A file that was removed while it was open is seen by the quota alone: this is what was asked. XFS reserves more for an
    // open file than was written.
    node.run(&format!(
        "exec 9>{volume}/held; dd if=/dev/zero bs=1M count=3 >&9; rm {volume}/held
        (until [ -e /root/let-go ]; do sleep 0.5; done) >/dev/null 2>&1 &"
    ));
    assert_eq!(node.walked(&volume), figures);
    node.wait_told("own", |bytes, inodes| bytes >= figures.0 + (3 << 20) && inodes == figures.1 + 1);
    node.run("touch /root/let-go");

    node.kill9();
    wait("the next agent's figures", node.0.patience(), || {
        match node.0.guest.output(60, "busybox wget -qO- http://127.0.0.1:10255/metrics").status.success() {
            true => Ok(()),
            false => Err("it does not answer".to_owned()),
        }
    });
    node.wait_told("own", |bytes, inodes| (bytes, inodes) == figures);
    assert!(node.measured_by("fsquota") > 0);
    assert_eq!(node.lines(), expect, "the id is kept");
    let found = node.wait_pod("own", is_running);
    assert_eq!(container_id(&found, "c"), container_id(&own, "c"));

    node.run(&format!("touch {volume}/go"));
    let evicted = node.wait_pod("own", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(evicted["status"]["reason"], "Evicted", "{}", evicted["status"]);
    let message = "Usage of EmptyDir volume \"data\" exceeds the limit \"20Mi\". ";
    assert_eq!(evicted["status"]["message"], message);

    // Killed in the middle of it.
    node.run(&format!("{KUBECTL} delete pod --wait=false own hosts"));
    node.kill9();
    node.wait_gone();
}
