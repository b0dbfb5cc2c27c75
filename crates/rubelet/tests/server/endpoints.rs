//! Every endpoint that is no stream, on the secure port of a node that stands alone: status, type and words of the answers
//! are those of the kubelet. The table was made by asking kubelet v1.36.4, and `RUBELET_E2E_BINARY` asks it again. Where we
//! answer otherwise on purpose, docs/gaps.md says so, and no row is here.

use std::process::Command;

use crate::support::harness::{Node, SLOW, hack, run};
use serde_json::Value;

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const HTML: &str = "text/html; charset=utf-8";

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: web }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: rubelet.test/busybox:1
      imagePullPolicy: Never
      command: [sh, -c, "echo hello; trap 'exit 0' TERM; sleep 1000 & wait"]
"#;

#[derive(Clone, Copy, Debug)]
enum Body {
    Is(&'static str),
    Has(&'static str),
    /// A JSON document with this at that place.
    At(&'static str, &'static str),
}
use Body::{At, Has, Is};

const NO_PAGE: Body = Is("404 page not found\n");
const NO_SERVICE: Body = Is("404: Page Not Found");
const NO_METHOD: Body = Is("405: Method Not Allowed");

/// Method and path; status, content type and body.
type Row = (&'static str, &'static str, u16, &'static str, Body);

const PAGES: [Row; 27] = [
    ("GET", "/pods", 200, JSON, At("/items/0/metadata/name", "web-node")),
    ("GET", "/pods/", 200, JSON, At("/items/0/status/phase", "Running")),
    ("GET", "/runningpods/", 200, JSON, At("/items/0/metadata/name", "web-node")),
    ("GET", "/configz", 200, JSON, At("/kubeletconfig/kind", "KubeletConfiguration")),
    ("POST", "/configz", 200, JSON, At("/kubeletconfig/kind", "KubeletConfiguration")),
    ("GET", "/flagz", 200, PLAIN, Has("hostname-override")),
    ("POST", "/flagz", 200, PLAIN, Has("\nkubelet flagz\n")),
    ("GET", "/statusz", 200, PLAIN, Has("/configz /debug /flagz /healthz /metrics")),
    ("GET", "/healthz", 200, PLAIN, Is("ok")),
    ("POST", "/healthz", 200, PLAIN, Is("ok")),
    ("GET", "/healthz/ping", 200, PLAIN, Is("ok")),
    ("GET", "/healthz/log", 200, PLAIN, Is("ok")),
    ("GET", "/healthz/syncloop", 200, PLAIN, Is("ok")),
    ("GET", "/healthz?verbose", 200, PLAIN, Has("[+]syncloop ok\n")),
    ("GET", "/healthz?exclude=ping&verbose", 200, PLAIN, Has("[+]ping excluded: ok\n")),
    ("GET", "/stats/summary", 200, JSON, At("/node/nodeName", "node")),
    ("GET", "/stats/summary/", 200, JSON, At("/node/nodeName", "node")),
    ("POST", "/stats/summary", 200, JSON, At("/pods/0/podRef/name", "web-node")),
    ("GET", "/stats/summary?only_cpu_and_memory=true", 200, JSON, At("/pods/0/containers/0/name", "main")),
    ("GET", "/metrics", 200, METRICS, Has("\nkubelet_running_pods ")),
    ("PUT", "/metrics", 200, METRICS, Has("\nkubelet_running_pods ")),
    ("GET", "/metrics/cadvisor", 200, METRICS, Has("container_cpu_usage_seconds_total{")),
    ("GET", "/metrics/resource", 200, METRICS, Has("node_cpu_usage_seconds_total ")),
    ("GET", "/metrics/probes", 200, METRICS, Has("process_start_time_seconds ")),
    ("GET", "/metrics/slis", 200, METRICS, Has("kubernetes_healthcheck{")),
    ("GET", "/debug/flags/v", 406, "text/plain", Is("unsupported http method\n")),
    ("POST", "/debug/flags/v", 406, "text/plain", Is("unsupported http method\n")),
];

const INTO_PODS: [Row; 16] = [
    ("GET", "/containerLogs/default/none/main", 404, PLAIN, Is("pod \"none\" does not exist")),
    (
        "GET",
        "/containerLogs/default/web-node/none",
        404,
        PLAIN,
        Is("container \"none\" not found in pod \"web-node\""),
    ),
    (
        "GET",
        "/containerLogs/default/web-node/main?tailLines=x",
        400,
        PLAIN,
        Is("{\"message\": \"Unable to decode query.\"}"),
    ),
    ("POST", "/run/default/web-node/main?cmd=echo%20hi", 200, JSON, Is("hi\n")),
    ("POST", "/run/default/web-node/main?cmd=false", 500, PLAIN, Is("command 'false' exited with 1: ")),
    ("POST", "/run/default/web-node/none?cmd=ls", 500, PLAIN, Is("container not found (\"none\")")),
    ("POST", "/run/default/none/main?cmd=ls", 404, PLAIN, Is("pod does not exist")),
    ("POST", "/checkpoint/default/none/main", 404, PLAIN, Is("pod does not exist")),
    ("POST", "/checkpoint/default/web-node/none", 404, PLAIN, Is("container none does not exist")),
    (
        "POST",
        "/exec/default/web-node/main",
        400,
        PLAIN,
        Is("you must specify at least 1 of stdin, stdout, stderr"),
    ),
    ("POST", "/exec/default/none/main?output=1", 404, PLAIN, Is("pod does not exist")),
    (
        "POST",
        "/exec/default/web-node/none?output=1&command=ls",
        500,
        PLAIN,
        Is("container not found (\"none\")"),
    ),
    ("POST", "/exec/default/web-node/main?output=1&command=ls", 500, PLAIN, Is("Upgrade request required\n")),
    (
        "POST",
        "/attach/default/web-node/none?output=1",
        500,
        PLAIN,
        Is("container none not found in pod web-node_default"),
    ),
    ("POST", "/portForward/default/none", 404, PLAIN, Is("pod does not exist")),
    ("POST", "/portForward/default/web-node", 500, PLAIN, Is("Upgrade request required\n")),
];

const NODE_LOGS: [Row; 6] = [
    ("GET", "/logs/", 200, HTML, Has("<pre>\n")),
    (
        "GET",
        "/logs/?query=rubelet-no-such",
        200,
        "text/plain;charset=UTF-8",
        Is("\nlog not found for rubelet-no-such\n"),
    ),
    (
        "GET",
        "/logs/?query=a%20b",
        406,
        PLAIN,
        Is("query: Invalid value: \"a b\": input contains unsupported characters\n"),
    ),
    ("GET", "/logs/?query=x&boot=1", 406, PLAIN, Is("boot: Invalid value: 1: must be less than 1\n")),
    ("GET", "/logs/?tailLines=2", 406, PLAIN, Is("query: Required value: cannot be empty with options\n")),
    ("GET", "/logs/syslog?query=kubelet", 406, PLAIN, Is("path not allowed in query mode\n")),
];

/// Requests, by method and path, that are answered alike.
type Alike = (u16, Body, &'static [(&'static str, &'static str)]);

/// What is not there, in the words of each part.
const NOTHING: [Alike; 3] = [
    (
        404,
        NO_PAGE,
        &[
            ("GET", "/healthz/nope"),
            ("GET", "/metrics/"),
            ("GET", "/metrics/nope"),
            ("GET", "/spec"),
            ("GET", "/spec/"),
            ("GET", "/"),
            ("GET", "/version"),
            ("GET", "/livez"),
            ("GET", "/debug"),
            ("GET", "/logs/rubelet-no-such-file"),
        ],
    ),
    (
        404,
        NO_SERVICE,
        &[
            ("GET", "/stats/"),
            ("GET", "/stats/container"),
            ("GET", "/containerLogs"),
            ("GET", "/containerLogs/default/web-node"),
            ("GET", "/run"),
            ("GET", "/checkpoint/"),
        ],
    ),
    (
        405,
        NO_METHOD,
        &[
            ("POST", "/pods"),
            ("DELETE", "/pods"),
            ("POST", "/runningpods/"),
            ("POST", "/containerLogs/default/web-node/main"),
            ("GET", "/run/default/web-node/main"),
            ("GET", "/checkpoint/default/web-node/main"),
            ("POST", "/logs/"),
        ],
    ),
];

/// Names that lead into what is below them.
const DIRECTORIES: [&str; 5] = ["/runningpods", "/stats", "/debug/pprof", "/checkpoint", "/logs"];

/// Status, content type and body of an answer.
fn ask(node: &Node, args: &[&str], path: &str) -> (u16, String, String) {
    let mut curl = Command::new("curl");
    curl.args(["-sk", "-w", "\n%{http_code} %{content_type}"]).args(args);
    let said = run(curl.arg(format!("https://127.0.0.1:{}{path}", node.agent.port)));
    let (body, told) = said.rsplit_once('\n').expect("what curl tells");
    let (status, kind) = told.split_once(' ').expect("status and type");
    (status.parse().expect("a status"), kind.to_owned(), body.to_owned())
}

/// What is wrong with the answer, in words.
fn judge(node: &Node, row: &Row) -> Option<String> {
    let (method, path, status, kind, expect) = *row;
    let (found_status, found_kind, body) = ask(node, &["-X", method], path);
    let fits = match expect {
        Is(text) => body == text,
        Has(text) => body.contains(text),
        At(pointer, text) => serde_json::from_str(&body)
            .ok()
            .and_then(|value: Value| Some(value.pointer(pointer)? == text))
            .unwrap_or_default(),
    };
    let right = found_status == status && found_kind == kind && fits;
    let shown: String = body.chars().take(300).collect();
    (!right).then(|| {
        format!("{method} {path}: {found_status} {found_kind} {shown:?}, not {status} {kind} {expect:?}")
    })
}

fn check(node: &Node, rows: &[Row]) {
    let wrong: Vec<String> = rows.iter().filter_map(|row| judge(node, row)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn answers_are_the_kubelets() {
    let node = Node::start_with(|config| {
        config["enableSystemLogQuery"] = true.into();
        config["featureGates"] = serde_json::json!({ "NodeLogQuery": true });
    });
    node.agent.write_manifest("web", WEB);
    node.wait_pod("web", SLOW, |pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object());
    check(&node, &PAGES);
    for (status, body, requests) in NOTHING {
        let rows = requests.iter().map(|(method, path)| (*method, *path, status, PLAIN, body));
        check(&node, &rows.collect::<Vec<Row>>());
    }
    for path in DIRECTORIES {
        let page = format!("<a href=\"{path}/\">Temporary Redirect</a>.\n\n");
        assert_eq!(ask(&node, &[], path), (307, HTML.to_owned(), page));
    }
    check(&node, &INTO_PODS);
    check(&node, &NODE_LOGS);
    bodies(&node);
}

/// What a table of empty requests can't ask.
fn bodies(node: &Node) {
    let plain = "text/plain".to_owned();
    let set = "successfully set klog.logging.verbosity to 4\n".to_owned();
    assert_eq!(ask(node, &["-X", "PUT", "--data", "4"], "/debug/flags/v"), (200, plain.clone(), set));
    let (status, kind, _) = ask(node, &["-X", "PUT", "--data", "much"], "/debug/flags/v");
    assert_eq!((status, kind), (400, plain));
    for (path, kind) in [("/flagz", "Flagz"), ("/statusz", "Statusz")] {
        let wanted = format!("application/json;g=config.k8s.io;v=v1beta1;as={kind}");
        let (status, found, body) = ask(node, &["-H", &format!("Accept: {wanted}")], path);
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, found, &body["kind"]), (200, wanted, &Value::from(kind)), "{path}: {body}");
        let (status, found, body) = ask(node, &["-H", "Accept: application/json"], path);
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(
            (status, found.as_str(), &body["reason"]),
            (406, JSON, &Value::from("NotAcceptable")),
            "{body}"
        );
    }
    // Only what the runtime says differs: 1.6 and 1.7 have no such call, and none does it without CRIU.
    let (status, kind, body) = ask(node, &["-X", "POST"], "/checkpoint/default/web-node/main");
    let begun = "checkpointing of default/web-node/main failed (";
    assert!((status, kind.as_str()) == (500, PLAIN) && body.starts_with(begun), "{status} {kind} {body}");
    let (status, _, body) = ask(node, &[], "/containerLogs/default/web-node/main");
    assert_eq!((status, body.as_str()), (200, "hello\n"));
}

/// A container is called running a moment before it has written anything, and who asks at once expects its first words.
#[test]
fn the_log_of_a_container_that_just_started_has_its_first_line() {
    let node = Node::start();
    let manifest = WEB.replace("echo hello", "sleep 0.4; echo hello").replace("name: web", "name: fresh");
    node.agent.write_manifest("fresh", &manifest);
    node.wait_pod("fresh", SLOW, |pod| pod["status"]["phase"] == "Running");
    let (status, _, body) = ask(&node, &[], "/containerLogs/default/fresh-node/main");
    assert_eq!((status, body.as_str()), (200, "hello\n"));
}

#[test]
fn a_profile_of_the_agent_is_read_by_pprof() {
    let node = Node::start();
    let pprof = run(hack("parts").arg("pprof"));
    let file = node.runtime.dir.join("profile");
    let url = format!("https://127.0.0.1:{}/debug/pprof/profile?seconds=3", node.agent.port);
    // It has something to do meanwhile: one that sleeps has no samples.
    let mut profiling =
        Command::new("curl").arg("-skf").arg("-o").arg(&file).arg(url).spawn().expect("start curl");
    let status = loop {
        ask(&node, &[], "/metrics/cadvisor");
        if let Some(status) = profiling.try_wait().expect("curl's end") {
            break status;
        }
    };
    assert!(status.success(), "{status}");
    let raw = run(Command::new(pprof.trim()).arg("-raw").arg(&file));
    assert!(raw.contains("samples/count cpu/nanoseconds"), "{raw}");
    assert!(raw.lines().any(|line| line.contains("rubelet")), "no mapping of the program in\n{raw}");
    // The tool finds the names of functions in the program's own file.
    let top = run(Command::new(pprof.trim()).args(["-top", "-nodecount=500"]).arg(&file));
    assert!(top.contains("flat  flat%"), "{top}");
}

#[test]
fn metrics_are_packed_for_those_who_take_gzip() {
    let node = Node::start();
    let port = node.agent.port;
    let ask = |path: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "-D", "-"]).args(more).arg(format!("https://127.0.0.1:{port}{path}"));
        let output = curl.output().expect("run curl").stdout;
        let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        (String::from_utf8_lossy(&output[..end]).to_lowercase(), output[end..].to_vec())
    };
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"] {
        let (head, plain) = ask(path, &[]);
        assert!(!head.contains("content-encoding"), "{path}: {head}");
        let (head, packed) = ask(path, &["-H", "Accept-Encoding: gzip"]);
        assert!(head.contains("content-encoding: gzip"), "{path}: {head}");
        assert!(head.contains("vary: accept-encoding"), "{path}: {head}");
        // Values change from one scrape to the next, and most of the text does not.
        let file = node.runtime.dir.join("packed.gz");
        std::fs::write(&file, &packed).expect("write");
        let text = run(Command::new("gzip").arg("-dc").arg(&file));
        let names = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
        };
        let plain = String::from_utf8(plain).expect("text");
        assert!(!names(&text).is_empty() || plain.is_empty(), "{path}: {text}");
        let missing: Vec<_> = names(&plain).into_iter().filter(|name| !names(&text).contains(name)).collect();
        assert_eq!(missing, [""; 0], "{path}");
        assert!(packed.len() < text.len() || text.len() < 200, "{path}: {} and {}", packed.len(), text.len());
    }
}
