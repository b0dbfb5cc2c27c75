//! Pods whose containers tell by files of the host when they began, ended and were told to end, by the machine's own
//! clock; and which end when they are asked to.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::figures::{soon, written};
use crate::support::harness::cgroups_below;

pub const IMAGE: &str = "rubelet.test/busybox:1";
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A directory of the host that all containers see as `/marks`.
pub struct Marks {
    pub dir: PathBuf,
}

impl Marks {
    pub fn new(parent: &Path) -> Marks {
        let dir = parent.join("marks");
        fs::create_dir_all(&dir).expect("make a directory for marks");
        Marks { dir }
    }

    /// What the container runs: it marks its first and second run, waits without using a core, and ends when it is asked
    /// (by the pipe) or told (by the signal).
    pub fn command(&self, name: &str) -> Vec<String> {
        let pipe = self.dir.join(format!("{name}.ask"));
        if !pipe.exists() {
            let made = Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
            assert!(made.success(), "mkfifo {}", pipe.display());
        }
        let script = format!(
            "trap ': >/marks/{name}.term; exit 0' TERM\n\
             if [ -e /marks/{name}.run ]; then : >/marks/{name}.again; else : >/marks/{name}.run; fi\n\
             cat /marks/{name}.ask >/dev/null & wait $!\n\
             : >/marks/{name}.exit; exit 1"
        );
        vec!["sh".into(), "-c".into(), script]
    }

    /// A pod with the least that a pod has.
    pub fn pod(&self, name: &str) -> Value {
        let container = json!({
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": self.command(name),
            "volumeMounts": [{ "name": "marks", "mountPath": "/marks" }],
        });
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "containers": [container], "terminationGracePeriodSeconds": 30,
                "automountServiceAccountToken": false, "enableServiceLinks": false,
                "volumes": [{ "name": "marks", "hostPath": { "path": self.dir, "type": "Directory" } }],
            },
        })
    }

    pub fn seen(&self, name: &str, what: &str) -> Option<SystemTime> {
        written(&self.dir.join(format!("{name}.{what}")))
    }

    #[track_caller]
    pub fn wait(&self, name: &str, what: &str) -> SystemTime {
        soon(&format!("the mark {name}.{what}"), PATIENCE, || self.seen(name, what))
    }

    /// Lets the container end by itself.
    pub fn ask_to_exit(&self, name: &str) {
        let pipe = fs::OpenOptions::new().write(true).open(self.dir.join(format!("{name}.ask")));
        pipe.and_then(|mut pipe| pipe.write_all(b"x")).expect("ask a container to end");
    }
}

/// Every process below cgroups whose name has this text in it.
pub fn processes_of(cgroup_root: &str, text: &str) -> BTreeSet<u32> {
    let ours = |path: &PathBuf| path.to_string_lossy().contains(text);
    let read = |path: PathBuf| fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let pids = cgroups_below(cgroup_root).into_iter().filter(ours).map(read);
    pids.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Those of them that still run. A zombie does not.
pub fn any_alive(pids: &BTreeSet<u32>) -> bool {
    pids.iter().any(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
    })
}
