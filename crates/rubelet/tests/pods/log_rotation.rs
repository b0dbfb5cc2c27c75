//! Logs of containers are rotated while they are written, and nothing is lost.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::support::harness::{Agent, Node, SLOW, wait};

const LINES: u32 = 200_000;

/// Waits until somebody follows its log, then prints numbered lines as fast as it can.
fn flood(name: &str, after: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command: [sh, -c, 'sleep 3; seq 1 {LINES}; {after}']
"
    )
}

fn directory(agent: &Agent, pod: &Value) -> PathBuf {
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let uid = pod["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().expect("a UID");
    agent.logs_dir().join(format!("default_{name}_{uid}")).join("main")
}

/// The log's files by name, which is the order of time; the log itself comes last.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the logs").flatten();
    let names = entries.map(|entry| entry.file_name().into_string().expect("a name"));
    // Of a file that is just being compressed both are there.
    let mut names: Vec<_> = names.filter(|name| !name.ends_with(".tmp")).collect();
    names.sort_by_key(|name| (name == "0.log", name.trim_end_matches(".gz").to_owned()));
    names
}

/// What the container has printed, from all files; a file that is compressed meanwhile is read again.
fn printed(dir: &Path) -> Vec<String> {
    'again: loop {
        let mut numbers = Vec::new();
        for name in files(dir) {
            let mut text = String::new();
            let Ok(file) = File::open(dir.join(&name)) else { continue 'again };
            match name.ends_with(".gz") {
                true => GzDecoder::new(file).read_to_string(&mut text),
                false => (&file).read_to_string(&mut text),
            }
            .unwrap_or_else(|error| panic!("read {name}: {error}"));
            numbers.extend(text.lines().filter_map(|line| digits(line.rsplit(' ').next()?)));
        }
        // A file and its compressed form at the same time would count twice.
        let names = files(dir);
        if !names.iter().any(|name| names.contains(&format!("{name}.gz"))) {
            return numbers;
        }
    }
}

/// As text: the second half of a number that was cut in two may begin with zeros.
fn digits(text: &str) -> Option<String> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.to_owned())
}

/// A line that is written while containerd begins a new log is cut in two by it.
fn is_every_line_once(numbers: impl Iterator<Item = String>) -> Result<(), String> {
    let mut expect = 1;
    let mut half = String::new();
    for number in numbers {
        half.push_str(&number);
        if half == expect.to_string() {
            half.clear();
            expect += 1;
        } else if !expect.to_string().starts_with(&half) {
            return Err(format!("{half} where {expect} was expected"));
        }
    }
    if expect == LINES + 1 && half.is_empty() { Ok(()) } else { Err(format!("it ends with {}", expect - 1)) }
}

fn numbers(output: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(output).lines().filter_map(digits).collect()
}

#[test]
fn each_line_is_kept_and_followed_once_through_rotations() {
    let node = Node::start_with(|config| {
        config["containerLogMaxSize"] = json!("1Mi");
        config["containerLogMaxFiles"] = json!(100);
    });
    // containerd does not write all that it has not read yet when a container ends.
    node.agent.write_manifest("flood", &flood("flood", "sleep 6"));
    let pod = node.wait_pod("flood", SLOW, |pod| pod["status"]["phase"] == "Running");
    let name = pod["metadata"]["name"].as_str().expect("a name");
    // It ends with the container.
    let followed = node.agent.command(&["logs", "-f", name]);
    let errors = String::from_utf8_lossy(&followed.stderr);
    is_every_line_once(numbers(&followed.stdout).into_iter()).unwrap_or_else(|problem| {
        let dir = directory(&node.agent, &pod);
        let disk = is_every_line_once(printed(&dir).into_iter());
        panic!("followed: {problem}; {errors}; on disk: {disk:?}, {:?}", files(&dir))
    });

    let dir = directory(&node.agent, &pod);
    is_every_line_once(printed(&dir).into_iter())
        .unwrap_or_else(|problem| panic!("on disk: {problem}; {:?}", files(&dir)));
    let rotated = files(&dir).len() - 1;
    assert!(rotated > 2, "{:?}", files(&dir));
    assert!(files(&dir).iter().any(|name| name.ends_with(".gz")), "{:?}", files(&dir));

    // What is asked for by lines or by time is found in the compressed files as well.
    let most = LINES - 7;
    let tail = node.agent.command(&["logs", "--tail", &most.to_string(), name]);
    let tail = numbers(&tail.stdout);
    // A line in two parts counts as two.
    let expect = most as usize - 100..=most as usize;
    assert!(expect.contains(&tail.len()) && tail.last() == Some(&LINES.to_string()), "{} lines", tail.len());
    let since = node.agent.command(&["logs", "--since", "1h", name]);
    is_every_line_once(numbers(&since.stdout).into_iter()).expect("since an hour");
    let last = node.agent.command(&["logs", "--tail", "2", name]);
    assert_eq!(numbers(&last.stdout), [LINES - 1, LINES].map(|number| number.to_string()));
}

#[test]
fn no_more_files_are_kept_than_configured() {
    let node = Node::start_with(|config| {
        config["containerLogMaxSize"] = json!("500Ki");
        config["containerLogMaxFiles"] = json!(3);
    });
    node.agent.write_manifest("flood", &flood("flood", "echo end; sleep 1000000"));
    let pod = node.wait_pod("flood", SLOW, |pod| pod["status"]["phase"] == "Running");
    let dir = directory(&node.agent, &pod);
    wait("the end of the flood, in three files", SLOW, || {
        let names = files(&dir);
        let ended = printed(&dir).last() == Some(&LINES.to_string());
        if ended && names.len() == 3 { Ok(()) } else { Err(format!("{names:?}")) }
    });
}

/// Also when it is killed between renaming the log and letting the runtime begin a new one.
#[test]
fn an_agent_that_is_killed_loses_no_line() {
    let mut node = Node::start_with(|config| {
        config["containerLogMaxSize"] = json!("500Ki");
        config["containerLogMaxFiles"] = json!(1000);
    });
    let after = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo later; sleep 1000000";
    node.agent.write_manifest("flood", &flood("flood", after));
    let pod = node.wait_pod("flood", SLOW, |pod| pod["status"]["phase"] == "Running");
    let dir = directory(&node.agent, &pod);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(700));
        node.agent.kill9();
        node.agent.restart();
    }
    wait("each line once", SLOW, || is_every_line_once(printed(&dir).into_iter()));

    node.agent.kill9();
    fs::rename(dir.join("0.log"), dir.join("0.log.20300101-000000")).expect("rename the log");
    node.agent.restart();
    wait("a new log", SLOW, || match dir.join("0.log").exists() {
        true => Ok(()),
        false => Err(format!("{:?}", files(&dir))),
    });
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("an id");
    let id = id.rsplit('/').next().expect("an id");
    node.runtime.ctr(&["tasks", "exec", "--exec-id", "go", id, "touch", "/tmp/go"]);
    wait("what is printed later in the new log", SLOW, || {
        let text = fs::read_to_string(dir.join("0.log")).map_err(|error| error.to_string())?;
        if text.ends_with("later\n") { Ok(()) } else { Err(text) }
    });
}
