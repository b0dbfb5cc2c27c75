//! The agent is killed in the middle of something that it waits for: an init container, a hook, a pull. Each pod is run
//! twice, once left alone and once with the kill, and has to come to the same end.

use std::collections::BTreeMap;

use crate::support::harness::{Node, Registry, SLOW, wait_until};
use crate::support::pods::{self, is_running, phase, restarts, terminated};
use crate::support::timestamps::{Timestamps, container, exec, stays, until};
use serde_json::{Value, json};

/// What has to be the same with and without the kill.
#[derive(Debug, PartialEq)]
struct Outcome {
    phase: String,
    /// By container: its restarts, and its exit code if it has ended.
    containers: BTreeMap<String, (i64, Option<i64>)>,
    /// How often each thing happened, by the containers' own stamps.
    stamps: BTreeMap<String, usize>,
}

impl Outcome {
    fn of(pod: &Value, stamps: &Timestamps) -> Outcome {
        let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][list].as_array());
        let names = lists.flatten().filter_map(|container| container["name"].as_str());
        let of =
            |name: &str| (name.to_owned(), (restarts(pod, name), terminated(pod, name)["exitCode"].as_i64()));
        Outcome { phase: phase(pod).to_owned(), containers: names.map(of).collect(), stamps: counts(stamps) }
    }
}

fn counts(stamps: &Timestamps) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in stamps.words() {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

/// How the agent fares while the pod is in its phase.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Nothing happens to it.
    Calm,
    /// Killed and started again; then the phase ends.
    Struck,
    /// Killed; the phase ends while there is no agent; then it is started.
    Away,
}

/// Lets the agent meet its fate. `end` ends the phase and returns when that is seen to be over.
#[track_caller]
fn meet(node: &mut Node, fate: Fate, end: impl FnOnce()) {
    match fate {
        Fate::Calm => end(),
        Fate::Struck => {
            node.agent.restart();
            end();
        }
        Fate::Away => {
            node.agent.kill9();
            end();
            node.agent.restart();
        }
    }
}

#[track_caller]
fn clear(node: &Node, name: &str) {
    node.agent.remove_manifest(name);
    node.wait_clean(SLOW);
}

/// A pod that goes through its whole life: two init containers, of which the second is held, and work that ends.
fn worker(policy: &str, code: i32) -> Value {
    json!({
        "restartPolicy": policy, "terminationGracePeriodSeconds": 5,
        "initContainers": [
            container("first", "stamp first-up", json!({})),
            container("held", &format!("stamp held-up; {}; stamp held-down", until("go")), json!({})),
        ],
        "containers": [
            container("work", &format!("stamp work-up; sleep 0.3; stamp work-down; exit {code}"), json!({})),
            container("other", "stamp other-up; exit 0", json!({})),
        ],
    })
}

#[test]
fn killed_during_initialisation() {
    let mut node = Node::start();
    for (policy, code, expect) in [("Never", 7, "Failed"), ("OnFailure", 0, "Succeeded")] {
        let mut outcomes = Vec::new();
        for fate in [Fate::Calm, Fate::Struck, Fate::Away] {
            let name = format!("{policy}-{fate:?}").to_lowercase();
            let stamps = Timestamps::new(&node, &name);
            node.agent.write_manifest(&name, &stamps.pod(&name, worker(policy, code)));
            stamps.wait_for("held-up");
            meet(&mut node, fate, || {
                stamps.put("go");
                stamps.wait_for("held-down");
            });
            let pod = node.wait_pod(&name, SLOW, |pod| phase(pod) == expect);
            outcomes.push(Outcome::of(&pod, &stamps));
            clear(&node, &name);
        }
        assert_eq!(outcomes[0].stamps["held-up"], 1);
        assert_eq!(outcomes[1], outcomes[0], "{policy}");
        assert_eq!(outcomes[2], outcomes[0], "{policy}");
    }
}

/// A hook's result is lost with the agent that waited for it, and the runtime ends the hook with the call. The
/// container runs, and is taken for what it is: neither is run again. Upstream does the same.
#[test]
fn killed_during_post_start() {
    let mut node = Node::start();
    let mut outcomes = Vec::new();
    for fate in [Fate::Calm, Fate::Struck] {
        let name = format!("post-{fate:?}").to_lowercase();
        let stamps = Timestamps::new(&node, &name);
        let hook = json!({ "lifecycle": { "postStart": exec(&format!("stamp post-begin; {}; stamp post-end", until("go"))) } });
        let spec = json!({
            "terminationGracePeriodSeconds": 5,
            "containers": [container("hooked", &stays("hooked"), hook), container("next", &stays("next"), json!({}))],
        });
        node.agent.write_manifest(&name, &stamps.pod(&name, spec));
        stamps.wait_for("post-begin");
        stamps.wait_for("hooked-up");
        assert_eq!(stamps.count("next-up"), 0, "whoever comes next waits for the hook");
        meet(&mut node, fate, || stamps.put("go"));
        let pod = node.wait_pod(&name, SLOW, is_running);
        stamps.wait_for("next-up");
        let mut outcome = Outcome::of(&pod, &stamps);
        if fate == Fate::Calm {
            assert_eq!(outcome.stamps.get("post-end"), Some(&1));
        }
        // It depends on the runtime whether the hook came to its end.
        outcome.stamps.remove("post-end");
        outcomes.push(outcome);
        clear(&node, &name);
        assert_eq!(
            (stamps.count("hooked-up"), stamps.count("hooked-down"), stamps.count("next-down")),
            (1, 1, 1)
        );
    }
    assert_eq!(outcomes[1], outcomes[0]);
    assert_eq!(outcomes[0].stamps["post-begin"], 1);
}

/// The manifest is gone and the hook is under way. The next agent knows the pod only from the runtime, and runs the
/// hook again, as upstream does: nobody can tell how far it came. Then the container is told to end, once, and
/// nothing is left.
#[test]
fn killed_during_pre_stop() {
    let mut node = Node::start();
    let mut lives = Vec::new();
    for fate in [Fate::Calm, Fate::Struck, Fate::Away] {
        let name = format!("pre-{fate:?}").to_lowercase();
        let stamps = Timestamps::new(&node, &name);
        let hook = json!({ "lifecycle": { "preStop": exec(&format!("stamp pre-begin; {}; stamp pre-end", until("go"))) } });
        let spec = json!({
            "terminationGracePeriodSeconds": 40,
            "containers": [container("hooked", &stays("hooked"), hook), container("other", &stays("other"), json!({}))],
        });
        node.agent.write_manifest(&name, &stamps.pod(&name, spec));
        node.wait_pod(&name, SLOW, is_running);
        stamps.wait_for("hooked-up");
        stamps.wait_for("other-up");
        node.agent.remove_manifest(&name);
        stamps.wait_for("pre-begin");
        stamps.wait_for("other-down");
        assert_eq!(stamps.count("hooked-term"), 0, "the hook comes first");
        meet(&mut node, fate, || stamps.put("go"));
        node.wait_clean(SLOW);
        stamps.check_order(&["pre-begin", "pre-end", "hooked-term", "hooked-down"]);
        let mut life = counts(&stamps);
        let hooks = life.remove("pre-begin").unwrap_or_default();
        let ends = life.remove("pre-end").unwrap_or_default();
        assert!((1..=2).contains(&hooks) && (1..=hooks).contains(&ends), "{fate:?}: {:?}", stamps.words());
        if fate == Fate::Calm {
            assert_eq!((hooks, ends), (1, 1));
        }
        lives.push(life);
    }
    assert_eq!(lives[1], lives[0]);
    assert_eq!(lives[2], lives[0]);
}

/// Another image, and the agent is killed while the hook of the old container is under way. The next agent finds the
/// old container still running, begins its stop again, and replaces it once, whatever the pod's policy.
#[test]
fn killed_while_a_container_is_replaced() {
    let mut node = Node::start();
    let mut outcomes: BTreeMap<&str, Vec<Outcome>> = BTreeMap::new();
    for fate in [Fate::Calm, Fate::Struck, Fate::Away] {
        let swaps = ["Always", "Never"].map(|policy| Swap::new(&node, policy, fate));
        for swap in &swaps {
            node.agent.write_manifest(&swap.name, &swap.manifest(pods::IMAGE));
        }
        for swap in &swaps {
            node.wait_pod(&swap.name, SLOW, is_running);
            swap.stamps.wait_for("swapped-up");
            swap.stamps.wait_for("other-up");
            node.agent.write_manifest(&swap.name, &swap.manifest(pods::OTHER_IMAGE));
            swap.stamps.wait_for("pre-begin");
        }
        meet(&mut node, fate, || swaps.iter().for_each(|swap| swap.stamps.put("go")));
        for swap in &swaps {
            outcomes.entry(swap.policy).or_default().push(swap.outcome(&node));
            node.agent.remove_manifest(&swap.name);
        }
        node.wait_clean(SLOW);
    }
    for (policy, outcomes) in outcomes {
        assert_eq!((outcomes[0].stamps["swapped-up"], outcomes[0].stamps["other-up"]), (2, 1), "{policy}");
        assert_eq!(outcomes[1], outcomes[0], "{policy}");
        assert_eq!(outcomes[2], outcomes[0], "{policy}");
    }
}

/// A pod that gets another image, with a hook that is held.
struct Swap {
    name: String,
    policy: &'static str,
    stamps: Timestamps,
}

impl Swap {
    fn new(node: &Node, policy: &'static str, fate: Fate) -> Swap {
        let name = format!("swap-{policy}-{fate:?}").to_lowercase();
        Swap { stamps: Timestamps::new(node, &name), name, policy }
    }

    fn manifest(&self, image: &str) -> String {
        let hook = exec(&format!("stamp pre-begin; {}; stamp pre-end", until("go")));
        let more = json!({ "image": image, "lifecycle": { "preStop": hook } });
        let spec = json!({
            "restartPolicy": self.policy, "terminationGracePeriodSeconds": 40,
            "containers": [container("swapped", &stays("swapped"), more), container("other", &stays("other"), json!({}))],
        });
        self.stamps.pod_with_uid(&self.name, spec, json!({}))
    }

    #[track_caller]
    fn outcome(&self, node: &Node) -> Outcome {
        self.stamps.wait_count("swapped-up", 2);
        let replaced = |pod: &Value| is_running(pod) && restarts(pod, "swapped") == 1;
        let pod = node.wait_pod(&self.name, SLOW, replaced);
        assert_eq!(pods::container(&pod, "swapped")["image"], pods::OTHER_IMAGE);
        let mut outcome = Outcome::of(&pod, &self.stamps);
        let hooks = ["pre-begin", "pre-end"].map(|word| outcome.stamps.remove(word).unwrap_or_default());
        assert!(
            hooks.iter().all(|count| (1..=2).contains(count)),
            "{}: {:?}",
            self.name,
            self.stamps.words()
        );
        outcome
    }
}

/// Takes an image from the node, under all its names, with what only it is made of.
fn drop_image(node: &Node, name: &str) {
    let table = node.runtime.ctr(&["images", "ls"]);
    let rows = || table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let digest = rows().find(|row| row.first() == Some(&name)).map(|row| row[2]).expect("the image");
    let names = rows().filter(|row| row.get(2) == Some(&digest)).map(|row| row[0]);
    let args: Vec<&str> = ["images", "rm", "--sync"].into_iter().chain(names).collect();
    node.runtime.ctr(&args);
}

#[test]
fn killed_during_a_pull() {
    let mut node = Node::start();
    let registry = Registry::start(&node.runtime);
    let mut outcomes = Vec::new();
    let images = [pods::OTHER_IMAGE, "rubelet.test/user1000:1", "rubelet.test/nobody:1"];
    for (fate, local) in [Fate::Calm, Fate::Struck, Fate::Away].into_iter().zip(images) {
        let name = format!("pull-{fate:?}").to_lowercase();
        let stamps = Timestamps::new(&node, &name);
        let image = registry.push(&node.runtime, local, &format!("team/{name}:1"));
        drop_image(&node, local);
        registry.shut_for("/blobs/");
        let root = json!({ "imagePullPolicy": "IfNotPresent", "securityContext": { "runAsUser": 0 } });
        let mut pulled = container("pulled", &stays("pulled"), root);
        pulled["image"] = json!(image);
        let spec = json!({
            "terminationGracePeriodSeconds": 5,
            "initContainers": [container("first", "stamp first-up", json!({}))],
            "containers": [pulled, container("other", &stays("other"), json!({}))],
        });
        node.agent.write_manifest(&name, &stamps.pod(&name, spec));
        let held = || registry.seen().held_repositories().contains(&format!("team/{name}"));
        wait_until("a pull that is in the middle of it", SLOW, held);
        // Killed between its creation and its start, it would count as started once more, as it does upstream.
        stamps.wait_for("other-up");
        meet(&mut node, fate, || registry.open());
        let pod = node.wait_pod(&name, SLOW, is_running);
        stamps.wait_for("pulled-up");
        outcomes.push(Outcome::of(&pod, &stamps));
        clear(&node, &name);
    }
    assert_eq!(outcomes[0].stamps["pulled-up"], 1);
    assert_eq!(outcomes[1], outcomes[0]);
    assert_eq!(outcomes[2], outcomes[0]);
}
