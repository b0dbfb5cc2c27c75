//! Containers that can write to the agent's own directories, and mean harm to the host: the agent reads and removes
//! nothing that is not the pod's, and serves all other pods meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::dead_server::DeadServer;
use crate::support::harness::{Node, SLOW};
use crate::support::pods::{is_running, manifest, phase, shell, simple, terminated, uid};
use serde_json::{Value, json};

const SECRET: &str = "a secret of the host";
/// What an honest container says at its end.
const LAST_WORD: &str = "the last word";

/// A pod that runs once, with a directory of the host in each container, at the path that it has on the host.
fn once(name: &str, containers: Value, dirs: &[&Path]) -> String {
    let mut containers = containers;
    for container in containers.as_array_mut().expect("a list") {
        let mounts = container.as_object_mut().expect("an object").entry("volumeMounts").or_insert(json!([]));
        let mount =
            |(number, dir): (usize, &&Path)| json!({ "name": format!("dir-{number}"), "mountPath": dir });
        let shown = dirs.iter().enumerate().map(mount);
        mounts.as_array_mut().expect("a list").extend(shown);
    }
    let volume = |(number, dir): (usize, &&Path)| {
        let source = json!({ "path": dir, "type": "Directory" });
        json!({ "name": format!("dir-{number}"), "hostPath": source })
    };
    let volumes: Vec<Value> = dirs.iter().enumerate().map(volume).collect();
    manifest(
        name,
        json!({
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
            "containers": containers, "volumes": volumes,
        }),
    )
}

/// Runs a script in a container that can write to these directories of the host, until it has succeeded.
#[track_caller]
fn attack(node: &Node, script: &str, dirs: &[&Path]) {
    let script = format!("set -e\n{script}");
    node.agent.write_manifest("attack", &once("attack", json!([shell("c", &script)]), dirs));
    let pod = node.wait_pod("attack", SLOW, |pod| matches!(phase(pod), "Succeeded" | "Failed"));
    assert_eq!(phase(&pod), "Succeeded", "{}\n{}", pod["status"], node.agent.container_log(&pod, "c", 0));
}

/// Another pod comes up.
#[track_caller]
fn serves_others(node: &Node) {
    node.agent.write_manifest("other", &simple("other"));
    node.wait_pod("other", SLOW, is_running);
}

#[track_caller]
fn remove_all(node: &Node, manifests: &[&str]) {
    manifests.iter().for_each(|name| node.agent.remove_manifest(name));
    node.wait_clean(SLOW);
}

/// Runs until it is told to end in the journal, with a last word.
fn speaker(journal: &Path, name: &str) -> Value {
    let script = format!(
        "until [ -e {}/go ]; do sleep 0.1; done; echo {LAST_WORD} >/dev/termination-log",
        journal.display()
    );
    shell(name, &script)
}

fn message<'a>(pod: &'a Value, container: &str) -> &'a str {
    terminated(pod, container)["message"].as_str().unwrap_or_default()
}

/// The directory of the agent for the messages of a pod's containers.
fn messages_dir(node: &Node, pod: &Value) -> PathBuf {
    node.agent.root_dir().join("pods").join(uid(pod)).join("containers")
}

fn make_dir(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).expect("make a directory");
    path
}

/// A container with access to the agent's directory puts links in the place of another pod's messages.
#[test]
fn termination_messages_behind_links_are_not_read() {
    let node = Node::start();
    let (journal, outside) =
        (make_dir(node.runtime.dir.join("journal")), make_dir(node.runtime.dir.join("outside")));
    fs::write(outside.join("secret"), SECRET).expect("write the secret");
    let containers = ["file", "directory", "honest"].map(|name| speaker(&journal, name));
    node.agent.write_manifest("victim", &once("victim", json!(containers), &[&journal]));
    let pod = node.wait_pod("victim", SLOW, is_running);
    let messages = messages_dir(&node, &pod);
    // A link in the place of the file, and one in the place of the directory, behind which there is a file of the name.
    let script = format!(
        "cd {messages}
        name=$(ls file); mv file/$name file/kept; ln -s {outside}/secret file/$name
        name=$(ls directory); cp {outside}/secret {outside}/$name; mv directory kept; ln -s {outside} directory",
        messages = messages.display(),
        outside = outside.display(),
    );
    attack(&node, &script, &[&node.agent.root_dir().join("pods"), &outside]);
    for name in ["file", "directory"] {
        let entries = fs::read_dir(messages.join(name)).expect("read through the link").flatten();
        let read: Vec<String> = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect();
        assert!(read.iter().any(|text| text == SECRET), "the attack works on who just reads: {read:?}");
    }

    fs::write(journal.join("go"), "").expect("tell them to end");
    let pod = node.wait_pod("victim", SLOW, |pod| phase(pod) == "Succeeded");
    assert_eq!(message(&pod, "honest"), format!("{LAST_WORD}\n"));
    for name in ["file", "directory"] {
        let told = message(&pod, name);
        assert!(
            told.starts_with("Error on reading termination log ") && told.ends_with(" of symbolic links"),
            "{name}: {told}"
        );
    }
    assert!(!pod.to_string().contains(SECRET), "{pod:#}");
    serves_others(&node);
    remove_all(&node, &["victim", "attack", "other"]);
    assert_eq!(fs::read_to_string(outside.join("secret")).ok().as_deref(), Some(SECRET));
}

/// A server dies behind a volume that is mounted over a termination message, and behind a mount in the agent's own
/// directory: readings of the runtime wait for neither of them.
#[test]
fn a_dead_server_over_a_termination_message_holds_no_other_pod() {
    let mut node = Node::start();
    let (journal, volume) =
        (make_dir(node.runtime.dir.join("journal")), make_dir(node.runtime.dir.join("volume")));
    fs::write(volume.join("message"), "").expect("make a file");
    let mut by_volume = speaker(&journal, "by-volume");
    by_volume["volumeMounts"] = json!([{ "name": "file", "mountPath": "/dev/termination-log" }]);
    let containers = json!([by_volume, speaker(&journal, "by-mount")]);
    let mut victim: Value =
        serde_json::from_str(&once("victim", containers, &[&journal])).expect("the manifest");
    let file = json!({ "name": "file", "hostPath": { "path": volume.join("message"), "type": "File" } });
    victim["spec"]["volumes"].as_array_mut().expect("volumes").push(file);
    node.agent.write_manifest("victim", &victim.to_string());
    let pod = node.wait_pod("victim", SLOW, is_running);
    let dead = [volume, messages_dir(&node, &pod).join("by-mount")]
        .map(|at| DeadServer::mount(&at).expect("mount a filesystem without a server"));

    fs::write(journal.join("go"), "").expect("tell them to end");
    serves_others(&node);
    let pod = node.wait_pod("victim", SLOW, |pod| phase(pod) == "Succeeded");
    assert_eq!(message(&pod, "by-volume"), format!("{LAST_WORD}\n"), "its own file is read all the same");
    let told = message(&pod, "by-mount");
    assert!(told.starts_with("Error on reading termination log "), "{told}");
    // A new agent reads them again, before it has the first complete observation.
    node.agent.restart();
    node.agent.write_manifest("after", &simple("after"));
    node.wait_pod("after", SLOW, is_running);
    drop(dead);
    remove_all(&node, &["victim", "other", "after"]);
}

/// A container with access to the logs of pods puts links to a directory of the host in their place.
#[test]
fn logs_behind_links_are_not_removed() {
    let node = Node::start();
    let outside = make_dir(node.runtime.dir.join("outside"));
    let precious = ["0.log", "0.log.20240102-030405", "c/0.log", "c/0.log.20240102-030405.gz"];
    make_dir(outside.join("c"));
    precious.iter().for_each(|name| fs::write(outside.join(name), SECRET).expect("write a file"));
    let names = ["container", "pod"];
    let logs = names.map(|name| {
        node.agent.write_manifest(name, &simple(name));
        let pod = node.wait_pod(name, SLOW, is_running);
        node.agent.logs_dir().join(format!("default_{name}-node_{}", uid(&pod)))
    });
    let script = format!(
        "rm -r {of_container}/c; ln -s {outside} {of_container}/c
        rm -r {of_pod}; ln -s {outside} {of_pod}",
        of_container = logs[0].display(),
        of_pod = logs[1].display(),
        outside = outside.display(),
    );
    attack(&node, &script, &[&node.agent.logs_dir(), &outside]);
    for log in [logs[0].join("c/0.log"), logs[1].join("c/0.log")] {
        assert_eq!(fs::read_to_string(&log).ok().as_deref(), Some(SECRET), "the link leads outside");
    }
    remove_all(&node, &["container", "pod", "attack"]);
    for name in precious {
        assert_eq!(fs::read_to_string(outside.join(name)).ok().as_deref(), Some(SECRET), "{name}");
    }
    serves_others(&node);
}
