//! The kubelet that is looked at: a process with a directory of its own, on a simulated runtime.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use fakecri::FakeRuntime;
use serde_json::json;
use tempfile::TempDir;

const NODE: &str = "node";

/// The process goes first, then the runtime below it, then the directory.
pub struct Subject {
    child: Option<Child>,
    pub runtime: FakeRuntime,
    binary: PathBuf,
    dir: TempDir,
}

impl Subject {
    pub fn prepare(binary: &Path, max_pods: usize) -> Subject {
        let dir = tempfile::Builder::new().prefix("rubelet-scale-").tempdir().expect("a directory");
        let path = dir.path();
        for name in ["manifests", "logs", "root", "home"] {
            fs::create_dir(path.join(name)).expect("make a directory");
        }
        let socket = path.join("cri.sock");
        let runtime = FakeRuntime::serve(&socket).expect("serve the simulated runtime");
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1", "port": free_port(), "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1", "healthzPort": free_port(),
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
            "staticPodPath": path.join("manifests"), "podLogsDir": path.join("logs"),
            "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            // There are no processes to put into cgroups.
            "cgroupsPerQOS": false, "enforceNodeAllocatable": [],
            "maxPods": max_pods, "registryPullQPS": 0,
            "imageGCHighThresholdPercent": 100, "evictionHard": { "memory.available": "1Mi" },
        });
        fs::write(path.join("config.json"), config.to_string()).expect("write the configuration");
        Subject { child: None, runtime, binary: binary.to_owned(), dir }
    }

    pub fn launch(&mut self) {
        let path = self.dir.path();
        let log = File::create(path.join("agent.log")).expect("open the log");
        let child = Command::new(&self.binary)
            .arg("--config")
            .arg(path.join("config.json"))
            .arg("--root-dir")
            .arg(path.join("root"))
            .arg("--cert-dir")
            .arg(path.join("pki"))
            .args(["--hostname-override", NODE])
            .env("HOME", path.join("home"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("start {}: {error}", self.binary.display())));
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a process").id()
    }

    /// Put in place whole, as a careful user would.
    pub fn write_manifest(&self, name: &str) {
        let container = json!({
            "name": "main", "image": "fake.test/app:1", "imagePullPolicy": "Never", "command": ["serve"],
            "resources": { "requests": { "cpu": "0", "memory": "0" } },
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [container], "enableServiceLinks": false, "terminationGracePeriodSeconds": 1 },
        });
        let draft = self.dir.path().join(format!("{name}.draft"));
        fs::write(&draft, pod.to_string()).expect("write a manifest");
        let place = self.dir.path().join("manifests").join(format!("{name}.yaml"));
        fs::rename(&draft, place).expect("put a manifest in place");
    }

    pub fn exit(&self, name: &str) -> Option<SystemTime> {
        self.runtime.exit(&format!("{name}-{NODE}"))
    }

    pub fn starts(&self, name: &str) -> Vec<SystemTime> {
        self.runtime.starts(&format!("{name}-{NODE}"))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Either kubelet mounts its directory onto itself, and leaves that behind.
        let _ = Command::new("umount").arg(self.dir.path().join("root")).stderr(Stdio::null()).status();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- the kubelet's last lines:\n{}",
                lines[lines.len().saturating_sub(50)..].join("\n")
            );
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
