//! Pods whose volumes have certificates of their own.

use std::sync::Arc;

use model::node::NodeConfig;
use model::pod::Source;
use model::pod_certificate::{CertificateRequested, CertificateSource, PrivateKey};
use serde_json::{Value, json};

use super::script::Script;
use crate::Event;
use crate::objects::CERTIFICATES_GATE;

const POD: &str = "pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {serviceAccountName: sa, volumes: \
                   [{name: v, projected: {sources: [{podCertificate: {signerName: a.b/c, keyType: ED25519, keyPath: k}}]}}]}";

fn node(on: bool) -> Script {
    let features = [(CERTIFICATES_GATE.to_owned(), on)].into();
    let mut run = Script::new(NodeConfig { sources: vec![Source::Api], features, ..Default::default() });
    for line in ["show events", POD, "up"] {
        run.line(line);
    }
    run
}

fn taken(run: &mut Script, call: u64) -> Vec<String> {
    let source = CertificateSource { pod: "a".into(), volume: "v".into(), index: 0 };
    let (name, key) = (format!("r{call}"), PrivateKey(format!("key {call}")));
    run.event(Event::CertificateRequested { source, call, result: Ok(CertificateRequested { name, key }) })
}

fn answered(run: &mut Script, name: &str, word: &str, more: Value) -> Vec<String> {
    let since = "2024-01-01T00:00:00Z";
    let condition =
        json!({"type": word, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": since});
    let mut status = more;
    status["conditions"] = json!([condition]);
    let request = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {}, "status": status});
    let request = serde_json::from_value(request).expect("a request");
    run.event(Event::CertificateRequests(vec![Arc::new(request)]))
}

fn issued() -> Value {
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    json!({"certificateChain": pem, "beginRefreshAt": "2100-01-01T00:00:00Z", "notAfter": "2100-02-01T00:00:00Z"})
}

#[test]
fn a_pod_waits_for_its_certificate_and_says_why() {
    let mut run = node(true);
    assert_eq!(run.line("api a"), ["follow certificate requests of node", "look img-c:1"]);
    run.line("looked img-c:1: yes");
    assert_eq!(run.line("why a"), ["waits for certificate of a.b/c"]);
    assert_eq!(run.line("node n1"), ["ask certificate a/v of a.b/c (1)"]);
    let waits =
        "W a FailedMount: MountVolume.SetUp failed for volume \"v\" : credential bundle is not issued yet";
    assert_eq!(taken(&mut run, 1), [waits]);
    let begun = answered(&mut run, "r1", "Issued", issued());
    assert_eq!(begun, ["run a: dirs + cgroup > volume v {k=key 1} > sandbox#0"]);
    assert_eq!(answered(&mut run, "r1", "Issued", issued()), [""; 0], "no news");
    run.line("done a");
    for line in ["api", "read a: s0 ready", "done a", "read a: s0 dead", "done a"] {
        run.line(line);
    }
    assert!(run.state.objects.as_ref().unwrap().certificates.is_empty(), "nothing is left of the pod");
}

#[test]
fn a_signers_no_is_told_and_nothing_is_asked_again() {
    let mut run = node(true);
    run.line("api a");
    run.line("looked img-c:1: yes");
    run.line("node n1");
    taken(&mut run, 1);
    let told = [
        "W a Denied: PodCertificateRequest ns/r1 was denied, reason=\"R\", message=\"m\"",
        "W a FailedMount: MountVolume.SetUp failed for volume \"v\" : PodCertificateRequest was permanently denied: \
         reason=\"R\" message=\"m\"",
    ];
    assert_eq!(answered(&mut run, "r1", "Denied", json!({})), told);
    run.line("+1000s");
    assert!(!run.line("node n2").iter().any(|effect| effect.contains("ask certificate")));
}

#[test]
fn without_the_gate_there_are_none() {
    let mut run = node(false);
    let refused = "W a FailedMount: MountVolume.SetUp failed for volume \"v\" : unimplemented";
    assert!(run.line("api a").contains(&refused.to_owned()));
    assert!(run.state.objects.as_ref().unwrap().certificates.is_empty());
}
