//! Sets pods aside when steps about them panicked repeatedly. Otherwise such a pod would crash the whole agent again
//! and again.
//!
//! ```text
//!   step panics ── record (pod, definition, event) ── the agent ends and starts again
//!   several records of one pod and definition in a short time ──> at the next start the pod is set aside
//! ```
//!
//! Nothing is planned for a pod that is set aside, and its running containers are left alone; its requests count. Its status, an Event and
//! `why` report it. The pod is tried again when its definition changes (deletion and removal from its source count as
//! changes), with another version of the agent, or when an administrator removes the records.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use model::k8s::Pod;
use model::panic_record::{PanicRecord, PanickedPod};
use model::pod::meaningful_annotations;
use model::{PodUid, Wall};

use model::hash::fnv1a_64;

/// This many panics ...
const PANIC_LIMIT: usize = 3;
/// ... within this time set a pod aside. The service manager starts the agent again within seconds.
const PANIC_WINDOW: Duration = Duration::from_secs(600);
/// How many records are kept in all: enough that all of many equal pods are set aside.
const MAX_RECORDS: usize = 768;
const MESSAGE_BYTES: usize = 512;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why and until when a pod is set aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetAside {
    /// The definition that is set aside, see [`delivered_definition`].
    pub definition: u64,
    /// Even the report of its status panicked, so only `why` and the log report it.
    pub unreported: bool,
    /// Merging its object panicked, so it is treated as an object that can't be decoded.
    pub unmergeable: bool,
    pub message: String,
}

/// Pods with at least three panics within ten minutes, counting records of this agent version only. Each definition of a
/// pod counts by itself: one that is deleted because of the first may be set aside as well.
pub fn pods_to_set_aside(records: &[PanicRecord]) -> BTreeMap<PodUid, Vec<SetAside>> {
    let mut found: BTreeMap<(&PodUid, u64), Vec<&PanicRecord>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.version == VERSION) {
        if let Some(pod) = &record.pod {
            found.entry((&pod.uid, pod.definition)).or_default().push(record);
        }
    }
    let mut set_aside: BTreeMap<PodUid, Vec<SetAside>> = BTreeMap::new();
    for ((uid, definition), mut records) in found {
        records.sort_by_key(|record| record.at);
        let soon = |three: &&[&PanicRecord]| three[PANIC_LIMIT - 1].at.since(three[0].at) <= PANIC_WINDOW;
        let Some(last) = records.windows(PANIC_LIMIT).rev().find(soon).map(|three| three[PANIC_LIMIT - 1])
        else {
            continue;
        };
        let any = |is: fn(&PanickedPod) -> bool| records.iter().any(|r| r.pod.as_ref().is_some_and(is));
        let (unreported, unmergeable) = (any(|pod| pod.set_aside), any(|pod| pod.in_merge));
        let message = format!(
            "The agent panicked {} times over this pod, last at {} on {}: {}. It is left as it is until its \
             definition changes",
            records.len(),
            last.at.api_time().0,
            last.event,
            last.message
        );
        let found = SetAside { definition, unreported, unmergeable, message };
        set_aside.entry(uid.clone()).or_default().push(found);
    }
    set_aside
}

/// Makes the record of a panic in a step. `pod`: the one that the step was about.
pub(crate) fn make_panic_record(
    pod: Option<PanickedPod>,
    event: &str,
    message: &str,
    at: Wall,
) -> PanicRecord {
    let message = message[..message.floor_char_boundary(MESSAGE_BYTES)].to_owned();
    PanicRecord { version: VERSION.into(), pod, event: event.into(), message, at }
}

/// Adds a record. Only the last few of each pod and definition are kept, because older ones no longer affect the
/// decision.
pub fn append_panic_record(mut records: Vec<PanicRecord>, new: PanicRecord) -> Vec<PanicRecord> {
    let same = |r: &PanicRecord| {
        let key =
            |r: &PanicRecord| r.pod.as_ref().map(|pod| (pod.uid.clone(), pod.definition, pod.set_aside));
        key(r) == key(&new)
    };
    while records.iter().filter(|r| same(r)).count() >= PANIC_LIMIT
        && let Some(first) = records.iter().position(same)
    {
        records.remove(first);
    }
    records.push(new);
    let surplus = records.len().saturating_sub(MAX_RECORDS);
    records.drain(..surplus);
    records
}

/// What is computed from the definition of a pod that is set aside. `None`: it panicked.
pub(crate) fn unless_it_panics<T>(compute: impl FnOnce() -> T) -> Option<T> {
    // Nothing that a panic could leave half-changed is shared: `compute` only reads.
    catch_unwind(AssertUnwindSafe(compute)).ok()
}

/// Hash of what is compared between two deliveries of a pod. If it changes, the pod is tried again.
pub(crate) fn definition_hash(pod: &Pod) -> u64 {
    let meta = &pod.metadata;
    let is_deleted = meta.deletion_timestamp.is_some();
    let definition = (&pod.spec, &meta.labels, meaningful_annotations(pod), is_deleted);
    fnv1a_64(&serde_json::to_vec(&definition).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn panicked(uid: &str, definition: u64, secs: i64) -> PanicRecord {
        let (namespace, name) = ("default".to_owned(), uid.to_owned());
        let (set_aside, in_merge) = (false, false);
        let pod = Some(PanickedPod { uid: uid.into(), namespace, name, definition, set_aside, in_merge });
        let (event, message) = ("timer".to_owned(), "far away".to_owned());
        PanicRecord { version: VERSION.into(), pod, event, message, at: Wall::from_seconds(secs) }
    }

    fn check(records: &[PanicRecord], expect: &[(&str, u64)]) {
        let judged = pods_to_set_aside(records);
        let all = judged.iter().flat_map(|(uid, found)| found.iter().map(move |one| (uid, one)));
        let got: Vec<_> = all.map(|(uid, found)| (uid.as_str(), found.definition)).collect();
        assert_eq!(got, expect, "{records:?}");
    }

    #[test]
    fn several_panics_in_a_short_time_set_a_pod_aside() {
        let a = |secs| panicked("a", 1, secs);
        check(&[], &[]);
        check(&[a(0), a(10)], &[]);
        check(&[a(0), a(10), a(20)], &[("a", 1)]);
        check(&[a(20), a(0), a(600)], &[("a", 1)]);
        check(&[a(0), a(10), a(601)], &[]);
        check(&[a(0), a(601), a(1200), a(1201)], &[("a", 1)]);
        // What sets it aside stands until something changes, however long ago it was and whatever the clock did.
        check(&[a(-90_000_000), a(-90_000_001), a(-90_000_002)], &[("a", 1)]);
        check(&[a(i64::MIN), a(i64::MAX), a(0)], &[]);
        // Every definition and every pod counts by itself.
        check(&[a(0), a(10), panicked("a", 2, 20)], &[]);
        check(&[a(0), panicked("b", 1, 1), a(10), panicked("b", 1, 11), a(20)], &[("a", 1)]);
        let other = |secs| panicked("a", 2, secs);
        check(&[a(0), a(10), a(20), other(30), other(40), other(50)], &[("a", 1), ("a", 2)]);
        // So does every version.
        let other = |secs| PanicRecord { version: "0.0.0-other".into(), ..a(secs) };
        check(&[other(0), a(10), a(20)], &[]);
        // Steps that were about no pod set nobody aside.
        let nobody = |secs| PanicRecord { pod: None, ..a(secs) };
        check(&[nobody(0), nobody(1), nobody(2), nobody(3)], &[]);
    }

    #[test]
    fn the_message_tells_what_happened_and_how_it_ends() {
        let judged = pods_to_set_aside(&[panicked("a", 1, 0), panicked("a", 1, 10), panicked("a", 1, 20)]);
        assert_eq!(
            judged[&PodUid::from("a")][0].message,
            "The agent panicked 3 times over this pod, last at 1970-01-01T00:00:20Z on timer: far away. It is left \
             as it is until its definition changes"
        );
        assert!(!judged[&PodUid::from("a")][0].unreported && !judged[&PodUid::from("a")][0].unmergeable);
        let mut records =
            [panicked("a", 1, 0), panicked("a", 1, 10), panicked("a", 1, 20), panicked("a", 1, 30)];
        records[3].pod.as_mut().unwrap().set_aside = true;
        assert!(pods_to_set_aside(&records)[&PodUid::from("a")][0].unreported);
        records[3].pod.as_mut().unwrap().in_merge = true;
        assert!(pods_to_set_aside(&records)[&PodUid::from("a")][0].unmergeable);
    }

    #[test]
    fn records_are_bounded_and_keep_who_is_set_aside() {
        let mut records = Vec::new();
        for secs in 0..5 {
            records = append_panic_record(records, panicked("a", 1, secs));
        }
        assert_eq!(records.iter().map(|r| r.at).collect::<Vec<_>>(), [2, 3, 4].map(Wall::from_seconds));
        for number in 0..2 * MAX_RECORDS {
            records = append_panic_record(records, panicked(&format!("b{number}"), 1, 10));
        }
        assert_eq!(records.len(), MAX_RECORDS);
        let nobody = |secs| PanicRecord { pod: None, ..panicked("", 0, secs) };
        let records = (0..9).fold(records, |records, secs| append_panic_record(records, nobody(secs)));
        assert_eq!(records.iter().filter(|r| r.pod.is_none()).count(), PANIC_LIMIT);
    }

    #[test]
    fn a_panic_in_a_computation_is_no_result() {
        assert_eq!(unless_it_panics(|| 3), Some(3));
        let none: Option<u8> = unless_it_panics(|| panic!("a mistake on purpose"));
        assert_eq!(none, None);
    }

    #[test]
    fn whatever_has_a_meaning_is_part_of_the_definition() {
        let pod = |value| -> Pod { serde_json::from_value(value).unwrap() };
        let plain = pod(json!({"metadata": {"name": "a"}, "spec": {"containers": []}}));
        let same = pod(json!({"metadata": {"name": "a", "resourceVersion": "7", "annotations":
            {"kubernetes.io/config.seen": "now"}}, "spec": {"containers": []}, "status": {"phase": "Running"}}));
        let labelled = pod(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}));
        let annotated = pod(json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": []}}));
        let other = pod(json!({"spec": {"containers": [], "activeDeadlineSeconds": 3}}));
        let going = pod(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": []}}),
        );
        assert_eq!(definition_hash(&plain), definition_hash(&same));
        assert_ne!(definition_hash(&plain), definition_hash(&other));
        assert_ne!(definition_hash(&plain), definition_hash(&going));
        assert_ne!(definition_hash(&plain), definition_hash(&labelled));
        assert_ne!(definition_hash(&plain), definition_hash(&annotated));
    }
}
