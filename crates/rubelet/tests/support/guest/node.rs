//! Rubelet in a guest, as the units that ship start it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::Guest;
use crate::support::harness::{SLOW, hack, run, wait};

const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// As docs/operations.md says for a node without a cluster.
const STANDALONE: &str =
    "[Service]\nExecStart=\nExecStart=/usr/local/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_EXTRA_ARGS\n";
/// The guest has no network of its own: a pair of interfaces gives the node an address and a default route.
const NETWORK: &str = "ip link add node0 type veth peer name node1
ip address add 10.77.0.1/24 dev node0
ip link set node0 up
ip link set node1 up
ip route add default via 10.77.0.2";

#[derive(Debug)]
pub struct GuestNode {
    pub guest: Guest,
}

impl GuestNode {
    #[track_caller]
    pub fn start(guest: Guest) -> GuestNode {
        GuestNode::start_with(guest, |_| {})
    }

    /// With changes to the agent's KubeletConfiguration.
    #[track_caller]
    pub fn start_with(guest: Guest, adjust: impl FnOnce(&mut Value)) -> GuestNode {
        let images = run(hack("parts").arg("images"));
        guest.share(Path::new(images.trim()), "images.tar");
        guest.share(Path::new(env!("CARGO_BIN_EXE_rubelet")), "rubelet");
        let units = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../hack/systemd");
        guest.copy_in(&units.join("kubelet.service"), "/etc/systemd/system/kubelet.service");
        guest.copy_in(&units.join("kubelet.service.d"), "/etc/systemd/system/kubelet.service.d");
        guest.write("/etc/systemd/system/kubelet.service.d/30-standalone.conf", STANDALONE);
        let mut config = configuration();
        adjust(&mut config);
        guest.run(&format!(
            "set -e
            mkdir -p {MANIFESTS} /var/lib/kubelet
            ln -s /share/rubelet /usr/local/bin/kubelet
            {NETWORK}
            ctr -n k8s.io images import --digests=false /share/images.tar"
        ));
        guest.write("/var/lib/kubelet/config.yaml", &config.to_string());
        guest.run("systemctl daemon-reload && systemctl start kubelet");
        GuestNode { guest }
    }

    /// Puts a static pod's manifest in place, whole.
    #[track_caller]
    pub fn write_manifest(&self, name: &str, text: &str) {
        self.guest.write(&format!("{MANIFESTS}/.{name}"), text);
        self.guest.run(&format!("mv {MANIFESTS}/.{name} {MANIFESTS}/{name}.yaml"));
    }

    #[track_caller]
    pub fn remove_manifest(&self, name: &str) {
        self.guest.run(&format!("rm {MANIFESTS}/{name}.yaml"));
    }

    /// Waits until the static pod of that manifest name is as wanted, and gives it.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait(&format!("the pod {name}"), self.patience(), || {
            let list = self.guest.output(60, "busybox wget -qO- http://127.0.0.1:10255/pods").stdout;
            let list: Value = serde_json::from_slice(&list).map_err(|error| format!("no list: {error}"))?;
            let pods = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let pod = pods.iter().find(|pod| pod["metadata"]["name"] == format!("{name}-guest"));
            match pod {
                Some(pod) if wanted(pod) => Ok(pod.clone()),
                Some(pod) => Err(format!("its status: {}\n{}", pod["status"], self.journal())),
                None => Err(format!("there is none\n{}", self.journal())),
            }
        })
    }

    /// Long enough for an emulated machine beside other tests.
    pub fn patience(&self) -> Duration {
        2 * SLOW
    }

    pub fn journal(&self) -> String {
        let output = self.guest.output(60, "journalctl --unit kubelet --lines 40 --no-pager");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Properties of a unit, in the order of their names, as `Name=value`.
    #[track_caller]
    pub fn unit(&self, unit: &str, properties: &str) -> Vec<String> {
        let text = self.guest.run(&format!("systemctl show --property {properties} {unit} | sort"));
        text.lines().map(str::to_owned).collect()
    }
}

fn configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": MANIFESTS,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "systemd",
        "systemReserved": { "cpu": "200m", "memory": "16Mi", "pid": "40" },
        "systemReservedCgroup": "/system.slice",
        "enforceNodeAllocatable": ["pods", "system-reserved-compressible"],
        "address": "127.0.0.1",
        "readOnlyPort": 10255,
        "clusterDNS": ["10.0.0.10"],
        "clusterDomain": "cluster.local",
        // The guest is small: what it has left must not evict the tests' pods.
        "evictionHard": { "memory.available": "1Mi" },
    })
}
