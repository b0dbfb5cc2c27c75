//! Static pods from their manifest's appearance to the last trace of them, on a real runtime.

use std::fs;

use crate::support::harness::{Node, SLOW, wait, wait_until};
use crate::support::pods::{
    self, IMAGE, Journal, OTHER_IMAGE, UNTIL_TERM, container, container_id, is_running, manifest, phase,
    restarts, said, shell, shell_with, simple, standing, terminated, uid,
};
use serde_json::{Value, json};

/// Notes its start, and its end in two steps with time between them: whoever starts too early stands between.
fn noted(journal: &Journal, name: &str, host_port: u16) -> Value {
    let script = format!(
        "echo {name} up >>/journal/lines
         trap 'echo {name} asked to end >>/journal/lines; sleep 1; echo {name} gone >>/journal/lines; exit 0' TERM
         sleep 3600 & wait"
    );
    let mounts = json!([
        Journal::mount(),
        { "name": "disk", "mountPath": "/disk" },
        { "name": "memory", "mountPath": "/memory" },
        { "name": "disk", "mountPath": "/part", "subPath": "a/b" },
    ]);
    let more = json!({
        "volumeMounts": mounts,
        "ports": [{ "containerPort": 80, "hostPort": host_port }],
    });
    json!({
        "terminationGracePeriodSeconds": 30,
        "containers": [shell_with("c", &script, more)],
        "volumes": [
            journal.volume(),
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
        ],
    })
}

#[test]
fn a_manifest_appears_changes_and_disappears() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let port = node.runtime.free_port();
    node.agent.write_manifest("web", &manifest("web", noted(&journal, "first", port)));
    let first = node.wait_pod("web", SLOW, is_running);
    assert_eq!(first["metadata"]["name"], "web-node");
    assert_eq!(first["metadata"]["namespace"], "default");
    assert_eq!(first["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    assert_eq!(uid(&first), first["metadata"]["annotations"]["kubernetes.io/config.hash"]);
    assert_eq!(uid(&first).len(), 32, "{}", uid(&first));

    let changed = manifest("web", noted(&journal, "second", port));
    node.agent.write_manifest("web", &changed);
    let second = node.wait_pod("web", SLOW, |pod| uid(pod) != uid(&first) && is_running(pod));
    assert_eq!(journal.lines(), ["first up", "first asked to end", "first gone", "second up"]);
    assert_eq!(second["metadata"]["name"], "web-node");
    assert_eq!(restarts(&second, "c"), 0);
    let why = said(&node.agent, &["why", "web"]);
    assert!(why.contains("is Running.") && why.contains("all its containers are running"), "{why}");
    wait("the first pod's objects to go", SLOW, || {
        let containers = node.runtime.containers();
        if containers.len() == 2 { Ok(()) } else { Err(format!("{containers:?}")) }
    });

    nothing_happens_on_a_rewrite(&node, &second, &changed);

    node.agent.remove_manifest("web");
    node.wait_clean(SLOW);
    assert_eq!(journal.lines()[4..], ["second asked to end", "second gone"]);
    wait("the agent to forget the pod", SLOW, || match node.agent.pods()?.len() {
        0 => Ok(()),
        some => Err(format!("{some} pods")),
    });
}

/// As an editor does it: another file takes the name. Then the same pod in other words.
fn nothing_happens_on_a_rewrite(node: &Node, pod: &Value, text: &str) {
    node.agent.write_manifest("web", text);
    node.agent.write_manifest("web", &format!("# a comment\n{text}\n"));
    // What comes later in the same directory has been seen, so the rewrite has been too.
    node.agent.write_manifest("later", &simple("later"));
    node.wait_pod("later", SLOW, is_running);
    let now = node.agent.pod("web").expect("the pod");
    assert_eq!(now, *pod);
    let task = node.runtime.tasks().into_iter().find(|task| task.id == container_id(pod, "c"));
    assert_eq!(task.map(|task| task.status), Some("RUNNING".to_owned()));
    node.agent.remove_manifest("later");
    wait_until("the later pod to go", SLOW, || node.runtime.containers().len() == 2);
}

#[test]
fn a_container_that_ignores_sigterm_is_killed_after_its_grace() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let script = "echo up >>/journal/lines
                  trap 'echo asked to end >>/journal/lines' TERM
                  while :; do sleep 1; echo alive >>/journal/lines; done";
    let spec = json!({
        "terminationGracePeriodSeconds": 4,
        "containers": [
            shell_with("stubborn", script, json!({ "volumeMounts": [Journal::mount()] })),
            shell("mild", UNTIL_TERM),
        ],
        "volumes": [journal.volume()],
    });
    node.agent.write_manifest("stubborn", &manifest("stubborn", spec));
    node.wait_pod("stubborn", SLOW, is_running);
    wait_until("the container to have set its trap", SLOW, || journal.lines().contains(&"alive".to_owned()));
    node.agent.remove_manifest("stubborn");
    node.wait_clean(SLOW);
    let lines = journal.lines();
    let asked = lines.iter().position(|line| line == "asked to end").expect("it was asked to end");
    assert!(lines[asked..].iter().filter(|line| *line == "alive").count() >= 2, "it had no grace: {lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "asked to end").count(), 1, "asked once: {lines:?}");
}

/// However fast a manifest changes, its pods never overlap, and the last one stays.
#[test]
fn a_manifest_that_keeps_changing() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let put = |turn: usize| {
        let script = format!(
            "trap 'sleep 0.3; echo {turn} gone >>/journal/lines; exit 0' TERM
             echo {turn} up >>/journal/lines; sleep 3600 & wait"
        );
        let container = shell_with("c", &script, json!({ "volumeMounts": [Journal::mount()] }));
        let spec = json!({
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [journal.volume()],
        });
        node.agent.write_manifest("fickle", &manifest("fickle", spec));
    };
    const TURNS: usize = 8;
    for turn in 0..TURNS {
        put(turn);
        if turn % 3 == 1 {
            node.agent.remove_manifest("fickle");
        }
        // Some come while the one before is being made, some while it runs, and some while it ends.
        std::thread::sleep(std::time::Duration::from_millis(150 * (turn as u64 % 4)));
    }
    put(TURNS);
    let last = format!("{TURNS} up");
    wait("the last one to run", SLOW, || match journal.lines() {
        lines if lines.contains(&last) => Ok(()),
        lines => Err(format!("{lines:?}")),
    });
    let pod = node.wait_pod("fickle", SLOW, is_running);
    assert_eq!(restarts(&pod, "c"), 0);
    wait("all others to go", SLOW, || match node.runtime.containers() {
        containers if containers.len() == 2 => Ok(()),
        containers => Err(format!("{containers:?}")),
    });
    let mut alive = None;
    let lines = journal.lines();
    for line in &lines {
        let (turn, word) = line.split_once(' ').expect("a turn and a word");
        match word {
            "up" => assert_eq!(alive.replace(turn), None, "two at once: {lines:?}"),
            _ => alive = None,
        }
    }
    assert_eq!(alive, Some("8"), "{lines:?}");
    node.agent.remove_manifest("fickle");
    node.wait_clean(SLOW);
}

fn names(node: &Node) -> Vec<String> {
    let pods = node.agent.pods().expect("the pods");
    let mut names: Vec<_> =
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn manifests_come_in_many_forms() {
    let node = Node::start();
    let dir = node.agent.manifests();
    let put = |name: &str, text: &str| fs::write(dir.join(name), text).expect("write a file");
    let two = format!("---\n{}\n---\n# nothing here\n---\n{}\n", yaml("one"), yaml("two"));
    node.agent.write_manifest("many", &two);
    put("three.json", &serde_json::to_string_pretty(&parsed("three")).expect("JSON"));
    put(".hidden.yaml", &simple("hidden"));
    put("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken\n");
    put("other.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}\n");
    put("nameless.yaml", &manifest("", json!({ "containers": [shell("c", UNTIL_TERM)] })));
    fs::create_dir(dir.join("below")).expect("make a directory");
    put("below/deep.yaml", &simple("deep"));
    std::os::unix::fs::symlink("below/deep.yaml", dir.join("linked.yaml")).expect("make a link");
    for name in ["one", "two", "three", "deep"] {
        node.wait_pod(name, SLOW, is_running);
    }
    // Refused files are told of, and their neighbours live.
    let log = node.agent.log();
    for file in ["broken.yaml", "other.yaml", "nameless.yaml"] {
        assert!(log.contains(&dir.join(file).display().to_string()), "nothing is said about {file}");
    }

    let three = node.agent.pod("three").expect("the pod");
    node.agent.write_manifest("many", &yaml("one"));
    put("broken.yaml", &simple("broken"));
    node.wait_pod("broken", SLOW, is_running);
    wait("the pod that left its file to be gone", SLOW, || match names(&node) {
        names if names == ["broken-node", "deep-node", "one-node", "three-node"] => Ok(()),
        names => Err(format!("{names:?}")),
    });
    assert_eq!(node.agent.pod("three").expect("the pod"), three);
    for file in ["many.yaml", "three.json", "broken.yaml", "linked.yaml"] {
        fs::remove_file(dir.join(file)).expect("remove a file");
    }
    node.wait_clean(SLOW);
}

fn parsed(name: &str) -> Value {
    serde_json::from_str(&simple(name)).expect("JSON")
}

/// The same pod in block style.
fn yaml(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: c
    image: {IMAGE}
    command: [sh, -c, \"{UNTIL_TERM}\"]"
    )
}

#[test]
fn a_pod_that_comes_back_while_it_ends_counts_a_restart() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let script = "trap 'until test -e /journal/enough; do sleep 0.1; done; exit 0' TERM
                  echo up >>/journal/lines; sleep 3600 & wait";
    let spec = json!({
        "terminationGracePeriodSeconds": 300,
        "containers": [shell_with("c", script, json!({ "volumeMounts": [Journal::mount()] }))],
        "volumes": [journal.volume()],
    });
    let text = manifest("again", spec);
    node.agent.write_manifest("again", &text);
    let first = node.wait_pod("again", SLOW, is_running);
    wait_until("the container to have set its trap", SLOW, || journal.lines() == ["up"]);
    assert_eq!(standing(&node.agent, "again"), "Running");
    node.agent.remove_manifest("again");
    wait("the end to begin", SLOW, || match standing(&node.agent, "again") {
        word if word == "Terminating" => Ok(()),
        word => Err(word),
    });
    let why = said(&node.agent, &["why", "again"]);
    assert!(why.contains("container c: is being stopped with a grace period of 5m"), "{why}");
    node.agent.write_manifest("again", &text);
    // What comes later in the same directory has been seen, so it has been too.
    node.agent.write_manifest("later", &simple("later"));
    node.wait_pod("later", SLOW, is_running);
    assert_eq!(journal.lines(), ["up"], "it came back before it was gone");
    journal.put("enough");
    let second = node.wait_pod("again", SLOW, |pod| is_running(pod) && restarts(pod, "c") == 1);
    assert_eq!(uid(&second), uid(&first));
    let (before, now) = (container(&first, "c"), container(&second, "c"));
    assert_ne!(now["containerID"], before["containerID"]);
    assert_eq!(now["lastState"]["terminated"]["containerID"], before["containerID"]);
    node.agent.remove_manifest("again");
    node.agent.remove_manifest("later");
    node.wait_clean(SLOW);
    assert_eq!(said(&node.agent, &["get", "pods"]), "No pods.\n");
}

/// With a uid of its own a pod stays the same pod: only what changed is done again.
#[test]
fn a_pod_with_a_fixed_uid_is_updated_in_place() {
    let node = Node::start();
    let text = |image: &str, label: &str| {
        let mut pod: Value = parsed("fixed");
        pod["metadata"]["uid"] = json!("0000-fixed");
        pod["metadata"]["labels"] = json!({ "l": label });
        pod["spec"]["containers"] =
            json!([shell_with("c", UNTIL_TERM, json!({ "image": image })), shell("kept", UNTIL_TERM)]);
        pod.to_string()
    };
    node.agent.write_manifest("fixed", &text(IMAGE, "a"));
    let first = node.wait_pod("fixed", SLOW, is_running);
    assert_eq!(uid(&first), "0000-fixed");

    node.agent.write_manifest("fixed", &text(IMAGE, "b"));
    let labelled = node.wait_pod("fixed", SLOW, |pod| pod["metadata"]["labels"]["l"] == "b");
    assert_eq!(container_id(&labelled, "c"), container_id(&first, "c"));

    node.agent.write_manifest("fixed", &text(OTHER_IMAGE, "b"));
    let changed = node.wait_pod("fixed", SLOW, |pod| is_running(pod) && restarts(pod, "c") == 1);
    assert_eq!(container(&changed, "c")["image"], OTHER_IMAGE);
    assert_ne!(container(&changed, "c")["imageID"], container(&first, "c")["imageID"]);
    assert_eq!(container_id(&changed, "kept"), container_id(&first, "kept"));
    assert_eq!(changed["status"]["podIP"], first["status"]["podIP"]);
    assert_eq!(uid(&changed), uid(&first));
    node.agent.remove_manifest("fixed");
    node.wait_clean(SLOW);
}

/// A pod that ran to its end stays to be read until its manifest goes.
#[test]
fn a_finished_pod_is_kept_until_its_manifest_goes() {
    let node = Node::start();
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("c", "echo said; exit 0")] });
    node.agent.write_manifest("job", &manifest("job", spec));
    let done = node.wait_pod("job", SLOW, |pod| phase(pod) == "Succeeded");
    assert_eq!(terminated(&done, "c")["reason"], "Completed");
    assert_eq!(pods::printed(&node.agent, &done, "c", 0), ["said"]);
    assert_eq!(said(&node.agent, &["logs", "job"]), "said\n");
    assert_eq!(standing(&node.agent, "job"), "Completed");
    wait_until("its cgroup and processes to go", SLOW, || node.runtime.tasks().is_empty());
    node.agent.remove_manifest("job");
    node.wait_clean(SLOW);
}
