//! The cgroups above pods and those of reservations: what their writes lead to, and cgroups that somebody removes.

use std::sync::Arc;

use model::allocatable::{AllocatableConfig, ReservedCgroup, ReservedFor};
use model::cgroup::CgroupName;
use model::node::{CapacityRules, HostFacts, NodeConfig, NodeObjectConfig};

use super::check;
use super::script::Script;
use crate::Event;
use crate::effect::TimerKey;
use crate::event::CgroupFailure;

fn name(path: &str) -> CgroupName {
    CgroupName(path.split('/').map(str::to_owned).collect())
}

fn written(failures: &[&str]) -> Event {
    let failure = |path: &&str| CgroupFailure { name: name(path), message: "busy".into() };
    Event::NodeCgroupsWritten { failures: failures.iter().map(failure).collect() }
}

/// With the runtime up, and what is asked for shown.
fn up(config: NodeConfig) -> Script {
    let mut run = Script::new(config);
    run.line("show events clocks cgroups");
    run.line("started");
    run.line("ready");
    run.line("read all:");
    run
}

const ENFORCED: &str = "node NodeAllocatableEnforced: Updated Node Allocatable limit across pods";

#[test]
fn limits_are_told_of_once() {
    let mut run = up(NodeConfig::default());
    assert_eq!(run.event(written(&[])), [ENFORCED]);
    assert_eq!(run.event(written(&[])), [""; 0]);
    run.line("pod a = c: {resources: {requests: {cpu: 500m}}}");
    run.line("file a");
    assert_eq!(run.event(written(&[])), [""; 0], "another write of the same limits");
}

#[test]
fn limits_that_are_refused_are_tried_each_minute() {
    let failed = "node FailedNodeAllocatableEnforcement: \
                  Failed to update Node Allocatable Limits [\"kubepods\"]: busy";
    let mut run = up(NodeConfig::default());
    assert_eq!(run.event(written(&["kubepods"])), [failed, "timer node-cgroups @60s"]);
    assert_eq!(run.event(written(&["kubepods"])), ["timer node-cgroups @60s"], "not said again");
    // A class failed as well: all is written sooner, and said no sooner.
    assert_eq!(run.event(written(&["kubepods", "kubepods/burstable"])), ["timer node-cgroups @10s"]);
    run.line("+10s");
    assert_eq!(run.event(Event::Timer(TimerKey::NodeCgroups)), ["cgroups burstable=2"]);
    assert_eq!(run.event(written(&["kubepods"])), ["timer node-cgroups @70s"]);
    run.line("+50s");
    run.event(Event::Timer(TimerKey::NodeCgroups));
    assert_eq!(run.event(written(&["kubepods"])), [failed, "timer node-cgroups @120s"]);
    run.line("+60s");
    run.event(Event::Timer(TimerKey::NodeCgroups));
    assert_eq!(run.event(written(&[])), [ENFORCED]);
    // The cgroup of a class is not what the Event is about, and is written sooner.
    assert_eq!(run.event(written(&["kubepods/burstable"])), ["timer node-cgroups @130s"]);
}

#[test]
fn what_the_host_gains_is_offered() {
    let mut run = up(NodeConfig::default());
    let facts = HostFacts { cpus: 64, resolv_conf: "nameserver 192.0.2.1".into(), ..HostFacts::default() };
    assert_eq!(run.event(Event::FactsChanged(Arc::new(facts.clone()))), [""; 0]);
    let facts = HostFacts { memory_bytes: 1 << 40, ..facts };
    assert_eq!(run.event(Event::FactsChanged(Arc::new(facts.clone()))), ["cgroups burstable=2"]);
    assert_eq!(run.event(Event::FactsChanged(Arc::new(facts))), [""; 0]);
}

/// What is requested of memory is written only where it is configured.
#[test]
fn memory_counts_where_it_is_reserved() {
    let check = |percent, expect: &[&str]| {
        let allocatable = AllocatableConfig { reserved_memory_percent: percent, ..Default::default() };
        let mut run = up(NodeConfig { allocatable, ..NodeConfig::default() });
        let facts = HostFacts { cpus: 4, memory_bytes: 1 << 40, ..HostFacts::default() };
        run.event(Event::FactsChanged(Arc::new(facts)));
        run.line("pod a = c: {resources: {requests: {memory: 64Mi}}}");
        let effects = run.line("file a");
        let seen: Vec<&String> = effects.iter().filter(|effect| effect.starts_with("cgroups")).collect();
        assert_eq!(seen, expect, "{percent:?}");
    };
    check(None, &[]);
    check(Some(50), &["cgroups burstable=2"]);
}

fn reserving(cgroups: &[(ReservedFor, &str)]) -> NodeConfig {
    let reserved = [("cpu".to_owned(), model::k8s::Quantity("1".into()))];
    let capacity = CapacityRules { system_reserved: reserved.into(), ..CapacityRules::default() };
    let cgroup = |(owner, path): &(ReservedFor, &str)| ReservedCgroup {
        owner: *owner,
        path: (*path).to_owned(),
        compressible_only: false,
    };
    NodeConfig {
        node_object: NodeObjectConfig { capacity, ..NodeObjectConfig::default() },
        allocatable: AllocatableConfig {
            reserved_cgroups: cgroups.iter().map(cgroup).collect(),
            ..AllocatableConfig::default()
        },
        ..NodeConfig::default()
    }
}

#[test]
fn reserved_cgroups_are_written_once_or_end_the_agent() {
    let mut run = Script::new(reserving(&[(ReservedFor::System, "/sys"), (ReservedFor::System, "/b")]));
    run.line("show events");
    assert_eq!(run.line("started"), ["check+driver", "read all"], "nothing before the runtime has spoken");
    run.line("ready");
    assert_eq!(run.line("read all:"), ["list artifacts"; 0], "the controllers may not be enabled yet");
    assert_eq!(run.event(written(&[])), [ENFORCED, "reserve sys b"]);
    let results = || Event::ReservedCgroupsWritten { results: vec![Ok(()), Err("gone".into())] };
    let failed = "Failed to enforce System Reserved Cgroup Limits on \"/b\": gone";
    assert_eq!(
        run.event(results()),
        [
            "node NodeAllocatableEnforced: Updated limits on system reserved cgroup /sys".to_owned(),
            format!("node FailedNodeAllocatableEnforcement: {failed}"),
            format!("end: {failed}"),
        ]
    );
    assert_eq!(run.event(results()), [""; 0], "said twice, meant once");
    assert_eq!(run.line("ready"), [""; 0]);
}

#[test]
fn a_reservation_of_nothing_ends_the_agent() {
    let mut run = Script::new(reserving(&[(ReservedFor::Kube, "/kube")]));
    run.line("started");
    let failed = "Failed to enforce Kube Reserved Cgroup Limits on \"/kube\": \
                  [\"kube\"] cgroup is not configured properly";
    run.line("ready");
    run.line("read all:");
    assert_eq!(run.event(written(&["kubepods"])).last(), Some(&format!("end: {failed}")));
}

#[test]
fn a_pod_whose_cgroup_is_gone_starts_again() {
    let mut run = check(
        r"
        show events
        started
        ready
        read all:
        file a                              => run a: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
    let gone = |path: &str| Event::CgroupRemoved { name: name(path) };
    assert_eq!(run.event(gone("kubepods/besteffort/poda")), [""; 0], "it is being made");
    run.line("done a");
    run.line("read a: s0 ready; c#0 running");
    assert_eq!(run.event(gone("kubepods/poda")), [""; 0], "another class");
    assert_eq!(run.event(gone("kubepods/besteffort/podx")), [""; 0], "another pod");
    let effects = run.event(gone("kubepods/besteffort/poda"));
    assert!(effects.contains(&"run a: stop c#0 30s > stop-sandbox s0".to_owned()), "{effects:?}");
    assert_eq!(run.event(gone("kubepods/besteffort/poda")), [""; 0], "told for each hierarchy");
    run.line("done a");
    let effects = run.line("read a: s0 dead; c#0 exit(0)");
    assert!(effects.iter().any(|e| e.starts_with("run a: dirs + cgroup > sandbox#1")), "{effects:?}");
    run.line("done a");
    let effects = run.line("read a: s1 ready; s0 dead; c#0 exit(0)");
    assert!(effects.iter().all(|effect| !effect.contains("stop")), "{effects:?}");
}

/// What an earlier agent admitted is known with the first observation, and what is not admitted has no share.
#[test]
fn classes_get_what_their_admitted_pods_request() {
    let mut run = Script::new(NodeConfig { sources: vec![model::pod::Source::Api], ..NodeConfig::default() });
    run.line("show cgroups");
    run.line("pod a = run c; c: {resources: {requests: {cpu: 1}}}");
    run.line("pod new = c: {resources: {requests: {cpu: 63}}}");
    run.line("pod big = c: {resources: {requests: {cpu: 64}}}");
    run.line("started");
    run.line("services");
    run.line("api a new big");
    let none = |effects: &[String]| !effects.iter().any(|effect| effect.starts_with("cgroups"));
    assert!(none(&run.line("ready")));
    let effects = run.line("read all: a = s0 ready; c#0 running");
    let seen: Vec<&String> = effects.iter().filter(|effect| effect.starts_with("cgroups")).collect();
    assert_eq!(seen, ["cgroups burstable=1024", "cgroups burstable=65536"], "never what big requests");
}

/// The agent removes it itself when the pod ends.
#[test]
fn the_cgroup_of_a_pod_that_ends_may_go() {
    let mut run = check(
        r"
        started
        ready
        read all:
        file a
        done a
        read a: s0 ready; c#0 running
        file
        ",
    );
    assert_eq!(run.event(Event::CgroupRemoved { name: name("kubepods/besteffort/poda") }), [""; 0]);
    // A level above pods is made again.
    run.line("show cgroups");
    let effects = run.event(Event::CgroupRemoved { name: name("kubepods/burstable") });
    assert_eq!(effects, ["cgroups burstable=2"]);
}
