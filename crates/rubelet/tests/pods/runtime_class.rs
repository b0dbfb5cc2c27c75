//! Runtime classes beside static pods, and pods that want users of their own.

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{
    self, UNTIL_TERM, condition, is_running, manifest, printed, shell, uid, wait_printed,
};
use crate::support::runtime_view::RuntimeView;
use serde_json::json;

/// The private containerd knows runc a second time, as `second`.
const CLASS: &str = "apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: other}
handler: second
overhead:
  podFixed: {memory: 4Mi}
";

fn handler(seen: &RuntimeView, pod: &str) -> String {
    let pods = seen.pods().expect("the runtime's pods");
    pods[pod].sandboxes[0].runtime_handler.clone()
}

/// Also when there is no such pod yet.
fn why(node: &Node, pod: &str) -> String {
    let output = node.agent.command(&["why", pod]);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_class_in_the_manifest_directory_chooses_the_handler() {
    let node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let spec = |class: Option<&str>| {
        json!({
            "terminationGracePeriodSeconds": 2,
            "runtimeClassName": class,
            "containers": [{
                "name": "c",
                "image": pods::IMAGE,
                "command": ["sh", "-c", format!("echo up; {UNTIL_TERM}")],
                "resources": {"limits": {"cpu": "100m", "memory": "32Mi"}},
            }],
        })
    };
    node.agent.write_manifest("plain.json", &manifest("plain", spec(None)));
    node.agent.write_manifest("classy.json", &manifest("classy", spec(Some("other"))));
    node.wait_pod("plain", SLOW, is_running);
    assert_eq!(handler(&seen, "plain"), "");

    // Nobody knows the class: the pod waits and says for what.
    wait("the reason", SLOW, || {
        let why = why(&node, "classy");
        match why.contains("runtimeclass.node.k8s.io \"other\" not found") {
            true => Ok(()),
            false => Err(why),
        }
    });
    assert!(!seen.pods().expect("the runtime's pods").contains_key("classy"));

    // It comes, and that is enough.
    node.agent.write_manifest("class.yaml", CLASS);
    let pod = node.wait_pod("classy", SLOW, is_running);
    assert_eq!(handler(&seen, "classy"), "second");
    wait_printed(&node.agent, &pod, "c", 0, &["up"]);
    assert_eq!(pod["spec"]["overhead"]["memory"], "4Mi", "{pod}");

    // It goes, and who runs stays.
    let before = seen.running();
    node.agent.remove_manifest("class.yaml");
    node.agent.write_manifest("later.json", &manifest("later", spec(Some("other"))));
    wait("the reason", SLOW, || {
        let why = why(&node, "later");
        if why.contains("not found") { Ok(()) } else { Err(why) }
    });
    assert_eq!(seen.running()["classy"], before["classy"]);
    for name in ["plain.json", "classy.json", "later.json"] {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

#[test]
fn a_handler_that_the_runtime_does_not_know_is_told() {
    let node = Node::start();
    let class = CLASS.replace("second", "nobody");
    let spec = json!({"runtimeClassName": "other", "containers": [shell("c", UNTIL_TERM)]});
    // Both in one file.
    node.agent.write_manifest("both.yaml", &format!("{class}---\n{}\n", manifest("lost", spec)));
    wait("the reason", SLOW, || {
        let why = why(&node, "lost");
        if why.contains("nobody") && why.contains("create pod sandbox") { Ok(()) } else { Err(why) }
    });
    node.agent.remove_manifest("both.yaml");
    node.wait_clean(SLOW);
}

#[test]
fn users_of_its_own_are_given_or_refused_in_clear_words() {
    let node = Node::start();
    let spec = json!({
        "hostUsers": false,
        "terminationGracePeriodSeconds": 2,
        "containers": [shell("c", &format!("cat /proc/self/uid_map; {UNTIL_TERM}"))],
    });
    node.agent.write_manifest("own.json", &manifest("own", spec));
    let outcome = wait("users or a refusal", SLOW, || {
        let pod = node.agent.pod("own")?;
        let why = why(&node, "own");
        let refused =
            why.contains("can't set `spec.hostUsers: false`, runtime does not support user namespaces");
        match (is_running(&pod), refused) {
            (true, _) => Ok(Some(pod)),
            (_, true) => Ok(None),
            _ => Err(why),
        }
    });
    let record = |pod: &serde_json::Value| node.agent.root_dir().join("pods").join(uid(pod)).join("userns");
    let pod = node.agent.pod("own").expect("the pod");
    match outcome {
        Some(running) => {
            println!("the runtime gives pods users of their own");
            let map: Vec<String> = wait("its map of users", SLOW, || {
                let lines = printed(&node.agent, &running, "c", 0).join(" ");
                let words: Vec<String> = lines.split_whitespace().map(str::to_owned).collect();
                if words.len() >= 3 { Ok(words) } else { Err(lines) }
            });
            assert_eq!((map[0].as_str(), map[2].as_str()), ("0", "65536"), "{map:?}");
            assert_ne!(map[1], "0");
            let text = std::fs::read_to_string(record(&pod)).expect("the record of its ids");
            assert!(text.contains(&format!("\"hostId\":{}", map[1])), "{text}");
        }
        None => {
            println!("the runtime can't give pods users of their own");
            assert!(!record(&pod).exists());
            assert_eq!(condition(&pod, "PodReadyToStartContainers")["status"], "False");
        }
    }
    node.agent.remove_manifest("own.json");
    node.wait_clean(SLOW);
}
