use std::time::Duration;

use model::ContainerId;
use model::observed::ContainerState::{Created, Exited, Running, Unknown};
use model::probe::{ContainerProbeRecord, ProbeKind, ProbeOutcome, ProbeRecord};
use serde_json::{Value, json};

use super::{Bed, KINDS, container, failure, pod_of, running, terminating, with_probes};
use crate::lifecycle::Lifecycle;
use crate::probes::ProbeResult;
use crate::status::ProbeReport;
use crate::status::sample::{at, instance};

use ProbeKind::{Liveness, Readiness, Startup};

fn all() -> Vec<(ProbeKind, Value)> {
    KINDS.map(|kind| (kind, json!({}))).to_vec()
}

/// The workers there are, as `container/Kind`.
fn workers(bed: &Bed) -> String {
    let names: Vec<_> = bed.probes.workers.keys().map(|(c, kind)| format!("{c}/{}", kind.as_str())).collect();
    names.join(" ")
}

fn family() -> model::pod::PodView {
    let mut sidecar = container("side", &all());
    sidecar["restartPolicy"] = json!("Always");
    let inits = json!([container("init", &all()), sidecar]);
    pod_of(json!({"initContainers": inits, "containers": [container("c", &all()), container("plain", &[])]}))
}

#[test]
fn regular_containers_and_sidecars_have_workers() {
    let mut bed = Bed::new(family());
    assert!(bed.probes.reports(&bed.pod).is_empty(), "nobody is there yet");
    bed.attend();
    assert_eq!(workers(&bed), "c/Startup c/Readiness c/Liveness side/Startup side/Readiness side/Liveness");
}

#[test]
fn workers_end_with_what_they_are_for() {
    let check = |lifecycle: Lifecycle, phase: &str, expect: &str| {
        let mut bed = Bed::new(family());
        bed.attend();
        bed.lifecycle = lifecycle;
        bed.status = serde_json::from_value(json!({"phase": phase})).unwrap();
        bed.attend();
        assert_eq!(workers(&bed), expect, "{phase}");
        // and never come back
        bed.lifecycle = Lifecycle::Syncing;
        bed.attend();
        assert_eq!(workers(&bed), expect);
    };
    let everybody = "c/Startup c/Readiness c/Liveness side/Startup side/Readiness side/Liveness";
    check(Lifecycle::Syncing, "Pending", everybody);
    check(Lifecycle::Syncing, "Running", everybody);
    check(terminating(), "Running", "c/Readiness side/Startup side/Readiness side/Liveness");
    check(Lifecycle::Terminated, "Running", "");
    check(Lifecycle::Finished, "Running", "");
    check(Lifecycle::Syncing, "Succeeded", "");
    check(Lifecycle::Syncing, "Failed", "");
    check(terminating(), "Failed", "");
}

#[test]
fn a_pod_that_goes_when_the_agent_comes_has_no_workers() {
    let mut bed = Bed::new(family());
    bed.lifecycle = terminating();
    bed.see(vec![running("c", 0)]);
    assert_eq!(workers(&bed), "");
    let report = bed.probes.reports(&bed.pod)["c"];
    assert_eq!(report, ProbeReport::default());
}

#[test]
fn a_new_instance_begins_with_the_verdict_of_its_kind() {
    let initial = |kind| match kind {
        Startup => ProbeResult::Unknown,
        Readiness => ProbeResult::Failure,
        Liveness => ProbeResult::Success,
    };
    for kind in KINDS {
        let mut bed = Bed::new(with_probes(&[(kind, json!({"failureThreshold": 1}))]));
        bed.attend();
        assert_eq!(bed.verdict(kind), None);
        bed.see(vec![instance("c", 0, Created, 0)]);
        assert_eq!(bed.verdict(kind), None, "one that was not started has no life yet");
        bed.see(vec![running("c", 0)]);
        assert_eq!(bed.verdict(kind), Some(initial(kind)));
        for outcome in [ProbeOutcome::Success, failure()] {
            bed.ask(kind, &outcome);
            bed.see(vec![running("c", 0)]);
            assert_eq!(
                bed.verdict(kind),
                Some(ProbeResult::of(outcome == ProbeOutcome::Success)),
                "seen again"
            );
            bed.see(vec![running("c", 0), instance("c", 1, Exited, 1)]);
            assert_eq!(bed.verdict(kind), Some(initial(kind)), "{kind:?}");
            bed.see(vec![running("c", 0)]);
        }
    }
}

/// The verdict about an instance that started `before` seconds before the agent, of which an earlier agent left
/// `record` (`+`, `-`, or of another probe) and a status.
#[track_caller]
fn check_found(kind: ProbeKind, before: i64, record: &str, said_started: bool, expect: Option<ProbeResult>) {
    let mut bed = Bed::new(with_probes(&[(kind, json!({}))]));
    bed.now = at(1000);
    bed.agent_started = model::Wall(at(0).wall.0 + before * 1_000_000_000);
    let mut kept = ContainerProbeRecord::new(ContainerId::new("c0"));
    match record {
        "+" => drop(kept.results.insert(kind, true)),
        "-" => drop(kept.results.insert(kind, false)),
        "other" => {
            let other = if kind == Readiness { Startup } else { Readiness };
            kept.results.insert(other, true);
        }
        "stale" => {
            kept.id = ContainerId::new("c9");
            kept.results.insert(kind, true);
        }
        _ => {}
    }
    if !record.is_empty() {
        bed.probes.remember(ProbeRecord { containers: [("c".to_owned(), kept)].into() });
    }
    if said_started {
        let id = "containerd://c0";
        bed.status = serde_json::from_value(json!({"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "started": true, "containerID": id,
        }]}))
        .unwrap();
    }
    bed.see(vec![running("c", 0)]);
    assert_eq!(bed.verdict(kind), expect, "{kind:?} {before} {record:?} {said_started}");
}

#[test]
fn an_instance_that_an_earlier_agent_judged_keeps_what_was_said() {
    use ProbeResult::{Failure, Success, Unknown as Open};
    // nothing on record: who started long before is not judged anew
    check_found(Readiness, 11, "", false, None);
    check_found(Readiness, 10, "", false, Some(Failure));
    check_found(Readiness, -5, "", false, Some(Failure));
    check_found(Liveness, 11, "", false, None);
    check_found(Liveness, 9, "", false, Some(Success));
    check_found(Startup, 11, "", false, None);
    check_found(Startup, 9, "", false, Some(Open));
    // a status that is at hand tells of the start
    check_found(Startup, 11, "", true, Some(Success));
    check_found(Startup, 1, "", true, Some(Success));
    check_found(Readiness, 11, "", true, None);
    check_found(Liveness, 11, "", true, None);
    // the record knows, however short it was
    check_found(Readiness, 11, "+", false, Some(Success));
    check_found(Readiness, 1, "+", false, Some(Success));
    check_found(Readiness, 11, "-", false, Some(Failure));
    check_found(Startup, 11, "+", false, Some(Success));
    check_found(Startup, 1, "+", false, Some(Success));
    check_found(Startup, 11, "-", false, Some(Failure));
    check_found(Liveness, 11, "-", false, Some(Failure));
    // it knows the instance, and nothing of this probe
    check_found(Readiness, 11, "other", false, Some(Failure));
    check_found(Startup, 11, "other", false, Some(Open));
    check_found(Liveness, 11, "other", false, Some(Success));
    // it is about another instance
    check_found(Readiness, 11, "stale", false, None);
    check_found(Readiness, 1, "stale", false, Some(Failure));
    check_found(Startup, 1, "stale", false, Some(Open));
}

#[test]
fn reports_tell_results_and_who_is_there() {
    let check = |kinds: &[ProbeKind], verdicts: &[(ProbeKind, bool)], expect: ProbeReport| {
        let probes: Vec<_> = kinds.iter().map(|kind| (*kind, json!({"failureThreshold": 1}))).collect();
        let mut bed = Bed::running(with_probes(&probes));
        for (kind, good) in verdicts {
            bed.ask(*kind, &if *good { ProbeOutcome::Success } else { failure() });
        }
        assert_eq!(bed.probes.reports(&bed.pod)["c"], expect, "{kinds:?} {verdicts:?}");
    };
    let none = ProbeReport::default();
    let startup = ProbeReport { has_startup_worker: true, startup: Some(false), ..none };
    let readiness = ProbeReport { has_readiness_worker: true, readiness: Some(false), ..none };
    check(&[], &[], none);
    check(&[Liveness], &[], none);
    check(&[Liveness], &[(Liveness, false)], none);
    check(&[Startup], &[], startup);
    check(&[Startup], &[(Startup, true)], ProbeReport { startup: Some(true), ..startup });
    check(&[Startup], &[(Startup, false)], startup);
    check(&[Readiness], &[], readiness);
    check(&[Readiness], &[(Readiness, false)], readiness);
    check(&[Readiness], &[(Readiness, true)], ProbeReport { readiness: Some(true), ..readiness });
    let both = ProbeReport { has_startup_worker: true, startup: Some(true), ..readiness };
    check(&[Startup, Readiness, Liveness], &[(Startup, true)], both);
}

#[test]
fn only_a_running_instance_is_asked() {
    let check = |state, expect: usize| {
        let mut bed = Bed::new(with_probes(&[(Readiness, json!({}))]));
        bed.see(vec![instance("c", 0, state, 0)]);
        assert_eq!(bed.go(true).len(), expect, "{state:?}");
    };
    check(Running, 1);
    check(Created, 0);
    check(Exited, 0);
    check(Unknown, 0);
}

#[test]
fn an_instance_that_is_lost_and_found_keeps_its_verdicts() {
    for kind in KINDS {
        let mut bed = Bed::running(with_probes(&[(kind, json!({}))]));
        bed.ask(kind, &ProbeOutcome::Success);
        bed.see(vec![instance("c", 0, Unknown, 0)]);
        bed.see(vec![running("c", 0)]);
        assert_eq!(bed.verdict(kind), Some(ProbeResult::Success), "{kind:?}");
    }
}

#[test]
fn the_record_holds_what_a_user_would_see_flip() {
    let check = |kind, answers: &str, expect: Option<bool>| {
        let mut bed = Bed::running(with_probes(&[(kind, json!({"failureThreshold": 1}))]));
        for answer in answers.chars() {
            bed.ask(kind, &if answer == '+' { ProbeOutcome::Success } else { failure() });
        }
        let record = bed.probes.record(&[].into());
        let id = ContainerId::new("c0");
        let got = record.of("c", &id).and_then(|of| of.results.get(&kind)).copied();
        assert_eq!(got, expect, "{kind:?} {answers}");
    };
    check(Readiness, "", None);
    check(Readiness, "+", Some(true));
    check(Readiness, "-", Some(false));
    check(Readiness, "+-", Some(false));
    check(Startup, "", None);
    check(Startup, "+", Some(true));
    check(Startup, "-", Some(false));
    check(Liveness, "", None);
    check(Liveness, "+", None);
    check(Liveness, "-", Some(false));
}

#[test]
fn the_record_holds_who_was_killed_to_come_back() {
    let mut bed = Bed::running(with_probes(&[(Readiness, json!({}))]));
    bed.ask(Readiness, &ProbeOutcome::Success);
    let killed =
        |id: &str| [("c".to_owned(), ContainerId::new(id)), ("d".to_owned(), ContainerId::new("d0"))];
    let record = bed.probes.record(&killed("c0").into());
    assert!(record.containers["c"].must_restart && record.containers["d"].must_restart);
    assert_eq!(record.containers["c"].results, [(Readiness, true)].into());
    // what an earlier instance was killed for says nothing of this one
    let record = bed.probes.record(&killed("c9").into());
    assert!(!record.containers["c"].must_restart);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<ProbeRecord>(&text).unwrap(), record);
}

#[test]
fn a_found_instance_goes_on_where_it_was() {
    // on hold again, or asked again
    let check = |kind, good: bool, held: bool| {
        let mut bed = Bed::new(with_probes(&[(kind, json!({}))]));
        bed.agent_started = at(50).wall;
        bed.now = at(60);
        let mut kept = ContainerProbeRecord::new(ContainerId::new("c0"));
        kept.results.insert(kind, good);
        bed.probes.remember(ProbeRecord { containers: [("c".to_owned(), kept)].into() });
        bed.see(vec![running("c", 0)]);
        assert!(bed.go(true).is_empty());
        assert_eq!(bed.wake.is_none(), held, "{kind:?} {good}");
        let again = bed.probes.record(&[].into());
        assert_eq!(again, bed.probes.stored_record, "nothing new to put on record");
    };
    check(Startup, true, true);
    check(Startup, false, true);
    check(Liveness, false, true);
    check(Readiness, true, false);
    check(Readiness, false, false);
}

#[test]
fn time_on_the_wall_that_was_set_back_does_not_put_a_probe_off() {
    let mut bed = Bed::new(with_probes(&[(Readiness, json!({"initialDelaySeconds": 5}))]));
    let mut late = running("c", 0);
    late.started_at = late.started_at.plus(Duration::from_secs(86_400));
    bed.see(vec![late]);
    bed.go(true);
    assert_eq!(bed.wake, Some(at(5).mono));
}
