//! Everything may go wrong between the agent and the runtime: pods come and go while a proxy refuses, delays, loses,
//! repeats, garbles and cuts calls and events. When it stops, every pod is what it has to be, nothing ever lived
//! twice, and nothing is left at the end.
//!
//! `RUBELET_E2E_SEED` draws other faults.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod cri_proxy;
mod harness;
mod kinds;
mod pods;
mod seen;

use std::collections::BTreeMap;
use std::time::Duration;

use cri_proxy::{Fault, Proxy, Rule, Script, When};
use harness::{Agent, Node, Runtime, wait};
use kinds::{Diary, KINDS, Kind, LONG, Twins, assert_sound, impatient, wait_no_trace, wait_settled};
use seen::Seen;

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
    let seen = Seen::new(&node.runtime);
    let diary = Diary::new(&node);
    let twins = Twins::watch(&node.runtime);
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
