//! kubectl against a node of a real cluster: logs, exec, attach, cp, port-forward, debug.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::harness::{SLOW, run, wait};
use crate::support::serving_node::{BUSYBOX, ServingNode, text};
use serde_json::json;

#[test]
fn logs_in_all_their_forms() {
    let member = ServingNode::join("kubectl-logs");
    // It sleeps before it ends, so that the command that asks it to is over by then.
    let script = "until_there() { while [ ! -e $1 ]; do sleep 0.1; done; }; \
                  for i in 1 2 3 4 5; do echo line $i; done; until_there /tmp/err; echo oops >&2; \
                  until_there /tmp/go; sleep 2; echo last; [ -e /tmp/ok ]";
    member.start("talker", json!({ "command": ["sh", "-c", script] }));
    let logged = |expect: &str| {
        wait("the lines", SLOW, || match member.said(&["logs", "talker"]) {
            said if said == expect => Ok(()),
            other => Err(other),
        });
    };
    // The runtime reads both outputs, in whatever order: the second one speaks when the first is in the log.
    let lines = "line 1\nline 2\nline 3\nline 4\nline 5\n";
    logged(lines);
    member.said(&["exec", "talker", "--", "touch", "/tmp/err"]);
    let all = &format!("{lines}oops\n");
    logged(all);
    assert_eq!(member.said(&["logs", "talker", "--tail=2"]), "line 5\noops\n");
    assert_eq!(member.said(&["logs", "talker", "--limit-bytes=9"]), "line 1\nli");
    assert_eq!(member.said(&["logs", "talker", "--since=1h", "--tail=1"]), "oops\n");
    assert_eq!(member.said(&["logs", "talker", "--since-time=2100-01-01T00:00:00Z"]), "");
    let stamped = member.said(&["logs", "talker", "--timestamps", "--tail=1"]);
    let (stamp, line) = stamped.split_once(' ').unwrap();
    assert_eq!((line, stamp.len() >= 30, &stamp[10..11]), ("oops\n", true, "T"), "{stamped}");
    let none = member.output(&["logs", "talker", "--previous"], b"", true);
    assert!(text(&none.stderr).contains(r#"previous terminated container "main" in pod "talker" not found"#));
    let none = member.output(&["logs", "talker", "-c", "moon"], b"", true);
    assert!(
        text(&none.stderr).contains("container moon is not valid for pod talker"),
        "{}",
        text(&none.stderr)
    );

    let mut follower = member.kubectl(&["logs", "-f", "talker"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for expect in all.lines() {
        assert_eq!(lines.next().unwrap().unwrap(), expect);
    }
    member.said(&["exec", "talker", "--", "touch", "/tmp/go"]);
    assert_eq!(lines.next().unwrap().unwrap(), "last");
    assert!(lines.next().is_none(), "it ends with the container");
    assert!(follower.wait().unwrap().success());
    // It failed, and is started again: the old instance is the previous one.
    wait("the second instance", SLOW, || match member.output(&["logs", "--previous", "talker"], b"", true) {
        output if text(&output.stdout) == format!("{all}last\n") => Ok(()),
        other => Err(text(&other.stderr)),
    });

    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "absent" },
        "spec": {
            "nodeName": member.name, "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "rubelet.test/absent:1", "imagePullPolicy": "Never" }],
        },
    });
    member.cluster.create_pod(&member.namespace, &pod.to_string());
    let why = r#"container "main" in pod "absent" is waiting to start: ErrImageNeverPull"#;
    wait("the reason", SLOW, || match member.output(&["logs", "absent"], b"", true) {
        output if text(&output.stderr).contains(why) => Ok(()),
        other => Err(text(&other.stderr)),
    });
}

/// The file is replaced by another, and cut in place: who follows sees each line once, and the end.
#[test]
fn a_log_is_followed_wherever_it_goes() {
    let member = ServingNode::join("kubectl-follow");
    let script = "echo first; trap 'exit 0' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done; sleep 2";
    let pod = member.start("talker", json!({ "command": ["sh", "-c", script] }));
    let mut follower = member.kubectl(&["logs", "-f", "talker"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let dir = member.agent.logs_dir().join(format!("{}_talker_{uid}", member.namespace)).join("main");
    let (log, rotated) = (dir.join("0.log"), dir.join("0.log.20240506-070809"));
    let line = |text: &str| format!("2024-05-06T07:08:09.123456789Z stdout F {text}\n");
    fs::rename(&log, &rotated).unwrap();
    fs::write(&log, line("after the rotation")).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "after the rotation");
    // Half of a line is not a line.
    let append = |text: &str| {
        fs::File::options().append(true).open(&log).unwrap().write_all(text.as_bytes()).unwrap();
    };
    append("2024-05-06T07:08:09.123456789Z stdout P one ");
    append("half\n2024-05-06T07:08:09.2Z stdout F and another\n");
    assert_eq!(lines.next().unwrap().unwrap(), "one halfand another");
    append(r#"{"log":"in the other format\n","stream":"stdout","time":"2024-05-06T07:08:09.3Z"}"#);
    append("\n");
    assert_eq!(lines.next().unwrap().unwrap(), "in the other format");
    fs::write(&log, line("cut")).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "cut");
    member.said(&["exec", "talker", "--", "touch", "/tmp/go"]);
    assert!(lines.next().is_none(), "it ends with the container");
    assert!(follower.wait().unwrap().success());
}

#[test]
fn commands_inside_by_both_protocols() {
    let member = ServingNode::join("kubectl-exec");
    member.start("box", json!({ "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"] }));
    for websocket in [true, false] {
        let script = "echo out; echo err >&2; exit 7";
        let ended = member.output(&["exec", "box", "--", "sh", "-c", script], b"", websocket);
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(7), "out\n".into()), "{websocket}");
        assert!(text(&ended.stderr).starts_with("err\n"), "{}", text(&ended.stderr));

        let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let echoed = member.output(&["exec", "-i", "box", "--", "cat"], &big, websocket);
        assert!(echoed.status.success(), "{}", text(&echoed.stderr));
        assert!(echoed.stdout == big, "{} of {} bytes", echoed.stdout.len(), big.len());
    }
    let missing = member.output(&["exec", "box", "--", "/no/such"], b"", true);
    assert!(!missing.status.success());
    assert!(text(&missing.stderr).contains("no such file"), "{}", text(&missing.stderr));

    copies(&member);
    translated(&member, "exec");
}

/// The API server handed WebSocket streams to the node as they are, since the node declares that it translates them. So no
/// kubectl fell back to SPDY.
fn translated(member: &ServingNode, subresource: &str) {
    let metrics = member.agent.get("/metrics").expect("metrics").text();
    let begins = format!("kubelet_websocket_streaming_requests_total{{subresource=\"{subresource}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&begins));
    assert!(count.is_some_and(|count| count != "0"), "{subresource}: {count:?}");
}

/// A program at a terminal of its own, and the lines that it says.
struct Terminal {
    script: Child,
    lines: Receiver<String>,
}

impl Terminal {
    /// The terminal's own name is the first line.
    fn open(command: &Command, websocket: bool) -> Terminal {
        let quoted = |word: &OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
        let words: Vec<String> =
            std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
        let mut script = Command::new("script")
            .args(["-qec", &format!("tty; stty rows 33 cols 77; exec {}", words.join(" ")), "/dev/null"])
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run script");
        let output = BufReader::new(script.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line.trim().to_owned());
            }
        });
        Terminal { script, lines }
    }

    /// Reads up to a line that is wanted.
    fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(2 * SLOW) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("waited for {what}, {error}; seen: {seen:?}"),
            }
        }
    }

    fn type_in(&mut self, text: &str) {
        let input = self.script.stdin.as_mut().expect("its input");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("type");
    }

    fn ended(mut self) -> Option<i32> {
        wait("the program to end", 2 * SLOW, || match self.script.try_wait() {
            Ok(Some(status)) => Ok(status.code()),
            other => Err(format!("{other:?}")),
        })
    }
}

#[test]
fn a_terminal_that_changes_its_size() {
    let member = ServingNode::join("kubectl-tty");
    member.start("box", json!({ "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"] }));
    let script = "test -t 0 || exit 9; until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; echo first; \
                  until [ \"$(stty size)\" = '44 99' ]; do sleep 0.1; done; echo second; exit 5";
    for websocket in [true, false] {
        let kubectl = member.kubectl(&["exec", "-it", "box", "--", "sh", "-c", script]);
        let terminal = Terminal::open(&kubectl, websocket);
        let name = terminal.until("the terminal's name", |line| line.starts_with("/dev/"));
        terminal.until("the first size", |line| line == "first");
        run(Command::new("stty").args(["-F", &name, "rows", "44", "cols", "99"]));
        terminal.until("the second size", |line| line == "second");
        assert_eq!(terminal.ended(), Some(5), "websocket {websocket}");
    }
}

/// `kubectl cp` is exec with tar, in both directions.
fn copies(member: &ServingNode) {
    let dir = member.runtime.dir.join("cp");
    fs::create_dir_all(&dir).unwrap();
    let content: Vec<u8> = (0..2_000_000_u32).map(|n| (n * 7 % 253) as u8).collect();
    fs::write(dir.join("there"), &content).unwrap();
    let (there, back) = (dir.join("there").display().to_string(), dir.join("back").display().to_string());
    let place = format!("{}/box:/tmp/copy", member.namespace);
    member.said(&["cp", &there, &place]);
    member.said(&["cp", &place, &back]);
    assert!(fs::read(&back).unwrap() == content);
}

#[test]
fn attached_to_what_runs() {
    let member = ServingNode::join("kubectl-attach");
    let script = "while read line; do echo got $line; done; echo bye";
    for (name, websocket) in [("reader", true), ("older", false)] {
        member.start(name, json!({ "command": ["sh", "-c", script], "stdin": true, "stdinOnce": true }));
        let ended = member.output(&["attach", "-i", name], b"one\ntwo\n", websocket);
        let said = text(&ended.stdout);
        assert!(said.contains("got one\ngot two\n"), "{said} {}", text(&ended.stderr));
    }

    // A container with a terminal of its own: what is typed is echoed by it, and it has a size.
    let script = "read word; echo got $word; test -t 0 || exit 9; \
                  until size=$(stty size 2>/dev/null); test -n \"$size\"; do sleep 0.1; done; echo terminal $size; read word";
    let container = json!({ "command": ["sh", "-c", script], "stdin": true, "tty": true });
    for (name, websocket) in [("screen", true), ("screen-older", false)] {
        member.start(name, container.clone());
        let mut terminal = Terminal::open(&member.kubectl(&["attach", "-it", name]), websocket);
        terminal.type_in("hello\r");
        terminal.until("what was typed", |line| line == "got hello");
        terminal.until("the terminal", |line| line.starts_with("terminal "));
        terminal.type_in("\r");
        terminal.ended();
    }
    translated(&member, "attach");
}

/// The port here that leads to that port of the pod. Both families are told of.
fn forwarded(lines: &mut impl BufRead, to: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "kubectl tells of {to}");
        if let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:")
            && let Some((port, there)) = rest.trim().split_once(" -> ")
            && there == to
        {
            return port.to_owned();
        }
    }
}

/// Bytes both ways at once on one connection: what is sent comes back while more is sent.
fn comes_back(port: &str, seed: u32) {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(2 * SLOW)).unwrap();
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n.wrapping_mul(seed + 3) % 251) as u8).collect();
    let (mut there, sent) = (stream.try_clone().unwrap(), bytes.clone());
    let writing = std::thread::spawn(move || there.write_all(&sent).unwrap());
    let (mut back, mut got) = (stream, vec![0; bytes.len()]);
    back.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == bytes, "what came back is another thing");
}

#[test]
fn ports_are_forwarded_under_load() {
    let member = ServingNode::join("kubectl-ports");
    let script = "mkdir /www; dd if=/dev/zero of=/www/zero bs=1024 count=2048 2>/dev/null; \
                  trap 'exit 0' TERM; nc -ll -p 9000 -e cat & httpd -f -p 8080 -h /www & wait";
    member.start("web", json!({ "command": ["sh", "-c", script] }));
    for websocket in ["true", "false"] {
        let mut kubectl = member
            .kubectl(&["port-forward", "pod/web", ":8080", ":9000"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(kubectl.stdout.take().unwrap());
        let (port, echo) = (forwarded(&mut reader, "8080"), forwarded(&mut reader, "9000"));
        let fetch = move || {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            stream.write_all(b"GET /zero HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer.len()
        };
        let loads: Vec<_> = (0..8).map(|_| std::thread::spawn(fetch.clone())).collect();
        let echoes: Vec<_> = (0..4)
            .map(|seed| {
                let echo = echo.clone();
                std::thread::spawn(move || comes_back(&echo, seed))
            })
            .collect();
        for echo in echoes {
            echo.join().unwrap();
        }
        for load in loads {
            assert!(load.join().unwrap() > 2048 * 1024, "websocket {websocket}");
        }
        kubectl.kill().unwrap();
        kubectl.wait().unwrap();
    }
    translated(&member, "portforward");
}

/// `kubectl debug`: a container that comes later, and sees the processes of the one it looks at.
#[test]
fn a_debugging_container_sees_its_target() {
    let member = ServingNode::join("kubectl-debug");
    member.start("box", json!({ "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3611 & wait"] }));
    let image = format!("--image={BUSYBOX}");
    let script = "ps | grep -q 'sleep 3611' && echo found it";
    let words = ["debug", "box", &image, "--image-pull-policy=Never", "--target=main", "-c", "look", "--"];
    member.said(&[&words[..], &["sh", "-c", script]].concat());
    wait("the debugging container's word", SLOW, || {
        match member.output(&["logs", "box", "-c", "look"], b"", true) {
            output if text(&output.stdout) == "found it\n" => Ok(()),
            other => Err(format!("{} {}", text(&other.stdout), text(&other.stderr))),
        }
    });
}
