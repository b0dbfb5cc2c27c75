//! Clients and containers that mean harm: the node's memory stays bounded, and others are served.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{is_running, manifest, shell, uid};
use crate::support::serving_node::{ServingNode, text};
use crate::support::streams::{self, Caller};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// In KiB: far less than any of the floods, far more than an honest client needs.
const ROOM: u64 = 64 * 1024;

/// What open requests get when the agent ends.
const DRAIN: Duration = Duration::from_secs(2);

/// Whoever reaches the port is let in: what is tested is what they can do to it.
fn node() -> Node {
    // The logs of these tests stay in one file.
    let node = Node::start_with(|config| config["containerLogMaxSize"] = json!("1Gi"));
    let script = "echo hello; trap 'exit 0' TERM; sleep 3600 & wait";
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", script)] });
    node.agent.write_manifest("web", &manifest("web", spec));
    node.wait_pod("web", SLOW, is_running);
    wait("the first line of the log", SLOW, || match log(&node, "").1 {
        said if said == "hello\n" => Ok(()),
        other => Err(other),
    });
    node
}

/// Status and body of a GET, with the path as it is written.
fn ask(node: &Node, path: &str) -> (u16, String) {
    let url = format!("https://127.0.0.1:{}{path}", node.agent.port);
    let words = ["-sSk", "--path-as-is", "--max-time", "120", "-w", "\n%{http_code}"];
    let output = Command::new("curl").args(words).arg(url).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = said.rsplit_once('\n').unwrap_or_default();
    (status.parse().unwrap_or_default(), body.to_owned())
}

fn log(node: &Node, query: &str) -> (u16, String) {
    ask(node, &format!("/containerLogs/default/web-node/c{query}"))
}

fn resident_kib(node: &Node, which: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent.pid().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with(which)).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn is_served(node: &Node) {
    assert_eq!(ask(node, "/healthz"), (200, "ok".into()));
}

/// Does something bad, and holds the agent to its bounds.
#[track_caller]
fn survives(node: &Node, what: &str, deed: impl FnOnce()) {
    // The peak counts, not what is left when it is over: 5 begins it anew.
    fs::write(format!("/proc/{}/clear_refs", node.agent.pid().unwrap()), "5").unwrap();
    let before = resident_kib(node, "VmRSS");
    deed();
    let grown = resident_kib(node, "VmHWM").saturating_sub(before);
    println!("{what}: {grown} KiB more");
    assert!(grown < ROOM, "{what}: {grown} KiB more");
    is_served(node);
}

fn log_dir(node: &Node) -> PathBuf {
    let pod = node.agent.pod("web").unwrap();
    node.agent.logs_dir().join(format!("default_web-node_{}", uid(&pod))).join("c")
}

#[test]
fn names_that_lead_elsewhere_lead_nowhere() {
    let node = node();
    fs::write(node.agent.root_dir().join("secret"), "secret\n").unwrap();
    let root = node.agent.root_dir().display().to_string();
    for path in [
        "/containerLogs/default/web-node/..%2F..%2Fc".to_owned(),
        "/containerLogs/default/..%2f..%2f..%2froot/secret".to_owned(),
        "/containerLogs/../../../../etc/passwd".to_owned(),
        "/containerLogs/default/web-node/c%00".to_owned(),
        format!("/containerLogs/default/web-node/{}", root.replace('/', "%2F")),
        "/logs/../../etc/passwd".to_owned(),
        "/logs/..%2f..%2fetc%2fpasswd".to_owned(),
        "/logs/%2e%2e/%2e%2e/etc/passwd".to_owned(),
        format!("/logs/{root}/secret"),
        "/exec/default/..%2Fweb-node/c?command=id&output=1".to_owned(),
        "/checkpoint/default/web-node/..%2Fc".to_owned(),
        "/debug/why/default/..%2F..".to_owned(),
    ] {
        let (status, body) = ask(&node, &path);
        assert!((400..500).contains(&status), "{path}: {status} {body}");
        assert!(!body.contains("root:") && !body.contains("secret\n"), "{path}: {body}");
    }

    // A container that can write to the directory of logs puts links there.
    let dir = log_dir(&node);
    let secret = node.agent.root_dir().join("secret");
    fs::rename(dir.join("0.log"), dir.join("kept")).unwrap();
    for target in [secret.clone(), "../../../root/secret".into(), dir.join("kept")] {
        symlink(&target, dir.join("0.log")).unwrap();
        let (status, body) = log(&node, "");
        assert!(status == 400 && !body.contains("secret\n"), "{}: {status} {body}", target.display());
        fs::remove_file(dir.join("0.log")).unwrap();
    }
    fs::rename(dir.join("kept"), dir.join("0.log")).unwrap();
    assert_eq!(log(&node, ""), (200, "hello\n".into()));
    // The directory itself may be a link.
    let away = dir.with_file_name("away");
    fs::rename(&dir, &away).unwrap();
    symlink(&away, &dir).unwrap();
    assert_eq!(log(&node, "").0, 400);
    fs::remove_file(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    is_served(&node);
}

/// Somebody who may write the status of one pod names a container of another one as its earlier instance.
#[test]
fn a_status_that_names_a_container_of_another_pod() {
    let mut member = ServingNode::join("hostile-status");
    let script = |word: &str| format!("echo {word}; trap 'exit 0' TERM; sleep 3600 & wait");
    let victim = member.start("victim", json!({ "command": ["sh", "-c", script("secret")] }));
    member.start("own", json!({ "command": ["sh", "-c", script("hello")] }));
    let logged = |member: &ServingNode, pod: &str, expect: &str| {
        wait("the log", SLOW, || match member.said(&["logs", pod]) {
            said if said == expect => Ok(()),
            other => Err(other),
        });
    };
    logged(&member, "victim", "secret\n");
    // The agent believes what its predecessor has told the API server.
    member.agent.kill9();
    let id = &victim["status"]["containerStatuses"][0]["containerID"];
    let end = json!({ "terminated": { "exitCode": 1, "containerID": id } });
    let status =
        json!({ "status": { "containerStatuses": [{ "name": "main", "lastState": end }] } }).to_string();
    member.said(&["patch", "pod", "own", "--subresource=status", "-p", &status]);
    member.agent.restart();
    let refused = "is not container \"main\" of pod \"own\"";
    wait("the earlier instance to be refused", SLOW, || {
        let output = member.output(&["logs", "--previous", "own"], b"", true);
        assert!(!text(&output.stdout).contains("secret"), "the log of another pod");
        match text(&output.stderr) {
            why if why.contains(refused) => Ok(()),
            other => Err(other),
        }
    });
    logged(&member, "own", "hello\n");
    logged(&member, "victim", "secret\n");
}

#[test]
fn a_line_of_a_hundred_megabytes() {
    const LENGTH: usize = 100_000_000;
    let node = node();
    // As the runtime writes it: one line in many parts.
    let script = format!(
        "head -c {LENGTH} /dev/zero | tr '\\0' x; echo; echo end; trap 'exit 0' TERM; sleep 3600 & wait"
    );
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", &script)] });
    node.agent.write_manifest("long", &manifest("long", spec));
    let path = "/containerLogs/default/long-node/c";
    wait("the end of the long line", 5 * SLOW, || match ask(&node, &format!("{path}?tailLines=1")) {
        (200, said) if said == "end\n" => Ok(()),
        other => Err(format!("{} and {} bytes", other.0, other.1.len())),
    });
    survives(&node, "a long line in parts", || {
        let (status, body) = ask(&node, path);
        assert_eq!((status, body.len()), (200, LENGTH + "\nend\n".len()));
        let (status, body) = ask(&node, &format!("{path}?limitBytes=1000"));
        assert_eq!((status, body.len()), (200, 1000));
    });
    // As no runtime writes it, but somebody with access to the directory may: one record.
    let file = log_dir(&node).join("0.log");
    let mut hostile = fs::File::options().append(true).open(&file).unwrap();
    write!(hostile, "2024-05-06T07:08:09.1Z stdout F ").unwrap();
    for _ in 0..100 {
        hostile.write_all(&vec![b'y'; LENGTH / 100]).unwrap();
    }
    writeln!(hostile, "\n2024-05-06T07:08:10.1Z stdout F after").unwrap();
    survives(&node, "a long line in one", || {
        assert_eq!(log(&node, ""), (200, "hello\nafter\n".into()));
        let (status, body) = log(&node, "?tailLines=2&follow=false");
        assert!(status == 200 && body.ends_with("after\n") && body.len() < 100, "{status} {}", body.len());
    });
}

/// A reader that takes nothing makes the node hold nothing.
#[test]
fn readers_that_do_not_read() {
    let mut node = node();
    let dir = log_dir(&node);
    let mut file = fs::File::options().append(true).open(dir.join("0.log")).unwrap();
    let line = format!("2024-05-06T07:08:09.1Z stdout F {}\n", "z".repeat(4000));
    for _ in 0..10_000 {
        file.write_all(line.as_bytes()).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let caller = Caller::new(node.agent.port);
    let mut held = Vec::new();
    survives(&node, "twenty readers that do not read", || {
        for _ in 0..20 {
            let reader = runtime.block_on(async {
                let mut wire = caller.connect().await.unwrap();
                let head = "GET /containerLogs/default/web-node/c?follow=true HTTP/1.1\r\nHost: x\r\n\r\n";
                wire.write_all(head.as_bytes()).await.unwrap();
                // The beginning of the answer is there, and then nobody reads on.
                wire.read_u8().await.unwrap();
                wire
            });
            held.push(reader);
        }
        let (status, body) = log(&node, "");
        assert_eq!((status, body.len()), (200, "hello\n".len() + 10_000 * 4001));
    });
    // At its end the agent gives them a moment, and no more.
    let told = Instant::now();
    node.agent.terminate();
    assert!(told.elapsed() >= DRAIN, "open requests were cut after {:?}", told.elapsed());
}

#[test]
fn floods_and_half_said_words() {
    let node = node();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let caller = Caller::new(node.agent.port);
    let port = node.agent.port;

    let mut silent = Vec::new();
    survives(&node, "a thousand connections that say nothing", || {
        for number in 0..1000 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            if number % 2 == 0 {
                // The beginning of a handshake that never goes on.
                let _ = stream.write_all(&[22, 3, 1, 2, 0, 1]);
            }
            silent.push(stream);
        }
    });
    // All but those that may wait, and not only when their time for a handshake (ten seconds) is over.
    wait("the crowd to be closed", Duration::from_secs(8), || {
        let is_closed = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            !matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let closed = silent.iter().filter(|stream| is_closed(stream));
        match closed.count() {
            enough if enough >= 1000 - 256 => Ok(()),
            few => Err(format!("{few} of a thousand were closed")),
        }
    });
    drop(silent);

    survives(&node, "floods of headers", || {
        for _ in 0..20 {
            runtime.block_on(flood_of_headers(&caller));
        }
    });
    survives(&node, "floods of bodies", || {
        for (method, path) in [
            ("POST", "/run/default/web-node/c?cmd=true"),
            ("POST", "/exec/default/web-node/c?command=cat&input=1"),
            ("POST", "/checkpoint/default/web-node/none"),
            ("PUT", "/debug/flags/v"),
            ("POST", "/stats/summary"),
            ("GET", "/pods"),
            ("GET", "/containerLogs/default/web-node/c"),
            ("DELETE", "/none"),
        ] {
            flood_of_body(&node, method, path);
        }
    });

    // Upgrades that stop: half of the head, all of the head and nothing after it, and a head that asks for nothing known.
    let mut held = Vec::new();
    survives(&node, "upgrades that stop half-way", || {
        let path = "/exec/default/web-node/c?command=cat&input=1&output=1";
        let half = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: webso");
        let whole = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                             X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        );
        let strange =
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tea\r\n\r\n");
        for head in [half, whole, strange].iter().cycle().take(60) {
            let wire = runtime.block_on(async {
                let mut wire = caller.connect().await.unwrap();
                wire.write_all(head.as_bytes()).await.unwrap();
                wire.flush().await.unwrap();
                wire
            });
            held.push(wire);
        }
        is_served(&node);
    });
    // With all of them held, somebody who means it gets a stream.
    let words = "/exec/default/web-node/c?command=echo&command=hi&output=1";
    runtime.block_on(async {
        let opened = tokio::time::timeout(2 * SLOW, caller.upgrade(words)).await.expect("an upgrade in time");
        let said = tokio::time::timeout(2 * SLOW, opened.unwrap().expect(streams::STDOUT, b"hi\n")).await;
        said.expect("its word in time").unwrap();
    });
}

/// Head after head, until the node has enough or far more was sent than it may hold.
async fn flood_of_headers(caller: &Caller) {
    let mut wire = caller.connect().await.unwrap();
    wire.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let line = format!("x-flood: {}\r\n", "b".repeat(8000));
    for _ in 0..2500 {
        if wire.write_all(line.as_bytes()).await.is_err() || wire.flush().await.is_err() {
            return;
        }
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SLOW, wire.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "a flood of headers was taken");
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "a flood of headers was answered");
}

/// 200 MB that nobody asked for. What the node answers does not matter, only that it does not keep them.
fn flood_of_body(node: &Node, method: &str, path: &str) {
    let url = format!("https://127.0.0.1:{}{path}", node.agent.port);
    let mut curl = Command::new("curl")
        .args(["-sk", "--max-time", "30", "-X", method, "-T", "-", "-o", "/dev/null"])
        .arg(url)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut body = curl.stdin.take().unwrap();
    for _ in 0..200 {
        if body.write_all(&vec![b'a'; 1_000_000]).is_err() {
            break;
        }
    }
    drop(body);
    wait("curl to end", 2 * SLOW, || match curl.try_wait() {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
