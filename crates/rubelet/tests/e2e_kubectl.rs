//! kubectl against a node of a real cluster: logs, exec, attach, cp, port-forward; and who may ask the node itself.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod harness;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use cluster::{Cluster, KeyPair};
use harness::{Agent, Runtime, SLOW, run, wait};
use serde_json::{Value, json};

const BUSYBOX: &str = "rubelet.test/busybox:1";

struct Member {
    agent: Agent,
    runtime: Runtime,
    cluster: &'static Cluster,
    name: &'static str,
    namespace: String,
}

impl Member {
    /// A node whose callers the API server vouches for, and an object for it that says where it listens.
    fn join(name: &'static str) -> Member {
        let cluster = Cluster::shared_bare();
        let runtime = Runtime::start();
        let kubeconfig = cluster.node_kubeconfig(name);
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", name];
        let serving = cluster.serving_certificate(name);
        let agent = Agent::start_with_flags(&runtime, &flags, |config| {
            config["tlsCertFile"] = json!(serving.certificate);
            config["tlsPrivateKeyFile"] = json!(serving.key);
            config["authentication"] =
                json!({ "x509": { "clientCAFile": cluster.ca() }, "webhook": { "enabled": true } });
            config["authorization"] = json!({ "mode": "Webhook" });
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": agent.port } },
            },
        });
        // The agent may register its node itself; then only the place is told.
        let _ = cluster.try_create("default", &node.to_string());
        let status = json!({ "status": node["status"] }).to_string();
        cluster.kubectl(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &status]);
        let namespace = cluster.namespace(name);
        Member { agent, runtime, cluster, name, namespace }
    }

    fn start(&self, name: &str, container: Value) -> Value {
        let mut main = json!({ "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never" });
        main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": self.name, "containers": [main], "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
            },
        });
        self.cluster.create_pod(&self.namespace, &pod.to_string());
        self.cluster.wait_for("pod", &self.namespace, name, SLOW, |pod| {
            pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        })
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let args = [&["--namespace", &self.namespace], args].concat();
        self.cluster.kubectl_command(&self.cluster.admin_kubeconfig(), &args)
    }

    #[track_caller]
    fn said(&self, args: &[&str]) -> String {
        run(&mut self.kubectl(args))
    }

    fn output(&self, args: &[&str], input: &[u8], websocket: bool) -> Output {
        let mut child = self
            .kubectl(args)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket.to_string())
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start kubectl");
        let mut stdin = child.stdin.take().expect("its input");
        let input = input.to_vec();
        let writing = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("kubectl's end");
        writing.join().expect("the input");
        output
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn logs_in_all_their_forms() {
    let member = Member::join("kubectl-logs");
    let script = "for i in 1 2 3 4 5; do echo line $i; done; echo oops >&2; \
                  while [ ! -e /tmp/go ]; do sleep 0.1; done; echo last; [ -e /tmp/ok ]";
    member.start("talker", json!({ "command": ["sh", "-c", script] }));
    let all = "line 1\nline 2\nline 3\nline 4\nline 5\noops\n";
    wait("the lines", SLOW, || match member.said(&["logs", "talker"]) {
        said if said == all => Ok(()),
        other => Err(other),
    });
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

#[test]
fn commands_inside_by_both_protocols() {
    let member = Member::join("kubectl-exec");
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

    // A terminal, with its size, which is told a moment after the start.
    let script = "test -t 0 && for i in 1 2 3 4 5 6 7 8 9; do stty size; sleep 0.3; done; exit 5";
    let kubectl = member.kubectl(&["exec", "-it", "box", "--", "sh", "-c", script]);
    let words: Vec<String> = std::iter::once(kubectl.get_program().to_string_lossy().into_owned())
        .chain(kubectl.get_args().map(|word| format!("'{}'", word.to_string_lossy())))
        .collect();
    let terminal = Command::new("script")
        .args(["-qec", &format!("stty rows 33 cols 77; {}", words.join(" ")), "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("run script");
    assert!(text(&terminal.stdout).contains("33 77"), "{}", text(&terminal.stdout));
    assert_eq!(terminal.status.code(), Some(5));
    copies(&member);
}

/// `kubectl cp` is exec with tar, in both directions.
fn copies(member: &Member) {
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
    let member = Member::join("kubectl-attach");
    let script = "while read line; do echo got $line; done; echo bye";
    member.start("reader", json!({ "command": ["sh", "-c", script], "stdin": true, "stdinOnce": true }));
    let ended = member.output(&["attach", "-i", "reader"], b"one\ntwo\n", true);
    let said = text(&ended.stdout);
    assert!(said.contains("got one\ngot two\n"), "{said} {}", text(&ended.stderr));
}

#[test]
fn ports_are_forwarded_under_load() {
    let member = Member::join("kubectl-ports");
    let script = "mkdir /www; dd if=/dev/zero of=/www/zero bs=1024 count=2048 2>/dev/null; \
                  trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait";
    member.start("web", json!({ "command": ["sh", "-c", script] }));
    for websocket in ["true", "false"] {
        let mut kubectl = member
            .kubectl(&["port-forward", "pod/web", ":8080"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(kubectl.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        let port =
            line.trim_start_matches("Forwarding from 127.0.0.1:").split(' ').next().unwrap().to_owned();
        let fetch = move || {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            stream.write_all(b"GET /zero HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer.len()
        };
        let loads: Vec<_> = (0..8).map(|_| std::thread::spawn(fetch.clone())).collect();
        for load in loads {
            assert!(load.join().unwrap() > 2048 * 1024, "websocket {websocket}");
        }
        kubectl.kill().unwrap();
        kubectl.wait().unwrap();
    }
}

/// `kubectl debug`: a container that comes later, and sees the processes of the one it looks at.
#[test]
fn a_debugging_container_sees_its_target() {
    let member = Member::join("kubectl-debug");
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

struct Curl<'a> {
    member: &'a Member,
    certificate: Option<KeyPair>,
    token: Option<String>,
}

impl Curl<'_> {
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-X", method, "-w", "\n%{http_code}", "--cacert"]).arg(self.member.cluster.ca());
        if let Some(pair) = &self.certificate {
            curl.arg("--cert").arg(&pair.certificate).arg("--key").arg(&pair.key);
        }
        if let Some(token) = &self.token {
            curl.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        let output =
            curl.arg(format!("https://127.0.0.1:{}{path}", self.member.agent.port)).output().unwrap();
        let said = text(&output.stdout);
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or_default(), body.to_owned())
    }
}

#[test]
fn the_api_server_says_who_may_ask_the_node() {
    let member = Member::join("kubectl-rights");
    let (cluster, namespace) = (member.cluster, member.namespace.as_str());
    for (name, resources) in
        [("scraper", "nodes/metrics,nodes/stats"), ("reader", "nodes/pods"), ("boss", "nodes/proxy")]
    {
        cluster.kubectl(&["create", "serviceaccount", name, "--namespace", namespace]);
        let role = format!("{namespace}-{name}");
        let resources = format!("--resource={resources}");
        cluster.kubectl(&["create", "clusterrole", &role, "--verb=get,create", &resources]);
        let (binds, who) = (format!("--clusterrole={role}"), format!("--serviceaccount={namespace}:{name}"));
        cluster.kubectl(&["create", "clusterrolebinding", &role, &binds, &who]);
    }
    cluster.kubectl(&["create", "serviceaccount", "nobody", "--namespace", namespace]);
    let token = |name: &str| {
        let token = cluster.kubectl(&["create", "token", name, "--namespace", namespace]);
        Curl { member: &member, certificate: None, token: Some(token.trim().to_owned()) }
    };
    let with = |certificate: Option<KeyPair>| Curl { member: &member, certificate, token: None };
    let masters = with(Some(cluster.kubelet_client()));
    assert_eq!(masters.ask("GET", "/healthz"), (200, "ok".into()));
    let (scraper, reader, boss, nobody) = (token("scraper"), token("reader"), token("boss"), token("nobody"));
    for (who, name, method, path, expect) in [
        (&scraper, "scraper", "GET", "/metrics", 200),
        (&scraper, "scraper", "GET", "/metrics/resource", 200),
        (&scraper, "scraper", "GET", "/metrics/cadvisor", 200),
        (&scraper, "scraper", "GET", "/stats/summary", 200),
        (&scraper, "scraper", "GET", "/pods", 403),
        (&scraper, "scraper", "GET", "/containerLogs/a/b/c", 403),
        (&reader, "reader", "GET", "/pods", 200),
        (&reader, "reader", "GET", "/runningpods/", 200),
        (&reader, "reader", "GET", "/metrics", 403),
        (&reader, "reader", "POST", "/run/a/b/c?cmd=id", 403),
        (&boss, "boss", "GET", "/pods", 200),
        (&boss, "boss", "GET", "/containerLogs/a/b/c", 404),
        (&boss, "boss", "GET", "/metrics", 403),
        (&nobody, "nobody", "GET", "/healthz", 403),
    ] {
        let (status, body) = who.ask(method, path);
        assert_eq!(status, expect, "{name} {method} {path}: {body}");
        if expect == 403 {
            let user = format!("Forbidden (user=system:serviceaccount:{namespace}:{name}, verb=");
            assert!(body.starts_with(&user), "{body}");
        }
    }
    let bad = Curl { member: &member, certificate: None, token: Some("made-up".into()) };
    let unauthorized = (401, "Unauthorized".to_owned());
    assert_eq!(bad.ask("GET", "/healthz"), unauthorized);
    assert_eq!(with(None).ask("GET", "/healthz"), unauthorized);
    assert_eq!(with(Some(foreign(&member))).ask("GET", "/healthz"), unauthorized);
}

/// A certificate of the right name that nobody vouches for.
fn foreign(member: &Member) -> KeyPair {
    let dir = &member.runtime.dir;
    let pair = KeyPair { certificate: dir.join("foreign.crt"), key: dir.join("foreign.key") };
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj"]);
    openssl.args(["/O=system:masters/CN=kube-apiserver-kubelet-client", "-out"]);
    run(openssl.arg(&pair.certificate).arg("-keyout").arg(&pair.key).stderr(Stdio::null()));
    pair
}
