//! The agent as a process: its configuration, its life and its read-only API.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::http::{Response, get};
use super::machine::start_time;
use super::runtime::Runtime;
use super::waiting::{SLOW, wait};

/// The node's name, and so the suffix of every static pod's name.
const NODE: &str = "node";

/// Lines of the agent's log shown when a test fails.
const SHOWN_LINES: usize = 200;

#[derive(Debug)]
pub struct Agent {
    dir: PathBuf,
    read_only_port: u16,
    healthz_port: u16,
    /// The kubelet's HTTPS port.
    pub port: u16,
    /// Flags besides those that every agent of a test gets.
    args: Vec<String>,
    /// Variables of its environment besides those of the test.
    environment: Vec<(String, String)>,
    /// The command that the agent is started by.
    wrapper: Vec<String>,
    child: Option<Child>,
}

impl Agent {
    /// Writes a configuration for a standalone agent on the runtime, lets `adjust` change it, starts the
    /// agent and waits until it says that it is healthy.
    #[track_caller]
    pub fn start(runtime: &Runtime, adjust: impl FnOnce(&mut Value)) -> Agent {
        Agent::start_with_flags(runtime, &[], adjust)
    }

    #[track_caller]
    pub fn start_with_flags(runtime: &Runtime, flags: &[&str], adjust: impl FnOnce(&mut Value)) -> Agent {
        Agent::start_in(runtime, &[], flags, adjust)
    }

    /// With more variables in its environment.
    #[track_caller]
    pub fn start_in(
        runtime: &Runtime,
        environment: &[(&str, &str)],
        flags: &[&str],
        adjust: impl FnOnce(&mut Value),
    ) -> Agent {
        let mut agent = Agent::prepare(runtime, flags, adjust);
        agent.environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        agent.spawn();
        agent.wait_healthy();
        agent
    }

    /// Starts one that is expected to give up, and gives its exit status.
    #[track_caller]
    pub fn refused(runtime: &Runtime, flags: &[&str]) -> (Agent, ExitStatus) {
        let mut agent = Agent::prepare(runtime, flags, |_| {});
        agent.spawn();
        let mut child = agent.child.take().expect("a process");
        let status = wait("the agent to give up", SLOW, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        });
        (agent, status)
    }

    /// Writes the configuration, and starts nothing: see [`Agent::launch`].
    pub fn prepare(runtime: &Runtime, flags: &[&str], adjust: impl FnOnce(&mut Value)) -> Agent {
        let agent = Agent {
            dir: runtime.dir.clone(),
            read_only_port: runtime.free_port(),
            healthz_port: runtime.free_port(),
            port: runtime.free_port(),
            args: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            environment: Vec::new(),
            wrapper: Vec::new(),
            child: None,
        };
        fs::create_dir_all(agent.manifests()).expect("make the manifests' directory");
        fs::create_dir_all(agent.logs_dir()).expect("make the logs' directory");
        let mut config = agent.configuration(runtime);
        adjust(&mut config);
        let text = serde_json::to_string_pretty(&config).expect("render the configuration");
        fs::write(agent.dir.join("config.json"), text).expect("write the configuration");
        agent
    }

    fn configuration(&self, runtime: &Runtime) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.port,
            "readOnlyPort": self.read_only_port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.healthz_port,
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "containerRuntimeEndpoint": runtime.endpoint(),
            "staticPodPath": self.manifests(),
            "fileCheckFrequency": "20s",
            "podLogsDir": self.logs_dir(),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": runtime.cgroup_root,
            "failCgroupV1": false,
            "failSwapOn": false,
            // Agents of tests are in the network of this machine, whose rules are not theirs.
            "makeIPTablesUtilChains": false,
            "clusterDNS": ["10.0.0.10"],
            "clusterDomain": "cluster.local",
            // A full disk of the machine must not evict the test's pods or drop its images.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": { "memory.available": "1Mi" },
        })
    }

    fn spawn(&mut self) {
        let open = || File::options().create(true).append(true).open(self.log_path()).expect("open the log");
        let binary =
            std::env::var_os("RUBELET_E2E_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_rubelet").into());
        let mut command = match self.wrapper.split_first() {
            Some((wrapper, args)) => {
                let mut command = Command::new(wrapper);
                command.args(args).arg(&binary);
                command
            }
            None => Command::new(&binary),
        };
        let child = command
            .arg("--config")
            .arg(self.dir.join("config.json"))
            .arg("--root-dir")
            .arg(self.root_dir())
            .arg("--cert-dir")
            .arg(self.dir.join("pki"))
            .args(["--hostname-override", NODE])
            .args(&self.args)
            // What lies in the home of whoever runs the test is none of the agent's business.
            .env("HOME", self.dir.join("home"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", binary.display()));
        // So that hack/runtime ends it when this test is killed.
        let pid = child.id().to_string();
        let entry = format!("{pid}:{}\n", start_time(&pid).unwrap_or_default());
        fs::write(self.dir.join("pids/agent"), entry).expect("note the agent's pid");
        self.child = Some(child);
    }

    /// Starts it without waiting for anything.
    pub fn launch(&mut self) {
        self.spawn();
    }

    /// Starts it in a network namespace of its own, where nobody reaches its ports.
    pub fn launch_in_own_network(&mut self) {
        let start = "ip link set lo up && exec \"$@\"";
        self.wrapper = ["unshare", "-n", "sh", "-c", start, "sh"].map(str::to_owned).into();
        self.spawn();
    }

    /// Whether it says right now that it is healthy.
    pub fn is_healthy(&self) -> bool {
        let address = format!("127.0.0.1:{}", self.healthz_port);
        get(&address, "/healthz").is_ok_and(|response| response.status == 200)
    }

    #[track_caller]
    pub fn wait_healthy(&mut self) {
        let address = format!("127.0.0.1:{}", self.healthz_port);
        wait("the agent to be healthy", SLOW, || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()).flatten() {
                panic!("the agent ended at its start, with {status}\n{}", self.log_tail());
            }
            match get(&address, "/healthz") {
                Ok(response) if response.status == 200 => Ok(()),
                Ok(response) => Err(format!("{}: {}", response.status, response.text())),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    pub fn logs_dir(&self) -> PathBuf {
        self.dir.join("logs")
    }

    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    /// Is the process still there?
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends it as a crash would.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the agent");
            child.wait().expect("reap the agent");
        }
    }

    /// Starts it again with the same configuration, ending it hard when it runs.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill9();
        self.spawn();
        self.wait_healthy();
    }

    /// Asks it to end, and waits for that.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("an agent that runs");
        wait("the agent to end on SIGTERM", SLOW, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn wait_ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("an agent that runs");
        wait("the agent to end by itself", SLOW, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// What `RUBELET_TEST_PANIC_IN` names panics now.
    pub fn panic_in_task(&self) {
        self.signal(Signal::USR1);
    }

    /// It does nothing until `resume`.
    pub fn hang(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("an agent that runs"), signal).expect("signal the agent");
    }

    /// Puts a manifest in place whole: the agent never sees half of it.
    pub fn write_manifest(&self, name: &str, text: &str) {
        let draft = self.dir.join(format!("{name}.draft"));
        fs::write(&draft, text).expect("write a manifest");
        fs::rename(&draft, self.manifest(name)).expect("put a manifest in place");
    }

    pub fn remove_manifest(&self, name: &str) {
        fs::remove_file(self.manifest(name)).expect("remove a manifest");
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.manifests().join(format!("{name}.yaml"))
    }

    /// GET on the read-only port.
    pub fn get(&self, path: &str) -> std::io::Result<Response> {
        get(&format!("127.0.0.1:{}", self.read_only_port), path)
    }

    /// GET on the port for health checks.
    pub fn health(&self, path: &str) -> std::io::Result<Response> {
        get(&format!("127.0.0.1:{}", self.healthz_port), path)
    }

    /// The pods that the agent tells of, or why it doesn't.
    pub fn pods(&self) -> Result<Vec<Value>, String> {
        let response = self.get("/pods").map_err(|error| format!("GET /pods: {error}"))?;
        if response.status != 200 {
            return Err(format!("GET /pods: {}: {}", response.status, response.text()));
        }
        let list: Value =
            serde_json::from_slice(&response.body).map_err(|error| format!("GET /pods: {error}"))?;
        match &list["items"] {
            Value::Array(pods) => Ok(pods.clone()),
            Value::Null => Ok(Vec::new()),
            other => Err(format!("GET /pods: items is {other}")),
        }
    }

    /// The static pod of a manifest, by the name in the manifest.
    pub fn pod(&self, name: &str) -> Result<Value, String> {
        let full = format!("{name}-{NODE}");
        let pods = self.pods()?;
        let names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].to_string()).collect();
        let found = pods.into_iter().find(|pod| pod["metadata"]["name"] == full.as_str());
        found.ok_or_else(|| format!("no pod {full} among {names:?}"))
    }

    /// Runs a human command of the binary against this agent, such as `get pods`.
    #[track_caller]
    pub fn command(&self, args: &[&str]) -> std::process::Output {
        Command::new(env!("CARGO_BIN_EXE_rubelet"))
            .args(args)
            .arg("--root-dir")
            .arg(self.root_dir())
            .stdin(Stdio::null())
            .output()
            .expect("run the binary")
    }

    /// The log file of a container's attempt, as the runtime writes it.
    pub fn container_log(&self, pod: &Value, container: &str, attempt: u32) -> String {
        let metadata = &pod["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let uid = metadata["annotations"]["kubernetes.io/config.hash"]
            .as_str()
            .map_or_else(|| text("uid"), str::to_owned);
        let dir = format!("{}_{}_{uid}", text("namespace"), text("name"));
        let path = self.logs_dir().join(dir).join(container).join(format!("{attempt}.log"));
        fs::read_to_string(&path).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's last lines:\n{}\n--- (end)", self.log_tail());
        }
        self.kill9();
    }
}
