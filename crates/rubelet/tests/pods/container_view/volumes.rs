//! emptyDir, hostPath, sub-paths and mount propagation.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{clear, facts, looks, seen, spec};
use crate::support::harness::{Node, SLOW, wait_until};
use crate::support::pods::{
    self, container, is_running, manifest, phase, restarts, shell_with, wait_printed, waiting,
};

fn mount(name: &str, path: &str) -> Value {
    json!({ "name": name, "mountPath": path })
}

#[test]
fn empty_directories() {
    let node = Node::start();
    let mounts = json!({ "volumeMounts": [mount("disk", "/disk"), mount("memory", "/memory"), mount("sized", "/sized")] });
    let types = "for dir in disk memory sized; do
            echo $dir=$(awk -v dir=/$dir '$2 == dir {print $3}' /proc/mounts)
            echo mode-$dir=$(stat -c %a /$dir)
            echo left-$dir=$(ls -A /$dir | wc -l)
        done
        echo size=$(df -k /sized | awk 'END {print $2}')";
    let writes = "echo words >/disk/shared; echo words >/memory/shared";
    let reads = "until test -s /disk/shared && test -s /memory/shared; do sleep 0.1; done; cat /disk/shared /memory/shared";
    // Ends once: what it wrote is there when it comes back.
    let again = "cat /kept/count; echo once >>/kept/count; test $(wc -l </kept/count) -gt 1 || exit 1
                 trap 'exit 0' TERM; sleep 3600 & wait";
    let init = shell_with("first", types, mounts.clone());
    let containers = json!([
        looks("writes", writes, mounts.clone()),
        looks("reads", reads, mounts),
        shell_with("again", again, json!({ "volumeMounts": [mount("kept", "/kept")] })),
    ]);
    let more = json!({
        "initContainers": [init],
        "volumes": [
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "sized", "emptyDir": { "medium": "Memory", "sizeLimit": "4Mi" } },
            { "name": "kept" },
            { "name": "unused", "emptyDir": {} },
        ],
    });
    node.agent.write_manifest("e", &manifest("e", spec(containers, more)));
    let pod = node.wait_pod("e", SLOW, |pod| is_running(pod) && restarts(pod, "again") == 1);
    let found: Vec<String> = super::printed(&node.agent, &pod, "first", 0);
    for line in [
        "memory=tmpfs",
        "sized=tmpfs",
        "mode-disk=777",
        "mode-memory=1777",
        "left-disk=0",
        "left-memory=0",
        "size=4096",
    ] {
        assert!(found.iter().any(|other| other == line), "no {line} in {found:?}");
    }
    assert!(!found.iter().any(|line| line == "disk=tmpfs"), "{found:?}");
    assert_eq!(seen(&node, &pod, "reads"), ["words", "words"]);
    wait_printed(&node.agent, &pod, "again", 1, &["once"]);
    let dir =
        node.agent.root_dir().join("pods").join(pods::uid(&pod)).join("volumes/kubernetes.io~empty-dir");
    assert!(dir.join("disk/shared").is_file());
    assert!(!dir.join("unused").exists(), "a volume that nobody mounts is not made");
    clear(&node, &["e"]);
}

/// Files made of the pod's own fields: owned, read-only, also behind a sub-path, and gone with the pod.
#[test]
fn fields_as_files() {
    let node = Node::start();
    let look = "cat /info/name; echo; cat /info/deep/app; echo; cat /one; echo
                stat -L -c 'mode %a group %g' /info/name
                echo fs=$(awk '$2 == \"/info\" {print $3, substr($4, 1, 2)}' /proc/mounts)
                echo x >/info/new 2>/dev/null || echo refused
                readlink /info/name";
    let mounts = json!([
        mount("info", "/info"),
        { "name": "info", "mountPath": "/one", "subPath": "deep/app" },
    ]);
    let field = |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field } });
    let items = json!([field("name", "metadata.name"), field("deep/app", "metadata.labels['app']")]);
    let more = json!({
        "securityContext": { "fsGroup": 4711 },
        "volumes": [{ "name": "info", "downwardAPI": { "items": items, "defaultMode": 0o400 } }],
    });
    let spec = spec(json!([looks("c", look, json!({ "volumeMounts": mounts }))]), more);
    let metadata = json!({ "name": "f", "labels": { "app": "shown" } });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    node.agent.write_manifest("f", &pod.to_string());
    let pod = node.wait_pod("f", SLOW, is_running);
    let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
    let expect = [&name, "shown", "shown", "mode 440 group 4711", "fs=tmpfs ro", "refused", "..data/name"];
    assert_eq!(seen(&node, &pod, "c"), expect);
    clear(&node, &["f"]);
}

/// Each kind of host path, and a word of what the container finds there.
#[test]
fn host_paths() {
    let node = Node::start();
    let dir = node.runtime.dir.join("paths");
    fs::create_dir(&dir).expect("make a directory");
    fs::write(dir.join("file"), "content\n").expect("write a file");
    let _listener = UnixListener::bind(dir.join("socket")).expect("make a socket");
    run("mknod", &[&dir.join("disk").to_string_lossy(), "b", "7", "0"]);
    let volume = |name: &str, path: &Path, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
    let containers = json!([looks(
        "c",
        "for path in any dir made file fresh socket device disk; do echo $path=$(stat -c %F /$path); done; cat /file
         echo written >/made/by-container; echo x >>/fixed/file || echo refused",
        json!({ "volumeMounts": [
            mount("any", "/any"), mount("dir", "/dir"), mount("made", "/made"), mount("file", "/file"),
            mount("fresh", "/fresh"), mount("socket", "/socket"), mount("device", "/device"), mount("disk", "/disk"),
            { "name": "dir", "mountPath": "/fixed", "readOnly": true },
        ]}),
    )]);
    let volumes = json!([
        volume("any", &dir, ""),
        volume("dir", &dir, "Directory"),
        volume("made", &dir.join("a/b"), "DirectoryOrCreate"),
        volume("file", &dir.join("file"), "File"),
        volume("fresh", &dir.join("fresh"), "FileOrCreate"),
        volume("socket", &dir.join("socket"), "Socket"),
        volume("device", Path::new("/dev/null"), "CharDevice"),
        volume("disk", &dir.join("disk"), "BlockDevice"),
    ]);
    node.agent.write_manifest("h", &manifest("h", spec(containers, json!({ "volumes": volumes }))));
    let pod = node.wait_pod("h", SLOW, is_running);
    let found = facts(&node, &pod, "c");
    for (path, kind) in [
        ("any", "directory"),
        ("dir", "directory"),
        ("made", "directory"),
        ("file", "regular file"),
        ("fresh", "regular empty file"),
        ("socket", "socket"),
        ("device", "character special file"),
        ("disk", "block special file"),
    ] {
        assert_eq!(found[path], kind, "{path}");
    }
    assert!(found.contains_key("content") && found.contains_key("refused"), "{found:?}");
    clear(&node, &["h"]);
    // What is the host's stays.
    assert_eq!(fs::read_to_string(dir.join("a/b/by-container")).ok().as_deref(), Some("written\n"));
    assert!(
        dir.join("fresh").is_file()
            && dir.join("socket").metadata().is_ok_and(|meta| meta.file_type().is_socket())
    );
}

#[test]
fn a_host_path_that_is_not_there_is_waited_for() {
    let node = Node::start();
    let dir = node.runtime.dir.join("later");
    let containers = json!([looks("c", "cat /h/file", json!({ "volumeMounts": [mount("h", "/h")] }))]);
    let volumes = json!([{ "name": "h", "hostPath": { "path": dir, "type": "Directory" } }]);
    node.agent.write_manifest("w", &manifest("w", spec(containers, json!({ "volumes": volumes }))));
    let message = format!(
        "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: {} is not a directory",
        dir.display()
    );
    wait_until("the failure to be told", SLOW, || node.agent.log().contains(&message));
    let pod = node.agent.pod("w").expect("the pod");
    assert_eq!((phase(&pod), &waiting(&pod, "c")["reason"]), ("Pending", &json!("ContainerCreating")));
    assert!(container(&pod, "c")["containerID"].is_null(), "{}", pod["status"]);
    fs::create_dir(&dir).expect("make the directory");
    fs::write(dir.join("file"), "here\n").expect("write a file");
    let pod = node.wait_pod("w", SLOW, is_running);
    assert_eq!(seen(&node, &pod, "c"), ["here"]);
    clear(&node, &["w"]);
}

#[test]
fn sub_paths() {
    let node = Node::start();
    let dir = node.runtime.dir.join("tree");
    fs::create_dir_all(dir.join("in")).expect("make a directory");
    fs::write(dir.join("in/file"), "deep\n").expect("write a file");
    std::os::unix::fs::symlink("/etc", dir.join("out")).expect("make a link");
    let part = |name: &str, path: &str, sub_path: &str| json!({ "name": name, "mountPath": path, "subPath": sub_path });
    let containers = json!([
        looks(
            "writes",
            "echo one >/part/x; echo $(ls /all)",
            json!({
                "volumeMounts": [part("disk", "/part", "made/deep"), mount("disk", "/all")],
            })
        ),
        looks(
            "reads",
            "cat /file; echo changed >/file; ls /in",
            json!({
                "volumeMounts": [part("tree", "/file", "in/file"), part("tree", "/in", "in")],
            })
        ),
        looks(
            "named",
            "pwd; echo $(ls /all)",
            json!({
                "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                "workingDir": "/mine",
                "volumeMounts": [{ "name": "own", "mountPath": "/mine", "subPathExpr": "dir-$(POD)" }, mount("own", "/all")],
            })
        ),
        looks("strays", "true", json!({ "volumeMounts": [part("tree", "/x", "out")] })),
    ]);
    let volumes = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "own", "emptyDir": {} },
        { "name": "tree", "hostPath": { "path": dir } },
    ]);
    node.agent.write_manifest("s", &manifest("s", spec(containers, json!({ "volumes": volumes }))));
    let running = |pod: &Value, name: &str| container(pod, name)["state"]["running"].is_object();
    let pod = node.wait_pod("s", SLOW, |pod| {
        ["writes", "reads", "named"].iter().all(|name| running(pod, name))
            && waiting(pod, "strays")["message"].is_string()
    });
    assert_eq!(seen(&node, &pod, "writes"), ["made"]);
    assert_eq!(seen(&node, &pod, "reads"), ["deep", "file"]);
    assert_eq!(fs::read_to_string(dir.join("in/file")).ok().as_deref(), Some("changed\n"));
    assert_eq!(seen(&node, &pod, "named"), ["/mine", "dir-s-node"]);
    // A link out of the volume is not followed.
    assert_eq!(waiting(&pod, "strays")["reason"], "CreateContainerConfigError", "{}", pod["status"]);
    clear(&node, &["s"]);
    assert!(dir.join("in/file").exists() && Path::new("/etc/passwd").exists());
}

#[track_caller]
fn run(command: &str, args: &[&str]) {
    let output = Command::new(command).args(args).output().expect("run a command");
    assert!(output.status.success(), "{command} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn mounts_propagate_as_asked() {
    let node = Node::start();
    let dir = node.runtime.dir.join("propagated");
    let path = |below: &str| dir.join(below).to_string_lossy().into_owned();
    for below in ["", "from-host", "from-container"] {
        fs::create_dir_all(dir.join(below)).expect("make a directory");
    }
    // Only a shared mount can pass anything on.
    run("mount", &["--bind", &path(""), &path("")]);
    run("mount", &["--make-shared", &path("")]);
    let mounted = |propagation: &str| json!({ "volumeMounts": [{ "name": "p", "mountPath": "/p", "mountPropagation": propagation }] });
    let waits = "for n in $(seq 600); do test -e /p/from-host/file && break; test -e /p/done && break; sleep 0.1; done
                 test -e /p/from-host/file && echo seen";
    let mut both = mounted("Bidirectional");
    both["securityContext"] = json!({ "privileged": true });
    let containers = json!([
        looks(
            "apart",
            "until test -e /p/done; do sleep 0.1; done; test -e /p/from-host/file || echo not seen",
            mounted("None")
        ),
        looks("receives", waits, mounted("HostToContainer")),
        looks("gives", "mount -t tmpfs none /p/from-container && echo given >/p/from-container/file", both),
    ]);
    let volumes = json!([{ "name": "p", "hostPath": { "path": dir } }]);
    node.agent.write_manifest("p", &manifest("p", spec(containers, json!({ "volumes": volumes }))));
    let pod = node.wait_pod("p", SLOW, is_running);
    run("mount", &["-t", "tmpfs", "none", &path("from-host")]);
    fs::write(dir.join("from-host/file"), "").expect("write a file");
    assert_eq!(seen(&node, &pod, "receives"), ["seen"]);
    wait_until("the container's mount", SLOW, || dir.join("from-container/file").exists());
    fs::write(dir.join("done"), "").expect("write a file");
    assert_eq!(seen(&node, &pod, "apart"), ["not seen"]);
    node.agent.remove_manifest("p");
    wait_until("the pod to go", SLOW, || node.runtime.containers().is_empty());
    for below in ["from-container", "from-host", ""] {
        run("umount", &[&path(below)]);
    }
    node.wait_clean(SLOW);
}
