//! Users, groups, capabilities and what is out of reach.

use serde_json::{Value, json};

use super::{clear, facts, looks, spec};
use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{self, container, is_running, manifest, printed, waiting};

const STATUS: &str = "sed -n 's/:\\t/=/p' /proc/self/status";

/// The capabilities that the runtime gives a container by default.
const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;
const NET_BIND_SERVICE: u64 = 1 << 10;
const SYS_TIME: u64 = 1 << 25;
const CHOWN: u64 = 1;

fn secured(name: &str, context: Value) -> Value {
    looks(name, STATUS, json!({ "securityContext": context }))
}

fn own_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("capabilities");
    u64::from_str_radix(line.trim(), 16).expect("a number")
}

#[test]
fn privileges() {
    let node = Node::start();
    let containers = json!([
        secured("plain", json!({})),
        secured("few", json!({ "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } })),
        secured("other", json!({ "capabilities": { "drop": ["CHOWN"], "add": ["SYS_TIME"] } })),
        secured("held", json!({ "allowPrivilegeEscalation": false })),
        secured("filtered", json!({ "seccompProfile": { "type": "RuntimeDefault" } })),
        secured("privileged", json!({ "privileged": true })),
        looks(
            "readonly",
            "touch /x || echo refused; touch /dev/shm/x && echo memory",
            json!({
                "securityContext": { "readOnlyRootFilesystem": true },
            })
        ),
        looks(
            "masked",
            "echo list=$(wc -c </proc/timer_list); echo firmware=$(ls /sys/firmware | wc -l)
                          echo 1 >/proc/sys/kernel/panic && echo wrote=1",
            json!({})
        ),
        looks(
            "unmasked",
            "echo 10 >/proc/sys/net/ipv4/ip_default_ttl && echo wrote=1",
            json!({
                "securityContext": { "privileged": true },
            })
        ),
    ]);
    node.agent.write_manifest("p", &manifest("p", spec(containers, json!({}))));
    let pod = node.wait_pod("p", SLOW, is_running);

    let check = |name: &str, capabilities: u64, no_new_privileges: &str, seccomp: &str| {
        let found = facts(&node, &pod, name);
        let effective = u64::from_str_radix(&found["CapEff"], 16).expect("a number");
        assert_eq!(format!("{effective:x}"), format!("{capabilities:x}"), "{name}");
        assert_eq!(
            (found["NoNewPrivs"].as_str(), found["Seccomp"].as_str()),
            (no_new_privileges, seccomp),
            "{name}"
        );
    };
    let default = DEFAULT_CAPABILITIES & own_capabilities();
    check("plain", default, "0", "0");
    check("few", NET_BIND_SERVICE, "0", "0");
    check("other", (default & !CHOWN) | SYS_TIME, "0", "0");
    check("held", default, "1", "0");
    check("filtered", default, "0", "2");
    check("privileged", own_capabilities(), "0", "0");

    assert_eq!(super::seen(&node, &pod, "readonly").last().map(String::as_str), Some("memory"));
    assert!(super::seen(&node, &pod, "readonly").contains(&"refused".to_owned()));
    let masked = facts(&node, &pod, "masked");
    assert_eq!((masked["list"].as_str(), masked["firmware"].as_str(), masked.get("wrote")), ("0", "0", None));
    assert_eq!(facts(&node, &pod, "unmasked").get("wrote").map(String::as_str), Some("1"));
    clear(&node, &["p"]);
}

#[test]
fn seccomp_by_default() {
    let node = Node::start_with(|config| config["seccompDefault"] = json!(true));
    let containers = json!([
        secured("plain", json!({})),
        secured("open", json!({ "seccompProfile": { "type": "Unconfined" } })),
    ]);
    node.agent.write_manifest("s", &manifest("s", spec(containers, json!({}))));
    let pod = node.wait_pod("s", SLOW, is_running);
    assert_eq!(facts(&node, &pod, "plain")["Seccomp"], "2");
    assert_eq!(facts(&node, &pod, "open")["Seccomp"], "0");
    clear(&node, &["s"]);
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

#[test]
fn users_and_groups() {
    let node = Node::start();
    let of_image = |name: &str, image: &str| looks(name, STATUS, json!({ "image": image }));
    let containers = json!([
        of_image("root", "rubelet.test/busybox:1"),
        of_image("number", "rubelet.test/user1000:1"),
        of_image("name", "rubelet.test/nobody:1"),
        secured("given", json!({ "runAsUser": 1234, "runAsGroup": 2345 })),
    ]);
    node.agent.write_manifest("images", &manifest("images", spec(containers, json!({}))));
    let writes = "umask 022; touch /disk/file /memory/file
        for dir in disk memory; do stat -c \"$dir=%g %a\" /$dir; stat -c \"$dir/file=%u %g\" /$dir/file; done";
    let mounts =
        json!([{ "name": "disk", "mountPath": "/disk" }, { "name": "memory", "mountPath": "/memory" }]);
    let containers = json!([
        looks("inherits", STATUS, json!({})),
        looks("overrides", STATUS, json!({ "securityContext": { "runAsUser": 1001, "runAsGroup": 2001 } })),
        looks("writes", writes, json!({ "volumeMounts": mounts })),
    ]);
    let more = json!({
        "securityContext": { "runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000, 3001], "fsGroup": 4000 },
        "volumes": [{ "name": "disk", "emptyDir": {} }, { "name": "memory", "emptyDir": { "medium": "Memory" } }],
    });
    node.agent.write_manifest("groups", &manifest("groups", spec(containers, more)));

    let pod = node.wait_pod("images", SLOW, is_running);
    for (name, uid, gid) in
        [("root", 0, 0), ("number", 1000, 1000), ("name", 65534, 65534), ("given", 1234, 2345)]
    {
        let found = facts(&node, &pod, name);
        assert_eq!((numbers(&found["Uid"]), numbers(&found["Gid"])), (vec![uid; 4], vec![gid; 4]), "{name}");
    }
    let pod = node.wait_pod("groups", SLOW, is_running);
    for (name, uid, gid) in [("inherits", 1000, 2000), ("overrides", 1001, 2001)] {
        let found = facts(&node, &pod, name);
        assert_eq!((numbers(&found["Uid"]), numbers(&found["Gid"])), (vec![uid; 4], vec![gid; 4]), "{name}");
        let groups = numbers(&found["Groups"]);
        assert!([3000, 3001, 4000].iter().all(|group| groups.contains(group)), "{name}: {groups:?}");
    }
    let files = facts(&node, &pod, "writes");
    // A fresh tmpfs has the sticky bit.
    for (dir, mode) in [("disk", "2777"), ("memory", "3777")] {
        assert_eq!(files[dir], format!("4000 {mode}"), "{dir}");
        assert_eq!(files[&format!("{dir}/file")], "1000 4000", "{dir}");
    }
    clear(&node, &["images", "groups"]);
}

#[test]
fn non_root_is_held() {
    let node = Node::start();
    let image = |name: &str, image: &str| looks(name, "true", json!({ "image": image }));
    let containers = json!([
        image("fine", "rubelet.test/user1000:1"),
        image("name", "rubelet.test/nobody:1"),
        image("root", "rubelet.test/busybox:1"),
        looks("zero", "true", json!({ "securityContext": { "runAsUser": 0 } })),
    ]);
    let more = json!({ "securityContext": { "runAsNonRoot": true } });
    node.agent.write_manifest("n", &manifest("n", spec(containers, more)));
    let all_refused =
        |pod: &Value| ["name", "root", "zero"].iter().all(|name| waiting(pod, name)["message"].is_string());
    let pod = node.wait_pod("n", SLOW, |pod| {
        all_refused(pod) && container(pod, "fine")["state"]["running"].is_object()
    });
    let id = format!("n-node_default({})", pods::uid(&pod));
    for (name, message) in [
        (
            "name",
            format!(
                "container has runAsNonRoot and image has non-numeric user (nobody), cannot verify user is non-root (pod: \"{id}\", container: name)"
            ),
        ),
        (
            "root",
            format!("container has runAsNonRoot and image will run as root (pod: \"{id}\", container: root)"),
        ),
        ("zero", format!("container's runAsUser breaks non-root policy (pod: \"{id}\", container: zero)")),
    ] {
        let state = waiting(&pod, name);
        assert_eq!(
            (&state["reason"], &state["message"]),
            (&json!("CreateContainerConfigError"), &json!(message))
        );
    }
    clear(&node, &["n"]);
}

/// CVE-2019-11245: a container whose user comes from its image ran as root once it was restarted.
#[test]
fn a_restarted_container_keeps_the_user_of_its_image() {
    let node = Node::start();
    let script = "id -u; test -e /scratch/seen && sleep 3600; touch /scratch/seen; exit 1";
    let mount = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    let more = json!({ "image": "rubelet.test/user1000:1", "volumeMounts": mount });
    let volumes = json!({ "volumes": [{ "name": "scratch", "emptyDir": {} }] });
    let containers = json!([pods::shell_with("c", script, more)]);
    node.agent.write_manifest("u", &manifest("u", spec(containers, volumes)));
    let pod = node.wait_pod("u", SLOW, |pod| {
        let status = container(pod, "c");
        status["restartCount"] == 1 && status["state"]["running"].is_object()
    });
    for instance in [0, 1] {
        let lines = wait("the user's number", SLOW, || match printed(&node.agent, &pod, "c", instance) {
            lines if lines.is_empty() => Err("nothing printed yet"),
            lines => Ok(lines),
        });
        assert_eq!(lines, ["1000"], "instance {instance}");
    }
    clear(&node, &["u"]);
}
