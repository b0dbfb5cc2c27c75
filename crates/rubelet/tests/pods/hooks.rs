//! Hooks, sidecars, deadlines and redefinitions: what containers wrote themselves tells the order.

use std::path::{Path, PathBuf};

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{container, manifest, phase, restarts};
use serde_json::{Value, json};

/// A directory of the test that containers see as `/d`: each appends its words to the file `log` there.
struct RunLog(PathBuf);

impl RunLog {
    fn new(node: &Node, name: &str) -> Self {
        let dir = node.agent.root_dir().with_file_name(format!("diary-{name}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        RunLog(dir)
    }
    fn volume(&self) -> Value {
        json!({"name": "d", "hostPath": {"path": self.0, "type": "Directory"}})
    }
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
    /// In this order, with anything in between.
    #[track_caller]
    fn check_order(&self, expect: &[&str]) {
        let lines = self.lines();
        let mut rest = lines.iter();
        for word in expect {
            assert!(rest.any(|line| line == word), "{word:?} is missing or out of order in {lines:?}");
        }
    }
}

fn say(word: &str) -> String {
    format!("echo {word} >> /d/log")
}

/// Says `<name>-up`, and `<name>-down` when it is told to stop.
fn speaker(name: &str) -> Value {
    let script = format!(
        "trap '{}; exit 0' TERM; {}; while true; do sleep 0.1; done",
        say(&format!("{name}-down")),
        say(&format!("{name}-up"))
    );
    json!({
        "name": name,
        "image": "rubelet.test/busybox:1",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "d", "mountPath": "/d"}],
    })
}

fn with(mut container: Value, key: &str, value: Value) -> Value {
    container[key] = value;
    container
}

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}})
}

fn spec(diary: &RunLog, grace: i64, containers: Vec<Value>) -> Value {
    json!({"terminationGracePeriodSeconds": grace, "volumes": [diary.volume()], "containers": containers})
}

fn runs(pod: &Value, name: &str) -> bool {
    !container(pod, name)["state"]["running"].is_null()
}

fn remove_and_wait(node: &Node, name: &str) {
    node.agent.remove_manifest(&format!("{name}.json"));
    wait("the pod to be gone", SLOW, || match node.agent.command(&["get", "pods"]) {
        out if String::from_utf8_lossy(&out.stdout).contains(name) => Err("still there"),
        _ => Ok(()),
    });
}

fn add(node: &Node, name: &str, spec: Value) {
    node.agent.write_manifest(&format!("{name}.json"), &manifest(name, spec));
}

fn why(node: &Node, name: &str) -> String {
    String::from_utf8_lossy(&node.agent.command(&["why", name]).stdout).into_owned()
}

#[test]
fn hooks_run_at_their_time() {
    let node = Node::start();
    let (plain, slow, bad) =
        (RunLog::new(&node, "plain"), RunLog::new(&node, "slow"), RunLog::new(&node, "bad"));
    let hooked = with(
        speaker("c"),
        "lifecycle",
        json!({"postStart": exec(&say("post")), "preStop": exec(&format!("sleep 1; {}", say("pre")))}),
    );
    add(&node, "plain", spec(&plain, 20, vec![hooked, speaker("second")]));
    let endless = json!({"preStop": exec(&format!("{}; sleep 60; {}", say("pre-begin"), say("pre-end")))});
    add(&node, "slow", spec(&slow, 3, vec![with(speaker("c"), "lifecycle", endless)]));
    // It prints megabytes of the letter q.
    let failing = json!({"postStart": exec("head -c 5000000 /dev/zero | tr '\\0' q; exit 7")});
    add(&node, "bad", spec(&bad, 2, vec![with(speaker("c"), "lifecycle", failing)]));

    node.wait_pod("plain", SLOW, |pod| runs(pod, "c") && runs(pod, "second"));
    plain.check_order(&["c-up"]);
    assert!(plain.lines().contains(&"post".to_owned()), "{:?}", plain.lines());
    wait("the second container", SLOW, || match plain.lines().contains(&"second-up".to_owned()) {
        true => Ok(()),
        false => Err("not up"),
    });
    plain.check_order(&["post", "second-up"]);
    node.wait_pod("slow", SLOW, |pod| runs(pod, "c"));

    node.wait_pod("bad", SLOW, |pod| restarts(pod, "c") >= 1);
    let told = why(&node, "bad");
    assert!(told.contains("FailedPostStartHook") && told.contains("PostStartHook failed"), "{told}");
    let qs = |text: &str| text.split(|letter| letter != 'q').map(str::len).max().unwrap_or(0);
    let status = node.agent.pod("bad").expect("the pod").to_string();
    for (place, text) in [("why", told), ("the status", status), ("the log", node.agent.log())] {
        assert!(qs(&text) < 20_000, "{place} has {} letters of the hook's output in one piece", qs(&text));
    }

    remove_and_wait(&node, "plain");
    plain.check_order(&["pre", "c-down"]);
    assert_eq!(plain.lines().iter().filter(|l| *l == "pre").count(), 1, "{:?}", plain.lines());
    remove_and_wait(&node, "slow");
    slow.check_order(&["pre-begin"]);
    assert!(!slow.lines().contains(&"pre-end".to_owned()), "the grace was over: {:?}", slow.lines());
    remove_and_wait(&node, "bad");
    node.wait_clean(SLOW);
}

#[test]
fn sidecars_come_first_and_go_last() {
    let node = Node::start();
    let diary = RunLog::new(&node, "sidecars");
    let sidecar = |name: &str| with(speaker(name), "restartPolicy", json!("Always"));
    let init = json!({
        "name": "i",
        "image": "rubelet.test/busybox:1",
        "command": ["sh", "-c", say("i")],
        "volumeMounts": [{"name": "d", "mountPath": "/d"}],
    });
    let mut wanted = spec(&diary, 20, vec![speaker("c"), speaker("e")]);
    wanted["initContainers"] = json!([sidecar("s1"), init, sidecar("s2")]);
    add(&node, "side", wanted);
    let pod = node.wait_pod("side", SLOW, |pod| runs(pod, "c") && runs(pod, "e"));
    assert_eq!(phase(&pod), "Running");
    wait("everybody to be up", SLOW, || match diary.lines().contains(&"e-up".to_owned()) {
        true => Ok(()),
        false => Err("not yet"),
    });
    diary.check_order(&["i", "c-up"]);
    let position = |word: &str| diary.lines().iter().position(|l| l == word);
    assert!(position("s1-up") < position("c-up") && position("s2-up").is_some(), "{:?}", diary.lines());

    remove_and_wait(&node, "side");
    for regular in ["c-down", "e-down"] {
        diary.check_order(&[regular, "s2-down", "s1-down"]);
    }
    node.wait_clean(SLOW);
}

#[test]
fn a_pod_has_its_time() {
    let node = Node::start();
    let diary = RunLog::new(&node, "deadline");
    let mut wanted = spec(&diary, 5, vec![speaker("c")]);
    wanted["activeDeadlineSeconds"] = json!(4);
    add(&node, "brief", wanted);
    let pod = node.wait_pod("brief", SLOW, |pod| phase(pod) == "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded", "{pod}");
    wait("its end", SLOW, || match diary.lines().contains(&"c-down".to_owned()) {
        true => Ok(()),
        false => Err("not told to stop yet"),
    });
    remove_and_wait(&node, "brief");
    node.wait_clean(SLOW);
}

/// With a UID of its own a pod may change its image, and that container alone is replaced, whatever its policy.
#[test]
fn another_image_replaces_one_container() {
    let node = Node::start();
    let diary = RunLog::new(&node, "image");
    let pod = |image: &str| {
        let mut wanted = spec(&diary, 5, vec![with(speaker("c"), "image", json!(image)), speaker("d")]);
        wanted["restartPolicy"] = json!("Never");
        let mut pod: Value = serde_json::from_str(&manifest("swap", wanted)).expect("a manifest");
        pod["metadata"]["uid"] = json!("0f8f5e0e-0000-4000-8000-000000000001");
        pod.to_string()
    };
    node.agent.write_manifest("swap.json", &pod("rubelet.test/busybox:1"));
    let first = node.wait_pod("swap", SLOW, |pod| runs(pod, "c") && runs(pod, "d"));
    node.agent.write_manifest("swap.json", &pod("rubelet.test/busybox:2"));
    let second = node.wait_pod("swap", SLOW, |pod| restarts(pod, "c") == 1 && runs(pod, "c"));
    assert_eq!(phase(&second), "Running");
    assert_eq!(container(&first, "d")["containerID"], container(&second, "d")["containerID"]);
    assert_ne!(container(&first, "c")["imageID"], container(&second, "c")["imageID"]);
    assert_eq!(diary.lines().iter().filter(|l| *l == "d-up").count(), 1);
    remove_and_wait(&node, "swap");
    assert!(Path::new(&diary.0).exists(), "a hostPath is never removed");
    node.wait_clean(SLOW);
}
