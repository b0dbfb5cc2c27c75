//! A private containerd, made by hack/runtime, and pods to run on it. Needs root.

// Tests with real processes and servers live in real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(dead_code)] // each test binary uses its part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use cri::CriClient;
use model::cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxSandboxConfig, SandboxConfig, SandboxMetadata,
};
use model::{ContainerId, SandboxId};
use ports::Runtime;
use tempfile::TempDir;

/// No call of these tests takes this long on a machine that works.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
pub const BUSYBOX: &str = "rubelet.test/busybox:1";

pub struct PrivateRuntime {
    home: TempDir,
    /// After a restart: containerd as our child, no longer as the script's.
    restarted: Mutex<Option<Child>>,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/runtime")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl PrivateRuntime {
    pub fn start() -> Self {
        Self::start_as(None)
    }

    pub fn start_version(version: &str) -> Self {
        Self::start_as(Some(version))
    }

    fn start_as(version: Option<&str>) -> Self {
        let home = tempfile::Builder::new().prefix("cri").tempdir().expect("temporary directory");
        let owner = std::process::id().to_string();
        let cgroup_root = Self::cgroup_root_of(&home);
        let directory = home.path().join("r");
        let mut start = Command::new(script());
        start.arg("start").arg(directory).args(version);
        run(start.env("RUBELET_TEST_OWNER", owner).env("RUBELET_TEST_CGROUP_ROOT", cgroup_root));
        Self { home, restarted: Mutex::new(None) }
    }

    /// One for all tests of a binary that run at the time; it goes with the last of them.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<PrivateRuntime>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start());
            *shared = Arc::downgrade(&started);
            started
        })
    }

    pub fn directory(&self) -> PathBuf {
        self.home.path().join("r")
    }

    fn cgroup_root_of(home: &TempDir) -> String {
        format!("/{}", home.path().file_name().unwrap_or_default().to_string_lossy())
    }

    /// A cgroup that goes with this runtime.
    pub fn cgroup_root(&self) -> String {
        Self::cgroup_root_of(&self.home)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory().join("containerd.sock")
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn client(&self) -> CriClient {
        CriClient::connect(&self.endpoint(), None, REQUEST_TIMEOUT).expect("endpoint")
    }

    /// Acts on containerd past its CRI part, as somebody else might.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        run(Command::new(script()).arg("ctr").arg(self.directory()).args(arguments))
    }

    /// Ends containerd as a crash would; its containers live on. Returns the binary to start again.
    pub fn kill(&self) -> PathBuf {
        let record = std::fs::read_to_string(self.directory().join("pids/containerd")).expect("pid");
        let pid = record.split(':').next().expect("pid");
        let binary = std::fs::read_link(format!("/proc/{pid}/exe")).expect("binary");
        run(Command::new("kill").args(["-KILL", pid]));
        while std::os::unix::net::UnixStream::connect(self.socket()).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        binary
    }

    pub fn start_again(&self, binary: &Path) {
        let containerd = self.directory().join("containerd");
        let shims = binary.parent().expect("directory").display();
        let path = format!("{shims}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let log = std::fs::File::create(containerd.join("log-again")).expect("log");
        let child = Command::new(binary)
            .arg("--config")
            .arg(containerd.join("config.toml"))
            .env("PATH", path)
            .env("TMPDIR", self.directory().join("tmp"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("containerd");
        *self.restarted.lock().expect("lock") = Some(child);
    }
}

impl Drop for PrivateRuntime {
    fn drop(&mut self) {
        let mut stop = Command::new(script());
        let stopped = stop.arg("stop").arg(self.directory()).status();
        if let Some(mut child) = self.restarted.lock().ok().and_then(|mut c| c.take()) {
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            assert!(stopped.is_ok_and(|s| s.success()), "{stop:?}");
        }
    }
}

pub fn image(name: &str) -> ImageSpec {
    ImageSpec { image: name.into(), ..Default::default() }
}

/// The config of a pod that no other test has.
pub fn pod(runtime: &PrivateRuntime, name: &str) -> SandboxConfig {
    let uid = format!("uid-of-{name}");
    let labels = [
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", "tests"),
        ("io.kubernetes.pod.uid", uid.as_str()),
    ];
    SandboxConfig {
        metadata: SandboxMetadata {
            name: name.into(),
            uid: uid.clone(),
            namespace: "tests".into(),
            attempt: 0,
        },
        hostname: name.into(),
        log_directory: runtime.directory().join("logs").join(name).display().to_string(),
        labels: labels.map(|(key, value)| (key.to_string(), value.to_string())).into(),
        annotations: BTreeMap::from([("for".to_string(), "tests".to_string())]),
        linux: Some(LinuxSandboxConfig::default()),
        ..Default::default()
    }
}

/// A container of `pod` that runs a shell script.
pub fn container(pod: &SandboxConfig, name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: ContainerMetadata { name: name.into(), attempt: 0 },
        image: Some(image(BUSYBOX)),
        command: vec!["sh".into(), "-c".into(), script.into()],
        labels: pod.labels.clone(),
        annotations: pod.annotations.clone(),
        log_path: format!("{name}.log"),
        ..Default::default()
    }
}

/// Creates and starts.
pub async fn start(
    client: &CriClient,
    sandbox: &SandboxId,
    config: &ContainerConfig,
    pod: &SandboxConfig,
) -> ContainerId {
    let id = client.create_container(sandbox, config, pod).await.expect("create");
    client.start_container(&id).await.expect("start");
    id
}
