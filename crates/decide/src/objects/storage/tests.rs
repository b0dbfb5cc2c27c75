use serde_json::{Value, json};

use super::*;
use model::{Mono, Wall};

fn at(seconds: u64) -> Now {
    Now { mono: Mono::ZERO.plus(Duration::from_secs(seconds)), wall: Wall(0) }
}

fn claim_key() -> StorageKey {
    StorageKey::Claim { namespace: "ns".into(), name: "c".into() }
}

fn volume_key() -> StorageKey {
    StorageKey::Volume { name: "v".into() }
}

fn claim(uid: &str, status: Value) -> StorageState {
    let claim = json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": uid},
        "spec": {"volumeName": "v"},
        "status": status,
    });
    StorageState::Is(StorageObject::Claim(Arc::new(serde_json::from_value(claim).unwrap())))
}

fn volume(claim_uid: &str) -> StorageState {
    let reference = json!({"namespace": "ns", "name": "c", "uid": claim_uid});
    let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": reference}});
    StorageState::Is(StorageObject::Volume(Arc::new(serde_json::from_value(volume).unwrap())))
}

fn bound() -> Value {
    json!({"phase": "Bound"})
}

fn ask(key: &StorageKey) -> Effect {
    Effect::ReadStorage { key: key.clone() }
}

fn timer(key: &StorageKey, millis: Option<u64>) -> Effect {
    let at = millis.map(|millis| Mono::ZERO.plus(Duration::from_millis(millis)));
    Effect::SetTimer { key: TimerKey::Storage(key.clone()), at }
}

#[test]
fn asked_once_for_whoever_needs_it_and_forgotten_with_the_last() {
    let mut desk = StorageDesk::default();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    let keys = BTreeSet::from([claim_key()]);
    assert_eq!(desk.want(&a, keys.clone()), [ask(&claim_key())]);
    assert_eq!(desk.want(&a, keys.clone()), []);
    assert_eq!(desk.want(&b, keys), [], "it is being asked for");
    let (woken, effects) = desk.read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!(woken, [a.clone()].into(), "the reading began before b came");
    assert_eq!(effects, [ask(&claim_key())]);
    assert!(desk.claim(&a, "ns", "c").is_ok() && desk.claim(&b, "ns", "c").is_err());
    let (woken, effects) = desk.read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!((woken, effects), ([b.clone()].into(), vec![]));
    assert!(desk.claim(&b, "ns", "c").is_ok());
    desk.release(&a);
    desk.release(&b);
    assert!(desk.is_empty());
    assert_eq!(desk.read(&claim_key(), claim("1", bound()), at(0)), Default::default(), "late");
}

#[test]
fn what_is_not_complete_is_asked_for_ever_later_up_to_a_bound() {
    let mut desk = StorageDesk::default();
    let a = PodUid::from("a");
    desk.want(&a, [claim_key()].into());
    for wait in [500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
        let (_, effects) = desk.read(&claim_key(), claim("1", json!({"phase": "Pending"})), at(0));
        assert_eq!(effects, [timer(&claim_key(), Some(wait))]);
        assert_eq!(desk.due(&claim_key()), Some(ask(&claim_key())));
        assert_eq!(desk.due(&claim_key()), None, "it is being asked for");
    }
    desk.read(&claim_key(), claim("1", json!({"phase": "Pending"})), at(0));
    assert_eq!(desk.release(&a).1, [timer(&claim_key(), None)]);
}

#[test]
fn a_claim_that_was_made_anew_is_found_by_its_volume() {
    let mut desk = StorageDesk::default();
    let a = PodUid::from("a");
    desk.want(&a, [claim_key(), volume_key()].into());
    assert_eq!(desk.read(&claim_key(), claim("old", bound()), at(0)).1, []);
    let (_, effects) = desk.read(&volume_key(), volume("new"), at(0));
    assert_eq!(effects, [timer(&volume_key(), Some(500)), timer(&claim_key(), Some(500))]);
    desk.due(&claim_key());
    assert_eq!(desk.read(&claim_key(), claim("new", bound()), at(0)).1, []);
    desk.due(&volume_key());
    assert_eq!(desk.read(&volume_key(), volume("new"), at(0)).1, []);
}

#[test]
fn holders() {
    let mut desk = StorageDesk::default();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    desk.want(&b, [claim_key()].into());
    desk.hold(&a, claim_key());
    assert!(desk.held_by_another(&b, &claim_key()) && !desk.held_by_another(&a, &claim_key()));
    assert_eq!(desk.release(&a).0, [b.clone()].into(), "who waits for it is woken");
    assert!(!desk.held_by_another(&b, &claim_key()));
}

#[test]
fn what_may_grow_is_what_stands_behind_a_driver_and_is_settled() {
    let mut desk = StorageDesk::default();
    let a = PodUid::from("a");
    desk.want(&a, BTreeSet::from([claim_key(), volume_key()]));
    desk.read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!(desk.may_grow(&claim_key()), [], "what stands behind it is not known");
    desk.read(&volume_key(), volume("1"), at(0));
    assert_eq!(desk.may_grow(&volume_key()), [], "it is no driver's");
    let of_driver = json!({"metadata": {"name": "v"}, "spec": {
        "claimRef": {"namespace": "ns", "name": "c", "uid": "1"}, "csi": {"driver": "d", "volumeHandle": "h"},
    }});
    let of_driver = StorageObject::Volume(Arc::new(serde_json::from_value(of_driver).unwrap()));
    desk.due(&volume_key());
    desk.read(&volume_key(), StorageState::Is(of_driver), at(0));
    assert_eq!(desk.may_grow(&volume_key()), [volume_key(), claim_key()]);
    assert_eq!(desk.may_grow(&claim_key()), [claim_key()]);
    desk.due(&claim_key());
    assert_eq!(desk.may_grow(&volume_key()), [volume_key()], "the claim is being asked for");
    desk.read(&claim_key(), StorageState::Unreachable { message: "away".into() }, at(0));
    assert_eq!(desk.may_grow(&claim_key()), [], "it is asked for again anyway");
}
