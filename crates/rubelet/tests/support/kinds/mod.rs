//! Pods of several kinds with the state that each must reach, and a watcher that lists the runtime's containers and
//! reports duplicates. For tests with crashes, faults and churn.

mod duplicates;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::harness::{Node, cgroups_below, live_processes, wait};
use crate::support::pods::{IMAGE, UNTIL_TERM, is_ready, manifest, phase, restarts, shell, shell_with};
use crate::support::runtime_view::{RuntimePod, RuntimeView};
pub use duplicates::DuplicateWatcher;

/// A deadline against hanging, not a measure: much happens, on a machine that does other things as well.
pub const LONG: Duration = Duration::from_secs(420);

/// The state that a pod has to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// This many containers run until they are stopped.
    Runs(usize),
    /// It has done its work.
    Succeeds,
    /// It ends again and again, and is started again and again.
    Loops,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Plain,
    Pair,
    Sidecar,
    Job,
    Retry,
    Probed,
    HostNetwork,
    Crasher,
}

pub const KINDS: [Kind; 8] = [
    Kind::Plain,
    Kind::Pair,
    Kind::Sidecar,
    Kind::Job,
    Kind::Retry,
    Kind::Probed,
    Kind::HostNetwork,
    Kind::Crasher,
];

/// A file in which pods record that they ran, so that tests do not depend on what the agent reports.
pub struct RunLog(PathBuf);

impl RunLog {
    pub fn new(node: &Node) -> RunLog {
        let dir = node.runtime.dir.join("diary");
        fs::create_dir_all(&dir).expect("make the diary's directory");
        RunLog(dir)
    }

    fn volume(&self) -> Value {
        json!({ "name": "diary", "hostPath": { "path": self.0, "type": "Directory" } })
    }

    /// How often the pod's work was begun.
    pub fn runs(&self, pod: &str) -> usize {
        fs::read_to_string(self.0.join(pod)).unwrap_or_default().lines().count()
    }
}

impl Kind {
    pub fn end(self) -> End {
        match self {
            Kind::Plain | Kind::Probed | Kind::HostNetwork => End::Runs(1),
            Kind::Pair | Kind::Sidecar => End::Runs(2),
            Kind::Job | Kind::Retry => End::Succeeds,
            Kind::Crasher => End::Loops,
        }
    }

    /// The name of the manifest, such as `pair-3`.
    pub fn name(self, number: usize) -> String {
        format!("{}-{number}", format!("{self:?}").to_lowercase())
    }

    pub fn manifest(self, number: usize, diary: &RunLog) -> String {
        let name = self.name(number);
        let note = format!("echo ran >>/diary/{name}");
        let mounts = json!([
            { "name": "diary", "mountPath": "/diary" },
            { "name": "scratch", "mountPath": "/scratch" },
        ]);
        let working =
            |container, script: &str| shell_with(container, script, json!({ "volumeMounts": mounts }));
        let spec = match self {
            Kind::Plain => json!({ "containers": [working("main", UNTIL_TERM)] }),
            Kind::Pair => json!({
                "initContainers": [shell("first", "true")],
                "containers": [working("main", UNTIL_TERM), shell("other", UNTIL_TERM)],
            }),
            Kind::Sidecar => json!({
                "initContainers": [shell_with("side", UNTIL_TERM, json!({ "restartPolicy": "Always" }))],
                "containers": [working("main", UNTIL_TERM)],
            }),
            Kind::Job => json!({ "restartPolicy": "Never", "containers": [working("main", &note)] }),
            Kind::Retry => {
                let script = format!("{note}; [ -e /scratch/again ] || {{ touch /scratch/again; exit 1; }}");
                json!({ "restartPolicy": "OnFailure", "containers": [working("main", &script)] })
            }
            Kind::Probed => json!({ "containers": [probed(&mounts)] }),
            Kind::HostNetwork => json!({ "hostNetwork": true, "containers": [working("main", UNTIL_TERM)] }),
            Kind::Crasher => json!({ "containers": [working("main", "sleep 0.3; exit 3")] }),
        };
        manifest(&name, with_rest(spec, diary))
    }
}

/// What a container with everything that is called inside of it looks like.
fn probed(mounts: &Value) -> Value {
    let exec = |script: &str| json!({ "exec": { "command": ["sh", "-c", script] } });
    let mut ready = exec("test -e /scratch/up");
    ready["periodSeconds"] = json!(2);
    ready["timeoutSeconds"] = json!(20);
    let mut live = exec("true");
    // A machine that is too busy to run `true` must not make it look dead.
    live["failureThreshold"] = json!(20);
    live["timeoutSeconds"] = json!(20);
    json!({
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", format!("touch /scratch/up; {UNTIL_TERM}")],
        "volumeMounts": mounts,
        "readinessProbe": ready,
        "livenessProbe": live,
        "lifecycle": { "preStop": exec("true") },
    })
}

fn with_rest(mut spec: Value, diary: &RunLog) -> Value {
    spec["terminationGracePeriodSeconds"] = json!(3);
    let scratch = json!({ "name": "scratch", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } });
    spec["volumes"] = json!([diary.volume(), scratch]);
    spec
}

/// Short back-offs, a short safety net for lost events, and short deadlines of calls.
pub fn impatient(config: &mut Value) {
    config["featureGates"] = json!({ "KubeletCrashLoopBackOffMax": true });
    config["crashLoopBackOff"] = json!({ "maxContainerRestartPeriod": "3s" });
    config["syncFrequency"] = json!("5s");
    config["runtimeRequestTimeout"] = json!("20s");
}

/// Waits until every pod is what its kind has to come to, by the runtime and by the agent, and no other pod is there.
#[track_caller]
pub fn wait_settled(node: &Node, seen: &RuntimeView, pods: &BTreeMap<String, Kind>) {
    wait("every pod to come to its end", LONG, || {
        let in_runtime = seen.pods()?;
        let told = node.agent.pods()?;
        let mut faults = Vec::new();
        for (name, kind) in pods {
            let pod = told.iter().find(|pod| pod["metadata"]["name"] == format!("{name}-node"));
            let seen = in_runtime.get(name).cloned().unwrap_or_default();
            if let Err(fault) = settled(*kind, &seen, pod.unwrap_or(&Value::Null)) {
                faults.push(format!("{name}: {fault}"));
            }
        }
        let strangers = in_runtime.keys().filter(|name| !pods.contains_key(*name));
        faults.extend(strangers.map(|name| format!("{name}: not asked for")));
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n  ")) }
    });
}

fn settled(kind: Kind, seen: &RuntimePod, told: &Value) -> Result<(), String> {
    let is = |wanted: bool, what: &str| match wanted {
        true => Ok(()),
        false => Err(format!("{what}: {}", told["status"])),
    };
    match kind.end() {
        End::Runs(containers) => {
            seen.ids_when_whole(containers)?;
            is(phase(told) == "Running" && is_ready(told), "not ready")
        }
        End::Succeeds => {
            is(phase(told) == "Succeeded", "not done")?;
            let alive = seen.running().count() + seen.ready_sandboxes().count();
            is(alive == 0, &format!("{alive} things of it live"))
        }
        End::Loops => is(restarts(told, "main") >= 2, "few restarts"),
    }
}

/// Waits until every trace of every pod is gone: also processes and network namespaces, and whatever the agent knew.
/// `tolerated` says what of it the runtime itself can't help leaving.
#[track_caller]
pub fn wait_no_trace(node: &Node, tolerated: impl Fn(&str) -> bool) {
    wait("every trace of the pods to go", LONG, || {
        let mut left = node.leftovers();
        let namespaces = node.runtime.network_namespaces();
        left.extend(namespaces.iter().map(|path| format!("network namespace {}", path.display())));
        let shims = live_processes(&format!("-address {}", node.runtime.fact("socket")));
        left.extend(shims.into_iter().map(|shim| format!("shim {shim}")));
        let inside = live_processes(&format!("{}/", node.runtime.cgroup_root));
        // The agent and the runtime name the directory in their arguments; what runs in a pod doesn't know it.
        let dir = node.runtime.dir.to_string_lossy().into_owned();
        let inside = inside.into_iter().filter(|process| !process.contains(&dir));
        left.extend(inside.map(|process| format!("process {process}")));
        left.extend(node.agent.pods()?.iter().map(|pod| format!("known pod {}", pod["metadata"]["name"])));
        left.retain(|what| !tolerated(what));
        if left.is_empty() { Ok(()) } else { Err(left.join("\n  ")) }
    });
    let cgroups = cgroups_below(&node.runtime.cgroup_root);
    assert!(!cgroups.is_empty(), "there are no cgroups to be looked at: {}", node.runtime.cgroup_root);
}

/// The agent still is what was started, and complained of nothing that it should never see.
#[track_caller]
pub fn assert_sound(node: &mut Node) {
    assert!(node.agent.is_running(), "the agent has ended");
    let log = node.agent.log();
    let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
    assert!(panics.is_empty(), "the agent panicked: {panics:#?}");
}
