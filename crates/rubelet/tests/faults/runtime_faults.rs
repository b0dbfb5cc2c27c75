//! Everything may go wrong between the agent and the runtime: pods come and go while a proxy refuses, delays, loses,
//! repeats, garbles and cuts calls and events. When it stops, every pod is what it has to be, nothing ever lived
//! twice, and nothing is left at the end.
//!
//! `RUBELET_E2E_SEED` draws other faults.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::cri_proxy::{Fault, Proxy, Rule, Script, When};
use crate::support::harness::{Agent, Node, Runtime, wait};
use crate::support::kinds::{
    DuplicateWatcher, KINDS, Kind, LONG, RunLog, assert_sound, impatient, wait_no_trace, wait_settled,
};
use crate::support::runtime_view::{self, RuntimeView};

const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
const UNKNOWN: u16 = 2;
const EXHAUSTED: u16 = 8;

/// Every method.
const ANY: &[&str] = &[];
const MESSAGES: &[&str] = &["Subscribe message", "GetContainerEvents message"];
const READINGS: &[&str] = &["ListPodSandbox", "ListContainers", "ContainerStatus", "PodSandboxStatus"];
const CHANGES: &[&str] = &[
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
];

fn seed() -> u64 {
    let seed = std::env::var("RUBELET_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("RUBELET_E2E_SEED={seed}");
    seed
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn some(rate: u64, methods: &'static [&'static str], fault: Fault) -> Rule {
    Rule::new(methods, When::PerMille(rate), fault)
}

/// An agent that speaks to its runtime through the proxy.
fn node_behind_proxy() -> (Node, Proxy) {
    let runtime = Runtime::start();
    let proxy = Proxy::start(&runtime);
    let agent = Agent::start(&runtime, |config| {
        impatient(config);
        config["containerRuntimeEndpoint"] = proxy.endpoint().into();
    });
    (Node { agent, runtime }, proxy)
}

/// Waits until so many more things went wrong.
#[track_caller]
fn wait_faults(proxy: &Proxy, more: u64) {
    let total = || proxy.faults().values().sum::<u64>();
    let wanted = total() + more;
    wait("calls to go wrong", LONG, || match total() {
        total if total >= wanted => Ok(()),
        total => Err(format!("{total} of {wanted}: {:?}", proxy.faults())),
    });
}

/// Pods come, half of them go, others come, one changes, all while the script is played. Then it is quiet.
fn survive(rules: Vec<Rule>) {
    let (mut node, proxy) = node_behind_proxy();
    let seen = RuntimeView::new(&node.runtime);
    let diary = RunLog::new(&node);
    let twins = DuplicateWatcher::watch(&node.runtime);
    let mut wanted: BTreeMap<String, Kind> = BTreeMap::new();

    proxy.play(Script { seed: seed(), rules });
    for kind in KINDS {
        node.agent.write_manifest(&kind.name(1), &kind.manifest(1, &diary));
        wanted.insert(kind.name(1), kind);
    }
    wait_faults(&proxy, 15);
    for kind in KINDS {
        if kind <= Kind::Sidecar {
            node.agent.remove_manifest(&kind.name(1));
            wanted.remove(&kind.name(1));
        }
        node.agent.write_manifest(&kind.name(2), &kind.manifest(2, &diary));
        wanted.insert(kind.name(2), kind);
    }
    wait_faults(&proxy, 15);
    // The same name with another definition: another pod.
    let other = Kind::HostNetwork.manifest(1, &diary).replace("busybox:1", "busybox:2");
    node.agent.write_manifest(&Kind::HostNetwork.name(1), &other);
    wait_faults(&proxy, 10);

    proxy.quiet();
    println!("{:#?}", proxy.faults());
    wait_settled(&node, &seen, &wanted);
    for name in wanted.iter().filter(|(_, kind)| **kind == Kind::Job).map(|(name, _)| name) {
        assert_eq!(diary.runs(name), 1, "{name} is to run exactly once");
    }
    for name in wanted.keys() {
        node.agent.remove_manifest(name);
    }
    wait_no_trace(&node, |_| false);
    twins.assert_none();
    assert_sound(&mut node);
}

#[test]
fn calls_fail_before_and_after_they_were_carried_out() {
    survive(vec![
        some(50, ANY, Fault::Refused(UNAVAILABLE)),
        some(20, ANY, Fault::Refused(UNKNOWN)),
        some(80, CHANGES, Fault::Forgotten(INTERNAL)),
        some(60, CHANGES, Fault::Refused(EXHAUSTED)),
        some(60, READINGS, Fault::Late(millis(700))),
        some(60, CHANGES, Fault::Slow(millis(1500))),
    ]);
}

#[test]
fn connections_are_cut_and_events_are_lost() {
    survive(vec![
        some(15, ANY, Fault::CutBefore),
        some(40, CHANGES, Fault::CutAfter),
        some(15, READINGS, Fault::CutMidway),
        some(250, MESSAGES, Fault::Swallowed),
        some(150, MESSAGES, Fault::Twice),
        some(100, MESSAGES, Fault::Late(millis(1200))),
        some(30, MESSAGES, Fault::CutBefore),
    ]);
}

#[test]
fn answers_never_come_or_make_no_sense_and_calls_are_made_twice() {
    survive(vec![
        some(10, ANY, Fault::Swallowed),
        some(30, CHANGES, Fault::Mute),
        some(80, CHANGES, Fault::Twice),
        some(20, ANY, Fault::Garbled),
        some(200, MESSAGES, Fault::Garbled),
        some(100, MESSAGES, Fault::Swallowed),
    ]);
}

/// What containerd answers when a sandbox's network namespace can't be looked at.
const NETNS_IS_BUSY: &str =
    "failed to get sandbox ip: check network namespace closed: remove netns: device or resource busy";

/// What a runtime may answer about a container.
const TASK_IS_BUSY: &str = "failed to get task status: device or resource busy";

/// The id of the pod's only sandbox.
fn sandbox_of(seen: &RuntimeView, name: &str) -> String {
    let pod = seen.wait_pod(name, LONG, |pod| pod.sandboxes.len() == 1);
    pod.sandboxes[0].id.to_string()
}

fn told(node: &Node, args: &[&str]) -> String {
    let output = node.agent.command(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_status_that_is_refused_costs_its_own_pod() {
    let (mut node, proxy) = node_behind_proxy();
    let seen = RuntimeView::new(&node.runtime);
    for name in ["bad", "mute", "steady"] {
        node.agent.write_manifest(name, &runtime_view::sleeper(name));
    }
    seen.wait_running(&["bad".into(), "mute".into(), "steady".into()], 1, LONG);
    let (before, id) = (seen.running(), sandbox_of(&seen, "bad"));
    let mute = seen.wait_pod("mute", LONG, |pod| pod.containers.len() == 1).containers[0].id.to_string();
    let refused = |methods, answer| Rule::new(methods, When::Always, Fault::RefusedWith(UNKNOWN, answer));
    proxy.play(Script {
        seed: 1,
        rules: vec![
            refused(&["PodSandboxStatus"], NETNS_IS_BUSY).about(&id),
            refused(&["ContainerStatus"], TASK_IS_BUSY).about(&mute),
        ],
    });
    node.agent.restart();

    // Every other pod and the node go on.
    node.agent.write_manifest("next", &runtime_view::sleeper("next"));
    seen.wait_pod("next", LONG, |pod| pod.running().count() == 1);
    wait("a node that is ready", LONG, || {
        let report = told(&node, &["get", "node", "-o", "json"]);
        let node: serde_json::Value = serde_json::from_str(&report).map_err(|error| error.to_string())?;
        if node["runtimeReady"] == true { Ok(()) } else { Err(report) }
    });
    // The bad one says what is wrong, and what runs of it is left alone.
    let why = wait("the reason", LONG, || {
        let why = told(&node, &["why", "bad"]);
        let says = ["does not return the status of sandbox", NETNS_IS_BUSY, "FailedPodSandBoxStatus"];
        if says.iter().all(|words| why.contains(words)) { Ok(why) } else { Err(why) }
    });
    assert!(why.contains("next attempt"), "{why}");
    wait("the reason of the other", LONG, || {
        let why = told(&node, &["why", "mute"]);
        let says = ["does not return the status of container", "FailedSync", "determining", TASK_IS_BUSY];
        if says.iter().all(|words| why.contains(words)) { Ok(()) } else { Err(why) }
    });
    wait("more than one try", LONG, || match proxy.faults().get("PodSandboxStatus refused").copied() {
        Some(tries) if tries > 2 => Ok(()),
        tries => Err(format!("{tries:?}")),
    });
    let lines =
        node.agent.log().lines().filter(|line| line.contains("does not return the status of")).count();
    assert_eq!(lines, 2, "told once of each:\n{}", node.agent.log_tail());
    let kept = seen.running();
    for name in ["bad", "mute", "steady"] {
        assert_eq!(kept[name], before[name], "{name}");
    }

    // They can be stopped and removed all the same.
    for name in ["bad", "mute"] {
        node.agent.remove_manifest(name);
        seen.wait_pod(name, LONG, |pod| pod.sandboxes.is_empty() && pod.containers.is_empty());
    }
    for name in ["steady", "next"] {
        node.agent.remove_manifest(name);
    }
    wait_no_trace(&node, |_| false);
    assert_sound(&mut node);
}

#[test]
fn what_the_runtime_lists_for_ever_is_removed_ever_more_rarely() {
    let (mut node, proxy) = node_behind_proxy();
    let seen = RuntimeView::new(&node.runtime);
    let ghosts = runtime_view::names("ghost", 5);
    for name in &ghosts {
        node.agent.write_manifest(name, &runtime_view::sleeper(name));
    }
    seen.wait_running(&ghosts, 1, LONG);
    node.agent.kill9();
    ghosts.iter().for_each(|name| node.agent.remove_manifest(name));
    node.runtime.remove_behind_cri();
    assert_eq!(seen.pods().expect("a list").len(), ghosts.len(), "the CRI lists what it does not have");
    let before = proxy.calls("RemovePodSandbox");
    node.agent.restart();

    let told = |node: &Node| {
        let log = node.agent.log();
        log.lines().filter(|line| line.contains("still lists what it confirmed as removed")).count()
    };
    wait("every one to be told of", LONG, || match told(&node) {
        lines if lines == ghosts.len() => Ok(()),
        lines => Err(format!("{lines} lines: {}", node.agent.log_tail())),
    });
    // Another pod does not notice.
    node.agent.write_manifest("next", &runtime_view::sleeper("next"));
    seen.wait_pod("next", LONG, |pod| pod.running().count() == 1);
    // Each second another one would be many more.
    std::thread::sleep(Duration::from_secs(20));
    let removals = proxy.calls("RemovePodSandbox") - before;
    let few = 4 * ghosts.len() as u64;
    assert!(removals <= few, "{removals} removals of {} sandboxes", ghosts.len());
    assert_eq!(told(&node), ghosts.len(), "told once");

    // A runtime that is started anew knows what it has.
    node.runtime.restart();
    node.agent.remove_manifest("next");
    wait_no_trace(&node, |_| false);
    assert_sound(&mut node);
}
