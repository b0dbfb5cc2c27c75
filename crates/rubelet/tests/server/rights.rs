//! Who may ask the node what: identities, verbs and paths against the real API server's RBAC.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::cluster::KeyPair;
use crate::support::harness::{SLOW, run, wait};
use crate::support::serving_node::{Curl, ServingNode, foreign};
use serde_json::json;

/// Each is the whole right of one service account.
const SUBRESOURCES: [&str; 9] =
    ["proxy", "stats", "metrics", "log", "pods", "healthz", "configz", "checkpoint", "statusz"];

/// Verb of HTTP, path, what allows it, and what whoever is allowed gets.
const TABLE: [(&str, &str, &[&str], u16); 33] = [
    ("GET", "/pods", &["pods", "proxy"], 200),
    ("GET", "/pods/", &["pods", "proxy"], 200),
    ("GET", "/runningpods/", &["pods", "proxy"], 200),
    ("GET", "/healthz", &["healthz", "proxy"], 200),
    ("GET", "/healthz/syncloop", &["healthz", "proxy"], 200),
    ("GET", "/configz", &["configz", "proxy"], 200),
    ("GET", "/flagz", &["configz"], 200),
    ("GET", "/statusz", &["statusz"], 200),
    ("GET", "/stats/summary", &["stats"], 200),
    ("GET", "/metrics", &["metrics"], 200),
    ("GET", "/metrics/cadvisor", &["metrics"], 200),
    ("GET", "/metrics/resource", &["metrics"], 200),
    ("GET", "/metrics/probes", &["metrics"], 200),
    ("GET", "/metrics/slis", &["metrics"], 200),
    ("GET", "/logs/", &["log"], 200),
    ("POST", "/stats/summary", &["stats"], 200),
    ("POST", "/metrics", &["metrics"], 200),
    ("GET", "/debug/pprof/", &["proxy"], 200),
    ("GET", "/debug/pprof/cmdline", &["proxy"], 200),
    ("GET", "/debug/pprof/profile?seconds=1", &["proxy"], 200),
    ("GET", "/debug/pprof/heap", &["proxy"], 501),
    ("GET", "/spec/", &["proxy"], 404),
    ("POST", "/checkpoint/a/b/c", &["checkpoint"], 404),
    ("GET", "/containerLogs/a/b/c", &["proxy"], 404),
    ("POST", "/run/a/b/c?cmd=id", &["proxy"], 404),
    ("POST", "/exec/a/b/c?command=id&output=1", &["proxy"], 404),
    ("GET", "/attach/a/b/c?output=1", &["proxy"], 404),
    ("POST", "/portForward/a/b", &["proxy"], 404),
    ("GET", "/debug/why/a/b", &["proxy"], 404),
    // Who may read may not write: these accounts have no right to update.
    ("PUT", "/debug/flags/v", &[], 403),
    ("DELETE", "/pods", &[], 403),
    // As upstream: this is no verb of Kubernetes, so only a right to every verb allows it.
    ("HEAD", "/pods", &[], 403),
    // Spelt otherwise it is another path, which only the widest right opens.
    ("GET", "//metrics", &["proxy"], 404),
];

fn node(name: &'static str) -> ServingNode {
    ServingNode::join_with(name, |config| {
        config["authorization"] = json!({
            "mode": "Webhook",
            // Rights are given after the node was first asked.
            "webhook": { "cacheAuthorizedTTL": "10m", "cacheUnauthorizedTTL": "1s" },
        });
    })
}

/// A service account that may read and create one thing of nodes, and its token.
fn account(member: &ServingNode, name: &str, subresource: Option<&str>) -> String {
    account_with(member, name, "get,create", subresource)
}

fn account_with(member: &ServingNode, name: &str, verbs: &str, subresource: Option<&str>) -> String {
    let (cluster, namespace) = (member.cluster, member.namespace.as_str());
    cluster.kubectl(&["create", "serviceaccount", name, "--namespace", namespace]);
    if let Some(subresource) = subresource {
        let role = format!("{namespace}-{name}");
        let resource = format!("--resource=nodes/{subresource}");
        cluster.kubectl(&["create", "clusterrole", &role, &format!("--verb={verbs}"), &resource]);
        let (binds, who) = (format!("--clusterrole={role}"), format!("--serviceaccount={namespace}:{name}"));
        cluster.kubectl(&["create", "clusterrolebinding", &role, &binds, &who]);
    }
    cluster.kubectl(&["create", "token", name, "--namespace", namespace]).trim().to_owned()
}

#[test]
fn each_right_opens_its_paths_and_no_other() {
    let member = node("node-rights");
    for subresource in SUBRESOURCES {
        let name = format!("only-{subresource}");
        let token = Some(account(&member, &name, Some(subresource)));
        let who = Curl { member: &member, certificate: None, token };
        let opens = |allows: &[&str]| allows.contains(&subresource);
        let (method, path, _, answer) = TABLE.iter().find(|row| opens(row.2)).expect("a path of it");
        // The API server needs a moment to learn of new rights.
        wait(&format!("the right to {subresource}"), SLOW, || match who.ask(method, path) {
            (status, _) if status == *answer => Ok(()),
            other => Err(format!("{method} {path}: {other:?}")),
        });
        for (method, path, allows, answer) in TABLE {
            let (status, body) = who.ask(method, path);
            let expect = if opens(allows) { answer } else { 403 };
            assert_eq!(status, expect, "{name}: {method} {path}: {body}");
            if expect == 403 && method != "HEAD" {
                let user =
                    format!("Forbidden (user=system:serviceaccount:{}:{name}, verb=", member.namespace);
                assert!(
                    body.starts_with(&user) && body.contains("resource=nodes, subresource(s)=["),
                    "{body}"
                );
            }
        }
    }
    let masters = Curl { member: &member, certificate: Some(member.cluster.kubelet_client()), token: None };
    for (method, path, allows, answer) in TABLE {
        let (status, body) = masters.ask(method, path);
        match allows.is_empty() {
            false => assert_eq!(status, answer, "masters: {method} {path}: {body}"),
            true => assert!(status != 401 && status != 403, "masters: {method} {path}: {status} {body}"),
        }
    }
    // The node may not ask itself: it has rights in the cluster, and none on nodes.
    let own = client_of(&member, &member.cluster.node_kubeconfig(member.name));
    // Somebody who is known and has no right at all.
    let nobody = Some(account(&member, "nobody", None));
    for who in [
        Curl { member: &member, certificate: Some(own), token: None },
        Curl { member: &member, certificate: None, token: nobody },
    ] {
        for (method, path, ..) in TABLE {
            assert_eq!(who.ask(method, path).0, 403, "{method} {path}");
        }
    }
}

/// A WebSocket begins with a GET. The right to read `nodes/proxy` must not be a right to run commands in every pod.
#[test]
fn whoever_may_only_read_opens_no_stream() {
    let member = node("node-read-only");
    let token = Some(account_with(&member, "reads-proxy", "get", Some("proxy")));
    let who = Curl { member: &member, certificate: None, token };
    wait("the right to read", SLOW, || match who.ask("GET", "/containerLogs/a/b/c") {
        (404, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for path in
        ["/exec/a/b/c?command=id&output=1", "/attach/a/b/c?output=1", "/run/a/b/c?cmd=id", "/portForward/a/b"]
    {
        let (status, body) = who.ask("GET", path);
        assert_eq!(status, 403, "{path}: {body}");
        assert!(body.contains("verb=create, resource=nodes, subresource(s)=[proxy]"), "{path}: {body}");
    }
}

#[test]
fn strangers_get_nothing() {
    let member = ServingNode::join("node-strangers");
    for (what, certificate, token) in [
        ("nobody", None, None),
        ("a made-up token", None, Some("made-up".to_owned())),
        ("a foreign certificate", Some(foreign(&member)), None),
        (
            "an expired certificate",
            Some(signed(&member, "expired", "20200101000000Z", "20200201000000Z")),
            None,
        ),
        (
            "a certificate of later",
            Some(signed(&member, "later", "20990101000000Z", "20990201000000Z")),
            None,
        ),
    ] {
        let who = Curl { member: &member, certificate, token };
        for (method, path, ..) in TABLE {
            let (status, body) = who.ask(method, path);
            let said = if method == "HEAD" { "" } else { "Unauthorized" };
            assert_eq!((status, body.as_str()), (401, said), "{what}: {method} {path}");
        }
    }
    // The same name, vouched for by the right CA and now: it was the time that was wrong.
    let right = signed(&member, "right", "20200101000000Z", "20990101000000Z");
    let who = Curl { member: &member, certificate: Some(right), token: None };
    assert_eq!(who.ask("GET", "/healthz"), (200, "ok".into()));
}

/// What the API server answered holds for a while: it is not asked for every request.
#[test]
fn answers_are_remembered() {
    let member = node("node-remembers");
    let token = account(&member, "scraper", Some("metrics"));
    let who = Curl { member: &member, certificate: None, token: Some(token) };
    wait("the right to metrics", SLOW, || match who.ask("GET", "/metrics") {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let reviews = || {
        let asked = member.cluster.api_requests(&format!("system:node:{}", member.name));
        let of = |kind: &str| asked.iter().filter(|request| request.resource == kind).count();
        (of("tokenreviews"), of("subjectaccessreviews"))
    };
    let before = reviews();
    assert!(before.0 > 0 && before.1 > 0, "{before:?}");
    for _ in 0..20 {
        assert_eq!(who.ask("GET", "/metrics").0, 200);
    }
    assert_eq!(reviews(), before, "reviews of tokens and of access");
}

/// Certificate and key of a kubeconfig that `hack/cluster` made.
fn client_of(member: &ServingNode, kubeconfig: &std::path::Path) -> KeyPair {
    let kubeconfig = kubeconfig.to_string_lossy();
    let field = |name: &str| {
        let path = format!("jsonpath={{.users[0].user.{name}}}");
        run(&mut member.cluster.kubectl_command(
            &member.cluster.admin_kubeconfig(),
            &["config", "view", "--raw", "--kubeconfig", &kubeconfig, "-o", &path],
        ))
    };
    let dir = &member.runtime.dir;
    let pair = KeyPair { certificate: dir.join("own.crt"), key: dir.join("own.key") };
    for (name, path) in [("client-certificate", &pair.certificate), ("client-key", &pair.key)] {
        let data = field(&format!("{name}-data"));
        let text = match data.is_empty() {
            true => fs::read_to_string(field(name)).unwrap(),
            false => decoded(&data),
        };
        fs::write(path, text).unwrap();
    }
    pair
}

fn decoded(base64: &str) -> String {
    use std::io::Write;
    let mut child =
        Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(base64.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// A certificate of an administrator by the cluster's own CA, for a time of our choice.
fn signed(member: &ServingNode, name: &str, from: &str, until: &str) -> KeyPair {
    let dir = member.runtime.dir.join(format!("ca-{name}"));
    fs::create_dir_all(dir.join("new")).unwrap();
    fs::write(dir.join("index.txt"), "").unwrap();
    let config = format!(
        "[ca]\ndefault_ca=d\n[d]\ndatabase={0}/index.txt\nnew_certs_dir={0}/new\nrand_serial=yes\ndefault_md=sha256\n\
         policy=p\nx509_extensions=e\n[p]\ncommonName=supplied\norganizationName=optional\n\
         [e]\nextendedKeyUsage=clientAuth\n",
        dir.display()
    );
    let file = |end: &str| dir.join(end);
    fs::write(file("config"), config).unwrap();
    let pair = KeyPair { certificate: file("crt"), key: file("key") };
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=system:masters/CN=somebody", "-out"]);
    run(openssl.arg(file("csr")).arg("-keyout").arg(&pair.key).stderr(Stdio::null()));
    let ca = member.cluster.ca();
    let mut openssl = Command::new("openssl");
    openssl
        .args(["ca", "-batch", "-notext", "-startdate", from, "-enddate", until, "-config"])
        .arg(file("config"));
    openssl.arg("-cert").arg(&ca).arg("-keyfile").arg(ca.with_extension("key"));
    run(openssl.arg("-in").arg(file("csr")).arg("-out").arg(&pair.certificate));
    pair
}
