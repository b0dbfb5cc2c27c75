//! What becomes of containers that end: restart policies, counts, back-off and final states.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{
    self, UNTIL_TERM, condition, container, is_running, manifest, phase, printed, restarts, said, shell,
    shell_with, standing, terminated, uid, waiting,
};
use serde_json::{Value, json};

/// Two back-offs of 10 and 20 seconds, on a busy machine.
const TWO_BACK_OFFS: Duration = Duration::from_secs(400);

fn ending(policy: &str, code: i32) -> Value {
    let container = shell("c", &format!("echo started; exit {code}"));
    json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": [container] })
}

/// Phase, restarts and the conditions' reasons of a pod that will not run again.
#[track_caller]
fn check_final(pod: &Value, phase: &str, code: i64) {
    let (reason, because) =
        if phase == "Succeeded" { ("Completed", "PodCompleted") } else { ("Error", "PodFailed") };
    assert_eq!(pods::phase(pod), phase);
    let ended = terminated(pod, "c");
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(code), &json!(reason)), "{pod}");
    let status = container(pod, "c");
    assert_eq!((&status["ready"], &status["started"]), (&json!(false), &json!(false)), "{status}");
    for kind in ["Ready", "ContainersReady"] {
        let found = condition(pod, kind);
        assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!(because)), "{found}");
    }
    assert_eq!(condition(pod, "Initialized")["status"], "True");
}

/// The message of a container that waits `seconds` for its restart.
fn back_off_message(pod: &Value, seconds: u32) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    format!("back-off {seconds}s restarting failed container=c pod={name}_default({})", uid(pod))
}

/// Looks at the pods until each had three restarts. Gives each pod as it waited for each of them, and what `why` said
/// about one of the pods then.
#[track_caller]
fn watch_back_off(node: &Node, names: &[&str]) -> (BTreeMap<(String, i64), Value>, Vec<String>) {
    let (mut waits, mut answers) = (BTreeMap::new(), Vec::new());
    wait("three restarts of each", TWO_BACK_OFFS, || {
        let mut missing = Vec::new();
        for &name in names {
            let pod = node.agent.pod(name)?;
            let count = restarts(&pod, "c");
            if waiting(&pod, "c")["reason"] == "CrashLoopBackOff" {
                let known = waits.insert((name.to_owned(), count), pod).is_some();
                if !known && name == "always-1" {
                    // While the dead instance before it is removed, the pod waits for a fresh look for a moment.
                    let told = || {
                        let answer = said(&node.agent, &["why", name]);
                        if answer.contains("CrashLoopBackOff]") { Ok(answer) } else { Err(answer) }
                    };
                    answers.push(wait("why to tell of the back-off", SLOW, told));
                }
            }
            if count < 3 || !waits.contains_key(&(name.to_owned(), 3)) {
                missing.push(format!("{name} has {count}"));
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    });
    (waits, answers)
}

/// Whole seconds since the epoch of a time in a status.
fn seconds(time: &Value) -> i64 {
    let time: jiff::Timestamp = time.as_str().unwrap_or_default().parse().expect("a time");
    time.as_second()
}

#[test]
fn restart_policies() {
    let node = Node::start();
    let mut all = Vec::new();
    for policy in ["Always", "OnFailure", "Never"] {
        for code in [0, 1] {
            let name = format!("{}-{code}", policy.to_lowercase());
            node.agent.write_manifest(&name, &manifest(&name, ending(policy, code)));
            all.push(name);
        }
    }

    let ends = |phase: &'static str| move |pod: &Value| pods::phase(pod) == phase;
    let mut finals = Vec::new();
    for (name, phase, code) in
        [("onfailure-0", "Succeeded", 0), ("never-0", "Succeeded", 0), ("never-1", "Failed", 1)]
    {
        let pod = node.wait_pod(name, SLOW, ends(phase));
        check_final(&pod, phase, code);
        assert_eq!(restarts(&pod, "c"), 0);
        finals.push((name, pod));
    }

    // The first restart comes at once, the next after 10 seconds, the one after that after 20 more.
    let looping = [("always-0", 0), ("always-1", 1), ("onfailure-1", 1)];
    let (waits, answers) = watch_back_off(&node, &looping.map(|(name, _)| name));
    for (answer, pause) in answers.iter().zip(["10s", "20s", "40s"]) {
        assert!(answer.contains("container c: ended") && answer.contains("with exit code 1"), "{answer}");
        assert!(answer.contains(&format!("started again {pause} after that [CrashLoopBackOff]")), "{answer}");
        assert!(answer.contains("next attempt in"), "{answer}");
    }
    assert_eq!(answers.len(), 3, "{answers:?}");
    for (name, code) in looping {
        let mut ended = None;
        for (count, back_off) in [(1, 10), (2, 20), (3, 40)] {
            let pod = &waits[&(name.to_owned(), count)];
            assert_eq!(waiting(pod, "c")["message"], back_off_message(pod, back_off), "{name}");
            assert_eq!(phase(pod), "Running");
            assert_eq!(condition(pod, "Ready")["reason"], "ContainersNotReady");
            let last = &container(pod, "c")["lastState"]["terminated"];
            assert_eq!(last["exitCode"], code, "{name}");
            // Never earlier than promised: half of what is waited now was waited before. Whole seconds.
            let waited = ended.map(|ended| seconds(&last["startedAt"]) - ended);
            assert!(waited.is_none_or(|waited| waited >= i64::from(back_off / 2) - 1), "{name}: {waited:?}");
            ended = Some(seconds(&last["finishedAt"]));
        }
        assert_eq!(printed(&node.agent, &waits[&(name.to_owned(), 3)], "c", 3), ["started"]);
    }
    let previous = said(&node.agent, &["logs", "always-1", "-p"]);
    assert!(previous == "started\n", "{previous}");
    assert_eq!(standing(&node.agent, "always-1"), "CrashLoopBackOff");
    // What had ended stays as it was.
    for (name, before) in finals {
        let now = node.agent.pod(name).expect("the pod");
        assert_eq!(container(&now, "c")["state"], container(&before, "c")["state"], "{name}");
        assert_eq!((phase(&now), restarts(&now, "c")), (phase(&before), 0), "{name}");
    }
    for name in all {
        node.agent.remove_manifest(&name);
    }
    node.wait_clean(SLOW);
}

#[test]
fn containers_of_one_pod_end_apart() {
    let node = Node::start();
    let once = "test -e /shared/seen && exec sleep 3600; touch /shared/seen; exit 3";
    let mount = json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] });
    let volumes = json!([{ "name": "shared", "emptyDir": {} }]);
    let pod = |policy: &str, containers: Value, more: Value| {
        let mut spec = json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": containers, "volumes": volumes });
        for (key, value) in more.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        spec
    };
    let write = |name: &str, spec: Value| node.agent.write_manifest(name, &manifest(name, spec));
    // One fails once, and its neighbour never notices.
    write(
        "recovers",
        pod("OnFailure", json!([shell_with("c", once, mount.clone()), shell("calm", UNTIL_TERM)]), json!({})),
    );
    // One failed for good, the other runs on.
    write("half", pod("Never", json!([shell("c", "exit 1"), shell("calm", UNTIL_TERM)]), json!({})));
    // The worst end counts.
    write("mixed", pod("Never", json!([shell("c", "exit 7"), shell("fine", "exit 0")]), json!({})));
    // Initialisation that failed for good ends the pod before it began.
    let init = json!({ "initContainers": [shell("first", "exit 0"), shell("bad", "exit 5"), shell("unreached", "exit 0")] });
    write("init-never", pod("Never", json!([shell("c", UNTIL_TERM)]), init));
    let init = json!({ "initContainers": [shell_with("once", "test -e /shared/seen && exit 0; touch /shared/seen; exit 3", mount)] });
    write("init-again", pod("Always", json!([shell("c", UNTIL_TERM)]), init));

    let recovered = node.wait_pod("recovers", SLOW, |pod| is_running(pod) && restarts(pod, "c") == 1);
    assert_eq!(container(&recovered, "c")["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(restarts(&recovered, "calm"), 0);

    let half = node.wait_pod("half", SLOW, |pod| {
        !terminated(pod, "c").is_null() && !container(pod, "calm")["state"]["running"].is_null()
    });
    assert_eq!(phase(&half), "Running");
    assert_eq!(condition(&half, "Ready")["message"], "containers with unready status: [c]");

    let mixed = node.wait_pod("mixed", SLOW, |pod| phase(pod) == "Failed");
    assert_eq!(terminated(&mixed, "c")["exitCode"], 7);
    assert_eq!(terminated(&mixed, "fine")["exitCode"], 0);

    let failed = node.wait_pod("init-never", SLOW, |pod| phase(pod) == "Failed");
    assert_eq!(terminated(&failed, "first")["exitCode"], 0);
    assert_eq!(terminated(&failed, "bad")["exitCode"], 5);
    assert_eq!(waiting(&failed, "unreached")["reason"], "PodInitializing");
    assert_eq!(waiting(&failed, "c")["reason"], "PodInitializing");
    assert_eq!(
        condition(&failed, "Initialized")["message"],
        "containers with incomplete status: [bad unreached]"
    );

    let again = node.wait_pod("init-again", SLOW, is_running);
    assert_eq!((restarts(&again, "once"), restarts(&again, "c")), (1, 0));
    assert_eq!(terminated(&again, "once")["exitCode"], 0);

    for name in ["recovers", "half", "mixed", "init-never", "init-again"] {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

/// Somebody kills a container behind the agent's back.
#[test]
fn a_killed_container_and_a_killed_sandbox_come_back() {
    let node = Node::start();
    node.agent.write_manifest("killed", &pods::simple("killed"));
    let first = node.wait_pod("killed", SLOW, is_running);
    let id = pods::container_id(&first, "c");
    node.runtime.ctr(&["tasks", "kill", "--signal", "SIGKILL", &id]);
    let second = node.wait_pod("killed", SLOW, |pod| is_running(pod) && restarts(pod, "c") == 1);
    let last = &container(&second, "c")["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(137), &json!("Error")));

    let sandbox = wait("the sandbox's task", SLOW, || {
        let others: Vec<_> = node
            .runtime
            .tasks()
            .into_iter()
            .filter(|task| task.id != pods::container_id(&second, "c"))
            .collect();
        match &others[..] {
            [sandbox] => Ok(sandbox.id.clone()),
            others => Err(format!("{others:?}")),
        }
    });
    node.runtime.ctr(&["tasks", "kill", "--signal", "SIGKILL", &sandbox]);
    let third = node.wait_pod("killed", SLOW, |pod| is_running(pod) && restarts(pod, "c") == 2);
    assert_eq!(uid(&third), uid(&first));
    node.agent.remove_manifest("killed");
    node.wait_clean(SLOW);
}
