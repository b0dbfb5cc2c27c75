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
    StorageState::Present(StorageObject::Claim(Arc::new(serde_json::from_value(claim).unwrap())))
}

fn volume(claim_uid: &str) -> StorageState {
    let reference = json!({"namespace": "ns", "name": "c", "uid": claim_uid});
    let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": reference}});
    StorageState::Present(StorageObject::Volume(Arc::new(serde_json::from_value(volume).unwrap())))
}

fn bound() -> Value {
    json!({"phase": "Bound"})
}

fn ask(key: &StorageKey) -> Effect {
    Effect::ReadStorageObject { key: key.clone() }
}

fn timer(key: &StorageKey, millis: Option<u64>) -> Effect {
    let at = millis.map(|millis| Mono::ZERO.plus(Duration::from_millis(millis)));
    Effect::SetTimer { key: TimerKey::Storage(key.clone()), at }
}

#[test]
fn asked_once_for_whoever_needs_it_and_forgotten_with_the_last() {
    let mut desk = StorageCache::default();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    let keys = BTreeSet::from([claim_key()]);
    assert_eq!(desk.set_wanted(&a, keys.clone()), [ask(&claim_key())]);
    assert_eq!(desk.set_wanted(&a, keys.clone()), []);
    assert_eq!(desk.set_wanted(&b, keys), [], "it is being asked for");
    let (woken, effects) = desk.record_read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!(woken, [a.clone()].into(), "the reading began before b came");
    assert_eq!(effects, [ask(&claim_key())]);
    assert!(desk.claim(&a, "ns", "c").is_ok() && desk.claim(&b, "ns", "c").is_err());
    let (woken, effects) = desk.record_read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!((woken, effects), ([b.clone()].into(), vec![]));
    assert!(desk.claim(&b, "ns", "c").is_ok());
    desk.release(&a);
    desk.release(&b);
    assert!(desk.is_empty());
    assert_eq!(desk.record_read(&claim_key(), claim("1", bound()), at(0)), Default::default(), "late");
}

#[test]
fn what_is_not_complete_is_asked_for_ever_later_up_to_a_bound() {
    let mut desk = StorageCache::default();
    let a = PodUid::from("a");
    desk.set_wanted(&a, [claim_key()].into());
    for wait in [500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
        let (_, effects) = desk.record_read(&claim_key(), claim("1", json!({"phase": "Pending"})), at(0));
        assert_eq!(effects, [timer(&claim_key(), Some(wait))]);
        assert_eq!(desk.read_again(&claim_key()), Some(ask(&claim_key())));
        assert_eq!(desk.read_again(&claim_key()), None, "it is being asked for");
    }
    desk.record_read(&claim_key(), claim("1", json!({"phase": "Pending"})), at(0));
    assert_eq!(desk.release(&a).1, [timer(&claim_key(), None)]);
}

#[test]
fn a_claim_that_was_made_anew_is_found_by_its_volume() {
    let mut desk = StorageCache::default();
    let a = PodUid::from("a");
    desk.set_wanted(&a, [claim_key(), volume_key()].into());
    assert_eq!(desk.record_read(&claim_key(), claim("old", bound()), at(0)).1, []);
    let (_, effects) = desk.record_read(&volume_key(), volume("new"), at(0));
    assert_eq!(effects, [timer(&volume_key(), Some(500)), timer(&claim_key(), Some(500))]);
    desk.read_again(&claim_key());
    assert_eq!(desk.record_read(&claim_key(), claim("new", bound()), at(0)).1, []);
    desk.read_again(&volume_key());
    assert_eq!(desk.record_read(&volume_key(), volume("new"), at(0)).1, []);
}

#[test]
fn holders() {
    let mut desk = StorageCache::default();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    desk.set_wanted(&b, [claim_key()].into());
    desk.add_claim_user(&a, claim_key());
    assert!(desk.is_used_by_another_pod(&b, &claim_key()) && !desk.is_used_by_another_pod(&a, &claim_key()));
    assert_eq!(desk.release(&a).0, [b.clone()].into(), "who waits for it is woken");
    assert!(!desk.is_used_by_another_pod(&b, &claim_key()));
}

#[test]
fn what_may_grow_is_what_stands_behind_a_driver_and_is_settled() {
    let mut desk = StorageCache::default();
    let a = PodUid::from("a");
    desk.set_wanted(&a, BTreeSet::from([claim_key(), volume_key()]));
    desk.record_read(&claim_key(), claim("1", bound()), at(0));
    assert_eq!(desk.settled_csi_objects(&claim_key()), [], "what stands behind it is not known");
    desk.record_read(&volume_key(), volume("1"), at(0));
    assert_eq!(desk.settled_csi_objects(&volume_key()), [], "it is no driver's");
    let of_driver = json!({"metadata": {"name": "v"}, "spec": {
        "claimRef": {"namespace": "ns", "name": "c", "uid": "1"}, "csi": {"driver": "d", "volumeHandle": "h"},
    }});
    let of_driver = StorageObject::Volume(Arc::new(serde_json::from_value(of_driver).unwrap()));
    desk.read_again(&volume_key());
    desk.record_read(&volume_key(), StorageState::Present(of_driver), at(0));
    assert_eq!(desk.settled_csi_objects(&volume_key()), [volume_key(), claim_key()]);
    assert_eq!(desk.settled_csi_objects(&claim_key()), [claim_key()]);
    desk.read_again(&claim_key());
    assert_eq!(desk.settled_csi_objects(&volume_key()), [volume_key()], "the claim is being asked for");
    desk.record_read(&claim_key(), StorageState::Unreachable { message: "away".into() }, at(0));
    assert_eq!(desk.settled_csi_objects(&claim_key()), [], "it is asked for again anyway");
}
