//! Streams into containers, asked of the node itself: what ends them, how many there may be, and what each costs.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::support::harness::{self, Node, SLOW, wait};
use crate::support::pods::{UNTIL_TERM, is_running, manifest, shell};
use crate::support::streams::{CLOSE, Caller, RESIZE, STATUS, STDERR, STDIN, STDOUT, Stream};
use serde_json::{Value, json};

/// A busy machine starts a hundred processes in a container in minutes, not seconds.
const PATIENCE: Duration = Duration::from_secs(300);

fn node(adjust: impl FnOnce(&mut Value)) -> Node {
    let node = Node::start_with(adjust);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", UNTIL_TERM)] });
    node.agent.write_manifest("box", &manifest("box", spec));
    node.wait_pod("box", SLOW, is_running);
    node
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// `cat`, with a mark by which it can be found.
fn echo(mark: &str) -> String {
    format!("/exec/default/box-node/c?command=sh&command=-c&command=cat%3B%20:%20{mark}&input=1&output=1")
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

async fn open(caller: &Caller, path: &str) -> Stream {
    in_time("an upgrade", caller.upgrade(path)).await.expect("a stream")
}

/// Processes of the machine whose command has this mark.
fn marked(mark: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let needle = format!(": {mark}");
    commands.filter(|command| String::from_utf8_lossy(command).contains(&needle)).count()
}

fn wait_marked(mark: &str, count: usize) {
    wait(&format!("{count} processes of {mark}"), SLOW, || match marked(mark) {
        found if found == count => Ok(()),
        found => Err(found),
    });
}

fn resident_kib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent.pid().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn two_hundred_streams_at_once_each_cost_little() {
    const STREAMS: usize = 200;
    let node = node(|_| {});
    let runtime = runtime();
    let caller = Caller::new(node.agent.port);
    let echoes = |stream: &mut Stream, text: String| -> String {
        runtime.block_on(async {
            in_time("a sent word", stream.send(STDIN, text.as_bytes())).await.unwrap();
            in_time("its echo", stream.expect(STDOUT, text.as_bytes())).await.unwrap();
        });
        text
    };
    // What every stream shares is there before it is measured.
    let mut first = runtime.block_on(open(&caller, &echo("first")));
    echoes(&mut first, "warm".into());
    let before = resident_kib(&node);
    let opened: Vec<_> = (0..STREAMS)
        .map(|_| {
            let caller = caller.clone();
            runtime.spawn(async move { open(&caller, &echo("many")).await })
        })
        .collect();
    let mut streams: Vec<Stream> =
        opened.into_iter().map(|one| runtime.block_on(one).expect("a stream")).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        echoes(stream, format!("stream {number}\n"));
    }
    let each = resident_kib(&node).saturating_sub(before) / STREAMS as u64;
    println!("{each} KiB for each of {STREAMS} streams");
    assert!(each < 400, "{each} KiB for a stream");
    assert!(node.agent.get("/healthz").is_ok_and(|answer| answer.status == 200));
    drop(streams);
    wait_marked("many", 0);
    echoes(&mut first, "still here".into());
}

#[test]
fn a_cut_on_either_side_ends_the_other() {
    let node = node(|_| {});
    let runtime = runtime();
    let caller = Caller::new(node.agent.port);
    // The client goes away: the command's input ends, and so does the command.
    let mut stream = runtime.block_on(open(&caller, &echo("client-cut")));
    runtime.block_on(async {
        in_time("a sent word", stream.send(STDIN, b"x\n")).await.unwrap();
        in_time("its echo", stream.expect(STDOUT, b"x\n")).await.unwrap();
    });
    assert_eq!(marked("client-cut"), 1);
    drop(stream);
    wait_marked("client-cut", 0);

    // The container goes away: the client is told.
    let mut stream = runtime.block_on(open(&caller, &echo("container-cut")));
    runtime.block_on(async {
        in_time("a sent word", stream.send(STDIN, b"x\n")).await.unwrap();
        in_time("its echo", stream.expect(STDOUT, b"x\n")).await.unwrap();
    });
    node.agent.remove_manifest("box");
    runtime.block_on(in_time("the end of the stream", stream.until_ended()));
    node.wait_clean(SLOW);
}

#[test]
fn the_agents_end_and_silence_end_streams() {
    let mut node = node(|config| config["streamingConnectionIdleTimeout"] = json!("10s"));
    let runtime = runtime();
    let caller = Caller::new(node.agent.port);
    let (mut silent, mut busy) = runtime
        .block_on(async { (open(&caller, &echo("silent")).await, open(&caller, &echo("busy")).await) });
    runtime.block_on(async {
        let mut ended = std::pin::pin!(in_time("the end of silence", silent.until_ended()));
        // The other one speaks all the while, and outlives it.
        loop {
            tokio::select! {
                () = &mut ended => break,
                () = tokio::time::sleep(Duration::from_millis(500)) => {
                    in_time("a sent word", busy.send(STDIN, b"x\n")).await.unwrap();
                    in_time("its echo", busy.expect(STDOUT, b"x\n")).await.unwrap();
                }
            }
        }
        in_time("a last word", busy.send(STDIN, b"x\n")).await.unwrap();
        in_time("its echo", busy.expect(STDOUT, b"x\n")).await.unwrap();
    });
    wait_marked("silent", 0);
    assert!(node.agent.terminate().success());
    runtime.block_on(in_time("the end of the stream", busy.until_ended()));
}

/// Protocol v5 of WebSocket, which the node translates to what runtimes speak: input that ends before the output does, a
/// terminal's size, exit codes, and SPDY inside of a WebSocket.
#[test]
fn websocket_v5_is_translated_for_the_runtime() {
    const V5: &str = "v5.channel.k8s.io";
    let mut node = node(|_| {});
    let caller = Caller::new(node.agent.port);
    runtime().block_on(async {
        let path = |script: &str, flags: &str| {
            format!("/exec/default/box-node/c?command=sh&command=-c&command={script}&{flags}")
        };
        // The input ends, and everything that is said after it still comes, the status last.
        let script = "cat%3B%20sleep%201%3B%20echo%20err%20%3E%262%3B%20exit%207";
        let streams = path(script, "input=1&output=1&error=1");
        let mut stream = in_time("an upgrade", caller.upgrade_to(V5, &streams)).await.expect("a stream");
        stream.send(STDIN, b"hello ").await.unwrap();
        in_time("its echo", stream.expect(STDOUT, b"hello ")).await.unwrap();
        stream.send(STDIN, &[b'x'; 50_000]).await.unwrap();
        stream.send(CLOSE, &[STDIN]).await.unwrap();
        let said = in_time("the end", stream.rest()).await.unwrap();
        assert_eq!((said[&STDOUT].len(), &*said[&STDERR]), (50_000, "err\n"));
        let status: Value = serde_json::from_str(&said[&STATUS]).unwrap();
        assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")));
        assert_eq!(status["details"]["causes"][0]["message"], "7", "{status}");

        let mut stream =
            in_time("an upgrade", caller.upgrade_to(V5, &path("true", "output=1"))).await.expect("a stream");
        let said = in_time("the end", stream.rest()).await.unwrap();
        let status: Value = serde_json::from_str(&said[&STATUS]).unwrap();
        assert_eq!((said.len(), &status["status"]), (1, &json!("Success")), "{said:?}");

        let script =
            "until%20%5B%20%22$(stty%20size)%22%20=%20%2233%2077%22%20%5D%3B%20do%20sleep%200.1%3B%20done";
        let terminal = path(script, "input=1&output=1&tty=1");
        let mut stream = in_time("an upgrade", caller.upgrade_to(V5, &terminal)).await.expect("a stream");
        stream.send(RESIZE, br#"{"Width":77,"Height":33}"#).await.unwrap();
        let said = in_time("the size", stream.rest()).await.unwrap();
        assert!(said[&STATUS].contains("Success"), "{said:?}");

        // The runtime itself answers a ping of SPDY.
        let tunnel = caller.upgrade_to("SPDY/3.1+portforward.k8s.io", "/portForward/default/box-node");
        let mut stream = in_time("an upgrade", tunnel).await.expect("a tunnel");
        let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
        stream.send_message(&ping).await.unwrap();
        // It may come in several messages.
        let mut answer = Vec::new();
        while answer.len() < ping.len() {
            let (first, rest) = in_time("the answer", stream.next()).await.unwrap().expect("an answer");
            answer.push(first);
            answer.extend(rest);
        }
        assert_eq!(answer, ping);
    });
    let metrics = node.agent.get("/metrics").unwrap().text();
    for counted in [r#"{subresource="exec"} 3"#, r#"{subresource="portforward"} 1"#] {
        let line = format!("kubelet_websocket_streaming_requests_total{counted}");
        assert!(metrics.contains(&line), "{line}");
    }

    // With the gate off they pass as they are, and the runtime speaks neither.
    let config = node.runtime.dir.join("config.json");
    let mut text: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    text["featureGates"] = json!({ "ExtendWebSocketsToKubelet": false });
    fs::write(&config, text.to_string()).unwrap();
    node.agent.restart();
    node.wait_pod("box", SLOW, is_running);
    let refused = runtime().block_on(async {
        let path = "/exec/default/box-node/c?command=true&output=1";
        in_time("a refusal", caller.upgrade_to(V5, path)).await.err()
    });
    assert!(refused.is_some(), "protocol v5 without the gate");
}

/// containerd can stream over TLS, with a certificate that it makes itself.
#[test]
fn a_runtime_that_streams_over_tls() {
    let runtime_part = harness::Runtime::start();
    let config = runtime_part.dir.join("containerd/config.toml");
    let (section, setting) = (r#"[plugins."io.containerd.grpc.v1.cri"]"#, "  enable_tls_streaming = true");
    let text = fs::read_to_string(&config).unwrap();
    let changed = match text.contains(section) {
        true => text.replacen(section, &format!("{section}\n{setting}"), 1),
        false => format!("{text}\n{section}\n{setting}\n"),
    };
    fs::write(&config, changed).unwrap();
    runtime_part.restart();
    let agent = harness::Agent::start(&runtime_part, |_| {});
    let node = Node { agent, runtime: runtime_part };
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", UNTIL_TERM)] });
    node.agent.write_manifest("box", &manifest("box", spec));
    node.wait_pod("box", SLOW, is_running);
    let runtime = runtime();
    let caller = Caller::new(node.agent.port);
    runtime.block_on(async {
        let mut stream = open(&caller, &echo("tls")).await;
        in_time("a sent word", stream.send(STDIN, b"over tls\n")).await.unwrap();
        in_time("its echo", stream.expect(STDOUT, b"over tls\n")).await.unwrap();
    });
    // The runtime's port speaks TLS, so that is what was spoken.
    let ports = listening(&node);
    let speaks_tls = |port: &u16| {
        let url = format!("https://127.0.0.1:{port}/");
        Command::new("curl")
            .args(["-sk", "-o", "/dev/null", &url])
            .status()
            .is_ok_and(|status| status.success())
    };
    assert!(ports.iter().any(speaks_tls), "{ports:?}");
}

/// Ports on which containerd listens.
fn listening(node: &Node) -> Vec<u16> {
    let pid = fs::read_to_string(node.runtime.dir.join("pids/containerd")).unwrap();
    let pid = pid.split(':').next().unwrap().to_owned();
    let said = Command::new("ss").args(["-Hltnp"]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let ours = said.lines().filter(|line| line.contains(&format!("pid={},", pid.trim())));
    ours.filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next()?.parse().ok()).collect()
}
