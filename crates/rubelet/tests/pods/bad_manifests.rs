//! Broken manifests: each is named with its reason, once, and hurts nobody else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::harness::{Node, SLOW, wait};
use crate::support::runtime_view::{BURST, RuntimeView, sleeper};
use serde_json::json;

/// Lines of the log that complain about this manifest.
fn complaints(node: &Node, name: &str) -> Vec<String> {
    let path = node.agent.manifests().join(format!("{name}.yaml"));
    let path = path.to_string_lossy().into_owned();
    let log = node.agent.log();
    log.lines().filter(|line| line.starts_with('E') && line.contains(&path)).map(str::to_owned).collect()
}

#[track_caller]
fn wait_complaint(node: &Node, name: &str, words: &[&str]) -> String {
    wait(&format!("a complaint about {name}"), SLOW, || {
        let lines = complaints(node, name);
        let fits = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().find(fits).cloned().ok_or_else(|| format!("{words:?} is not in {lines:#?}"))
    })
}

/// What is wrong with it, its content, and the words that tell what is wrong.
struct Broken {
    name: &'static str,
    content: Content,
    words: &'static [&'static str],
}

enum Content {
    Text(String),
    Directory,
    DanglingLink,
}

impl Broken {
    fn text(name: &'static str, text: String, words: &'static [&'static str]) -> Broken {
        Broken { name, content: Content::Text(text), words }
    }

    fn edited(name: &'static str, from: &str, to: &str, words: &'static [&'static str]) -> Broken {
        let good = sleeper(name);
        assert!(good.contains(from), "{from} is not in the manifest");
        Broken::text(name, good.replace(from, to), words)
    }

    fn put(&self, node: &Node) {
        match &self.content {
            Content::Text(text) => node.agent.write_manifest(self.name, text),
            Content::Directory => fs::create_dir(self.path(node)).expect("make a directory"),
            Content::DanglingLink => symlink("/nowhere/at/all", self.path(node)).expect("make a link"),
        }
    }

    /// Puts a good manifest in its place, as a person would.
    fn mend(&self, node: &Node) {
        match &self.content {
            Content::Text(_) => {}
            Content::Directory => fs::remove_dir(self.path(node)).expect("remove the directory"),
            Content::DanglingLink => fs::remove_file(self.path(node)).expect("remove the link"),
        }
        node.agent.write_manifest(self.name, &sleeper(self.name));
    }

    fn path(&self, node: &Node) -> impl AsRef<Path> + use<> {
        node.agent.manifests().join(format!("{}.yaml", self.name))
    }
}

fn ten_kinds() -> Vec<Broken> {
    let truncated = sleeper("truncated");
    let (truncated, _) = truncated.split_at(truncated.find("sleep 1000000").expect("a command"));
    let huge = format!("{}# {}\n", sleeper("huge"), "x".repeat(10 << 20));
    vec![
        Broken::text("truncated", truncated.to_owned(), &["couldn't parse as pod"]),
        Broken::edited("kind", "kind: Pod", "kind: Deployment", &["couldn't parse as pod", "Deployment"]),
        Broken::edited(
            "image",
            "image: rubelet.test/busybox:1",
            "env: []",
            &["containers[0].image", "Required"],
        ),
        Broken::edited("name", "name: name", "name: Not_A_Name", &["metadata.name", "Not_A_Name"]),
        Broken::edited(
            "quantity",
            "sizeLimit: 1Mi",
            "sizeLimit: much",
            &["emptyDir.sizeLimit", "is not a quantity"],
        ),
        Broken::edited(
            "twice",
            "  containers:\n",
            "  containers:\n  - {name: main, image: 'rubelet.test/busybox:1'}\n",
            &["spec.containers[1].name", "Duplicate value"],
        ),
        Broken::edited(
            "volume",
            "{name: scratch, mountPath",
            "{name: other, mountPath",
            &["volumeMounts[0].name", "Not found", "other"],
        ),
        Broken::text("huge", huge, &["10 MiB"]),
        Broken { name: "directory", content: Content::Directory, words: &["is a directory"] },
        Broken { name: "link", content: Content::DanglingLink, words: &["link to nothing"] },
    ]
}

#[test]
fn ten_kinds_of_broken_manifests_are_named_and_hurt_nobody() {
    // It looks again often: what it has said once it must not say again.
    let mut node = Node::start_with(|config| config["fileCheckFrequency"] = json!("1s"));
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("good", &sleeper("good"));
    let before = seen.wait_running(&["good".to_owned()], 1, SLOW);

    let broken = ten_kinds();
    for one in &broken {
        one.put(&node);
    }
    for one in &broken {
        let line = wait_complaint(&node, one.name, one.words);
        println!("{}: {}", one.name, line.split_once("] ").map_or(line.as_str(), |(_, rest)| rest));
    }
    node.agent.write_manifest("later", &sleeper("later"));
    let after = seen.wait_running(&["good".to_owned(), "later".to_owned()], 1, SLOW);
    assert_eq!(after["good"], before["good"]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    for one in &broken {
        assert_eq!(complaints(&node, one.name).len(), 1, "{:#?}", complaints(&node, one.name));
    }
    assert!(node.agent.is_running());

    for one in &broken {
        one.mend(&node);
    }
    let mut names: Vec<String> = broken.iter().map(|one| one.name.to_owned()).collect();
    names.extend(["good".to_owned(), "later".to_owned()]);
    let mended = seen.wait_running(&names, 1, BURST);
    assert_eq!(mended["good"], before["good"]);
    assert_eq!(mended["later"], after["later"]);
}

#[test]
fn a_good_manifest_that_breaks_keeps_its_pod_until_it_goes() {
    let node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let name = ["turns".to_owned()];
    node.agent.write_manifest("turns", &sleeper("turns"));
    let before = seen.wait_running(&name, 1, SLOW);

    for (broken, words) in [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: tur", "couldn't parse as pod"),
        ("", "couldn't parse as pod"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: turns}\nspec: {containers: []}\n", "spec.containers"),
    ] {
        node.agent.write_manifest("turns", broken);
        wait_complaint(&node, "turns", &[words]);
    }
    // Time enough for a stop to show, had there been one.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(seen.wait_running(&name, 1, SLOW), before);

    // The same as before: nothing has to be restarted.
    node.agent.write_manifest("turns", &sleeper("turns"));
    wait("the complaint to be withdrawn", SLOW, || {
        let log = node.agent.log();
        if log.contains("this pod source is readable again") { Ok(()) } else { Err(node.agent.log_tail()) }
    });
    assert_eq!(seen.wait_running(&name, 1, SLOW), before);

    node.agent.write_manifest("turns", "nonsense");
    node.agent.remove_manifest("turns");
    node.wait_clean(SLOW);
}
