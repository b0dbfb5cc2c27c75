//! The routes with a runtime of a table and a streaming server of a few lines.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use axum::body::Body;
use futures::StreamExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use model::Wall;
use ports::{CpuSamples, LogBytes, LogOptions, ProfileError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tower::ServiceExt;

use super::*;
use crate::testing::{FakeAgentState, FakeRuntime, endpoints};
use crate::tls::tests::{TestAuthority, TestClient, serve};
use crate::{Authentication, Authorization, ServingCertificate};

type Stream = TlsStream<TcpStream>;

/// Says what it was asked for.
struct EchoLogs;

#[async_trait]
impl ContainerLogs for EchoLogs {
    async fn open(
        &self,
        path: &Path,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> std::io::Result<LogBytes> {
        if path.ends_with("c0.log") {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let text = format!("{} {:?}\n", path.display(), options.tail_lines);
        let first = futures::stream::iter([Ok(text.into())]);
        if !options.follow {
            return Ok(first.boxed());
        }
        // Runs for ever, unless somebody says that it ended.
        Ok(first.chain(futures::stream::pending().take_until(ended)).boxed())
    }
}

/// Does not look at all.
struct ThreeSamples;

#[async_trait]
impl CpuProfiler for ThreeSamples {
    async fn sample(&self, length: Duration) -> Result<CpuSamples, ProfileError> {
        match length.as_secs() {
            1 => Err(ProfileError::InUse),
            _ => Ok(CpuSamples {
                addresses: vec![1, 2, 3],
                mappings: Vec::new(),
                begun: Wall(0),
                lasted: length,
                period: Duration::from_millis(10),
            }),
        }
    }
}

struct Noon;

impl WallClock for Noon {
    fn wall(&self) -> Wall {
        Wall(12 * 3600 * 1_000_000_000)
    }
}

struct Bench {
    router: Router,
    metrics: Arc<crate::AgentMetrics>,
    verbosity: Arc<AtomicU32>,
}

fn bench_with(streaming: Option<SocketAddr>, adjust: impl FnOnce(&mut ApiSettings)) -> Bench {
    let mut settings = ApiSettings {
        debugging: true,
        node_logs: true,
        node_log_query: false,
        debug_flags: true,
        profiling: true,
        split_log_streams: false,
        checkpoint: true,
        flagz: true,
        statusz: true,
        extended_websockets: true,
        stream_idle: Duration::from_secs(3600),
        root_dir: "/var/lib/kubelet".into(),
        node_log_dir: "/nonexistent".into(),
        journal_program: "/nonexistent".into(),
        configz: serde_json::json!({ "kind": "KubeletConfiguration" }),
        flags: [("v".to_owned(), "2".to_owned())].into(),
    };
    adjust(&mut settings);
    let verbosity = Arc::new(AtomicU32::new(0));
    let heard = verbosity.clone();
    let api = SecureApi {
        endpoints: endpoints(FakeAgentState::Well),
        runtime: Arc::new(FakeRuntime {
            streaming: streaming.map(|at| format!("http://{at}")),
            ..Default::default()
        }),
        logs: Arc::new(EchoLogs),
        wall: Arc::new(Noon),
        settings,
        set_verbosity: Arc::new(move |level| heard.store(level, Ordering::SeqCst)),
        profiler: Arc::new(ThreeSamples),
        tracing: Tracing::default(),
        streaming_tls: crate::StreamingTls {
            for_local_runtime: TestClient::new("", None).config,
            for_remote_runtime: Arc::new(|| Ok(TestClient::new("", None).config)),
        },
        stop: CancellationToken::new(),
    };
    let access = Arc::new(Access {
        authentication: Authentication::new(None).with_anonymous(),
        authorization: Authorization::AlwaysAllow,
    });
    let metrics = api.endpoints.metrics.clone();
    Bench { router: api.routes(access), metrics, verbosity }
}

fn bench() -> Bench {
    bench_with(None, |_| {})
}

impl Bench {
    async fn send(&self, request: http::Request<Body>) -> (u16, String) {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }
    async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        self.send(http::Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await
    }
    async fn check(&self, method: &str, path: &str, status: u16, body: &str) {
        assert_eq!(self.ask(method, path).await, (status, body.to_owned()), "{method} {path}");
    }
    async fn upgrade(&self, method: &str, path: &str) -> (u16, String) {
        let request = http::Request::builder().method(method).uri(path).header("connection", "Upgrade");
        self.send(request.header("upgrade", "SPDY/3.1").body(Body::empty()).unwrap()).await
    }
}

#[tokio::test]
async fn paths_of_gates_that_are_off_are_not_there() {
    let bench = bench_with(None, |settings| {
        (settings.checkpoint, settings.flagz, settings.statusz) = (false, false, false);
    });
    for path in ["/checkpoint", "/checkpoint/default/web-vm/web", "/flagz", "/statusz"] {
        bench.check("POST", path, 404, "404 page not found\n").await;
    }
    let on = self::bench();
    for path in ["/checkpoint/default/web-vm/no", "/flagz", "/statusz"] {
        let (_, body) = on.ask("POST", path).await;
        assert_ne!(body, "404 page not found\n", "{path}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_stream_is_told_in_the_kubelets_words() {
    let bench = bench();
    let none = "you must specify at least 1 of stdin, stdout, stderr";
    bench.check("POST", "/exec/default/web-vm/web?command=ls", 400, none).await;
    bench.check("POST", "/exec/default/no/web?command=ls&output=1", 404, "pod does not exist").await;
    bench.check("GET", "/exec/other/web-vm/web?output=1", 404, "pod does not exist").await;
    bench.check("POST", "/exec/default/web-vm/no?output=1", 500, r#"container not found ("no")"#).await;
    bench.check("POST", "/exec/default/web-vm/late?output=1", 500, r#"container not found ("late")"#).await;
    bench.check("POST", "/exec/default/web-vm/u2/web?output=1", 500, r#"container not found ("web")"#).await;
    bench.check("POST", "/exec/default/web-vm/u1/web?output=1", 500, "Upgrade request required\n").await;
    bench.check("PUT", "/exec/default/web-vm/web?output=1", 405, "405: Method Not Allowed").await;
    let gone = "container no not found in pod web-vm_default";
    bench.check("POST", "/attach/default/web-vm/no?output=1", 500, gone).await;
    bench.check("POST", "/attach/default/web-vm/web", 400, none).await;
    bench.check("POST", "/portForward/default/web-vm/u2", 404, "pod not found").await;
    bench.check("POST", "/portForward/default/web-vm", 500, "Upgrade request required\n").await;
    for (command, expect) in [
        ("missing", (404, "no such container")),
        ("exhausted", (429, "too much")),
        ("broken", (500, "runtime trouble")),
    ] {
        let path = format!("/exec/default/web-vm/web?command={command}&output=1");
        let expect = (expect.0, expect.1.to_owned());
        assert_eq!(bench.upgrade("POST", &path).await, expect, "{command}");
    }
    let (status, text) = bench.upgrade("POST", "/exec/default/web-vm/web?command=nowhere&output=1").await;
    assert_eq!(status, 500);
    assert!(text.starts_with("error dialing backend 127.0.0.1:1: "), "{text}");
}

#[tokio::test]
async fn run_gives_the_output_of_a_command() {
    let bench = bench();
    bench.check("POST", "/run/default/web-vm/web?cmd=echo+a++b", 200, r#"["echo", "a", "", "b"]+err"#).await;
    bench.check("POST", "/run/default/web-vm/u1/web?cmd=ls", 200, r#"["ls"]+err"#).await;
    bench
        .check("POST", "/run/default/web-vm/web?cmd=false", 500, "command 'false' exited with 1: +err")
        .await;
    bench.check("POST", "/run/default/web-vm/x?cmd=ls", 500, r#"container not found ("x")"#).await;
    bench.check("GET", "/run/default/web-vm/web?cmd=ls", 405, "405: Method Not Allowed").await;
}

#[tokio::test]
async fn logs_are_those_of_the_right_instance() {
    let bench = bench();
    let path = "/containerLogs/default/web-vm";
    bench.check("GET", &format!("{path}/web"), 200, "/logs/c1.log None\n").await;
    bench.check("GET", &format!("{path}/web?tailLines=3"), 200, "/logs/c1.log Some(3)\n").await;
    let waiting = r#"container "late" in pod "web-vm" is waiting to start: trying and failing to pull image"#;
    bench.check("GET", &format!("{path}/late"), 400, waiting).await;
    let none = r#"previous terminated container "shell" in pod "web-vm" not found"#;
    bench.check("GET", &format!("{path}/shell?previous=true"), 400, none).await;
    bench.check("GET", &format!("{path}/x"), 404, r#"container "x" not found in pod "web-vm""#).await;
    bench.check("GET", "/containerLogs/default/x/web", 404, r#"pod "x" does not exist"#).await;
    bench.check("GET", "/containerLogs/default/..%2Fx/web", 404, r#"pod "../x" does not exist"#).await;
    bench.check("GET", &format!("{path}/web?tailLines=-1"), 422, r#"{"message": "Invalid request."}"#).await;
    let (status, text) = bench.ask("GET", &format!("{path}/web?previous=1")).await;
    assert_eq!((status, text.contains("/logs/c0.log")), (400, true), "{text}");
    bench.check("POST", &format!("{path}/web"), 405, "405: Method Not Allowed").await;
}

/// Who may write a pod's status could name any container of the node there. The runtime's labels tell whose it is.
#[tokio::test]
async fn logs_of_a_container_of_another_pod_are_not_given() {
    let bench = bench();
    bench.check("GET", "/containerLogs/default/claims-own/old", 200, "/logs/own.log None\n").await;
    for id in ["stolen", "renamed", "c2"] {
        let refused = format!("container {id} is not container \"old\" of pod \"claims-{id}\"");
        bench.check("GET", &format!("/containerLogs/default/claims-{id}/old"), 400, &refused).await;
    }
}

#[tokio::test]
async fn the_rest() {
    let bench = bench();
    bench.check("GET", "/configz", 200, r#"{"kubeletconfig":{"kind":"KubeletConfiguration"}}"#).await;
    let file = r#"{"items":["/var/lib/kubelet/checkpoints/checkpoint-web-vm_default-web-1970-01-01T12:00:00Z.tar"]}"#;
    bench.check("POST", "/checkpoint/default/web-vm/web?timeout=5", 200, file).await;
    let wrong = "cannot parse value of timeout parameter";
    bench.check("POST", "/checkpoint/default/web-vm/web?timeout=5&timeout=x", 404, wrong).await;
    bench.check("POST", "/checkpoint/default/web-vm/x", 404, "container x does not exist").await;
    let failed = "checkpointing of default/web-vm/shell failed (no)";
    bench.check("POST", "/checkpoint/default/web-vm/shell", 500, failed).await;
    bench.check("GET", "/checkpoint/", 404, "404: Page Not Found").await;
    bench.check("GET", "/spec/", 404, "404 page not found\n").await;

    let (status, why) = bench.ask("GET", "/debug/why/default/web-vm").await;
    let why: Vec<model::report::WhyReport> = serde_json::from_str(&why).unwrap();
    assert_eq!((status, why[0].name.as_str()), (200, "web-vm"));

    let put = |body: &str| http::Request::put("/debug/flags/v").body(Body::from(body.to_owned())).unwrap();
    let done = (200, "successfully set klog.logging.verbosity to 5\n".to_owned());
    assert_eq!(bench.send(put("5\n")).await, done);
    assert_eq!(bench.verbosity.load(Ordering::SeqCst), 5);
    assert_eq!(bench.send(put("much")).await.0, 400);
    assert_eq!(bench.send(put(&"9".repeat(1000))).await.0, 400);

    let (status, flags) = bench.ask("GET", "/flagz").await;
    assert_eq!((status, flags.ends_with("\nv=2\n")), (200, true), "{flags}");
    let (status, told) = bench.ask("GET", "/statusz").await;
    assert_eq!(
        (status, told.contains("Binary version: 1.36.4\nEmulation version: 1.36\n")),
        (200, true),
        "{told}"
    );
    let json = http::Request::get("/statusz")
        .header("accept", "application/json;as=Statusz;g=config.k8s.io;v=v1beta1")
        .body(Body::empty());
    let (_, told) = bench.send(json.unwrap()).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["kind"], &told["binaryVersion"]), (&Value::from("Statusz"), &Value::from("1.36.4")));
    for path in ["/pods", "/runningpods/", "/metrics", "/metrics/probes", "/healthz"] {
        assert_eq!(bench.ask("GET", path).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn profiles_and_why_there_are_no_others() {
    let bench = bench();
    let ask = async |path: &str| bench.ask("GET", path).await;
    assert_eq!(ask("/debug/pprof/profile?seconds=5").await.0, 200);
    let (status, text) = ask("/debug/pprof/profile?seconds=1").await;
    assert!(status == 500 && text.ends_with("cpu profiling already in use\n"), "{status} {text}");
    let (status, text) = ask("/debug/pprof/cmdline").await;
    assert!(status == 200 && text.starts_with(&std::env::args().next().unwrap()), "{status} {text}");
    assert_eq!(
        ask("/debug/pprof/heap").await,
        (501, "no heap profile: allocations are not recorded\n".into())
    );
    assert_eq!(ask("/debug/pprof/none").await, (404, "Unknown profile\n".into()));
    let (status, page) = ask("/debug/pprof/").await;
    assert!(status == 200 && page.contains("profile") && page.contains("goroutine"), "{status} {page}");
    let bench = bench_with(None, |settings| settings.profiling = false);
    for path in ["/debug/pprof/", "/debug/pprof/profile"] {
        bench.check("GET", path, 405, "profiling endpoint is disabled.\n").await;
    }
}

#[tokio::test]
async fn switched_off_is_switched_off() {
    let bench = bench_with(None, |settings| settings.debugging = false);
    for path in [
        "/exec/a/b/c",
        "/run/a/b/c",
        "/attach/a/b/c",
        "/portForward/a/b",
        "/containerLogs/a/b/c",
        "/runningpods/",
        "/debug/pprof/",
        "/logs/",
    ] {
        bench.check("POST", path, 405, "Debug endpoints are disabled.\n").await;
    }
    for path in ["/configz", "/checkpoint/a/b/c", "/flagz", "/statusz", "/debug/flags/v"] {
        bench.check("GET", path, 404, "404 page not found\n").await;
    }
    assert_eq!(bench.ask("GET", "/pods").await.0, 200);
    let bench = bench_with(None, |settings| {
        settings.node_logs = false;
        settings.debug_flags = false;
    });
    bench.check("GET", "/logs/syslog", 405, "logs endpoint is disabled.\n").await;
    bench.check("PUT", "/debug/flags/v", 405, "flags endpoint is disabled.\n").await;
}

#[tokio::test]
async fn files_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("a<b"), "0123456789").unwrap();
    let log_dir = dir.path().to_path_buf();
    let bench = bench_with(None, |settings| settings.node_log_dir = log_dir);
    let page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
                <a href=\"a%3Cb\">a&lt;b</a>\n<a href=\"sub/\">sub/</a>\n</pre>\n";
    bench.check("GET", "/logs/", 200, page).await;
    bench.check("GET", "/logs/a%3Cb", 200, "0123456789").await;
    assert_eq!(bench.ask("GET", "/logs/sub").await.0, 301);
    bench.check("GET", "/logs/..%2F..%2Fetc%2Fpasswd", 404, "404 page not found\n").await;
    bench.check("GET", "/logs/../../etc/passwd", 404, "404 page not found\n").await;
    let unasked = bench.ask("GET", "/logs/?query=").await;
    assert_eq!(unasked, (200, page.into()), "without the switch it is no question");
    let part = http::Request::get("/logs/a%3Cb").header("range", "bytes=2-4").body(Body::empty()).unwrap();
    assert_eq!(bench.send(part).await, (206, "234".into()));
}

/// Upgrades everything, says `early` together with its answer, then echoes until the end and says `bye`.
async fn streaming_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                assert!(!head.contains("authorization"), "{head}");
                assert!(head.contains("x-stream-protocol-version: v4"), "{head}");
                let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                              X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly";
                stream.write_all(answer.as_bytes()).await.unwrap();
                let mut piece = [0; 1024];
                loop {
                    match stream.read(&mut piece).await {
                        Ok(0) => break,
                        Ok(length) => stream.write_all(&piece[..length]).await.unwrap(),
                        Err(_) => return,
                    }
                }
                stream.write_all(b"bye").await.unwrap();
            });
        }
    });
    at
}

/// The real thing: TLS on the client's side.
async fn secure(bench: Bench) -> (crate::ServerHandle, SocketAddr, TestClient) {
    let authority = TestAuthority::new("servers");
    let signed = authority.server("node");
    let certificate = Arc::new(ServingCertificate::default());
    certificate.set_pem("test", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let (serving, at) = serve(certificate, None, bench.router).await;
    (serving, at, TestClient::new(&authority.pem, None))
}

async fn open_stream(at: SocketAddr, client: &TestClient, path: &str, with: &str) -> (Stream, String) {
    let mut stream = client.connect(at).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nAuthorization: Bearer t\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: v3.channel.k8s.io\r\n\r\n{with}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(answer).unwrap())
}

async fn expect(stream: &mut Stream, text: &str) {
    let mut got = vec![0; text.len()];
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), text);
}

#[tokio::test]
async fn streams_carry_early_bytes_both_ways_and_the_end() {
    let bench = bench_with(Some(streaming_server().await), |_| {});
    let (_serving, at, client) = secure(bench).await;
    for path in [
        "/exec/default/web-vm/web?command=sh&input=1&output=1",
        "/attach/default/web-vm/shell?input=1&output=1&tty=1",
        "/portForward/default/web-vm",
    ] {
        let (mut stream, head) = open_stream(at, &client, path, "first").await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.to_lowercase().contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"), "{head}");
        expect(&mut stream, "earlyfirst").await;
        stream.write_all(b"second").await.unwrap();
        expect(&mut stream, "second").await;
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "bye", "{path}");
    }
}

#[tokio::test]
async fn hundreds_of_streams_at_once() {
    let bench = bench_with(Some(streaming_server().await), |_| {});
    let (_serving, at, client) = secure(bench).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        let path = "/exec/default/web-vm/web?command=sh&input=1&output=1";
        open.push(open_stream(at, &client, path, "").await.0);
    }
    for (number, stream) in open.iter_mut().enumerate() {
        stream.write_all(number.to_string().as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    for (number, stream) in open.iter_mut().enumerate() {
        expect(stream, &format!("early{number}")).await;
    }
}

#[tokio::test]
async fn logs_of_the_node_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("no-such-unit-here.log"), "of the file").unwrap();
    let log_dir = dir.path().to_path_buf();
    let bench = bench_with(None, |settings| {
        settings.node_log_dir = log_dir;
        settings.node_log_query = true;
    });
    bench.check("GET", "/logs/?query=no-such-unit-here", 200, "of the file").await;
    bench.check("GET", "/logs/?query=/no-such-unit-here.log", 200, "of the file").await;
    bench.check("GET", "/logs/?query=no-such-at-all", 200, "\nlog not found for no-such-at-all\n").await;
    let options = "\noptions present and query resolved to log files for [no-such-unit-here]\n\
                   try without specifying options\n";
    bench.check("GET", "/logs/?query=no-such-unit-here&tailLines=1", 200, options).await;
    bench.check("GET", "/logs/sub?query=a", 406, "path not allowed in query mode\n").await;
    let outside = "query: Invalid value: [\"../../etc/passwd\"]: no such file among the logs of the node\n";
    bench.check("GET", "/logs/?query=../../etc/passwd", 406, outside).await;
    let both = "of the file\nlog not found for other\n";
    bench.check("GET", "/logs/?query=no-such-unit-here&query=other", 200, both).await;
    assert_eq!(bench.ask("GET", "/logs/?query=a;b").await.0, 406);
    assert_eq!(bench.ask("GET", "/logs/").await.0, 200);
}

/// With a program in the place of `journalctl`, since not every machine has a journal.
#[tokio::test]
async fn the_journals_words_and_complaints_come_before_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("other.log"), "of the file\n").unwrap();
    let program = dir.path().join("journalctl");
    // Another process writes it: ours may be forked by another test while it is open, and then it can't be run.
    let script = r#"#!/bin/sh
[ "$1" = --field ] && exec printf 'kubelet.service\nsshd.service\n'
echo "said $*"
echo complained >&2
exit 1
"#;
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = std::process::Command::new("sh").args(["-c", write]).arg(&program).arg(script).status();
    assert!(written.unwrap().success());
    let log_dir = dir.path().to_path_buf();
    let bench = bench_with(None, |settings| {
        settings.node_log_dir = log_dir;
        settings.node_log_query = true;
        settings.journal_program = program;
    });
    let words = "--utc --no-pager --output=short-precise";
    let said = format!("said {words} --unit=kubelet --unit=sshd\ncomplained\nof the file\n");
    bench.check("GET", "/logs/?query=kubelet&query=other&query=sshd", 200, &said).await;
    let said = format!("said {words} --unit=kubelet --grep=a+\ncomplained\n");
    bench.check("GET", "/logs/?query=kubelet&pattern=a%2B", 200, &said).await;
    // CVE-2024-9042: no shell sees the words of a query, and none of them is an option of its own.
    let made = dir.path().join("made");
    let pattern = format!("a%3B%20touch%20{0}%20%24%28touch%20{0}%29%20--file%3D{0}", made.display());
    let said = format!(
        "said {words} --unit=kubelet --grep=a; touch {0} $(touch {0}) --file={0}\ncomplained\n",
        made.display()
    );
    bench.check("GET", &format!("/logs/?query=kubelet&pattern={pattern}"), 200, &said).await;
    assert!(!made.exists());
}

fn requests(metrics: &crate::AgentMetrics) -> Vec<String> {
    let text = metrics.text(&Default::default()).unwrap();
    let ours = |line: &&str| {
        line.starts_with("kubelet_http_inflight_requests{")
            || line.starts_with("kubelet_http_requests_total{")
    };
    text.lines().filter(ours).map(str::to_owned).collect()
}

/// Waits until it is told so; the end of a stream is noticed a moment after its last byte.
async fn told(metrics: &crate::AgentMetrics, expect: &str) {
    let waits = async {
        while !requests(metrics).iter().any(|line| line == expect) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), waits).await;
    assert!(told.is_ok(), "{expect} in {:#?}", requests(metrics));
}

#[tokio::test]
async fn a_request_is_in_progress_for_as_long_as_its_answer_or_stream() {
    let bench = bench_with(Some(streaming_server().await), |_| {});
    let metrics = bench.metrics.clone();
    let (_serving, at, client) = secure(bench).await;
    let line = |name: &str, long: bool, method: &str, path: &str, value: u32| {
        format!(
            "kubelet_http_{name}{{long_running=\"{long}\",method=\"{method}\",path=\"{path}\",server_type=\"readwrite\"}} {value}"
        )
    };
    let path = "/exec/default/web-vm/web?command=sh&input=1&output=1";
    let (mut stream, _) = open_stream(at, &client, path, "").await;
    expect(&mut stream, "early").await;
    told(&metrics, &line("inflight_requests", true, "POST", "exec", 1)).await;
    assert!(!requests(&metrics).iter().any(|line| line.contains("requests_total")), "nothing has ended");
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    told(&metrics, &line("inflight_requests", true, "POST", "exec", 0)).await;
    told(&metrics, &line("requests_total", true, "POST", "exec", 1)).await;

    // A log that is followed, until its reader leaves.
    let mut reader = client.connect(at).await.unwrap();
    let head = "GET /containerLogs/default/web-vm/web?follow=true HTTP/1.1\r\nHost: x\r\n\r\n";
    reader.write_all(head.as_bytes()).await.unwrap();
    reader.read_u8().await.unwrap();
    told(&metrics, &line("inflight_requests", false, "GET", "containerLogs", 1)).await;
    drop(reader);
    told(&metrics, &line("inflight_requests", false, "GET", "containerLogs", 0)).await;
    told(&metrics, &line("requests_total", false, "GET", "containerLogs", 1)).await;
}
