//! The pods that were recorded on upstream's kubelet, failing in as many ways as there are pods, run again on the real
//! API server: what each one settles to, its Events, the way there and its end are those of the record.
//!
//! ```text
//! record.rs   what was recorded           observed.rs what the API server tells now
//! trial.rs    one pod on its way          compare.rs  both made comparable, and compared
//! allowed.rs  the differences that are wanted or can't be helped; any other fails, and so does an entry without one
//! ```
//!
//! A pod is deleted as soon as it looks as recorded. A few pods start and a few stop at any time: not so many that a
//! busy machine lets grace periods pass.

mod allowed;
mod compare;
mod observed;
mod record;
mod trial;

use std::thread::sleep;
use std::time::{Duration, Instant};

use self::observed::Observed;
use self::trial::{Stage, Trial};
use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Runtime, SLOW};
use serde_json::{Value, json};

const NODE: &str = "vm";
const NAMESPACE: &str = "rec";
/// Pods that may start, or stop, at once.
const AT_ONCE: usize = 8;
/// A pod that took so long no longer keeps others from starting.
const START: Duration = Duration::from_secs(6);
const TICK: Duration = Duration::from_millis(200);

struct Node {
    agent: Agent,
    runtime: Runtime,
    cluster: Cluster,
}

impl Node {
    fn start() -> Node {
        let cluster = Cluster::start_bare();
        let runtime = Runtime::start();
        cluster.kubectl(&["create", "namespace", NAMESPACE]);
        let objects = [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"a": "1", "b": "2"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "stringData": {"k": "v"}}),
        ];
        for object in objects {
            cluster.create(NAMESPACE, &object.to_string());
        }
        let kubeconfig = cluster.node_kubeconfig(NODE).to_string_lossy().into_owned();
        let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", NODE];
        let agent = Agent::start_with_flags(&runtime, &flags, |_| {});
        Node { agent, runtime, cluster }
    }

    fn make(&self, trials: &mut [&mut Trial]) {
        let mut objects = Vec::new();
        for trial in trials {
            trial.stage = Stage::Made(Instant::now());
            let mut object = trial.record.object();
            if trial.name() == record::STATIC {
                self.agent.write_manifest("static", &object.to_string());
                continue;
            }
            // Which one it is, no status tells; two runs on one machine must not meet.
            let ports = object.pointer_mut("/spec/containers/0/ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                port["hostPort"] = json!(self.runtime.free_port());
            }
            objects.push(object);
        }
        if !objects.is_empty() {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            let file = self.file("new.json", &list);
            self.cluster.kubectl(&["create", "--namespace", NAMESPACE, "-f", &file]);
        }
    }

    fn delete(&self, trials: &mut [&mut Trial]) {
        let mut names = Vec::new();
        for trial in trials {
            trial.stage = Stage::Deleted;
            if trial.name() == record::STATIC {
                self.agent.remove_manifest("static");
            } else {
                names.push(trial.name().to_owned());
            }
        }
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let how = ["--namespace", NAMESPACE, "--wait=false"];
            self.cluster.kubectl(&[&["delete", "pod"], &names[..], &how[..]].concat());
        }
    }

    /// What `kubectl debug` does.
    fn debug(&self, pod: &Value) {
        let mut pod = pod.clone();
        pod["spec"]["ephemeralContainers"] = json!([{
            "name": "dbg", "image": pod["spec"]["containers"][0]["image"], "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "sleep 3"], "targetContainerName": "c", "terminationMessagePolicy": "File",
        }]);
        let file = self.file("debugged.json", &pod);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/ephemeralcontainers", record::DEBUGGED);
        self.cluster.kubectl(&["replace", "--raw", &path, "-f", &file]);
    }

    /// A file for kubectl.
    fn file(&self, name: &str, content: &Value) -> String {
        let path = self.runtime.dir.join(name);
        std::fs::write(&path, content.to_string()).expect("write a file for kubectl");
        path.to_string_lossy().into_owned()
    }
}

fn count(trials: &[Trial], is: impl Fn(Stage) -> bool) -> usize {
    trials.iter().filter(|trial| is(trial.stage)).count()
}

/// The next of a stage, as far as there is room beside those that are busy.
fn next(trials: &mut [Trial], stage: Stage, busy: usize) -> Vec<&mut Trial> {
    let waiting = trials.iter_mut().filter(|trial| trial.stage == stage);
    waiting.take(AT_ONCE.saturating_sub(busy)).collect()
}

/// Brings every pod to its end.
fn run(node: &Node, trials: &mut [Trial], seen: &mut Observed) {
    let mut debugged = false;
    let mut last_change = Instant::now();
    while count(trials, |stage| stage != Stage::Gone) > 0 && last_change.elapsed() < SLOW * 2 {
        seen.update();
        let before: Vec<Stage> = trials.iter().map(|trial| trial.stage).collect();
        trials.iter_mut().for_each(|trial| trial.follow(seen));
        let starting = count(trials, |stage| matches!(stage, Stage::Made(since) if since.elapsed() < START));
        node.make(&mut next(trials, Stage::New, starting));
        let stopping = count(trials, |stage| stage == Stage::Deleted);
        node.delete(&mut next(trials, Stage::Settled, stopping));
        let running =
            seen.pod(record::DEBUGGED).last().filter(|e| e["object"]["status"]["phase"] == "Running");
        if let Some(event) = running.filter(|_| !debugged) {
            debugged = true;
            node.debug(&event["object"]);
        }
        if trials.iter().map(|trial| trial.stage).ne(before) {
            last_change = Instant::now();
        }
        sleep(TICK);
    }
    // Events are told on the side: the last ones may come after the pod went.
    let late = Instant::now();
    while late.elapsed() < Duration::from_secs(10)
        && trials.iter().any(|trial| !trial.missing_events(seen, false).is_empty())
    {
        sleep(TICK);
        seen.update();
    }
}

#[test]
fn pods_become_what_they_became_on_the_recorded_kubelet() {
    let node = Node::start();
    let allowed = allowed::table(node.runtime.version());
    let trials = record::all().into_iter().map(|record| Trial::new(record, allowed.clone()));
    let mut trials: Vec<Trial> = trials.collect();
    assert_eq!(trials.len(), 54);
    let mut seen = Observed::begin(&node.cluster, NAMESPACE);
    run(&node, &mut trials, &mut seen);
    let found: Vec<_> = trials.iter().flat_map(|trial| trial.differences(&seen)).collect();
    compare::judge(&found, &allowed);
}
