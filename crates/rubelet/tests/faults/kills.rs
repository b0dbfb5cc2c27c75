//! `kill -9` of everything that can die: the agent, containerd and the shims of pods, under load. Pods come back as
//! their restart policy says, nothing lives twice, and nothing is left at the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::harness::{Node, live_processes, wait};
use crate::support::kinds::{
    DuplicateWatcher, KINDS, Kind, LONG, RunLog, assert_sound, impatient, wait_no_trace, wait_settled,
};
use crate::support::pods::{UNTIL_TERM, container_id, is_running, manifest, phase, shell, terminated};
use crate::support::runtime_view::RuntimeView;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// A containerd that was killed while it set up a network never gives that back: nobody else can.
fn left_by_containerd(what: &str) -> bool {
    what.starts_with("pod address") || what.contains("/netns/")
}

/// Kills the shim of a pod: the parent of all its containers, and the only one who knows how they end.
#[track_caller]
fn kill_shim(node: &Node, seen: &RuntimeView, pod: &str) {
    // A runtime that was just started answers, and has not found its containers yet.
    let pids: Vec<i32> = wait(&format!("the shim of {pod}"), LONG, || {
        let found = seen.pods()?.remove(pod).unwrap_or_default();
        let sandbox = found.ready_sandboxes().next().ok_or("it has no sandbox")?.id.clone();
        let shims = live_processes(&format!("-id {sandbox} -address {}", node.runtime.fact("socket")));
        let pids: Vec<_> = shims.iter().filter_map(|shim| shim.split(':').next()?.parse().ok()).collect();
        if pids.is_empty() { Err(format!("{sandbox} has no shim")) } else { Ok(pids) }
    });
    for pid in pids.into_iter().filter_map(Pid::from_raw) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// A pod that works until it is told to end, and notes each beginning.
fn worker(node: &Node, name: &str, policy: &str) -> String {
    let dir = node.runtime.dir.join("diary");
    let script = format!("echo ran >>/diary/{name}; {UNTIL_TERM}");
    let mut container = shell("c", &script);
    container["volumeMounts"] = json!([{ "name": "diary", "mountPath": "/diary" }]);
    let spec = json!({
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        "volumes": [{ "name": "diary", "hostPath": { "path": dir, "type": "Directory" } }],
    });
    manifest(name, spec)
}

#[test]
fn pods_whose_shim_was_killed_go_on_as_their_restart_policy_says() {
    let mut node = Node::start_with(impatient);
    let seen = RuntimeView::new(&node.runtime);
    let diary = RunLog::new(&node);
    let twins = DuplicateWatcher::watch(&node.runtime);
    let policies = [("always", "Always"), ("failing", "OnFailure"), ("never", "Never"), ("spared", "Always")];
    let mut before = BTreeMap::new();
    for (name, policy) in policies {
        node.agent.write_manifest(name, &worker(&node, name, policy));
    }
    for (name, _) in policies {
        let pod = node.wait_pod(name, LONG, is_running);
        before.insert(name, container_id(&pod, "c"));
        wait("its first word", LONG, || match diary.runs(name) {
            1 => Ok(()),
            runs => Err(format!("{name} began {runs} times")),
        });
    }

    for name in ["always", "failing", "never"] {
        kill_shim(&node, &seen, name);
    }
    for name in ["always", "failing"] {
        node.wait_pod(name, LONG, |pod| is_running(pod) && container_id(pod, "c") != before[name]);
        wait("its second word", LONG, || match diary.runs(name) {
            2 => Ok(()),
            runs => Err(format!("{name} began {runs} times")),
        });
    }
    let never = node.wait_pod("never", LONG, |pod| phase(pod) == "Failed");
    assert_ne!(terminated(&never, "c")["exitCode"], 0, "{}", never["status"]);
    assert_eq!(diary.runs("never"), 1, "a pod that is never to be restarted was");
    let spared = node.wait_pod("spared", LONG, is_running);
    assert_eq!(container_id(&spared, "c"), before["spared"], "the neighbour of those that died was touched");

    for (name, _) in policies {
        node.agent.remove_manifest(name);
    }
    wait_no_trace(&node, |_| false);
    twins.assert_none();
    assert_sound(&mut node);
}

/// Who dies.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Agent,
    Runtime,
    Both,
    Shim(Kind),
}

fn strike(node: &mut Node, seen: &RuntimeView, number: usize, blow: Blow) {
    println!("killing: {blow:?}");
    match blow {
        Blow::Agent => node.agent.restart(),
        Blow::Runtime => {
            node.runtime.kill9();
            node.runtime.restart();
        }
        Blow::Both => {
            node.agent.kill9();
            node.runtime.kill9();
            node.agent.restart();
            node.runtime.restart();
        }
        Blow::Shim(kind) => kill_shim(node, seen, &kind.name(number)),
    }
}

#[test]
fn everything_is_killed_in_turn_while_pods_come_and_go() {
    let mut node = Node::start_with(impatient);
    let seen = RuntimeView::new(&node.runtime);
    let diary = RunLog::new(&node);
    let twins = DuplicateWatcher::watch(&node.runtime);
    let mut wanted: BTreeMap<String, Kind> = BTreeMap::new();
    let blows = [
        Blow::Agent,
        Blow::Shim(Kind::Pair),
        Blow::Runtime,
        Blow::Shim(Kind::Probed),
        Blow::Both,
        Blow::Shim(Kind::HostNetwork),
    ];
    for (number, pair) in blows.chunks(2).enumerate() {
        for kind in KINDS {
            node.agent.write_manifest(&kind.name(number), &kind.manifest(number, &diary));
            wanted.insert(kind.name(number), kind);
        }
        wait_settled(&node, &seen, &wanted);
        // Half of them go, and what is killed is killed while they do.
        let going: BTreeSet<String> =
            [Kind::Plain, Kind::Sidecar, Kind::Job, Kind::Crasher].map(|kind| kind.name(number)).into();
        for name in &going {
            node.agent.remove_manifest(name);
            wanted.remove(name);
        }
        for blow in pair {
            strike(&mut node, &seen, number, *blow);
        }
    }
    wait_settled(&node, &seen, &wanted);
    for name in wanted.keys() {
        node.agent.remove_manifest(name);
    }
    wait_no_trace(&node, left_by_containerd);
    twins.assert_none();
    assert_sound(&mut node);
}
