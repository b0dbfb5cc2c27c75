//! What pods that are gone left behind goes; what was never a pod's stays.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::harness::{Agent, Node, Runtime, SLOW, cgroups_below, wait};
use crate::support::runtime_view::{RuntimeView, sleeper};
use serde_json::json;

/// Where links for log collectors are; every agent of the machine uses the same directory.
const LINKS: &str = "/var/log/containers";

/// Fails three times and runs then. The volume that counts lives as long as the pod.
const THREE_FAILURES: &str = "apiVersion: v1
kind: Pod
metadata:
  name: failing
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command:
    - sh
    - -c
    - |
      echo again >>/count/runs
      echo \"run $(wc -l </count/runs)\"
      [ $(wc -l </count/runs) -gt 3 ] || exit 3
      sleep 1000000
    volumeMounts:
    - {name: count, mountPath: /count}
  volumes:
  - name: count
    emptyDir: {}
";

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Targets of the links for log collectors that lead into these logs.
fn linked_logs(logs: &Path) -> BTreeSet<PathBuf> {
    let links = fs::read_dir(LINKS).into_iter().flatten().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(logs)).collect()
}

#[test]
fn of_dead_containers_only_the_newest_is_kept() {
    let node = Node::start_with(|config| {
        config["featureGates"] = json!({ "KubeletCrashLoopBackOffMax": true });
        config["crashLoopBackOff"] = json!({ "maxContainerRestartPeriod": "1s" });
    });
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("failing", THREE_FAILURES);
    let pod = node.wait_pod("failing", SLOW, |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 3 && status["state"]["running"].is_object()
    });
    let container = pod["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().expect("a UID");
    let logs = node.agent.logs_dir().join(format!("default_failing-node_{container}")).join("main");
    wait("the older dead containers to go", SLOW, || {
        let pod = seen.pods()?.remove("failing").unwrap_or_default();
        let dead: Vec<u32> = pod.dead().map(|c| c.attempt).collect();
        let running: Vec<u32> = pod.running().map(|c| c.attempt).collect();
        let files = names_in(&logs);
        let links = linked_logs(&node.agent.logs_dir());
        let wanted = ["2.log", "3.log"];
        let as_wanted = (dead.as_slice(), running.as_slice()) == (&[2], &[3])
            && files.iter().eq(wanted)
            && links == wanted.iter().map(|name| logs.join(name)).collect();
        if as_wanted {
            Ok(())
        } else {
            Err(format!("dead {dead:?}, running {running:?}, {files:?}, {links:?}"))
        }
    });
    let last = &node.agent.pod("failing").expect("the pod")["status"]["containerStatuses"][0]["lastState"];
    assert_eq!(last["terminated"]["exitCode"], 3);
    wait("the fourth run to tell its number", SLOW, || match node.agent.container_log(&pod, "main", 3) {
        log if log.contains("run 4") => Ok(()),
        log => Err(log),
    });

    node.agent.remove_manifest("failing");
    node.wait_clean(SLOW);
}

/// A mount and a link outside of the instance's directory, removed whatever happens.
struct Foreign {
    mount: PathBuf,
    link: PathBuf,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).output();
        let _ = fs::remove_file(&self.link);
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
    fs::write(path, text).expect("write a file");
}

/// Makes the cgroup in every hierarchy, and gives its directories.
fn make_cgroups(runtime: &Runtime, name: &str) -> Vec<PathBuf> {
    let roots: Vec<PathBuf> = cgroups_below(&runtime.cgroup_root);
    let top = runtime.cgroup_root.trim_start_matches('/');
    let tops = roots.into_iter().filter(|path| path.ends_with(top));
    let made: Vec<PathBuf> = tops.map(|path| path.join(name)).collect();
    for path in &made {
        fs::create_dir_all(path).expect("make a cgroup");
    }
    assert!(!made.is_empty(), "no cgroup hierarchy");
    made
}

#[test]
fn leftovers_go_and_foreign_things_stay() {
    let runtime = Runtime::start();
    let (root, logs) = (runtime.dir.join("root"), runtime.dir.join("logs"));
    let gone = "11111111-2222-3333-4444-555555555555";

    // What an agent that was killed long ago may have left of a pod.
    let old_dir = root.join("pods").join(gone);
    write(&old_dir.join("volumes/kubernetes.io~empty-dir/scratch/file"), "x");
    write(&old_dir.join("etc-hosts"), "x");
    let old_logs = logs.join(format!("default_old-node_{gone}"));
    write(&old_logs.join("main/0.log"), "x");
    let old_link = Path::new(LINKS).join(format!("old-node_default_main-{}.log", std::process::id()));
    fs::create_dir_all(LINKS).expect("make the directory of links");
    symlink(old_logs.join("main/0.log"), &old_link).expect("make a link");
    let old_cgroups = make_cgroups(&runtime, &format!("kubepods/besteffort/pod{gone}"));

    // What somebody else put there.
    let precious = runtime.dir.join("precious");
    write(&precious.join("data"), "irreplaceable");
    let mount = root.join("pods/foreign/deep/mount");
    fs::create_dir_all(&mount).expect("make a mount point");
    let link = Path::new(LINKS).join(format!("foreign-{}.log", std::process::id()));
    symlink(precious.join("data"), &link).expect("make a link");
    let foreign = Foreign { mount, link };
    let bind = Command::new("mount").arg("--bind").arg(&precious).arg(&foreign.mount).status();
    assert!(bind.expect("run mount").success(), "could not mount");
    write(&logs.join("readme/file"), "x");
    let mut foreign_cgroups = make_cgroups(&runtime, "foreign");
    foreign_cgroups.extend(make_cgroups(&runtime, "kubepods/somebody"));
    let bystander = start_bystanders(&runtime);

    let node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
    let seen = RuntimeView::new(&node.runtime);
    wait("what is left of the old pod to go", SLOW, || {
        let mut left: Vec<&PathBuf> = old_cgroups.iter().chain([&old_dir, &old_logs, &old_link]).collect();
        left.retain(|path| path.symlink_metadata().is_ok());
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    // A pod that comes and goes makes the agent clean up once more.
    node.agent.write_manifest("passing", &sleeper("passing"));
    seen.wait_running(&["passing".to_owned()], 1, SLOW);
    node.agent.remove_manifest("passing");
    wait("the passing pod to go", SLOW, || match seen.pods()?.len() {
        0 => Ok(()),
        some => Err(format!("{some} pods")),
    });

    assert_eq!(fs::read_to_string(precious.join("data")).ok().as_deref(), Some("irreplaceable"));
    assert_eq!(fs::read_to_string(foreign.mount.join("data")).ok().as_deref(), Some("irreplaceable"));
    assert_eq!(fs::read_to_string(&foreign.link).ok().as_deref(), Some("irreplaceable"));
    assert!(logs.join("readme/file").exists());
    for path in &foreign_cgroups {
        assert!(path.exists(), "{} is gone", path.display());
    }
    let tasks = node.runtime.tasks();
    assert!(tasks.iter().any(|task| task.id == bystander && task.status == "RUNNING"), "{tasks:?}");
    assert!(elsewhere(&node.runtime, &["tasks", "ls"]).contains("RUNNING"));
    wait("a word about the directory that could not be removed", SLOW, || {
        let log = node.agent.log();
        let said = log.lines().any(|line| line.starts_with('W') && line.contains("deep/mount"));
        if said { Ok(()) } else { Err("nothing was said") }
    });
}

/// ctr in another namespace of the same containerd.
#[track_caller]
fn elsewhere(runtime: &Runtime, args: &[&str]) -> String {
    let mut ctr = Command::new(runtime.fact("ctr"));
    ctr.args(["-a", runtime.fact("socket"), "-n", "elsewhere"]).args(args);
    let output = ctr.output().expect("run ctr");
    assert!(output.status.success(), "{ctr:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Containers that CRI knows nothing of: one in another namespace, one in Kubernetes' own. Gives the latter's id.
fn start_bystanders(runtime: &Runtime) -> String {
    let image = "rubelet.test/busybox:1";
    let id = format!("bystander-{}", runtime.bridge());
    let sleep = ["sleep", "1000000"];
    runtime.ctr(&[&["run", "-d", image, &id][..], &sleep].concat());
    let path = |name: &str| runtime.dir.join(name).to_string_lossy().into_owned();
    let (archive, runc, fifos) = (path("image.tar"), path("runc"), path("tmp/fifo"));
    runtime.ctr(&["images", "export", &archive, image]);
    elsewhere(runtime, &["images", "import", &archive]);
    let places = ["--runc-root", &runc, "--fifo-dir", &fifos];
    elsewhere(runtime, &[&["run", "-d"], &places[..], &[image, "other"], &sleep].concat());
    id
}
