//! The runtime is not there, goes, hangs and comes back: the agent stays, says what is wrong, and goes on by itself.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::harness::{Agent, Node, Runtime, SLOW, wait, wait_until};
use crate::support::runtime_view::{BURST, RuntimeView, assert_kept, names, sleeper};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// The agent answers whoever asks, whatever the runtime does.
#[track_caller]
fn assert_responsive(node: &mut Node) {
    let start = Instant::now();
    let health = node.agent.get("/healthz").expect("an answer to /healthz");
    assert_eq!((health.status, health.text().as_str()), (200, "ok"));
    node.agent.pods().expect("an answer to /pods");
    assert!(node.agent.is_running(), "the agent has ended");
    println!("the agent answered within {:.1?}", start.elapsed());
}

/// What a human command prints.
#[track_caller]
fn told(node: &Node, args: &[&str]) -> String {
    let output = node.agent.command(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `get node` says that the runtime is ready, or that it is not; gives what it says beside.
#[track_caller]
fn wait_node(node: &Node, ready: bool) -> String {
    wait(&format!("a node whose runtime is ready: {ready}"), SLOW, || {
        let report = told(node, &["get", "node", "-o", "json"]);
        let report: serde_json::Value = serde_json::from_str(&report).map_err(|error| error.to_string())?;
        match report["runtimeReady"] == ready {
            true => Ok(report["message"].as_str().unwrap_or_default().to_owned()),
            false => Err(report.to_string()),
        }
    })
}

/// The severity is klog's letter.
#[track_caller]
fn wait_log(node: &Node, severity: char, words: &[&str]) {
    wait(&format!("a line of the log with {words:?}"), SLOW, || {
        let log = node.agent.log();
        let found = |line: &str| line.starts_with(severity) && words.iter().all(|word| line.contains(word));
        let found = log.lines().any(found);
        if found { Ok(()) } else { Err(node.agent.log_tail()) }
    });
}

#[test]
fn an_agent_without_a_runtime_says_which_socket_and_waits_for_it() {
    let runtime = Runtime::start();
    runtime.kill9();
    let socket = runtime.dir.join("containerd.sock");
    fs::remove_file(&socket).expect("remove the socket");
    let mut node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
    node.agent.write_manifest("early", &sleeper("early"));

    wait_log(&node, 'E', &["container runtime is down", &socket.to_string_lossy(), "No such file"]);
    wait_until("the agent to know of the pod", SLOW, || node.agent.pod("early").is_ok());
    let message = wait_node(&node, false);
    assert!(message.contains(&*socket.to_string_lossy()), "{message}");
    let why = told(&node, &["why", "early"]);
    assert!(why.contains("container runtime") && why.contains(&*socket.to_string_lossy()), "{why}");
    assert_responsive(&mut node);
    let lines = node.agent.log().lines().filter(|line| line.contains("container runtime is down")).count();
    assert_eq!(lines, 1, "the same complaint again and again:\n{}", node.agent.log());

    node.runtime.restart();
    node.wait_pod("early", SLOW, |pod| pod["status"]["phase"] == "Running");
    wait_log(&node, 'I', &["container runtime containerd is ready"]);
    assert_eq!(wait_node(&node, true), "");
}

#[test]
fn pods_outlive_a_crash_of_the_runtime_and_what_died_meanwhile_is_restarted() {
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let names = names("away", 6);
    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    let before = seen.wait_running(&names, 1, BURST);
    for name in &names {
        node.wait_pod(name, SLOW, |pod| pod["status"]["phase"] == "Running");
    }
    let victim = before["away-03"].first().expect("a container").clone();
    let pid = node.runtime.tasks().into_iter().find(|task| task.id == victim).expect("its task").pid;

    node.runtime.kill9();
    wait_log(&node, 'E', &["container runtime is down", "containerd.sock"]);
    wait_node(&node, false);
    assert_responsive(&mut node);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::KILL).expect("kill a container's process");
    node.runtime.restart();

    let pod = node.wait_pod("away-03", SLOW, |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    });
    // Newer versions of containerd can't tell by what it died (255).
    let code = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"];
    assert!(*code == 137 || *code == 255, "{code}");
    let after = seen.wait_running(&names, 1, SLOW);
    for name in &names {
        let same = after[name] == before[name];
        assert_eq!(same, name != "away-03", "{name}: {:?}, then {:?}", before[name], after[name]);
    }
    for name in &names {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

#[test]
fn the_agent_and_the_runtime_may_crash_together() {
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let names = names("both", 4);
    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    let before = seen.wait_running(&names, 1, BURST);
    node.agent.kill9();
    node.runtime.kill9();
    node.agent.remove_manifest(&names[0]);
    // The agent is back first: what nobody wants can't be told before the runtime has spoken.
    node.agent.restart();
    wait_node(&node, false);
    node.runtime.restart();
    let after = seen.wait_running(&names[1..], 1, SLOW);
    for name in &names[1..] {
        assert_eq!(after[name], before[name], "{name}");
        node.wait_pod(name, SLOW, |pod| pod["status"]["phase"] == "Running");
    }
    for name in &names[1..] {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

#[test]
fn a_burst_goes_on_when_the_runtime_is_back() {
    let node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let names = names("flight", 20);
    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    let some_run = || seen.running().values().filter(|ids| !ids.is_empty()).count() >= 2;
    wait_until("some pods to run", BURST, some_run);
    let before = seen.running();
    node.runtime.kill9();
    node.runtime.restart();
    let after = seen.wait_running(&names, 1, BURST);
    assert_kept(&before, &after);
    for name in &names {
        node.wait_pod(name, SLOW, |pod| pod["status"]["phase"] == "Running");
    }
    for name in &names {
        node.agent.remove_manifest(name);
    }
    // A containerd that was killed while it set up a network never gives that back: nobody else can.
    let its_own = |left: &String| left.starts_with("pod address") || left.contains("/netns/");
    wait("every trace of the pods to go", BURST, || {
        let left: Vec<String> = node.leftovers().into_iter().filter(|left| !its_own(left)).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join("\n  ")) }
    });
}

#[test]
fn a_runtime_that_hangs_hangs_nobody_else() {
    let mut node = Node::start_with(|config| config["runtimeRequestTimeout"] = json!("2s"));
    let seen = RuntimeView::new(&node.runtime);
    let names = names("hang", 3);
    node.agent.write_manifest(&names[0], &sleeper(&names[0]));
    let before = seen.wait_running(&names[..1], 1, SLOW);

    node.runtime.hang();
    for name in &names[1..] {
        node.agent.write_manifest(name, &sleeper(name));
    }
    wait_until("the agent to know of the new pods", SLOW, || node.agent.pod(&names[2]).is_ok());
    assert_responsive(&mut node);
    wait_log(&node, 'E', &["container runtime is down", "no answer within 2s"]);
    wait_node(&node, false);
    assert_responsive(&mut node);
    std::thread::sleep(Duration::from_secs(2));
    assert_responsive(&mut node);

    node.runtime.resume();
    let after = seen.wait_running(&names, 1, SLOW);
    assert_kept(&before, &after);
    node.wait_pod(&names[2], SLOW, |pod| pod["status"]["phase"] == "Running");
}

/// Mounts a directory over itself with all that is mounted in it, and takes that away again at the end.
struct MountedTwice(std::path::PathBuf);

impl MountedTwice {
    fn mount(dir: std::path::PathBuf) -> MountedTwice {
        rustix::mount::mount_bind_recursive(&dir, &dir).expect("bind the directory over itself");
        MountedTwice(dir)
    }
}

impl Drop for MountedTwice {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_network_namespace_that_is_mounted_twice_holds_up_one_pod_only() {
    // As `ip netns add` does it on a node that runs pods: containerd can't remove the namespace of a sandbox that ends,
    // and refuses to tell its status from then on.
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("bad", &sleeper("bad"));
    seen.wait_running(&["bad".to_owned()], 1, SLOW);
    let dir = node.runtime.network_namespaces()[0].parent().expect("a directory").to_owned();
    let twice = MountedTwice::mount(dir);
    node.agent.remove_manifest("bad");
    wait_log(&node, 'W', &["bad", "stop pod sandbox failed", "device or resource busy"]);
    node.agent.restart();

    node.agent.write_manifest("next", &sleeper("next"));
    seen.wait_pod("next", SLOW, |pod| pod.running().count() == 1);
    assert_eq!(wait_node(&node, true), "");
    wait_log(&node, 'W', &["does not return the status of sandbox", "device or resource busy"]);

    drop(twice);
    seen.wait_pod("bad", SLOW, |pod| pod.sandboxes.is_empty());
    node.agent.remove_manifest("next");
    node.wait_clean(SLOW);
}
