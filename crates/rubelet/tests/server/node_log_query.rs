//! Log queries about the node that nobody reads. A program stands in for `journalctl`, because no real journal is
//! endless. Queries of a real one are in `guest/systemd_node`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::harness::{Agent, Node, Runtime, SLOW, wait, wait_until};
use crate::support::streams::Caller;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Each unit has a journal without an end. The process that tells it leaves its id in a file of the unit's name.
const ENDLESS: &str = r#"#!/bin/sh
[ "$1" = --field ] && exec printf 'read.service\nheld.service\ndropped.service\n'
for word; do unit=${word#--unit=}; done
echo $$ >DIR/$unit.new
mv DIR/$unit.new DIR/$unit
[ $unit = read ] && exec echo all of it
exec yes
"#;

/// A node that finds the program in a directory of its own, and the directory.
fn node() -> (Node, PathBuf) {
    let runtime = Runtime::start();
    let dir = runtime.dir.join("journal");
    fs::create_dir(&dir).expect("make a directory");
    let program = dir.join("journalctl");
    fs::write(&program, ENDLESS.replace("DIR", &dir.to_string_lossy())).expect("write the program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").expect("a PATH"));
    let agent = Agent::start_in(&runtime, &[("PATH", &path)], &[], |config| {
        config["enableSystemLogQuery"] = json!(true);
        config["featureGates"] = json!({ "NodeLogQuery": true });
    });
    (Node { agent, runtime }, dir)
}

/// The process that answers the query about a unit.
#[track_caller]
fn process(dir: &Path, unit: &str) -> PathBuf {
    let id = wait("the query's process", SLOW, || fs::read_to_string(dir.join(unit)));
    Path::new("/proc").join(id.trim())
}

/// A client that is gone, and one that stays and reads nothing: neither of them keeps a process on the node.
#[test]
fn a_query_that_nobody_reads_ends() {
    let (node, dir) = node();
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let caller = Caller::new(node.agent.port);
    let ask = |unit: &str| {
        io.block_on(async {
            let mut wire = caller.connect().await.unwrap();
            let head = format!("GET /logs/?query={unit} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            wire.write_all(head.as_bytes()).await.unwrap();
            // The answer has begun.
            wire.read_u8().await.unwrap();
            wire
        })
    };
    let dropped = ask("dropped");
    let of_dropped = process(&dir, "dropped");
    let mut held = ask("held");
    let of_held = process(&dir, "held");
    drop(dropped);
    wait_until("the process whose client is gone to end", SLOW, || !of_dropped.exists());
    // The connection is open, and nothing is read: its deadline is over some time.
    wait_until("the process whose client does not read to end", SLOW, || !of_held.exists());
    let rest = io.block_on(async {
        let mut rest = Vec::new();
        tokio::time::timeout(SLOW, held.read_to_end(&mut rest)).await.expect("an end").map(|_| rest)
    });
    let rest = rest.expect("the rest of the answer");
    assert!(rest.windows(4).any(|part| part == b"y\ny\n"), "what was said before can still be read");

    // Others are answered.
    let mut read = ask("read");
    let mut answer = String::new();
    io.block_on(read.read_to_string(&mut answer)).expect("an answer");
    assert!(answer.contains("200 OK") && answer.contains("all of it\n"), "{answer}");
}
