//! K7: there is nothing to do for a pod that is as it should be.

use super::Scene;
use super::words::show_stages;

#[test]
fn a_converged_pod_has_an_empty_plan() {
    for (pod, reading) in [
        ("", "s0 ready; c#0 running"),
        ("", "s2 ready; c#9 running"),
        ("", "s0 ready; c#0 exit(1); c#1 running"),
        ("", "s0 dead; s1 ready; c#0 exit(1) @s0; c#1 running"),
        ("run c d e", "s0 ready; c#0 running; d#4 running; e#0 running"),
        ("restart OnFailure; run c d", "s0 ready; c#0 exit(0); d#0 running"),
        ("restart Never; run c d", "s0 ready; c#0 exit(1); d#0 running"),
        ("init i j", "s0 ready; i#0 exit(0); j#0 exit(0); c#0 running"),
        ("init i j", "s0 ready; c#0 running"),
        ("init s* i", "s0 ready; s#1 running; i#0 exit(0); c#0 running"),
        ("spec: {hostNetwork: true}", "s0 ready host no-ip; c#0 running"),
        ("", "s0 ready; c#0 running hash=none"),
        ("c: {restartPolicy: Never}; run c d", "s0 ready; c#0 running; d#0 running"),
    ] {
        for prepared in [true, false] {
            let plan = Scene::new(pod, reading)
                .with(|s| {
                    s.entry.ledger.prerequisites_ready = prepared;
                    s.entry.ledger.image_states.clear();
                })
                .plan();
            assert_eq!(show_stages(&plan.stages), "-", "{pod} | {reading}");
            assert_eq!((plan.wake_at, plan.notes.len()), (None, 0), "{pod} | {reading}");
            assert_eq!(plan.why.len().max(1), plan.why.len(), "it can always be asked why");
        }
    }
}
