use serde_json::{Value, json};

use super::*;
use crate::render::sample;

const START: Wall = Wall(1_700_000_000_000_000_000);
const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const NODE: RequestingNode<'_> = RequestingNode { name: "n", uid: Some("n-1") };

/// A pod of one volume with these sources.
fn pod(sources: Value) -> PodView {
    let spec = json!({
        "serviceAccountName": "sa",
        "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [
            {"name": "v", "projected": {"sources": sources}},
            {"name": "unused", "projected": {"sources": sources}},
        ],
    });
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
    sample::view(serde_json::from_value(pod).unwrap())
}

fn plain() -> PodView {
    pod(json!([
        {"downwardAPI": {}},
        {"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "credentialBundlePath": "b"}},
    ]))
}

fn source() -> CertificateSource {
    CertificateSource { pod: "u".into(), volume: "v".into(), index: 1 }
}

/// A time line: seconds since the start, on both clocks.
fn at(seconds: u64) -> Now {
    let since = Duration::from_secs(seconds);
    Now { mono: Mono::ZERO.plus(since), wall: START.plus(since) }
}

/// Requests and Events, in words; and the time of the timer, if it was set.
fn show(effects: &[Effect]) -> Vec<String> {
    let one = |effect: &Effect| match effect {
        Effect::RequestCertificate { call, wanted, .. } => format!("ask {call} {}", wanted.node_uid),
        Effect::SetTimer { at: None, .. } => "timer off".to_owned(),
        Effect::SetTimer { at: Some(at), .. } => format!("timer {}", at.as_duration().as_secs_f64()),
        Effect::RecordEvent { event, .. } => format!("{}: {}", event.reason, event.message),
        other => panic!("{other:?}"),
    };
    effects.iter().map(one).collect()
}

fn request(name: &str, status: Value) -> Arc<PodCertificateRequest> {
    let object = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {}, "status": status});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn said(word: &str) -> Value {
    let since = "2024-01-01T00:00:00Z";
    let condition =
        json!({"type": word, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": since});
    json!({"conditions": [condition]})
}

/// Seconds since the start.
fn issued(begin: u64, end: u64) -> Value {
    let mut status = said("Issued");
    let time = |seconds: u64| json!(at(seconds).wall.api_time());
    status["certificateChain"] = json!(format!("words\n{PEM}"));
    status["notBefore"] = time(0);
    status["beginRefreshAt"] = time(begin);
    status["notAfter"] = time(end);
    status
}

fn taken(name: &str) -> Result<CertificateRequested, String> {
    Ok(CertificateRequested { name: name.into(), key: PrivateKey(format!("key of {name}")) })
}

/// Its first request, `r1`, was taken at second 1.
fn asked() -> PodCertificates {
    let mut all = PodCertificates::default();
    assert_eq!(show(&all.claim(&plain(), NODE, at(0))), ["ask 1 n-1"]);
    assert_eq!(all.look(&source()), KnownCertificate::Asking);
    let effects = all.requested(&source(), 1, taken("r1"), at(1)).unwrap();
    assert!(matches!(effects[..], [Effect::SetTimer { .. }]), "{effects:?}");
    assert_eq!(all.look(&source()), KnownCertificate::NotIssued { trouble: "" });
    all
}

/// The certificate of `r1` came at second 2, is to be refreshed from 1000 on, and ends at 1000 and something.
fn fresh(end: u64) -> PodCertificates {
    let mut all = asked();
    let (users, _) = all.read(&[request("r1", issued(1000, end))], at(2));
    assert_eq!(users.into_iter().collect::<Vec<_>>(), ["u".into()]);
    assert_key(&all, "key of r1");
    all
}

#[track_caller]
fn assert_key(all: &PodCertificates, expect: &str) {
    match all.look(&source()) {
        KnownCertificate::Issued { key, chain } => assert_eq!((key.0.as_str(), chain), (expect, PEM)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_asked_for() {
    let view = pod(json!([{"podCertificate": {
        "signerName": "a.b/c", "keyType": "RSA3072", "maxExpirationSeconds": 7200, "keyPath": "k",
        "userAnnotations": {"a.b/d": "e"},
    }}]));
    assert!(needs_certificates(&view));
    assert!(!needs_certificates(&pod(json!([{"downwardAPI": {}}]))));
    let effects = PodCertificates::default().claim(&view, NODE, at(0));
    let [Effect::RequestCertificate { source, call: 1, wanted }] = &effects[..] else {
        panic!("one request, for the volume that is mounted: {effects:?}")
    };
    assert_eq!((source.volume.as_str(), source.index), ("v", 0));
    let expect = CertificateWanted {
        namespace: "ns".into(),
        pod_name: "p".into(),
        pod_uid: "u".into(),
        service_account: "sa".into(),
        node_name: "n".into(),
        node_uid: "n-1".into(),
        signer_name: "a.b/c".into(),
        key_type: "RSA3072".into(),
        max_expiration_secs: Some(7200),
        user_annotations: [("a.b/d".to_owned(), "e".to_owned())].into(),
    };
    assert_eq!(**wanted, expect);
}

#[test]
fn nothing_is_asked_before_the_node_is_known() {
    let mut all = PodCertificates::default();
    let unknown = RequestingNode { name: "n", uid: None };
    assert_eq!(all.claim(&plain(), unknown, at(0)), []);
    assert_eq!(all.look(&source()), KnownCertificate::Asking);
    assert_eq!(show(&all.claim(&plain(), NODE, at(5))), ["ask 1 n-1"]);
    assert_eq!(all.claim(&plain(), NODE, at(6)), [], "the same again");
}

#[test]
fn an_answer_that_is_faster_than_the_call() {
    let mut all = PodCertificates::default();
    all.claim(&plain(), NODE, at(0));
    let (users, effects) = all.read(&[request("r1", issued(1000, 2000))], at(1));
    assert!(users.is_empty() && effects.is_empty(), "its key is not known yet");
    all.requested(&source(), 1, taken("r1"), at(2)).unwrap();
    assert_key(&all, "key of r1");
}

/// The old pair stays until the new one is whole; no key is ever shown with the chain of another.
#[test]
fn a_refresh_leaves_no_gap() {
    let mut all = fresh(1001);
    let refresh = all.due(&source(), at(999));
    assert!(show(&refresh)[0].starts_with("timer 1000"), "{:?}", show(&refresh));
    let effects = show(&all.due(&source(), at(1001)));
    assert_eq!(effects[..2], ["CertificateExpired: PodCertificate expired", "ask 2 n-1"]);
    assert_key(&all, "key of r1");
    assert!(all.requested(&source(), 1, taken("late"), at(1001)).is_none(), "of an older call");
    all.requested(&source(), 2, taken("r2"), at(1002)).unwrap();
    all.read(&[request("r1", issued(1000, 1001)), request("r2", json!({}))], at(1003));
    assert_key(&all, "key of r1");
    all.read(&[request("r2", issued(3000, 4000))], at(1004));
    assert_key(&all, "key of r2");
}

#[test]
fn refreshes_are_spread() {
    let mut all = fresh(100_000);
    let moment = |effects: Vec<Effect>| show(&effects)[0].trim_start_matches("timer ").parse::<f64>();
    let first = moment(all.due(&source(), at(3))).unwrap();
    assert!((1000.0..1300.0).contains(&first), "{first}");
    let mut all = fresh(1020);
    let first = moment(all.due(&source(), at(3))).unwrap();
    assert!((1000.0..1010.0).contains(&first), "not close to the end: {first}");
}

/// A node whose clock is ahead does not ask without end.
#[test]
fn a_certificate_that_should_be_refreshed_already_is_used_for_a_while() {
    let mut all = asked();
    all.read(&[request("r1", issued(1000, 20_000))], at(5000));
    let effects = show(&all.due(&source(), at(5000)));
    assert_eq!(effects, ["timer 6000"], "as long as the signer meant");
    let mut all = asked();
    all.read(&[request("r1", issued(1000, 2000))], at(5000));
    assert_eq!(show(&all.due(&source(), at(5000)))[0], "timer 5600", "one that has ended is replaced soon");
    let mut all = asked();
    all.read(&[request("r1", issued(1, 2))], at(5000));
    assert_eq!(show(&all.due(&source(), at(5000)))[0], "timer 5060", "no storm");
}

#[test]
fn what_the_signer_says_for_good() {
    for (word, became, state) in [("Denied", "was denied", "denied"), ("Failed", "failed", "failed")] {
        let mut all = asked();
        let (users, effects) = all.read(&[request("r1", said(word))], at(2));
        assert_eq!(users.len(), 1);
        let event = format!("{word}: PodCertificateRequest ns/r1 {became}, reason=\"R\", message=\"m\"");
        assert_eq!(show(&effects), [event, "timer off".to_owned()]);
        let expect = format!("PodCertificateRequest was permanently {state}: reason=\"R\" message=\"m\"");
        assert_eq!(all.look(&source()), KnownCertificate::Refused(&expect));
        assert_eq!(all.read(&[request("r1", said(word))], at(3)), Default::default(), "told once");
        assert_eq!(all.claim(&plain(), NODE, at(100_000)), [], "and never asked again");
        assert_eq!(all.states(at(4).wall), [(("a.b/c".to_owned(), state), 1)].into());
    }
    // Also when there is a good one: its files stay, as far as anybody made them.
    let mut all = fresh(100_000);
    all.due(&source(), at(2000));
    all.requested(&source(), 2, taken("r2"), at(2001)).unwrap();
    all.read(&[request("r2", said("Denied"))], at(2002));
    assert!(matches!(all.look(&source()), KnownCertificate::Refused(_)));
}

#[test]
fn a_call_that_fails_is_made_again() {
    let mut all = PodCertificates::default();
    all.claim(&plain(), NODE, at(0));
    let mut due = 0.0;
    for call in 1..=4u64 {
        let known = all.look(&source());
        match call {
            1..=3 => assert_eq!(known, KnownCertificate::Asking, "the authorizer may be late"),
            _ => assert_eq!(known, KnownCertificate::NotIssued { trouble: "away" }),
        }
        let now = at(call * 10);
        let effects = show(&all.requested(&source(), call, Err("away".into()), now).unwrap());
        let wait = 0.5 * f64::from(1 << (call - 1));
        due = call as f64 * 10.0 + wait;
        assert_eq!(effects, [format!("timer {due}")]);
        assert_eq!(all.claim(&plain(), NODE, now), [], "not before its time");
        assert_eq!(show(&all.due(&source(), at(call * 10 + 9)))[0], format!("ask {} n-1", call + 1));
    }
    assert_eq!(due, 44.0);
    all.requested(&source(), 5, taken("r"), at(60)).unwrap();
    all.read(&[request("r", issued(1000, 2000))], at(61));
    assert_key(&all, "key of r");
}

#[test]
fn a_request_that_somebody_deletes_is_made_again() {
    let mut all = asked();
    let (users, effects) = all.read(&[request("r1", json!({}))], at(2));
    assert_eq!((users.len(), show(&effects)), (1, vec!["timer off".to_owned()]));
    assert_eq!(all.read(&[request("r1", json!({}))], at(3)), Default::default());
    let (users, effects) = all.read(&[], at(4));
    assert_eq!((users.len(), show(&effects)), (1, vec!["timer 4.5".to_owned()]));
    assert_eq!(show(&all.due(&source(), at(5)))[0], "ask 2 n-1");
    // One that the watch never shows may still come, and is given up late.
    all.requested(&source(), 2, taken("r2"), at(6)).unwrap();
    assert_eq!(all.read(&[], at(7)), Default::default());
    let effects = show(&all.due(&source(), at(600)));
    let give_up: f64 = effects[0].trim_start_matches("timer ").parse().unwrap();
    assert!((606.0..906.0).contains(&give_up), "{give_up}");
    assert_eq!(show(&all.due(&source(), at(907))), ["timer 908"]);
    assert_eq!(show(&all.due(&source(), at(908)))[0], "ask 3 n-1");
}

#[test]
fn an_answer_without_a_certificate_is_none() {
    let mut all = asked();
    all.read(&[request("r1", said("Issued"))], at(2));
    assert_eq!(all.look(&source()), KnownCertificate::Asking, "asked again after a moment");
    assert_eq!(show(&all.due(&source(), at(3)))[0], "ask 2 n-1");
}

#[test]
fn users_are_told_once_that_a_refresh_is_late() {
    let mut all = fresh(1002);
    let state = |all: &PodCertificates, second| all.states(at(second).wall).keys().next().unwrap().1;
    assert_eq!(state(&all, 5), "fresh");
    let told = |effects: &[Effect]| {
        let words = show(effects).into_iter().filter(|word| word.starts_with("Certificate"));
        words.collect::<Vec<_>>()
    };
    assert_eq!(told(&all.due(&source(), at(1002))), ["CertificateExpired: PodCertificate expired"]);
    assert_eq!(state(&all, 1003), "expired");
    let late = all.due(&source(), at(1602));
    assert_eq!(told(&late), ["CertificateOverdueForRefresh: PodCertificate refresh overdue"]);
    assert_eq!(told(&all.due(&source(), at(5000))), [""; 0]);
    let mut all = fresh(100_000);
    all.due(&source(), at(1300));
    assert_eq!(state(&all, 1902), "overdue_for_refresh");
    assert_eq!(state(&asked(), 1), "not_yet_issued");
}

#[test]
fn nothing_is_left_of_a_pod() {
    let mut all = fresh(2000);
    assert_eq!(show(&all.release(&"u".into())), ["timer off"]);
    assert!(all.is_empty());
    assert!(all.requested(&source(), 1, taken("r1"), at(3)).is_none());
    assert_eq!(all.due(&source(), at(3)), []);
    assert_eq!(all.read(&[request("r1", issued(1000, 2000))], at(4)), Default::default());
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let shown = format!("{:?} {:?}", fresh(2000), asked());
    assert!(!shown.contains("key of"), "{shown}");
}
