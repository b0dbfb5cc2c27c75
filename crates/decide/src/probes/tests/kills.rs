//! What a plan makes of verdicts.

use model::node::{HostFacts, NodeConfig};
use model::observed::{ContainerState, ObservedPod};
use model::probe::{ProbeKind, ProbeOutcome};
use serde_json::{Value, json};

use super::{Bed, container, failure, pod_of, running};
use crate::action::Action;
use crate::images::{ImageState, ResolvedImage};
use crate::plan::{PlanInputs, PlanNote, PodPlan, plan_pod};
use crate::runtime_health::RuntimeHealth;
use crate::state::PodEntry;
use crate::status::IpFamily;
use crate::status::sample::{at, instance, observed};

use ProbeKind::{Liveness, Readiness, Startup};

fn plan(bed: &Bed, seen: &ObservedPod) -> PodPlan {
    let mut entry = PodEntry::new(bed.pod.clone());
    entry.probes = bed.probes.clone();
    entry.ledger.prerequisites_ready = true;
    let image = || ImageState::Ready(ResolvedImage { reference: "i".into(), ..Default::default() });
    let names = bed.pod.containers().iter().chain(bed.pod.init_containers()).map(|c| c.name.clone());
    entry.ledger.image_states = names.map(|name| (name, image())).collect();
    plan_pod(&PlanInputs {
        config: &NodeConfig { cluster_dns: vec!["10.0.0.10".into()], ..Default::default() },
        facts: &HostFacts::default(),
        runtime: &RuntimeHealth { ready: true, network_ready: true, ..Default::default() },
        entry: &entry,
        observed: seen,
        name_holder: None,
        primary_family: IpFamily::V4,
        placement: Ok(Default::default()),
        cluster: None,
        node: None,
        now: at(100),
    })
}

/// `stop c0 30s (restart): <the Killing event>`, or what is started.
fn shown(plan: &PodPlan) -> String {
    let restarts = |id: &str| {
        plan.notes.iter().any(|n| matches!(n, PlanNote::MustRestart { killed, .. } if killed.as_str() == id))
    };
    let killing = |id: &str| {
        let key = format!("killing {id}");
        plan.notes.iter().find_map(|n| match n {
            PlanNote::Announce { key: k, event } if *k == key => Some(event.message.clone()),
            _ => None,
        })
    };
    let actions = plan.stages.iter().flat_map(|s| &s.actions);
    let words = actions.map(|action| match action {
        Action::StopContainer { id, grace_secs, .. } => {
            let again = if restarts(id.as_str()) { " (restart)" } else { "" };
            format!("stop {id} {grace_secs}s{again}: {}", killing(id.as_str()).unwrap_or_default())
        }
        Action::StartContainer(start) => format!("start {}", start.name),
        other => other.name().to_owned(),
    });
    words.collect::<Vec<_>>().join("; ")
}

/// A pod of one running container that gave one answer to one probe.
#[track_caller]
fn check(spec: Value, own: Value, probe: (ProbeKind, Value), outcome: &ProbeOutcome, expect: &str) {
    let (kind, mut numbers) = probe;
    numbers["failureThreshold"] = json!(1);
    let mut c = container("c", &[(kind, numbers)]);
    for (key, value) in own.as_object().into_iter().flatten() {
        c[key] = value.clone();
    }
    let mut spec = spec;
    spec["containers"] = json!([c]);
    let mut bed = Bed::running(pod_of(spec.clone()));
    bed.ask(kind, outcome);
    assert_eq!(shown(&plan(&bed, bed.seen.as_ref().unwrap())), expect, "{spec} {kind:?}");
}

#[test]
fn whoever_fails_a_probe_of_life_or_start_is_killed() {
    let (none, no, yes) = (|| json!({}), failure(), ProbeOutcome::Success);
    let again = "Container c failed liveness probe, will be restarted";
    check(none(), none(), (Liveness, none()), &no, &format!("stop c0 30s (restart): {again}"));
    check(none(), none(), (Liveness, none()), &yes, "");
    check(none(), none(), (Readiness, none()), &no, "");
    let startup = "stop c0 30s (restart): Container c failed startup probe, will be restarted";
    check(none(), none(), (Startup, none()), &no, startup);
    check(none(), none(), (Startup, none()), &yes, "");
    check(none(), none(), (Liveness, none()), &ProbeOutcome::unknown("e"), "");
}

#[test]
fn the_policy_says_whether_it_comes_back() {
    let no = failure();
    let again = "stop c0 30s (restart): Container c failed liveness probe, will be restarted";
    let for_good = "stop c0 30s: Container c failed liveness probe";
    let pod = |policy: &str| json!({"restartPolicy": policy});
    let own = |policy: &str| json!({"restartPolicy": policy});
    check(pod("Always"), json!({}), (Liveness, json!({})), &no, again);
    check(pod("OnFailure"), json!({}), (Liveness, json!({})), &no, again);
    check(pod("Never"), json!({}), (Liveness, json!({})), &no, for_good);
    check(pod("Never"), own("OnFailure"), (Liveness, json!({})), &no, again);
    check(pod("Always"), own("Never"), (Liveness, json!({})), &no, for_good);
    // rules are about ends of its own
    let rules = json!({"restartPolicy": "Never", "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [1]}},
    ]});
    check(pod("Never"), rules, (Liveness, json!({})), &no, for_good);
    check(
        pod("Never"),
        json!({}),
        (Startup, json!({})),
        &no,
        "stop c0 30s: Container c failed startup probe",
    );
}

#[test]
fn the_grace_is_the_probes_and_else_the_pods() {
    let no = failure();
    let killed = |grace: i64, kind: &str| {
        format!("stop c0 {grace}s (restart): Container c failed {kind} probe, will be restarted")
    };
    let pod = |grace: i64| json!({"terminationGracePeriodSeconds": grace});
    let own = |grace: i64| json!({"terminationGracePeriodSeconds": grace});
    check(pod(77), json!({}), (Liveness, json!({})), &no, &killed(77, "liveness"));
    check(pod(77), json!({}), (Liveness, own(5)), &no, &killed(5, "liveness"));
    check(pod(5), json!({}), (Liveness, own(77)), &no, &killed(77, "liveness"));
    check(pod(77), json!({}), (Startup, own(5)), &no, &killed(5, "startup"));
    // never less than two seconds
    check(pod(77), json!({}), (Liveness, own(1)), &no, &killed(2, "liveness"));
    check(pod(0), json!({}), (Liveness, json!({})), &no, &killed(2, "liveness"));
}

#[test]
fn the_grace_of_another_probe_does_not_count() {
    let mut c = container(
        "c",
        &[(Startup, json!({"terminationGracePeriodSeconds": 5})), (Liveness, json!({"failureThreshold": 1}))],
    );
    c["livenessProbe"]["terminationGracePeriodSeconds"] = Value::Null;
    let mut bed = Bed::running(pod_of(json!({"containers": [c]})));
    bed.ask(Startup, &ProbeOutcome::Success);
    bed.ask(Liveness, &failure());
    assert!(shown(&plan(&bed, bed.seen.as_ref().unwrap())).starts_with("stop c0 30s"));
}

#[test]
fn a_verdict_about_another_instance_kills_nobody() {
    let mut bed = Bed::running(pod_of(
        json!({"containers": [container("c", &[(Liveness, json!({"failureThreshold": 1}))])]}),
    ));
    bed.ask(Liveness, &failure());
    for state in [ContainerState::Running, ContainerState::Created] {
        let next = observed(vec![instance("c", 1, state, 0)]);
        let shown = shown(&plan(&bed, &next));
        assert!(!shown.contains("stop"), "{state:?}: {shown}");
    }
}

fn with_sidecar(sidecar: &[(ProbeKind, Value)]) -> Bed {
    let mut side = container("c", sidecar);
    side["restartPolicy"] = json!("Always");
    Bed::running(pod_of(json!({
        "enableServiceLinks": true, "initContainers": [side, {"name": "init"}], "containers": [{"name": "main"}],
    })))
}

#[test]
fn whoever_comes_after_a_sidecar_waits_for_its_start() {
    let check = |probes: &[ProbeKind], answers: &[(ProbeKind, bool)], expect: &str| {
        let probes: Vec<_> = probes.iter().map(|kind| (*kind, json!({"failureThreshold": 1}))).collect();
        let mut bed = with_sidecar(&probes);
        for (kind, good) in answers {
            bed.ask(*kind, &if *good { ProbeOutcome::Success } else { failure() });
        }
        let plan = plan(&bed, bed.seen.as_ref().unwrap());
        assert_eq!(shown(&plan), expect, "{probes:?} {answers:?} {:?}", plan.why);
    };
    check(&[], &[], "start init");
    check(&[Startup], &[], "");
    check(&[Startup], &[(Startup, true)], "start init");
    check(&[Startup], &[(Startup, false)], "stop c0 30s: Init container c failed startup probe");
    // the others are not waited for
    check(&[Readiness], &[], "start init");
    check(&[Readiness], &[(Readiness, false)], "start init");
    check(&[Liveness], &[], "start init");
    check(&[Liveness], &[(Liveness, false)], "stop c0 30s: Init container c failed liveness probe");
    check(&[Startup, Liveness], &[(Startup, true), (Liveness, true)], "start init");
}

#[test]
fn a_sidecar_that_starts_again_holds_up_nobody_who_runs() {
    let mut bed = with_sidecar(&[(Startup, json!({}))]);
    bed.see(vec![running("c", 0), instance("init", 0, ContainerState::Exited, 0), running("main", 0)]);
    assert_eq!(shown(&plan(&bed, bed.seen.as_ref().unwrap())), "");
    let ended = instance("main", 0, ContainerState::Exited, 1);
    let mut seen = observed(vec![running("c", 0), instance("init", 0, ContainerState::Exited, 0), ended]);
    seen.sort();
    bed.ask(Startup, &ProbeOutcome::Success);
    assert_eq!(shown(&plan(&bed, &seen)), "start main");
}
