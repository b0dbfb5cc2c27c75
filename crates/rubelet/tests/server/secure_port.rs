//! The secure port of a node that stands alone: who is let in, and what they can do.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::harness::{self, Node, SLOW, run, wait};
use crate::support::pods::{self, is_running, manifest, shell};
use serde_json::json;

struct Authority {
    dir: PathBuf,
}

impl Authority {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let authority = Self { dir };
        let (key, certificate) = (authority.path("ca.key"), authority.path("ca.crt"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=clients"]);
        run(openssl.args(["-keyout", &key, "-out", &certificate]).stderr(Stdio::null()));
        authority
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    fn sign(&self, name: &str) {
        let file = |end: &str| self.path(&format!("{name}.{end}"));
        let subject = format!("/O=people/CN={name}");
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-newkey", "rsa:2048", "-nodes", "-subj", &subject]);
        openssl.args(["-addext", "extendedKeyUsage=clientAuth"]);
        run(openssl.args(["-keyout", &file("key"), "-out", &file("csr")]).stderr(Stdio::null()));
        let mut openssl = Command::new("openssl");
        openssl.args([
            "x509",
            "-req",
            "-copy_extensions",
            "copyall",
            "-days",
            "1",
            "-CAcreateserial",
            "-in",
            &file("csr"),
            "-out",
            &file("crt"),
        ]);
        run(openssl
            .args(["-CA", &self.path("ca.crt"), "-CAkey", &self.path("ca.key")])
            .stderr(Stdio::null()));
    }
}

struct Caller<'a> {
    node: &'a Node,
    pair: Option<(String, String)>,
}

impl Caller<'_> {
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        self.ask_with(method, path, &[])
    }

    fn ask_with(&self, method: &str, path: &str, more: &[&str]) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "-X", method, "-w", "\n%{http_code}"]).args(more);
        if let Some((certificate, key)) = &self.pair {
            curl.args(["--cert", certificate, "--key", key]);
        }
        let output = curl.arg(format!("https://127.0.0.1:{}{path}", self.node.agent.port)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        let trouble = String::from_utf8_lossy(&output.stderr);
        (status.parse().unwrap_or_default(), format!("{body}{trouble}"))
    }
}

#[test]
fn alone_only_those_with_a_certificate_are_let_in() {
    let temp = tempfile::tempdir().unwrap();
    let authority = Authority::new(temp.path().join("ours"));
    let foreign = Authority::new(temp.path().join("foreign"));
    authority.sign("admin");
    foreign.sign("admin");
    let node = Node::start_with(|config| {
        // Nobody chose who is let in, apart from whom the CA vouches for.
        config["authentication"] = json!({ "x509": { "clientCAFile": authority.path("ca.crt") } });
        config.as_object_mut().unwrap().remove("authorization");
    });
    let script = "echo hello; trap 'exit 0' TERM; sleep 3600 & wait";
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("c", script)] });
    node.agent.write_manifest("web", &manifest("web", spec));
    node.wait_pod("web", SLOW, is_running);

    let caller = |authority: &Authority| {
        let pair = Some((authority.path("admin.crt"), authority.path("admin.key")));
        Caller { node: &node, pair }
    };
    let unauthorized = (401, "Unauthorized".to_owned());
    for stranger in [Caller { node: &node, pair: None }, caller(&foreign)] {
        for path in ["/healthz", "/pods", "/metrics", "/exec/default/web-node/c?command=id&output=1"] {
            assert_eq!(stranger.ask("GET", path), unauthorized, "{path}");
        }
    }
    let admin = caller(&authority);
    assert_eq!(admin.ask("GET", "/healthz"), (200, "ok".into()));
    wait("the log", SLOW, || match admin.ask("GET", "/containerLogs/default/web-node/c") {
        (200, said) if said == "hello\n" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let ran = admin.ask("POST", "/run/default/web-node/c?cmd=echo+a+b");
    assert_eq!(ran, (200, "a b\n".into()));
    let (status, failed) = admin.ask("POST", "/run/default/web-node/c?cmd=false");
    assert_eq!((status, failed.starts_with("command 'false' exited with 1")), (500, true), "{failed}");
    let (status, shown) = admin.ask("GET", "/configz");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let shown = &shown["kubeletconfig"];
    assert_eq!(status, 200);
    assert_eq!(
        (&shown["authorization"]["mode"], &shown["kind"]),
        (&json!("AlwaysAllow"), &json!("KubeletConfiguration"))
    );
    assert_eq!(shown["authentication"]["webhook"]["enabled"], false);
    assert_eq!(admin.ask("GET", "/containerLogs/default/web-node/..%2F..%2Fc").0, 404);
    assert_eq!(admin.ask("GET", "/logs/..%2f..%2fetc%2fpasswd").0, 404);
    assert_eq!(admin.ask("GET", "/debug/why/default/web-node").0, 200);
    figures_are_those_of_the_cgroups(&node, &admin);
    verbosity_can_be_changed(&node, &admin);
}

/// The same numbers in the summary, in the metrics and in the kernel's files.
fn figures_are_those_of_the_cgroups(node: &Node, admin: &Caller<'_>) {
    let (status, summary) = admin.ask("GET", "/stats/summary");
    assert_eq!(status, 200, "{summary}");
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let pod = &summary["pods"][0];
    assert_eq!((&pod["podRef"]["name"], &pod["containers"][0]["name"]), (&json!("web-node"), &json!("c")));
    assert!(pod["containers"][0]["memory"]["workingSetBytes"].as_u64().unwrap() > 0, "{pod}");
    assert!(pod["containers"][0]["logs"]["usedBytes"].as_u64().unwrap() > 0, "{pod}");
    assert!(pod["containers"][0]["rootfs"]["usedBytes"].is_u64(), "{pod}");
    assert_eq!(pod["network"]["name"], "eth0", "{pod}");
    assert!(pod["process_stats"]["process_count"].as_u64().unwrap() >= 2, "{pod}");
    for field in ["cpu", "memory", "network", "fs", "runtime", "rlimit", "swap", "startTime"] {
        assert!(!summary["node"][field].is_null(), "{field} of {}", summary["node"]);
    }
    let shown = pod["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap();
    let cgroup = harness::cgroups_below(&node.runtime.cgroup_root);
    let is_pod = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pod") || name.contains("-pod")
    };
    let read = |dir: &PathBuf| {
        let old =
            fs::read_to_string(dir.join("cpuacct.usage")).ok().and_then(|text| text.trim().parse().ok());
        let new = fs::read_to_string(dir.join("cpu.stat")).ok().and_then(|text| {
            let micros =
                text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse::<u64>().ok()?;
            Some(micros * 1000)
        });
        old.or(new)
    };
    let now: u64 = cgroup.iter().filter(is_pod).filter_map(read).max().expect("the pod's cgroup");
    assert!(shown <= now && now - shown < 5_000_000_000, "{shown} is told, {now} is");
    let (status, metrics) = admin.ask("GET", "/metrics/resource");
    assert_eq!(status, 200);
    for start in [
        r#"container_memory_working_set_bytes{container="c",namespace="default",pod="web-node"} "#,
        r#"pod_cpu_usage_seconds_total{namespace="default",pod="web-node"} "#,
        "node_memory_working_set_bytes ",
        "resource_scrape_error 0",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(start)), "{start} in {metrics}");
    }
}

/// `/debug/flags/v` changes what is logged from then on.
fn verbosity_can_be_changed(node: &Node, admin: &Caller<'_>) {
    let is_debug = || node.agent.log().lines().any(|line| line.contains("] status changed "));
    assert!(!is_debug(), "it was quiet before");
    let put = |level: &str| admin.ask_with("PUT", "/debug/flags/v", &["-d", level]);
    let (status, text) = put("5");
    assert_eq!((status, text.trim_end()), (200, "successfully set klog.logging.verbosity to 5"));
    // Something happens, and is told in detail now.
    node.agent.write_manifest("second", &pods::simple("second"));
    wait("more to be logged", SLOW, || if is_debug() { Ok(()) } else { Err("nothing of it") });
    let (status, text) = put("loud");
    assert!(status == 400 && text.contains("must be a number, not \"loud\""), "{status} {text}");
}
