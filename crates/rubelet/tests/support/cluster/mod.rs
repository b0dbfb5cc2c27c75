//! A real Kubernetes cluster without nodes, made and removed by `hack/cluster`: etcd, API server,
//! controller-manager, scheduler.
//!
//! ```text
//! let cluster = Cluster::shared();                     // one for the test program; gone with its process
//! let namespace = cluster.namespace("web");            // so that the program's tests don't meet
//! let kubeconfig = cluster.node_kubeconfig("node-a");  // what a kubelet is given
//! cluster.create_pod(&namespace, WEB_YAML);
//! cluster.wait_for("pod", &namespace, "web", SLOW, |pod| pod["status"]["phase"] == "Running");
//! cluster.api_requests("system:node:node-a");          // every request that it made, from the audit log
//! ```
//!
//! Tests that take the API server away, or count requests, start a cluster of their own (`Cluster::start`).
//! `RUBELET_E2E_KEEP=1` keeps the directory with all logs.

mod audit;
mod credentials;
mod objects;
mod watch;

pub use audit::ApiRequest;
pub use credentials::KeyPair;
pub use watch::Record;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::harness::{hack, run};

#[derive(Debug)]
pub struct Cluster {
    /// Everything of the cluster is below this directory: `<program>.log`, `audit.log`, `pki/`.
    pub dir: PathBuf,
    facts: BTreeMap<String, String>,
    /// Stops the cluster when this process ends, in whatever way: its pipe closes then. A cluster of the whole run has none.
    guard: Option<Child>,
}

impl Cluster {
    /// A whole cluster: pods get service accounts, deployments get pods, pods get nodes.
    #[track_caller]
    pub fn start() -> Cluster {
        Cluster::start_with(&[])
    }

    /// etcd and API server only: pods need `spec.nodeName`, get no service account, and nothing reacts to
    /// nodes or namespaces that go.
    #[track_caller]
    pub fn start_bare() -> Cluster {
        Cluster::start_with(&["--bare"])
    }

    /// With options of `hack/cluster start`, such as `&["--signing-duration", "2m"]` or
    /// `&["--apiserver", "--event-ttl=1m"]`.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Cluster {
        let dir = unique_dir();
        let facts = run(hack("cluster")
            .arg("start")
            .arg(&dir)
            .args(options)
            .env("RUBELET_TEST_OWNER", std::process::id().to_string()));
        let facts = parse_facts(&facts);
        // It must not hold this process's output open beyond its end: a pipe's reader would wait.
        let guard = hack("cluster")
            .arg("guard")
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the cluster's guard");
        Cluster { dir, facts, guard: Some(guard) }
    }

    /// The cluster that `hack/test` keeps for all test programs of a run, each of which would otherwise start its own.
    fn of_the_run(kind: &str) -> Option<Cluster> {
        let dir = PathBuf::from(std::env::var_os("RUBELET_TEST_CLUSTERS")?).join(kind);
        let facts = std::fs::read_to_string(dir.join("facts"));
        let facts = facts.unwrap_or_else(|error| panic!("the run's cluster in {}: {error}", dir.display()));
        Some(Cluster { dir, facts: parse_facts(&facts), guard: None })
    }

    /// One whole cluster for all tests of a program, or of a run of `hack/test`. Tests in it choose their nodes by name.
    #[track_caller]
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::of_the_run("whole").unwrap_or_else(Cluster::start))
    }

    /// One bare cluster for all tests of a program, or of a run of `hack/test`.
    #[track_caller]
    pub fn shared_bare() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::of_the_run("bare").unwrap_or_else(Cluster::start_bare))
    }

    #[track_caller]
    pub fn fact(&self, key: &str) -> &str {
        self.facts.get(key).unwrap_or_else(|| panic!("hack/cluster told no {key}: {:?}", self.facts))
    }

    /// The API server's address, `https://127.0.0.1:<port>`.
    pub fn server(&self) -> &str {
        self.fact("server")
    }

    /// The certificate of the authority that signed everything here.
    pub fn ca(&self) -> PathBuf {
        PathBuf::from(self.fact("ca"))
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        PathBuf::from(self.fact("kubeconfig"))
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Panics
    /// When it fails, with what it said.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        run(&mut self.kubectl_command(&self.admin_kubeconfig(), args))
    }

    /// The same, with `-o json`.
    #[track_caller]
    pub fn kubectl_json(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("kubectl {args:?}: {error} in: {text}"))
    }

    /// Runs kubectl as the administrator; an error is what it said.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.kubectl_as(&self.admin_kubeconfig(), args)
    }

    /// Runs kubectl as the user of a kubeconfig; an error is what it said.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command(kubeconfig, args).output().expect("run kubectl");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// For what needs more than arguments and output: streams, input.
    pub fn kubectl_command(&self, kubeconfig: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(Path::new(self.fact("programs")).join("kubectl"));
        command.arg("--kubeconfig").arg(kubeconfig);
        // Users see different things, and clusters that had the same port do too.
        let user = kubeconfig.file_stem().unwrap_or_default();
        command.arg("--cache-dir").arg(self.dir.join("kubectl-cache").join(user));
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Takes the API server away as a crash would. etcd and its data stay.
    #[track_caller]
    pub fn stop_api_server(&self) {
        self.hack(&["apiserver", "stop"]);
    }

    /// Brings it back on the same port. Returns when it is ready.
    #[track_caller]
    pub fn start_api_server(&self) {
        self.hack(&["apiserver", "start"]);
    }

    /// The API server takes connections and answers nothing until `resume_api_server`.
    #[track_caller]
    pub fn hang_api_server(&self) {
        self.hack(&["apiserver", "hang"]);
    }

    #[track_caller]
    pub fn resume_api_server(&self) {
        self.hack(&["apiserver", "resume"]);
    }

    /// Ends controller-manager and scheduler: nobody reacts to nodes, and nothing signs certificates.
    #[track_caller]
    pub fn stop_controllers(&self) {
        self.hack(&["controllers", "stop"]);
    }

    #[track_caller]
    pub fn start_controllers(&self) {
        self.hack(&["controllers", "start"]);
    }

    /// Lets etcd forget every revision but the last, whose number it gives. The API server's own cache still
    /// serves watches from what it saw since its start: restart it too, and an older watch gets 410.
    #[track_caller]
    pub fn compact(&self) -> u64 {
        self.hack(&["compact"]).trim().parse().expect("a revision")
    }

    /// Runs `hack/cluster <words> <dir>`.
    #[track_caller]
    fn hack(&self, words: &[&str]) -> String {
        run(hack("cluster").args(words).arg(&self.dir))
    }

    /// The last lines of a program: `apiserver`, `controllers`, `scheduler` or `etcd`.
    pub fn log_tail(&self, program: &str) -> String {
        const SHOWN_LINES: usize = 100;
        let log = std::fs::read(self.dir.join(format!("{program}.log"))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(guard) = &mut self.guard else { return };
        drop(guard.stdin.take());
        if !guard.wait().is_ok_and(|status| status.success()) {
            eprintln!("could not stop the cluster in {}", self.dir.display());
        }
    }
}

/// What `hack/cluster` tells of a cluster, as key=value lines.
fn parse_facts(text: &str) -> BTreeMap<String, String> {
    let facts = text.lines().filter_map(|line| line.split_once('='));
    facts.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A directory that no other test on this machine has.
fn unique_dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let name =
            format!("rubelet-cluster-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        if !dir.exists() {
            return dir;
        }
    }
}
