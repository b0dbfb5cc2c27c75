//! Who starts, stops and comes back when: judged by the stamps that the containers set themselves.

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{self, is_ready, is_running, phase, restarts, terminated, waiting};
use crate::support::timestamps::{Timestamps, container, deaf, exec, now, sidecar, stays, until};
use serde_json::{Value, json};

fn runs(pod: &Value, name: &str) -> bool {
    pods::container(pod, name)["state"]["running"].is_object()
}

/// Takes the manifests away and waits until nothing is left. Gives the time of the request.
#[track_caller]
fn clear(node: &Node, names: &[&str]) -> f64 {
    let asked = now();
    for name in names {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
    asked
}

/// Comes up, works for a moment and ends well.
fn brief(name: &str) -> Value {
    container(name, &format!("stamp {name}-up; sleep 0.3; stamp {name}-down"), json!({}))
}

#[test]
fn init_containers_and_sidecars_take_their_turns() {
    const GRACE: u32 = 30;
    let node = Node::start();
    let stamps = Timestamps::new(&node, "turns");
    // A sidecar counts once its startup probe said yes, and once its hook has returned.
    let probe = json!({ "exec": { "command": ["test", "-e", "/stamps/s1-is-ready"] }, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 100 });
    let slow_start =
        stays("s1").replace("sleep 3600", "sleep 1.5; stamp s1-ready; touch /stamps/s1-is-ready; sleep 3600");
    let hook = json!({ "postStart": exec("stamp s2-post-begin; sleep 1; stamp s2-post-end") });
    let spec = json!({
        "terminationGracePeriodSeconds": GRACE,
        "initContainers": [
            brief("i1"),
            sidecar("s1", &slow_start, json!({ "startupProbe": probe })),
            brief("i2"),
            sidecar("s2", &stays("s2"), json!({ "lifecycle": hook })),
            brief("i3"),
        ],
        "containers": [container("c1", &stays("c1"), json!({})), container("c2", &stays("c2"), json!({}))],
    });
    node.agent.write_manifest("turns", &stamps.pod("turns", spec));
    let pod = node.wait_pod("turns", SLOW, is_running);
    stamps.wait_for("c1-up");
    stamps.wait_for("c2-up");
    for regular in ["c1-up", "c2-up"] {
        stamps.check_order(&[
            "i1-up",
            "i1-down",
            "s1-up",
            "s1-ready",
            "i2-up",
            "i2-down",
            "s2-up",
            "s2-post-end",
            "i3-up",
            "i3-down",
            regular,
        ]);
    }
    stamps.check_order(&["s2-post-begin", "s2-post-end"]);
    for name in ["i1", "s1", "i2", "s2", "i3", "c1", "c2"] {
        assert_eq!(
            (stamps.count(&format!("{name}-up")), restarts(&pod, name)),
            (1, 0),
            "{name}: {:?}",
            stamps.words()
        );
    }

    let asked = clear(&node, &["turns"]);
    for regular in ["c1", "c2"] {
        let (told, gone) = (format!("{regular}-term"), format!("{regular}-down"));
        stamps.check_order(&[&told, &gone, "s2-term", "s2-down", "s1-term", "s1-down"]);
    }
    let took = stamps.first("s1-down") - asked;
    assert!(took < f64::from(GRACE), "the last one ended {took} seconds after the request");
}

/// Ends with each code in turn, and stays when there is none left. Timestamps `<name>-<run>`.
fn ends_with(name: &str, codes: &[i32], more: Value) -> Value {
    let mut script = format!(
        "run=$(grep -c ' {name}-run' /stamps/log 2>/dev/null); stamp {name}-run\ncase ${{run:-0}} in\n"
    );
    for (run, code) in codes.iter().enumerate() {
        script.push_str(&format!("{run}) exit {code};;\n"));
    }
    script.push_str("esac\ntrap 'exit 0' TERM; sleep 3600 & wait");
    container(name, &script, more)
}

/// What a container ends with, run by run, and whether it is started once more after that.
struct Endings {
    name: &'static str,
    codes: &'static [i32],
    fields: Value,
    comes_back: bool,
}

impl Endings {
    fn runs(&self) -> usize {
        self.codes.len() + usize::from(self.comes_back)
    }

    fn are_over(&self, pod: &Value) -> bool {
        let there = match self.comes_back {
            true => runs(pod, self.name),
            false => terminated(pod, self.name)["exitCode"] == *self.codes.last().expect("a code"),
        };
        there && restarts(pod, self.name) == self.runs() as i64 - 1
    }
}

/// A container's own policy and its rules win over the pod's policy, for each of the three.
#[test]
fn a_containers_own_policy_and_rules_decide_whether_it_comes_back() {
    let node = Node::start();
    let rule = |operator: &str, code: i32| {
        json!({ "restartPolicy": "Never", "restartPolicyRules": [
            { "action": "Restart", "exitCodes": { "operator": operator, "values": [code] } },
        ] })
    };
    let own = |policy: &str| json!({ "restartPolicy": policy });
    let cases = [
        Endings { name: "always", codes: &[0], fields: own("Always"), comes_back: true },
        Endings { name: "onfailure-good", codes: &[0], fields: own("OnFailure"), comes_back: false },
        Endings { name: "onfailure-bad", codes: &[4, 0], fields: own("OnFailure"), comes_back: false },
        Endings { name: "never", codes: &[3], fields: own("Never"), comes_back: false },
        Endings { name: "rule-in", codes: &[42, 7], fields: rule("In", 42), comes_back: false },
        Endings { name: "rule-misses", codes: &[3], fields: rule("In", 42), comes_back: false },
        Endings { name: "rule-notin", codes: &[5, 0], fields: rule("NotIn", 0), comes_back: false },
    ];
    let policies = ["Always", "OnFailure", "Never"];
    let all: Vec<Timestamps> = policies.iter().map(|policy| Timestamps::new(&node, policy)).collect();
    for (policy, stamps) in policies.iter().zip(&all) {
        let name = policy.to_lowercase();
        let ending = |case: &Endings| ends_with(case.name, case.codes, case.fields.clone());
        let containers: Vec<Value> = cases.iter().map(ending).collect();
        let spec =
            json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": containers });
        node.agent.write_manifest(&name, &stamps.pod(&name, spec));
    }
    for (policy, stamps) in policies.iter().zip(&all) {
        let settled = |pod: &Value| cases.iter().all(|case| case.are_over(pod));
        let pod = node.wait_pod(&policy.to_lowercase(), SLOW, settled);
        assert_eq!(phase(&pod), "Running", "one of them runs on");
        for case in &cases {
            stamps.wait_count(&format!("{}-run", case.name), case.runs());
        }
    }
    clear(&node, &["always", "onfailure", "never"]);
    for (policy, stamps) in policies.iter().zip(&all) {
        for case in &cases {
            let counted = stamps.count(&format!("{}-run", case.name));
            assert_eq!(counted, case.runs(), "{policy}: {}: {:?}", case.name, stamps.words());
        }
    }
}

/// Init containers have policies of their own as well: one that may not fail fails a pod that would go on for ever, and
/// one that may is tried again in a pod that never tries.
#[test]
fn an_init_containers_own_policy_decides_over_the_pod() {
    let node = Node::start();
    let (strict, patient) = (Timestamps::new(&node, "strict"), Timestamps::new(&node, "patient"));
    let spec = |pod: &str, own: &str, codes: &[i32]| {
        json!({
            "restartPolicy": pod, "terminationGracePeriodSeconds": 2,
            "initContainers": [ends_with("init", codes, json!({ "restartPolicy": own })), brief("next")],
            "containers": [container("c", &stays("c"), json!({}))],
        })
    };
    node.agent.write_manifest("strict", &strict.pod("strict", spec("Always", "Never", &[3])));
    node.agent.write_manifest("patient", &patient.pod("patient", spec("Never", "OnFailure", &[5, 0])));
    let pod = node.wait_pod("strict", SLOW, |pod| phase(pod) == "Failed");
    assert_eq!((&terminated(&pod, "init")["exitCode"], restarts(&pod, "init")), (&json!(3), 0));
    let pod = node.wait_pod("patient", SLOW, is_running);
    assert_eq!(restarts(&pod, "init"), 1);
    patient.wait_for("c-up");
    clear(&node, &["strict", "patient"]);
    assert_eq!(strict.words(), ["init-run"]);
    patient.check_order(&["init-run", "init-run", "next-up", "next-down", "c-up"]);
    assert_eq!(patient.count("init-run"), 2);
}

/// Fails at first, then stays; its end is never a good one.
fn failing_sidecar(name: &str) -> Value {
    let script = format!(
        "stamp {name}-run; test -e /stamps/{name}-failed || {{ touch /stamps/{name}-failed; exit 1; }}
        trap 'stamp {name}-down; exit 9' TERM; sleep 3600 & wait"
    );
    sidecar(name, &script, json!({}))
}

#[test]
fn a_sidecar_that_fails_comes_back_and_stops_nobody() {
    let node = Node::start();
    let work =
        |name: &str| container(name, &format!("stamp work-up; {}; stamp work-down", until("go")), json!({}));
    let policies = ["Always", "OnFailure", "Never"];
    let all: Vec<Timestamps> = policies.iter().map(|policy| Timestamps::new(&node, policy)).collect();
    for (policy, stamps) in policies.iter().zip(&all) {
        let name = policy.to_lowercase();
        let works =
            if *policy == "Always" { container("work", &stays("work"), json!({})) } else { work("work") };
        // One comes back once. The other never stays up, and waits out its back-off when the work is done.
        // Nobody starts behind a sidecar that was never seen running, so its first run stays until the work has begun.
        let script = "stamp hopeless-run; until grep -q work-up /stamps/log; do sleep 0.05; done; exit 3";
        let hopeless = sidecar("hopeless", script, json!({}));
        let spec = json!({
            "restartPolicy": policy, "terminationGracePeriodSeconds": 10,
            "initContainers": [failing_sidecar("side"), hopeless], "containers": [works],
        });
        node.agent.write_manifest(&name, &stamps.pod(&name, spec));
    }
    for (policy, stamps) in policies.iter().zip(&all) {
        stamps.wait_for("work-up");
        let pod = node.wait_pod(&policy.to_lowercase(), SLOW, |pod| {
            runs(pod, "side")
                && restarts(pod, "side") == 1
                && waiting(pod, "hopeless")["reason"] == "CrashLoopBackOff"
        });
        assert_eq!((phase(&pod), restarts(&pod, "work")), ("Running", 0), "{policy}");
        assert_eq!(
            (stamps.count("work-up"), stamps.count("side-run")),
            (1, 2),
            "{policy}: {:?}",
            stamps.words()
        );
        stamps.put("go");
    }
    for (policy, stamps) in policies.iter().zip(&all).skip(1) {
        let pod = node.wait_pod(&policy.to_lowercase(), SLOW, |pod| phase(pod) == "Succeeded");
        stamps.check_order(&["work-down", "side-down"]);
        assert_eq!(terminated(&pod, "side")["exitCode"], 9, "what sidecars end with does not count: {pod}");
        assert_eq!(stamps.count("work-up"), 1, "{policy}");
    }
    clear(&node, &["always", "onfailure", "never"]);
    for stamps in &all {
        stamps.check_order(&["work-up", "work-down", "side-down"]);
        assert_eq!((stamps.count("work-up"), stamps.count("side-run")), (1, 2), "{:?}", stamps.words());
    }
}

#[test]
fn nothing_but_its_start_is_asked_of_a_container_that_starts_slowly() {
    /// Of readiness: so long that no turn of it comes up in this test.
    const PERIOD: u32 = 60;
    let node = Node::start();
    let stamps = Timestamps::new(&node, "slow");
    let probe = |script: &str, period: u32| {
        let mut probe = exec(script);
        probe["periodSeconds"] = json!(period);
        probe["timeoutSeconds"] = json!(10);
        probe
    };
    let mut startup = probe("stamp asked-start; test -e /stamps/started", 1);
    startup["failureThreshold"] = json!(100);
    let probes = json!({
        "startupProbe": startup,
        "livenessProbe": probe("stamp asked-live", 1),
        "readinessProbe": probe("stamp asked-ready", PERIOD),
    });
    let script = format!(
        "stamp c-up; {}; sleep 3; stamp c-started; touch /stamps/started; trap 'exit 0' TERM; sleep 3600 & wait",
        until("go")
    );
    let spec = json!({ "terminationGracePeriodSeconds": 2, "containers": [container("c", &script, probes)] });
    node.agent.write_manifest("slow", &stamps.pod("slow", spec));
    // Liveness would have had its turn by then.
    stamps.wait_count("asked-start", 3);
    let pod = node.agent.pod("slow").expect("the pod");
    let status = pods::container(&pod, "c");
    assert_eq!((&status["started"], &status["ready"], is_ready(&pod)), (&json!(false), &json!(false), false));
    stamps.put("go");
    let pod = node.wait_pod("slow", SLOW, is_ready);
    assert_eq!(pods::container(&pod, "c")["started"], true);
    stamps.wait_count("asked-live", 2);
    stamps.check_order(&[
        "c-up",
        "asked-start",
        "asked-start",
        "asked-start",
        "c-started",
        "asked-start",
        "asked-ready",
    ]);
    stamps.check_order(&["c-started", "asked-live"]);
    let words = stamps.words();
    let started = words.iter().position(|word| word == "c-started").expect("it started");
    let early =
        words[..started].iter().filter(|word| *word == "asked-live" || *word == "asked-ready").count();
    assert_eq!(early, 0, "{words:?}");
    let waited = stamps.first("asked-ready") - stamps.first("c-started");
    assert!(waited < f64::from(PERIOD) / 2.0, "readiness was asked {waited} seconds after the start");
    assert_eq!((restarts(&pod, "c"), stamps.count("c-up")), (0, 1));
    clear(&node, &["slow"]);
}

#[test]
fn a_hook_that_outlasts_the_grace_is_cut_off_and_the_container_has_a_moment_left() {
    const GRACE: u32 = 4;
    const HOOK: u32 = 600;
    let node = Node::start();
    let stamps = Timestamps::new(&node, "hook");
    let hook = json!({ "preStop": exec(&format!("stamp pre-begin; sleep {HOOK}; stamp pre-end")) });
    let spec = json!({
        "terminationGracePeriodSeconds": GRACE,
        "containers": [container("c", &deaf("c"), json!({ "lifecycle": hook }))],
    });
    node.agent.write_manifest("hook", &stamps.pod("hook", spec));
    node.wait_pod("hook", SLOW, is_running);
    stamps.wait_for("c-up");
    let asked = clear(&node, &["hook"]);
    stamps.check_order(&["pre-begin", "c-term", "c-alive"]);
    assert_eq!((stamps.count("pre-begin"), stamps.count("pre-end")), (1, 0), "{:?}", stamps.words());
    let told = stamps.first("c-term") - asked;
    assert!(told >= f64::from(GRACE), "the hook had {told} seconds of the grace");
    // The minimum is two seconds; it stamps ten times in each.
    let left = stamps.last("c-alive") - stamps.first("c-term");
    assert!(left >= 1.5, "it had {left} seconds left after the hook");
    let lived = stamps.last("c-alive") - asked;
    assert!(lived < f64::from(HOOK) / 4.0, "it lived on for {lived} seconds");
}

#[test]
fn hooks_of_sidecars_that_do_not_end_are_cut_off_together() {
    const GRACE: u32 = 4;
    let node = Node::start();
    let stamps = Timestamps::new(&node, "together");
    let names = ["s1", "s2", "s3"];
    let endless = |name: &str| {
        let hook = exec(&format!("while :; do stamp {name}-hook; sleep 0.1; done"));
        sidecar(name, &deaf(name), json!({ "lifecycle": { "preStop": hook } }))
    };
    let spec = json!({
        "terminationGracePeriodSeconds": GRACE,
        "initContainers": names.map(endless),
        "containers": [container("c", &stays("c"), json!({}))],
    });
    node.agent.write_manifest("together", &stamps.pod("together", spec));
    node.wait_pod("together", SLOW, is_running);
    stamps.wait_for("c-up");
    let asked = clear(&node, &["together"]);
    let ends = names.map(|name| stamps.last(&format!("{name}-hook")));
    let first = ends.into_iter().fold(f64::INFINITY, f64::min);
    let last = ends.into_iter().fold(0.0, f64::max);
    assert!(first - asked >= f64::from(GRACE), "they had {} seconds", first - asked);
    // One after the other each of them would have its own two seconds.
    assert!(last - first < 1.9, "the hooks ended {ends:?}");
}

// ---- another image, in every phase ------------------------------------------------------------------------------

/// Notes its name and the last digit of its image.
fn imaged(name: &str, image: u32, script: &str) -> Value {
    let note = format!("image=$(sed 's/.*://' /etc/rubelet-image); stamp {name}-$image\n{script}");
    container(name, &note, json!({ "image": format!("rubelet.test/busybox:{image}") }))
}

const STAYS: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

struct Scene<'a> {
    node: &'a Node,
    name: &'static str,
    stamps: Timestamps,
}

impl Scene<'_> {
    fn write(&self, spec: &Value, metadata: &Value) {
        let mut spec = spec.clone();
        spec["terminationGracePeriodSeconds"] = json!(20);
        let pod = self.stamps.pod_with_uid(self.name, spec, metadata.clone());
        self.node.agent.write_manifest(self.name, &pod);
    }

    fn show(&self, spec: Value) {
        self.write(&spec, &json!({}));
    }

    #[track_caller]
    fn check(&self, expect: &[&str]) {
        assert_eq!(self.stamps.words(), expect, "{}", self.name);
    }
}

#[track_caller]
fn scene<'a>(node: &'a Node, name: &'static str) -> Scene<'a> {
    Scene { node, name, stamps: Timestamps::new(node, name) }
}

#[test]
fn another_image_before_the_containers_run() {
    let node = Node::start();
    let waits = |number: u32| format!("{}; stamp init{number}-done", until(&format!("go{number}")));
    let spec = |first: u32, second: u32, regular: u32| {
        json!({
            "initContainers": [imaged("init1", first, &waits(1)), imaged("init2", second, &waits(2))],
            "containers": [imaged("c", regular, STAYS)],
        })
    };
    let scene = scene(&node, "init");
    scene.show(spec(1, 1, 1));
    scene.stamps.wait_for("init1-1");
    // One that waits for its turn takes the new image; one that runs ends with the one it has.
    scene.show(spec(2, 1, 2));
    node.wait_pod("init", SLOW, |pod| pod["spec"]["containers"][0]["image"] == "rubelet.test/busybox:2");
    scene.stamps.put("go1");
    scene.stamps.wait_for("init2-1");
    // One that has ended well does not run again.
    scene.show(spec(1, 1, 2));
    node.wait_pod("init", SLOW, |pod| pod["spec"]["initContainers"][0]["image"] == "rubelet.test/busybox:1");
    scene.stamps.put("go2");
    let pod = node.wait_pod("init", SLOW, is_running);
    scene.stamps.wait_for("c-2");
    // Nor while the others run.
    scene.show(spec(2, 2, 2));
    let after = node
        .wait_pod("init", SLOW, |pod| pod["spec"]["initContainers"][1]["image"] == "rubelet.test/busybox:2");
    assert_eq!(pods::container_id(&pod, "c"), pods::container_id(&after, "c"));
    clear(&node, &["init"]);
    scene.check(&["init1-1", "init1-done", "init2-1", "init2-done", "c-2"]);
    for name in ["init1", "init2", "c"] {
        assert_eq!(restarts(&after, name), 0, "{name}");
    }
}

#[test]
fn another_image_while_containers_run_wait_or_go() {
    let node = Node::start();
    // A sidecar and its neighbours; a hook that tells of its end.
    let running = scene(&node, "running");
    let spec = |side: u32, regular: u32| {
        let mut side = imaged("side", side, STAYS);
        side["restartPolicy"] = json!("Always");
        let mut c = imaged("c", regular, STAYS);
        c["lifecycle"] = json!({ "preStop": exec("stamp c-pre") });
        json!({ "initContainers": [side], "containers": [c, imaged("other", 1, STAYS)] })
    };
    // In its back-off; with the other image it stays up.
    let crashing = scene(&node, "crashing");
    let crashes = |image: u32| json!({ "containers": [imaged("c", image, &format!("test $image = 2 || exit 1; {STAYS}"))] });
    // Over, and not to be run again whatever its image.
    let over = scene(&node, "over");
    let ends = |image: u32| json!({ "restartPolicy": "Never", "containers": [imaged("c", image, "exit 0"), imaged("other", 1, STAYS)] });
    // On its way out.
    let going = scene(&node, "going");
    let goes = |image: u32| json!({ "containers": [imaged("c", image, &format!("trap 'stamp c-term; {}; exit 0' TERM; sleep 3600 & wait; wait", until("go")))] });
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 60 });

    running.show(spec(1, 1));
    crashing.show(crashes(1));
    over.show(ends(1));
    going.show(goes(1));
    let before = node.wait_pod("running", SLOW, |pod| is_running(pod) && runs(pod, "side"));
    for word in ["side-1", "c-1", "other-1"] {
        running.stamps.wait_for(word);
    }
    running.show(spec(1, 2));
    running.stamps.wait_for("c-2");
    running.show(spec(2, 2));
    running.stamps.wait_for("side-2");
    let after = node.wait_pod("running", SLOW, |pod| is_running(pod) && restarts(pod, "side") == 1);
    assert_eq!((restarts(&after, "c"), restarts(&after, "other")), (1, 0));
    assert_eq!(pods::container_id(&before, "other"), pods::container_id(&after, "other"));
    assert_eq!(running.stamps.words()[3..], ["c-pre", "c-2", "side-2"]);

    node.wait_pod("crashing", SLOW, |pod| {
        waiting(pod, "c")["reason"] == "CrashLoopBackOff" && restarts(pod, "c") >= 1
    });
    let tries = crashing.stamps.count("c-1");
    crashing.show(crashes(2));
    crashing.stamps.wait_for("c-2");
    // The back-off was the other image's.
    let waited = crashing.stamps.first("c-2") - crashing.stamps.last("c-1");
    assert!(waited < 10.0 * f64::from(1 << (tries - 2)), "{waited} seconds after try {tries}");
    let pod = node.wait_pod("crashing", SLOW, is_running);
    assert_eq!((restarts(&pod, "c"), crashing.stamps.count("c-1")), (tries as i64, tries));

    node.wait_pod("over", SLOW, |pod| terminated(pod, "c")["exitCode"] == 0 && runs(pod, "other"));
    over.show(ends(2));
    let pod =
        node.wait_pod("over", SLOW, |pod| pod["spec"]["containers"][0]["image"] == "rubelet.test/busybox:2");
    assert_eq!((restarts(&pod, "c"), phase(&pod)), (0, "Running"));

    going.stamps.wait_for("c-1");
    going.write(&goes(1), &deleted);
    going.stamps.wait_for("c-term");
    going.write(&goes(2), &deleted);
    node.wait_pod("going", SLOW, |pod| pod["spec"]["containers"][0]["image"] == "rubelet.test/busybox:2");
    going.stamps.put("go");
    wait("the containers to go", SLOW, || match node.agent.pod("going") {
        Ok(pod) if runs(&pod, "c") => Err("it runs".to_owned()),
        _ => Ok(()),
    });
    clear(&node, &["running", "crashing", "over", "going"]);
    going.check(&["c-1", "c-term"]);
    let mut over = over.stamps.words();
    over.sort();
    assert_eq!(over, ["c-1", "other-1"]);
    assert_eq!(
        (running.stamps.count("c-1"), running.stamps.count("side-1"), running.stamps.count("other-1")),
        (1, 1, 1)
    );
}
