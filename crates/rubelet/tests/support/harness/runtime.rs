//! A private containerd, made and removed by `hack/runtime`.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use super::machine::mounts_below;
use super::waiting::{SLOW, wait_until};

/// Ports of one instance. They lie below the range from which the kernel hands out ports, so that no
/// passing connection holds one of them.
const FIRST_PORT: u16 = 20_000;
const PORTS_PER_SLOT: u16 = 40;

#[derive(Debug)]
pub struct Runtime {
    /// Everything of the instance is below this directory.
    pub dir: PathBuf,
    /// The cgroup below which its pods are to live.
    pub cgroup_root: String,
    facts: BTreeMap<String, String>,
    next_port: AtomicU16,
}

/// A line of `ctr tasks ls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: String,
    pub pid: u32,
    pub status: String,
}

pub fn hack(script: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack").join(script));
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end and gives its output.
///
/// # Panics
/// When it fails, with what it said.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A name that no other test on this machine has.
fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let name = format!("rubelet-e2e-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        if !std::env::temp_dir().join(&name).exists() {
            return name;
        }
    }
}

impl Runtime {
    /// The version that `RUBELET_TEST_CONTAINERD` asks for, or the distribution's.
    #[track_caller]
    pub fn start() -> Runtime {
        Runtime::start_as(None, None)
    }

    #[track_caller]
    pub fn start_version(version: &str) -> Runtime {
        Runtime::start_as(Some(version), None)
    }

    /// With another runc, as the handler `younger`. Only containerd 2.x has it.
    #[track_caller]
    pub fn start_with_runc(version: &str, runc: &str) -> Runtime {
        Runtime::start_as(Some(version), Some(runc))
    }

    #[track_caller]
    fn start_as(version: Option<&str>, runc: Option<&str>) -> Runtime {
        let name = unique_name();
        let dir = std::env::temp_dir().join(&name);
        let cgroup_root = format!("/{name}");
        let facts = run(hack("runtime")
            .arg("start")
            .arg(&dir)
            .args(version)
            .env("RUBELET_TEST_OWNER", std::process::id().to_string())
            .env("RUBELET_TEST_CGROUP_ROOT", &cgroup_root)
            .env("RUBELET_TEST_RUNC", runc.unwrap_or_default()));
        let facts: BTreeMap<_, _> = facts
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Runtime { dir, cgroup_root, facts, next_port: AtomicU16::new(0) }
    }

    #[track_caller]
    pub fn fact(&self, key: &str) -> &str {
        self.facts.get(key).unwrap_or_else(|| panic!("hack/runtime told no {key}: {:?}", self.facts))
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.fact("socket"))
    }

    pub fn network(&self) -> &str {
        self.fact("network")
    }

    pub fn bridge(&self) -> &str {
        self.fact("bridge")
    }

    /// "1.6", "1.7", "2.1" or "2.4".
    pub fn version(&self) -> &str {
        self.fact("version")
    }

    /// A port on which nobody listens, and that no other instance will be given.
    pub fn free_port(&self) -> u16 {
        let slot: u16 = self.bridge().trim_start_matches("rbl").parse().expect("the bridge's number");
        loop {
            let next = self.next_port.fetch_add(1, Ordering::Relaxed);
            assert!(next < PORTS_PER_SLOT, "no port left for this instance");
            let port = FIRST_PORT + slot * PORTS_PER_SLOT + next;
            if TcpListener::bind(("0.0.0.0", port)).is_ok() {
                return port;
            }
        }
    }

    /// Runs ctr on this instance, in Kubernetes' namespace.
    #[track_caller]
    pub fn ctr(&self, args: &[&str]) -> String {
        // `hack/runtime` gives what is run past CRI directories of its own.
        let of_script = args.first() == Some(&"run");
        let mut command = if of_script { self.scripted_ctr() } else { self.ctr_command() };
        run(command.args(args))
    }

    fn scripted_ctr(&self) -> Command {
        let mut command = hack("runtime");
        command.arg("ctr").arg(&self.dir);
        command
    }

    fn ctr_command(&self) -> Command {
        let mut command = Command::new(self.fact("ctr"));
        command.args(["--address", self.fact("socket"), "--namespace", "k8s.io"]).stdin(Stdio::null());
        command
    }

    /// Ids of all containers that the runtime knows, sandboxes included.
    #[track_caller]
    pub fn containers(&self) -> Vec<String> {
        self.ctr(&["containers", "ls", "-q"]).lines().map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn tasks(&self) -> Vec<Task> {
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let (id, pid, status) = (words.next()?, words.next()?, words.next()?);
            Some(Task { id: id.to_owned(), pid: pid.parse().ok()?, status: status.to_owned() })
        };
        self.ctr(&["tasks", "ls"]).lines().skip(1).filter_map(parse).collect()
    }

    /// Ends every container and sandbox and removes them behind the CRI's back. The CRI lists them for ever then, and
    /// answers that it does not know them when it is asked to remove them. The agent must not run meanwhile.
    #[track_caller]
    pub fn remove_behind_cri(&self) {
        for task in self.tasks() {
            let pid = i32::try_from(task.pid).ok().and_then(Pid::from_raw);
            // It may have ended with another one.
            let _ = kill_process(pid.expect("a pid"), Signal::KILL);
        }
        wait_until("the tasks to end", SLOW, || self.tasks().iter().all(|task| task.status != "RUNNING"));
        for ids in self.containers().chunks(40) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            // The CRI has removed tasks that ended, or does so just now.
            wait_until("the containers to be removed", SLOW, || {
                let _ = self.ctr_command().args(["containers", "rm"]).args(&ids).output();
                let left = self.containers();
                !ids.iter().any(|id| left.iter().any(|other| other == id))
            });
        }
    }

    /// Network namespaces that the runtime holds open.
    pub fn network_namespaces(&self) -> Vec<PathBuf> {
        let mut mounts = mounts_below(&self.dir.join("containerd/state"));
        mounts.retain(|mount| mount.components().any(|part| part.as_os_str() == "netns"));
        mounts
    }

    /// Of containerd itself, without its shims.
    pub fn containerd_pid(&self) -> u32 {
        self.pid().as_raw_nonzero().get().unsigned_abs()
    }

    fn pid(&self) -> Pid {
        let entry = std::fs::read_to_string(self.dir.join("pids/containerd")).expect("containerd's pid");
        let pid = entry.split(':').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        pid.expect("a pid")
    }

    /// Ends containerd as a crash would. Containers and their shims live on.
    pub fn kill9(&self) {
        kill_process(self.pid(), Signal::KILL).expect("kill containerd");
    }

    /// containerd answers nothing until `resume`.
    pub fn hang(&self) {
        kill_process(self.pid(), Signal::STOP).expect("stop containerd");
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("continue containerd");
    }

    /// Starts containerd again, ending it first when it runs. Returns when it answers.
    #[track_caller]
    pub fn restart(&self) {
        run(hack("runtime").arg("restart").arg(&self.dir));
    }

    /// Ends the instance and removes what it made. Also done on drop, where a failure is only printed.
    #[track_caller]
    pub fn stop(&self) {
        run(&mut self.stop_command());
    }

    fn stop_command(&self) -> Command {
        let mut command = hack("runtime");
        command.arg("stop");
        if std::env::var_os("RUBELET_E2E_KEEP").is_some() {
            eprintln!("kept: {}", self.dir.display());
            command.arg("--keep");
        }
        command.arg(&self.dir);
        command
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let output = self.stop_command().output();
        match output {
            Ok(output) if output.status.success() => {}
            failed => eprintln!("could not stop the runtime in {}: {failed:?}", self.dir.display()),
        }
    }
}
