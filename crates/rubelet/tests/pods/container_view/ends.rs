//! What a container leaves when it ends: its message and its log.

use std::fs;

use serde_json::json;

use super::{clear, spec};
use crate::support::harness::{Node, SLOW};
use crate::support::pods::{container_id, is_running, manifest, phase, shell_with, terminated, uid};

#[test]
fn termination_messages() {
    let node = Node::start();
    let fallback = || json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let containers = json!([
        shell_with("file", "echo logged; printf 'last words' >/dev/termination-log; exit 3", json!({})),
        shell_with("silent", "echo logged; exit 3", json!({})),
        shell_with(
            "path",
            "printf elsewhere >/tmp/end; exit 0",
            json!({ "terminationMessagePath": "/tmp/end" })
        ),
        shell_with("log", "echo one; echo two; exit 4", fallback()),
        shell_with("good", "echo one; exit 0", fallback()),
        shell_with("both", "echo logged; printf written >/dev/termination-log; exit 4", fallback()),
        shell_with(
            "long",
            "head -c 10000 /dev/zero | tr '\\0' x >/dev/termination-log; printf end >>/dev/termination-log; exit 1",
            json!({})
        ),
    ]);
    node.agent.write_manifest("t", &manifest("t", spec(containers, json!({ "restartPolicy": "Never" }))));
    let pod = node.wait_pod("t", SLOW, |pod| phase(pod) == "Failed");
    for (name, code, message) in [
        ("file", 3, Some("last words")),
        ("silent", 3, None),
        ("path", 0, Some("elsewhere")),
        ("log", 4, Some("one\ntwo\n")),
        ("good", 0, None),
        ("both", 4, Some("written")),
    ] {
        let ended = terminated(&pod, name);
        assert_eq!(
            (ended["exitCode"].as_i64(), ended["message"].as_str()),
            (Some(code), message),
            "{name}: {ended}"
        );
        let reason = if code == 0 { "Completed" } else { "Error" };
        assert_eq!(ended["reason"], reason, "{name}");
    }
    // The last 4 KiB of the file, of which the status shows this container's share of the pod's 12 KiB.
    let long = terminated(&pod, "long")["message"].as_str().unwrap_or_default();
    assert_eq!((long.len(), long.trim_matches('x')), (12 * 1024 / 7, ""));
    clear(&node, &["t"]);
}

#[test]
fn logs_lie_where_collectors_look() {
    let node = Node::start();
    let script = "echo out; echo err >&2; printf partial; trap 'exit 0' TERM; sleep 3600 & wait";
    let containers = json!([shell_with("c", script, json!({}))]);
    node.agent.write_manifest("l", &manifest("l", spec(containers, json!({}))));
    let pod = node.wait_pod("l", SLOW, is_running);
    let path = node.agent.logs_dir().join(format!("default_l-node_{}/c/0.log", uid(&pod)));
    let log = super::wait("the log", SLOW, || {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        if text.lines().count() == 2 { Ok(text) } else { Err(text) }
    });
    let mut lines: Vec<(&str, &str, &str)> = log
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            assert!(words[0].parse::<jiff::Timestamp>().is_ok(), "{line}");
            (words[1], words[2], words[3])
        })
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [("stderr", "F", "err"), ("stdout", "F", "out")]);

    let link = format!("/var/log/containers/l-node_default_c-{}.log", container_id(&pod, "c"));
    // It is made when the container has started, and its state may be seen before that.
    super::wait("the link to the log", SLOW, || match fs::read_link(&link) {
        Ok(target) if target == path => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(fs::read_to_string(&link).ok(), Some(log));
    clear(&node, &["l"]);
    assert!(fs::symlink_metadata(&link).is_err(), "{link} is left");
}
