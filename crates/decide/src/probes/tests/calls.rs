use std::time::Duration;

use model::k8s;
use model::probe::{HttpCheck, NetworkCheck, ProbeCheck};
use serde_json::{Value, json};

use super::pod_of;
use crate::probes::call::{call, port, target};

fn container() -> k8s::Container {
    serde_json::from_value(json!({
        "name": "c",
        "ports": [{"name": "web", "containerPort": 8080}, {"containerPort": 9}, {"name": "far", "containerPort": 70000}],
        "env": [
            {"name": "A", "value": "1"}, {"name": "REF", "value": "$(A)"}, {"name": "EMPTY"},
            {"name": "FROM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "TWICE", "value": "first"}, {"name": "TWICE", "value": "last"},
        ],
        "envFrom": [{"configMapRef": {"name": "m"}}],
    }))
    .unwrap()
}

fn made(probe: Value) -> Result<ProbeCheck, String> {
    let probe: k8s::Probe = serde_json::from_value(probe).unwrap();
    call(&pod_of(json!({})), &container(), &probe, "10.0.0.1").map(|call| call.check)
}

#[test]
fn ports_are_numbers_or_names_of_this_container() {
    let check = |given: Value, expect: Result<u16, &str>| {
        let given: k8s::IntOrString = serde_json::from_value(given).unwrap();
        assert_eq!(port(&given, &container()), expect.map_err(str::to_owned), "{given:?}");
    };
    check(json!(80), Ok(80));
    check(json!(1), Ok(1));
    check(json!(65535), Ok(65535));
    check(json!("web"), Ok(8080));
    check(json!("81"), Ok(81));
    check(json!(0), Err("invalid port number: 0"));
    check(json!(-1), Err("invalid port number: -1"));
    check(json!(65536), Err("invalid port number: 65536"));
    check(json!("far"), Err("invalid port number: 70000"));
    check(json!("0"), Err("invalid port number: 0"));
    check(json!("nope"), Err("port nope not found"));
    check(json!(""), Err("port  not found"));
    check(json!("8x"), Err("port 8x not found"));
}

#[test]
fn paths_become_what_goes_over_the_wire() {
    let check = |path: &str, expect: &str| assert_eq!(target(path), expect, "{path:?}");
    check("/", "/");
    check("", "/");
    check("/healthz", "/healthz");
    check("healthz", "/healthz");
    check("/a/b/", "/a/b/");
    check("/a?x=1&y=2", "/a?x=1&y=2");
    check("/a?", "/a?");
    check("?x=1", "/?x=1");
    check("/a#part", "/a");
    check("/a?x#part", "/a?x");
    check("/a b", "/a%20b");
    check("/a?x=b c", "/a?x=b%20c");
    check("/ä", "/%C3%A4");
    check("/a?ä", "/a?%C3%A4");
    check("/a%20b", "/a%20b");
    check("/a%2Fb", "/a%2Fb");
    check("/a?x=%zz", "/a?x=%zz");
    check("/a;b=c@d:e,f", "/a;b=c@d:e,f");
    check("/<a>\"", "/%3Ca%3E%22");
    check("/{a}|^`\\", "/%7Ba%7D%7C%5E%60%5C");
    // a whole URL gives its path
    check("http://other:1/a?x", "/a?x");
    check("//other/a", "/a");
    check("//other", "/");
    check("https://other?x", "/?x");
    // what is no URL is a path letter by letter
    check("/a%zz?x", "/a%25zz%3Fx");
    check("/a%", "/a%25");
    check("1:a", "/1:a");
    check("/a\nb", "/a%0Ab");
}

#[test]
fn commands_know_literal_values_only() {
    let check = |words: &[&str], expect: &[&str]| {
        let expect = expect.iter().map(|w| (*w).to_owned()).collect();
        let got = made(json!({"exec": {"command": words}}));
        assert_eq!(got, Ok(ProbeCheck::Exec { command: expect }), "{words:?}");
    };
    check(&["cat", "/x"], &["cat", "/x"]);
    check(&["$(A)", "a$(A)b"], &["1", "a1b"]);
    check(&["$(NONE)"], &["$(NONE)"]);
    check(&["$$(A)"], &["$(A)"]);
    check(&["$(REF)"], &["$(A)"]);
    check(&["[$(EMPTY)]"], &["[]"]);
    check(&["[$(FROM)]"], &["[]"]);
    check(&["$(TWICE)"], &["last"]);
    check(&["$A", "${A}"], &["$A", "${A}"]);
    check(&[], &[]);
}

#[test]
fn the_network_is_asked_at_the_pods_address() {
    let http = |https, host: &str, port, target: &str| HttpCheck {
        https,
        host: host.into(),
        port,
        target: target.into(),
        headers: Vec::new(),
    };
    let check = |probe: Value, expect: NetworkCheck| {
        assert_eq!(made(probe.clone()), Ok(ProbeCheck::Network(expect)), "{probe}");
    };
    check(json!({"httpGet": {"port": 80}}), NetworkCheck::Http(http(false, "10.0.0.1", 80, "/")));
    check(
        json!({"httpGet": {"port": "web", "path": "/x", "scheme": "HTTPS", "host": "h"}}),
        NetworkCheck::Http(http(true, "h", 8080, "/x")),
    );
    check(
        json!({"httpGet": {"port": 80, "scheme": "https"}}),
        NetworkCheck::Http(http(true, "10.0.0.1", 80, "/")),
    );
    check(
        json!({"httpGet": {"port": 80, "scheme": "HTTP", "host": ""}}),
        NetworkCheck::Http(http(false, "10.0.0.1", 80, "/")),
    );
    let headers = vec![("A".to_owned(), "1".to_owned()), ("A".to_owned(), "2".to_owned())];
    check(
        json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}}),
        NetworkCheck::Http(HttpCheck { headers, ..http(false, "10.0.0.1", 80, "/") }),
    );
    let tcp = |host: &str, port| NetworkCheck::Tcp { host: host.into(), port };
    check(json!({"tcpSocket": {"port": "web"}}), tcp("10.0.0.1", 8080));
    check(json!({"tcpSocket": {"port": 9, "host": "h"}}), tcp("h", 9));
    let grpc =
        |service: &str| NetworkCheck::Grpc { host: "10.0.0.1".into(), port: 9, service: service.into() };
    check(json!({"grpc": {"port": 9}}), grpc(""));
    check(json!({"grpc": {"port": 9, "service": "s"}}), grpc("s"));
}

#[test]
fn what_can_not_be_asked_says_why() {
    let check = |probe: Value, expect: &str| assert_eq!(made(probe), Err(expect.to_owned()));
    check(json!({}), "missing probe handler for p_n(u):c");
    check(json!({"httpGet": {"port": "nope"}}), "port nope not found");
    check(json!({"tcpSocket": {"port": 0}}), "invalid port number: 0");
    check(json!({"grpc": {"port": 70000}}), "invalid port number: 70000");
}

#[test]
fn the_timeout_is_the_probes() {
    let check = |probe: Value, expect: u64| {
        let probe: k8s::Probe = serde_json::from_value(probe).unwrap();
        let made = call(&pod_of(json!({})), &container(), &probe, "").unwrap();
        assert_eq!(made.timeout, Duration::from_secs(expect));
    };
    check(json!({"exec": {}}), 1);
    check(json!({"exec": {}, "timeoutSeconds": 7}), 7);
}
