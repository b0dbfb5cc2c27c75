//! New pods: who is admitted, who makes room for whom, and what a restart changes.

use model::node::NodeConfig;
use model::pod::Source;

use super::script::Script;
use super::{check, check_on};

/// A node with four CPUs and pods from files and an API server.
const PODS: &str = "
    pod small = run c; c: {resources: {requests: {cpu: 10}}}
    pod medium = run c; c: {resources: {requests: {cpu: 20}}}; spec: {terminationGracePeriodSeconds: 7}
    pod large = run c; c: {resources: {requests: {cpu: 30}}}
    pod vip = run c; c: {resources: {requests: {cpu: 25}}}; spec: {priority: 2000000000}
    pod vip2 = run c; c: {resources: {requests: {cpu: 10}}}; spec: {priority: 2000000000}
    pod highest = run c; c: {resources: {requests: {cpu: 25}}}; spec: {priority: 2000001000}
    pod giant = run c; c: {resources: {requests: {cpu: 65}}}; spec: {priority: 2000000000}
    pod extra = run c; c: {resources: {requests: {cpu: 5}}}
";

/// All 64 CPUs but four are requested.
const FULL: &str = "
    show events
    started
    ready
    services
    read all: small = s0 ready; c#0 running / medium = s0 ready; c#0 running / large = s0 ready; c#0 running
    api small medium large
";

fn api() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api], ..NodeConfig::default() }
}

#[track_caller]
fn on_full_node(script: &str) -> Script {
    check_on(api(), &format!("{PODS}{FULL}{script}"))
}

#[test]
fn a_critical_pod_waits_until_its_victim_has_released_its_resources() {
    let run = on_full_node(
        r"
        # The large one would do as well, but frees more than needed.
        api small medium large vip
        => W large Preempting: Preempted in order to admit critical pod
        => N large/c Killing: Stopping container c
        => run large: stop c#0 30s > stop-sandbox s0
        why vip                         => waits for cpu of large_ns(large)
        state vip                       => syncing
        # What the victim releases is reserved; what is left over is not given away before it is free.
        api small medium large vip extra
        => W extra OutOfcpu: Node didn't have enough resource: cpu, requested: 5000, used: 85000, capacity: 64000 | run extra: tear-down > drop-cgroup kubepods/burstable/podextra
        done large                      => read large
        why vip                         => waits for cpu of large_ns(large)
        read large: s0 dead; c#0 exit(0)
        => run large: tear-down > drop-cgroup kubepods/burstable/podlarge
        => run vip: dirs + cgroup > sandbox#0 | look img-c:1
        counted                         => preempted for cpu 1
        ",
    );
    let status = run.state.pods[&"large".into()].status.clone().expect("a status");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref()),
        (Some("Failed"), Some("Preempting"), Some("Preempted in order to admit critical pod"))
    );
    let disruption = status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(
        (disruption.status.as_str(), disruption.reason.as_deref(), disruption.message.as_deref()),
        (
            "True",
            Some("TerminationByKubelet"),
            Some("Pod was preempted by Kubelet to accommodate a critical pod.")
        )
    );
}

#[test]
fn pods_that_end_anyway_are_waited_for_first() {
    on_full_node(
        r"
        evict medium 9
        api small medium large vip2
        why vip2                        => waits for cpu of medium_ns(medium)
        counted                         => -
        # A second one that needs more: another pod has to go, and both are waited for.
        api small medium large vip2 vip
        why vip                         => waits for cpu of large_ns(large) medium_ns(medium)
        counted                         => preempted for cpu 1
        done medium
        read medium: s0 dead; c#0 exit(0)
        why vip2                        => creating sandbox#0; c: pulling img-c:1
        why vip                         => waits for cpu of large_ns(large)
        ",
    );
}

#[test]
fn a_critical_pod_for_which_no_room_can_be_made_is_refused() {
    on_full_node(
        r"
        api small medium large giant
        => W giant UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ] | run giant: tear-down > drop-cgroup kubepods/burstable/podgiant
        counted                         => -
        state small                     => syncing
        ",
    );
}

#[test]
fn critical_pods_preempt_only_those_with_a_lower_priority() {
    let pods = r"
        started
        ready
        services
        pod a = run c; c: {resources: {requests: {cpu: 50}}}; spec: {priority: 2000000000}
        read all: a = s0 ready; c#0 running
        api a
    ";
    let run = check_on(api(), &format!("{PODS}{pods}\n api a vip\n state a => syncing"));
    let refused = run.state.pods[&"vip".into()].standing().rejection().expect("a refusal");
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    check_on(
        api(),
        &format!(
            "{PODS}{pods}
            api a highest                   => run a: stop c#0 30s > stop-sandbox s0
            why highest                     => waits for cpu of a_ns(a)"
        ),
    );
}

/// A waiting pod that is removed reserves nothing any more; its victims end all the same.
#[test]
fn who_waits_may_be_removed() {
    let run = on_full_node(
        r"
        api small medium large vip
        api small medium large          => run vip: tear-down > drop-cgroup kubepods/burstable/podvip
        done vip                        => run vip: remove-dir + remove-logs ns_vip_vip
        state vip                       => finished
        done large
        read large: s0 dead; c#0 exit(0)
        done large
        api small medium large extra    => run extra: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
    assert!(run.state.admissions.is_empty());
}

/// Nothing of a preemption is kept: after a restart it is decided again, and nobody has to go for what is free by then.
#[test]
fn a_restart_in_the_middle() {
    let restarted = |runtime: &str, script: &str| {
        check_on(
            api(),
            &format!(
                "{PODS} show events\n started\n ready\n services\n api small medium large vip\n read all: {runtime}\n {script}"
            ),
        )
    };
    let others = "small = s0 ready; c#0 running / medium = s0 ready; c#0 running";
    // The victim still runs, and its end is not known to the API server yet.
    restarted(
        &format!("{others} / large = s0 ready; c#0 running"),
        "why vip => waits for cpu of large_ns(large)\n counted => preempted for cpu 1",
    );
    // Its end is known, and a container still runs.
    let ended = "pod large = run c; c: {resources: {requests: {cpu: 30}}}; status: {phase: Failed, reason: Preempting}";
    restarted(
        &format!("{others} / large = s0 ready; c#0 running"),
        "why vip => waits for cpu of large_ns(large)",
    );
    let run = check_on(
        api(),
        &format!(
            "{PODS}{ended}\n started\n ready\n services\n api small medium large vip
            read all: {others} / large = s0 ready; c#0 running
            why vip => waits for cpu of large_ns(large)\n counted => -"
        ),
    );
    assert!(run.state.pods[&"large".into()].standing().rejection().is_none());
    // The critical pod runs: nobody has to go for it, although the node is overcommitted.
    restarted(
        &format!("{others} / large = s0 ready; c#0 running / vip = s0 ready; c#0 running"),
        "counted => -\n state large => syncing\n state vip => syncing",
    );
}

/// A start time in its status: an earlier agent admitted the pod, although nothing of it is in the runtime yet.
#[test]
fn a_pod_with_a_start_time_stays_admitted() {
    let pods = r#"
        pod big = run c; c: {resources: {requests: {cpu: 60}}}; status: {phase: Pending, startTime: "2026-01-01T00:00:00Z"}
        pod new = run c; c: {resources: {requests: {cpu: 60}}}
        pod anon = run c; c: {resources: {requests: {cpu: 60}}}; status: {phase: Pending}
        show events
        started
        ready
        services
    "#;
    for order in ["api new anon big\n read all:", "read all:\n api new anon big"] {
        let run = check_on(api(), &format!("{pods}{order}"));
        let refused =
            ["big", "new", "anon"].map(|uid| run.state.pods[&uid.into()].standing().rejection().is_some());
        assert_eq!(refused, [false, true, true], "{order}");
    }
}

/// The agent does not know that an earlier one stopped the sandbox: it is stopped again, and nobody waits for that.
#[test]
fn pods_that_completed_before_a_restart_take_nothing() {
    let pods = r#"
        pod done = run c; c: {resources: {requests: {cpu: 60}}}; status: {phase: Succeeded, startTime: "2026-01-01T00:00:00Z"}; spec: {restartPolicy: Never}
        pod new = run c; c: {resources: {requests: {cpu: 60}}}
        show events
        started
        ready
        services
    "#;
    for order in [
        "api new done\n read all: done = s0 dead; c#0 exit(0)",
        "read all: done = s0 dead; c#0 exit(0)\n api new done",
    ] {
        let run = check_on(api(), &format!("{pods}{order}"));
        assert!(run.state.pods[&"new".into()].standing().rejection().is_none(), "{order}");
    }
    let run = check_on(api(), &format!("{pods} api new done\n read all: done = s0 ready; c#0 running"));
    assert!(run.state.pods[&"new".into()].standing().rejection().is_some(), "it still runs");
}

/// Its grace period is over since long: others go instead.
#[test]
fn a_pod_that_does_not_end_is_not_waited_for_for_ever() {
    on_full_node(
        r"
        evict medium 9
        api small medium large vip2
        why vip2                        => waits for cpu of medium_ns(medium)
        show timers
        due pod vip2 @19s
        why vip2                        => waits for cpu of small_ns(small)
        counted                         => preempted for cpu 1
        ",
    );
}

/// The network of the victim can't be torn down now, perhaps because the critical pod is to do that.
#[test]
fn a_victim_without_containers_has_made_room() {
    on_full_node(
        r"
        api small medium large vip
        why vip                         => waits for cpu of large_ns(large)
        read large: s0 ready; c#0 exit(0) => run vip: dirs + cgroup > sandbox#0 | look img-c:1
        state large                     => terminating 30s
        ",
    );
}

/// An earlier agent may have mounted its volumes and ended before it told the API server of the pod.
#[test]
fn what_may_be_left_of_an_undecided_pod_is_torn_down() {
    check_on(
        api(),
        r#"
        pod going = run c; meta: {deletionTimestamp: "2026-01-01T00:00:00Z", deletionGracePeriodSeconds: 30}
        show events
        started
        ready
        services
        read all:
        api going                       => run going: tear-down > drop-cgroup kubepods/besteffort/podgoing
        "#,
    );
}

#[test]
fn an_older_node_does_not_replace_a_newer_one() {
    let version = |node: &model::k8s::Node, version: &str| {
        let mut node = node.clone();
        node.metadata.resource_version = Some(version.into());
        std::sync::Arc::new(node)
    };
    let node = super::cluster::node("n");
    for (known, read, kept) in [("9", "10", "10"), ("10", "9", "10"), ("10", "10", "10"), ("10", "x", "x")] {
        let mut run = check_on(api(), "up");
        run.event(crate::Event::NodeObserved(Some(version(&node, known))));
        run.event(crate::Event::NodeRead(Ok(version(&node, read))));
        let now = run.state.node.as_ref().and_then(|node| node.metadata.resource_version.clone());
        assert_eq!(now.as_deref(), Some(kept), "{known} then {read}");
    }
}

const ELSEWHERE: &str = "
    pod here = run c; spec: {nodeSelector: {disk: ssd}}
    pod too = run c; spec: {nodeSelector: {disk: ssd}}
    show events
    up
    node n
";
const TEAR_DOWN: &str = "run here: tear-down > drop-cgroup kubepods/besteffort/podhere";
const REFUSED: &str =
    "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";

#[test]
fn the_node_is_read_again_before_a_refusal_for_affinity() {
    check_on(
        api(),
        &format!(
            "{ELSEWHERE}
            api here                    => read node
            why here                    => waits for the node
            # This reading may have missed what admits the second one.
            api here too                => -
            node-read labels disk=ssd   => read node | run here: dirs + cgroup > sandbox#0 | look img-c:1
            why too                     => waits for the node
            node-read labels disk=ssd   => run too: dirs + cgroup > sandbox#0
            "
        ),
    );
    // What is read again refuses it too.
    check_on(
        api(),
        &format!(
            "{ELSEWHERE} api here => read node\n node-read labels disk=hdd => W here {REFUSED} | {TEAR_DOWN}"
        ),
    );
    // It can't be read: what was known counts.
    check_on(
        api(),
        &format!("{ELSEWHERE} api here => read node\n node-read fails => W here {REFUSED} | {TEAR_DOWN}"),
    );
    // The pod went meanwhile, and another one is decided by a reading of its own.
    check_on(
        api(),
        &format!(
            "{ELSEWHERE} api here => read node\n api too => {TEAR_DOWN}\n why too => waits for the node
            node-read fails => read node\n node-read fails => W too {REFUSED} | run too: tear-down > drop-cgroup kubepods/besteffort/podtoo"
        ),
    );
    // Without a cluster there is nothing to read.
    check(&format!(
        "pod here = run c; spec: {{nodeSelector: {{disk: ssd}}}}\n show events\n up\n file here => W here {REFUSED} | {TEAR_DOWN}"
    ));
}
