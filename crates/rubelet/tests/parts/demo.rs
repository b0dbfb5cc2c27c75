//! `hack/demo` shows what it promises, and leaves nothing.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::harness::{cgroups_below, live_processes, mounts_below};

#[test]
fn the_demo_shows_a_pod_and_leaves_nothing() {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/demo"))
        .arg("--once")
        .env("RUBELET_DEMO_BINARY", env!("CARGO_BIN_EXE_rubelet"))
        .stdin(Stdio::null())
        .output()
        .expect("run hack/demo");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let pod = said.lines().find(|line| line.contains("hello-demo") && line.contains("Running"));
    let pod = pod.expect("a line with the pod that runs");
    assert!(pod.contains("2/2"), "not ready: {pod:?}");
    assert!(pod.split_whitespace().any(|word| word.starts_with("10.213.")), "no address in {pod:?}");
    // What the clock says: the time, and what the web server beside it answers.
    let is_tick = |line: &&str| {
        line.split_once(' ').is_some_and(|(time, name)| time.len() == 8 && name == "hello-demo")
    };
    assert!(said.lines().filter(is_tick).count() >= 3, "no log of the clock");
    assert!(said.contains("==> done, nothing is left"));

    let dir = said.lines().find_map(|line| line.split_once("starting a private containerd in "));
    let dir = dir.expect("the demo's directory").1.trim();
    assert!(!Path::new(dir).exists(), "{dir} is left");
    assert_eq!(mounts_below(Path::new(dir)), [""; 0].map(std::path::PathBuf::from));
    let name = Path::new(dir).file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(live_processes(&name), [""; 0]);
    assert_eq!(cgroups_below(&name), [""; 0].map(std::path::PathBuf::from));
}
