//! The test parts themselves: a private containerd runs containers, and goes without a trace.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::harness::{
    Runtime, SLOW, cgroups_below, get, live_processes, mounts_below, port_maps_of, wait,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A container with a web server, attached to the instance's pod network and reachable by a host port.
/// Returns its id; what CRI would do is done by hand here.
fn serve(runtime: &Runtime, host_port: u16) -> String {
    let id = format!("web-{}", runtime.bridge());
    let cgroup = format!("{}/web", runtime.cgroup_root);
    let script = "cat /etc/rubelet-image >/www/name; exec httpd -f -p 80 -h /www";
    runtime.ctr(&["run", "-d", "--cgroup", &cgroup, "rubelet.test/busybox:2", &id, "sh", "-c", script]);
    let task = runtime.tasks().into_iter().find(|task| task.id == id).expect("the task");
    let namespace = format!("/proc/{}/ns/net", task.pid);

    let list = fs::read(runtime.dir.join("cni/net.d/10-pods.conflist")).expect("the network's configuration");
    let list: Value = serde_json::from_slice(&list).expect("JSON");
    let added = plugin(&list, 0, json!({}), &id, &namespace);
    let ports = json!([{ "hostPort": host_port, "containerPort": 80, "protocol": "tcp" }]);
    let more = json!({ "prevResult": added, "runtimeConfig": { "portMappings": ports } });
    plugin(&list, 1, more, &id, &namespace);
    id
}

/// Runs one plugin of the list, as a runtime does.
fn plugin(list: &Value, index: usize, more: Value, id: &str, namespace: &str) -> Value {
    let mut config = list["plugins"][index].clone();
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    let program = config["type"].as_str().expect("a plugin's name").to_owned();
    let mut child = Command::new(Path::new("/usr/lib/cni").join(program))
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", id), ("CNI_NETNS", namespace)])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/usr/lib/cni")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the plugin");
    child.stdin.take().expect("its input").write_all(config.to_string().as_bytes()).expect("tell the plugin");
    let output = child.wait_with_output().expect("the plugin's end");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "the plugin failed: {said}");
    serde_json::from_str(&said).expect("the plugin's result")
}

fn fetch(port: u16) -> String {
    wait("the web server behind the host port", SLOW, || match get(&format!("127.0.0.1:{port}"), "/name") {
        Ok(response) if response.status == 200 => Ok(response.text().trim().to_owned()),
        Ok(response) => Err(format!("{}: {}", response.status, response.text())),
        Err(error) => Err(error.to_string()),
    })
}

/// Everything of the instance that can still be seen on the machine.
fn traces(runtime: &Runtime) -> Vec<String> {
    let dir = runtime.dir.to_string_lossy().into_owned();
    let mut found = live_processes(&format!("{dir}/"));
    found.extend(live_processes(&runtime.cgroup_root));
    found.extend(mounts_below(&runtime.dir).iter().map(|mount| format!("mount {}", mount.display())));
    found.extend(cgroups_below(&runtime.cgroup_root).iter().map(|path| format!("cgroup {}", path.display())));
    found.extend(port_maps_of(runtime.network()));
    let bridge = Path::new("/sys/class/net").join(runtime.bridge());
    found.extend(
        [&bridge, &runtime.dir].iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
    );
    found
}

/// The kinds of traces that a used instance has, so that their absence later means something.
fn assert_used(runtime: &Runtime) {
    let traces = traces(runtime).join("\n");
    for kind in ["containerd-shim", "mount ", "cgroup ", "CNI-DN-", "/sys/class/net/"] {
        assert!(traces.contains(kind), "no {kind} among:\n{traces}");
    }
}

#[test]
fn a_private_containerd_runs_containers_and_goes_without_a_trace() {
    let runtime = Runtime::start();
    let images = runtime.ctr(&["images", "ls", "-q"]);
    for image in ["pause:1", "busybox:1", "busybox:2", "user1000:1", "nobody:1"] {
        assert!(
            images.lines().any(|line| line == format!("rubelet.test/{image}")),
            "{image} is not in {images}"
        );
    }
    let port = runtime.free_port();
    let id = serve(&runtime, port);
    assert_eq!(fetch(port), "busybox:2");
    assert_eq!(runtime.containers(), [id.as_str()]);
    assert_used(&runtime);

    runtime.stop();
    assert_eq!(traces(&runtime), [""; 0]);
    // Once more changes nothing, and is no error.
    runtime.stop();
}

#[test]
fn it_goes_without_a_trace_after_crashes() {
    let runtime = Runtime::start();
    serve(&runtime, runtime.free_port());
    assert_used(&runtime);
    let shims = live_processes(&format!("{}/containerd.sock", runtime.dir.display()));
    runtime.kill9();
    for shim in shims {
        let pid =
            shim.split(':').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, Signal::KILL).expect("kill a shim");
    }
    runtime.stop();
    assert_eq!(traces(&runtime), [""; 0]);
}

#[test]
fn containers_survive_a_restart_of_containerd() {
    let runtime = Runtime::start();
    let port = runtime.free_port();
    serve(&runtime, port);
    let before = runtime.tasks();
    runtime.kill9();
    runtime.restart();
    assert_eq!(runtime.tasks(), before);
    assert_eq!(fetch(port), "busybox:2");
}

/// A process on whose behalf an instance runs.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hack_runtime(args: &[&str], owner: u32) {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/runtime"))
        .args(args)
        .env("RUBELET_TEST_OWNER", owner.to_string())
        .stdin(Stdio::null())
        .output()
        .expect("run hack/runtime");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_instance_whose_owner_died_is_swept() {
    let owner = Owner(Command::new("sleep").arg("600").spawn().expect("start an owner"));
    let id = owner.0.id();
    let dir = std::env::temp_dir().join(format!("rubelet-swept-{}", std::process::id()));
    let path = dir.to_string_lossy().into_owned();
    hack_runtime(&["start", &path], id);
    hack_runtime(&["sweep"], id);
    assert!(dir.exists(), "its owner lives, and it was swept");
    drop(owner);
    hack_runtime(&["sweep"], id);
    assert!(!dir.exists(), "its owner is gone, and it was not swept");
    assert_eq!(live_processes(&format!("{path}/")), [""; 0]);
}
