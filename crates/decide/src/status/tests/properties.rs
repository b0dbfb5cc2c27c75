use std::collections::BTreeMap;

use model::Reason;
use model::k8s;
use model::observed::{ContainerState, ObservedPod};
use model::pod::{PodView, Source};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::restart;
use crate::status::sample::{Scene, at, deleting, instance, observed, sandbox, view};
use crate::status::{ProbeReport, accept, derive};
use model::PodPhase;

const NAMES: [&str; 5] = ["i", "s", "c", "d", "e"];

fn any_pod() -> impl Strategy<Value = PodView> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let rule = prop::sample::select(vec!["", "Restart", "RestartAllContainers"]);
    let deadline = prop::option::of(10u32..200);
    (policy, rule, deadline, any::<bool>(), any::<bool>()).prop_map(
        |(policy, rule, deadline, host_network, is_static)| {
            let mut ruled = json!({"name": "d", "readinessProbe": {}});
            if !rule.is_empty() {
                let codes = json!({"operator": "In", "values": [2]});
                ruled["restartPolicy"] = json!("Never");
                ruled["restartPolicyRules"] = json!([{"action": rule, "exitCodes": codes}]);
            }
            let spec = json!({
                "restartPolicy": policy, "hostNetwork": host_network, "activeDeadlineSeconds": deadline,
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always", "startupProbe": {}}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "1Mi"}}}, ruled],
                "ephemeralContainers": [{"name": "e"}],
            });
            let source = if is_static { Source::File } else { Source::Api };
            view(json!({"generation": 1}), spec, Value::Null, source)
        },
    )
}

fn any_state() -> impl Strategy<Value = ContainerState> {
    use ContainerState::*;
    prop::sample::select(vec![Created, Running, Running, Exited, Exited, Unknown])
}

fn any_observed() -> impl Strategy<Value = ObservedPod> {
    let instances = prop::collection::vec((0usize..NAMES.len(), 0u32..4, any_state(), 0i32..3), 0..8);
    let sandboxes = prop::collection::vec(any::<bool>(), 0..3);
    (instances, sandboxes).prop_map(|(instances, sandboxes)| {
        let mut unique = BTreeMap::new();
        for (name, attempt, state, exit) in instances {
            let exit = if state == ContainerState::Exited { exit } else { 0 };
            unique.insert((name, attempt), instance(NAMES[name], attempt, state, exit));
        }
        let mut observed = observed(unique.into_values().collect());
        observed.sandboxes = (0..)
            .zip(sandboxes)
            .map(|(attempt, ready)| sandbox(&format!("s{attempt}"), attempt, ready))
            .collect();
        observed.sort();
        observed
    })
}

/// What happens to a pod between two statuses.
#[derive(Clone, Debug)]
struct Turn {
    observed: ObservedPod,
    failed: Vec<usize>,
    probes: Vec<(usize, Option<bool>, Option<bool>)>,
    deleting: bool,
    terminal: bool,
    seconds: u64,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let names = 0usize..NAMES.len();
    let results = prop::option::of(any::<bool>());
    (
        any_observed(),
        prop::collection::vec(names.clone(), 0..2),
        prop::collection::vec((names, results.clone(), results), 0..3),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        0u64..60,
    )
        .prop_map(|(observed, failed, probes, deleting, terminal, seconds)| Turn {
            observed,
            failed,
            probes,
            deleting,
            terminal,
            seconds,
        })
}

impl Turn {
    fn apply(&self, scene: &mut Scene, clock: &mut u64) {
        *clock += self.seconds;
        scene.now = at(*clock);
        scene.observed = self.observed.clone();
        scene.failures.clear();
        for name in &self.failed {
            scene.fail(NAMES[*name], Reason::CrashLoopBackOff, "m");
        }
        scene.probes = self
            .probes
            .iter()
            .map(|(name, startup, readiness)| {
                let report = ProbeReport {
                    startup: *startup,
                    readiness: *readiness,
                    has_startup_worker: true,
                    has_readiness_worker: true,
                };
                (NAMES[*name].to_owned(), report)
            })
            .collect();
        if self.deleting {
            scene.pod = deleting(&scene.pod);
        }
        scene.terminal |= self.terminal;
    }
}

fn counts(status: &k8s::PodStatus) -> BTreeMap<String, i32> {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.map(|container| (container.name.clone(), container.restart_count)).collect()
}

fn terminal_phase(status: &k8s::PodStatus) -> Option<PodPhase> {
    PodPhase::of(status).filter(|phase| phase.is_terminal())
}

/// A status is long: a failure shows where two of them part.
fn first_difference(a: &k8s::PodStatus, b: &k8s::PodStatus) -> Option<String> {
    fn part(a: &Value, b: &Value, path: &str) -> Option<String> {
        match (a, b) {
            _ if a == b => None,
            (Value::Object(x), Value::Object(y)) => x
                .keys()
                .chain(y.keys())
                .find_map(|key| part(&a[key.as_str()], &b[key.as_str()], &format!("{path}/{key}"))),
            (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
                x.iter().zip(y).enumerate().find_map(|(at, (x, y))| part(x, y, &format!("{path}/{at}")))
            }
            _ => Some(format!("{path}: {a} became {b}")),
        }
    }
    part(&serde_json::to_value(a).unwrap(), &serde_json::to_value(b).unwrap(), "")
        .or_else(|| Some("only in what JSON does not show".to_owned()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn statuses_over_a_life(pod in any_pod(), turns in prop::collection::vec(any_turn(), 1..7)) {
        let mut scene = Scene::new(pod, observed(vec![]));
        let mut clock = 0;
        for turn in turns {
            turn.apply(&mut scene, &mut clock);
            let derived = derive(&scene.inputs());
            prop_assert_eq!(&derived, &derive(&scene.inputs()), "the same from the same");
            if let Some(old) = &scene.old {
                if let Some(phase) = terminal_phase(old) {
                    prop_assert_eq!(terminal_phase(&derived), Some(phase), "a terminal phase is final");
                    prop_assert_eq!(&derived.reason, &old.reason);
                }
                let now = counts(&derived);
                for (name, before) in counts(old) {
                    prop_assert!(now[&name] >= before, "{} went from {} to {}", name, before, now[&name]);
                }
            }
            if let Some(accepted) = accept(&scene.pod, scene.old.as_ref(), derived, scene.now) {
                // an end in the middle of a restart of all takes one status more: it also ends the restart
                let cut_short = restart::may_restart_all_containers(&scene.pod) && terminal_phase(&accepted).is_some();
                scene.old = Some(accepted);
                if cut_short {
                    scene.advance();
                }
                let again = derive(&scene.inputs());
                let changed = accept(&scene.pod, scene.old.as_ref(), again, scene.now)
                    .and_then(|second| first_difference(scene.old.as_ref()?, &second));
                prop_assert_eq!(changed, None, "nothing happened, so there is nothing to say");
            }
        }
    }

    #[test]
    fn a_finished_pod_has_no_open_end(pod in any_pod(), turn in any_turn()) {
        let mut scene = Scene::new(pod, observed(vec![]));
        turn.apply(&mut scene, &mut 0);
        let last = crate::status::finish_status(&scene.pod, scene.derive());
        let over = terminal_phase(&last).is_some();
        prop_assert!(over || scene.pod.source.is_static());
        prop_assert_eq!(&crate::status::finish_status(&scene.pod, last.clone()), &last, "finishing twice is finishing once");
    }
}
