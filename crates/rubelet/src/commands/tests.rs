//! Whole commands, asked of a real socket behind which an agent of a few lines answers.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use model::k8s::PodList;
use model::report::{ContainerView, NodeReport, PodReport, WhyLine, WhyReport};
use model::why::Cause;
use ports::AgentView;
use server::{AgentMetrics, BuildInfo, Endpoints, HealthChecks, serve_unix};
use tokio_util::sync::CancellationToken;

use super::*;

struct FakeAgent {
    logs: PathBuf,
    app_runs: Arc<AtomicBool>,
}

#[async_trait]
impl AgentView for FakeAgent {
    async fn pods(&self) -> Option<PodList> {
        None
    }
    async fn running_pods(&self) -> Option<PodList> {
        None
    }
    async fn pod_reports(&self) -> Option<Vec<PodReport>> {
        let log_dir = self.logs.join("default_web-vm_u1");
        let log = |name: &str| Some(log_dir.join(name).to_string_lossy().into_owned());
        let app = ContainerView {
            name: "app".into(),
            ready: true,
            restarts: 1,
            log_path: log("app/1.log"),
            previous_log_path: log("app/0.log"),
            running: self.app_runs.load(Ordering::SeqCst),
            init: false,
        };
        let mut web = find::tests::pod("default", "web-vm", "u1");
        web.log_dir = log_dir.to_string_lossy().into_owned();
        web.containers = vec![app];
        Some(vec![find::tests::pod("kube-system", "etcd-vm", "u2"), web])
    }
    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>> {
        let line =
            WhyLine { container: None, cause: Cause::Running, since: super::now(), next_attempt_secs: None };
        Some(vec![WhyReport {
            namespace: namespace?,
            name: "web-vm".into(),
            uid: name,
            phase: "Running".into(),
            reasons: vec![line],
            events: Vec::new(),
        }])
    }
    async fn find_pod(&self, _: String, _: String) -> Option<Option<ports::PodDetails>> {
        None
    }
    async fn container_ended(&self, _: model::PodUid, _: model::ContainerId) -> Option<()> {
        None
    }
    async fn all_pod_details(&self) -> Option<Vec<ports::PodDetails>> {
        None
    }
    async fn node_report(&self) -> Option<NodeReport> {
        Some(NodeReport {
            name: "vm".into(),
            runtime: "containerd 1.6.20".into(),
            runtime_ready: true,
            network_ready: true,
            message: String::new(),
            sources_ready: true,
            pods: 2,
            running_pods: 1,
            containers: Default::default(),
            mirror_pods: 0,
            orphans: 0,
            ephemeral_containers: 0,
            counts: Default::default(),
            volumes: Vec::new(),
            selinux_volumes: Vec::new(),
            pod_certificates: Vec::new(),
            protected_memory: None,
            signals: Vec::new(),
            watches: Vec::new(),
        })
    }
}

/// An agent on a socket, and its logs.
struct Node {
    dir: tempfile::TempDir,
    app_runs: Arc<AtomicBool>,
    _runtime: tokio::runtime::Runtime,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    let app = logs.join("default_web-vm_u1/app");
    fs::create_dir_all(&app).unwrap();
    append(&app.join("0.log"), "of the first instance");
    append(&app.join("1.log"), "one");
    append(&app.join("1.log"), "two");

    let app_runs = Arc::new(AtomicBool::new(true));
    let agent: Arc<dyn AgentView> = Arc::new(FakeAgent { logs, app_runs: app_runs.clone() });
    let health = Arc::new(HealthChecks::of_agent(agent.clone(), Duration::from_secs(1)));
    let build = BuildInfo { kubernetes: "v1.36.4".into(), rubelet: "0".into() };
    let metrics = AgentMetrics::new(build, std::sync::Arc::new(host::clock::SystemClock));
    let endpoints = Endpoints { agent, health, metrics, stats: None };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = dir.path().join(SOCKET);
    let serving = serve_unix("control socket", &socket, endpoints.control(), CancellationToken::new());
    runtime.block_on(serving).unwrap();
    Node { dir, app_runs, _runtime: runtime }
}

fn append(log: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    writeln!(file, "2024-05-06T07:08:09.123456789Z stdout F {text}").unwrap();
}

impl Node {
    fn arguments(&self, line: &str) -> (Command, Vec<String>) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = Command::named(&words.next().unwrap()).unwrap();
        let root = format!("--root-dir={}", self.dir.path().display());
        (name, words.chain([root]).collect())
    }

    fn run(&self, line: &str) -> Result<String, CommandError> {
        let (command, arguments) = self.arguments(line);
        let mut out = Vec::new();
        run_command(command, &arguments, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn app_log(&self) -> PathBuf {
        self.dir.path().join("logs/default_web-vm_u1/app/1.log")
    }
}

#[test]
fn get_shows_pods_and_the_node() {
    let node = node();
    let names = |line: &str| {
        let text = node.run(line).unwrap();
        text.lines().map(|row| row.split_whitespace().nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("get pods"), ["NAME", "web-vm", "etcd-vm"]);
    assert_eq!(names("get po -n kube-system"), ["NAME", "etcd-vm"]);
    assert_eq!(names("get pods web"), ["NAME", "web-vm"]);
    assert_eq!(node.run("get pods -n elsewhere").unwrap(), "No pods.\n");
    let json: Vec<PodReport> = serde_json::from_str(&node.run("get pods web -o json").unwrap()).unwrap();
    assert_eq!(json[0].containers[0].name, "app");
    assert!(node.run("get node").unwrap().contains("containerd 1.6.20"));
    let json: NodeReport = serde_json::from_str(&node.run("get node -o json").unwrap()).unwrap();
    assert_eq!(json.name, "vm");
}

#[test]
fn why_tells_of_the_pod_that_is_meant() {
    let node = node();
    let text = node.run("why web").unwrap();
    let expect =
        "Pod default/web-vm (u1) is Running.\n\n  pod: all its containers are running (since 0s ago)\n";
    assert_eq!(text, expect);
    let json: Vec<WhyReport> = serde_json::from_str(&node.run("why u1 -o json").unwrap()).unwrap();
    assert_eq!(json[0].reasons[0].cause, Cause::Running);
}

#[test]
fn logs_prints_what_the_container_wrote() {
    let node = node();
    assert_eq!(node.run("logs web").unwrap(), "one\ntwo\n");
    assert_eq!(node.run("logs default/web-vm -c app --tail 1").unwrap(), "two\n");
    assert_eq!(node.run("logs web -p").unwrap(), "of the first instance\n");
    assert_eq!(node.run("logs web --since 10s").unwrap(), "");
    let timed = node.run("logs web --tail 1 --timestamps").unwrap();
    assert_eq!(timed, "2024-05-06T07:08:09.123456789Z two\n");
}

/// Writes into a channel.
struct Pipe(Sender<Vec<u8>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn receive(pipe: &Receiver<Vec<u8>>) -> String {
    let piece = pipe.recv_timeout(Duration::from_secs(30)).unwrap();
    String::from_utf8(piece).unwrap()
}

#[test]
fn a_followed_log_ends_with_its_container() {
    let node = node();
    let (sender, pipe) = channel();
    let (command, arguments) = node.arguments("logs web -f --tail 1");
    let following = std::thread::spawn(move || run_command(command, &arguments, &mut Pipe(sender)));
    assert_eq!(receive(&pipe), "two\n");
    append(&node.app_log(), "three");
    assert_eq!(receive(&pipe), "three\n");
    assert!(!following.is_finished());
    node.app_runs.store(false, Ordering::SeqCst);
    following.join().unwrap().unwrap();
    assert!(pipe.try_recv().is_err(), "nothing more was written");
}

#[test]
fn nobody_who_reads_is_a_quiet_end() {
    let node = node();
    let (sender, pipe) = channel();
    drop(pipe);
    let (command, arguments) = node.arguments("logs web -f");
    let error = run_command(command, &arguments, &mut Pipe(sender)).unwrap_err();
    assert!(is_broken_pipe(&error), "{error}");
    assert!(!is_broken_pipe(&CommandError::Output(io::ErrorKind::StorageFull.into())));
}

#[test]
fn errors_say_what_to_do() {
    let node = node();
    let check = |line: &str, expect: &str| {
        let error = node.run(line).unwrap_err().to_string();
        assert!(error.contains(expect), "{line}: {error}");
    };
    check("why wev", "there is no pod wev: the agent has default/web-vm, kube-system/etcd-vm");
    check("logs etcd", "pod kube-system/etcd-vm has no containers");
    check("logs", "name exactly one pod");
    check("why a b", "name exactly one pod");
    check("get", "missing argument: pods or node");
    check("get secrets", "unknown argument secrets: expected pods or node");
    check("get pods a b", "too many arguments");
    check("get pods -o yaml", "expected wide or json");
    check("logs web --tail x", "expected a number of lines");

    let empty = tempfile::tempdir().unwrap();
    let arguments = ["pods".to_owned(), "--root-dir".to_owned(), empty.path().display().to_string()];
    let error = run_command(Command::Get, &arguments, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("no agent answers on "), "{error}");
}

#[test]
fn every_command_has_help() {
    for command in Command::ALL.iter().copied() {
        let name = command.name();
        assert_eq!(Command::named(name), Some(command));
        let mut out = Vec::new();
        run_command(command, &["--help".to_owned()], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(&format!("rubelet {name} ")) && text.contains("--root-dir"), "{text}");
    }
    assert_eq!(Command::named("put"), None);
}
