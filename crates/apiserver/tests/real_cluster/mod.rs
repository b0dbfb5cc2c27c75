//! A real API server, made by hack/cluster.

// Real processes live in real time.
#![allow(dead_code, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apiserver::{Api, Connection};
use model::Wall;
use ports::WallClock;

pub const SLOW: Duration = Duration::from_secs(60);
pub const AGENT: &str = "kubelet/v1.36.4 (linux/amd64)";

pub struct Clock;

impl WallClock for Clock {
    fn wall(&self) -> Wall {
        Wall::from_timestamp(jiff::Timestamp::now())
    }
}

pub fn clock() -> Arc<dyn WallClock> {
    Arc::new(Clock)
}

pub struct Cluster {
    pub dir: PathBuf,
    /// Stops the cluster when this process ends, in whatever way: its pipe closes then.
    guard: Child,
}

fn hack() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/cluster"))
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Cluster {
    pub fn start(options: &[&str]) -> Cluster {
        // Emptied and removed by the guard.
        let dir = tempfile::Builder::new().prefix("apiserver").tempdir().expect("directory").keep();
        let owner = std::process::id().to_string();
        run(hack().arg("start").arg(&dir).args(options).env("RUBELET_TEST_OWNER", owner));
        let guard = hack()
            .arg("guard")
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the cluster's guard");
        Cluster { dir, guard }
    }

    /// etcd and API server, for all tests of a file. It goes with the process.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::start(&["--bare"]))
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        run(hack().arg("kubectl").arg(&self.dir).args(arguments))
    }

    /// As the administrator, from YAML or JSON.
    pub fn apply(&self, text: &str) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("write");
        let path = file.path().display().to_string();
        self.kubectl(&["apply", "-f", &path]);
    }

    pub fn node_kubeconfig(&self, node: &str) -> PathBuf {
        run(hack().arg("node").arg(&self.dir).arg(node)).into()
    }

    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        run(hack().arg("bootstrap").arg(&self.dir)).into()
    }

    pub fn compact(&self) {
        run(hack().arg("compact").arg(&self.dir));
    }

    pub fn apiserver(&self, what: &str) {
        run(hack().arg("apiserver").arg(what).arg(&self.dir));
    }

    pub fn node_api(&self, node: &str) -> Api {
        api(&self.node_kubeconfig(node))
    }

    pub fn admin_api(&self) -> Api {
        api(&self.dir.join("admin.kubeconfig"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

pub fn api(kubeconfig: &Path) -> Api {
    Api::new(Connection::open(kubeconfig, AGENT, clock()).expect("a connection"))
}
