//! Merging what sources deliver: a complete set against the one before it.
//!
//! The order of the result matters: what is gone comes first, so that a pod of the same name finds its place free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::k8s::Pod;
use model::pod::{ANNOTATION_MIRROR, ANNOTATION_SEEN, ANNOTATION_SOURCE, PodView, Source};
use model::{PodUid, Wall};

use crate::state::SourceSet;

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Removed(PodUid),
    Added(PodView),
    Updated(PodView),
    /// Only the status differs: an echo of our own report, or somebody else's condition.
    Reconciled(PodView),
}

/// A pod that was ignored because another of its name stands before it in the same set.
#[derive(Clone, Debug, PartialEq)]
pub struct Duplicate(pub PodView);

pub struct Merge {
    pub changes: Vec<Change>,
    pub duplicates: Vec<Duplicate>,
}

/// Replaces the source's set and tells what changed.
pub fn merge(set: &mut SourceSet, source: Source, pods: Vec<Arc<Pod>>, now: Wall) -> Merge {
    let mut names = BTreeSet::new();
    let mut duplicates = Vec::new();
    let mut kept: BTreeMap<PodUid, PodView> = BTreeMap::new();
    // The API's objects are told of one by one: keeping them all twice would only cost memory.
    let now_delivered = if source.is_static() { by_uid(&pods) } else { BTreeMap::new() };
    let delivered = std::mem::replace(&mut set.delivered, now_delivered);
    let (mut added, mut updated, mut reconciled) = (Vec::new(), Vec::new(), Vec::new());
    for pod in pods {
        // One file of thousands changed: the others are the very same objects, and are not compared word by word.
        if let Some(old) = unchanged(set, &delivered, &pod)
            && names.insert(old.full_name.clone())
        {
            kept.insert(old.uid.clone(), old.clone());
            continue;
        }
        let view = PodView::new(pod, source);
        if !names.insert(view.full_name.clone()) {
            duplicates.push(Duplicate(view));
            continue;
        }
        let uid = view.uid.clone();
        let view = match set.pods.get(&uid) {
            None => {
                let view = annotate(view, seen_text(now));
                added.push(Change::Added(view.clone()));
                view
            }
            Some(old) => {
                let seen = annotation(old, ANNOTATION_SEEN).unwrap_or_default();
                let view = annotate(view, seen);
                match compare(old, &view) {
                    Difference::None => old.clone(),
                    Difference::Status => {
                        reconciled.push(Change::Reconciled(view.clone()));
                        view
                    }
                    Difference::Meaning => {
                        updated.push(Change::Updated(view.clone()));
                        view
                    }
                }
            }
        };
        kept.insert(uid, view);
    }
    let removed = set.pods.keys().filter(|uid| !kept.contains_key(*uid)).cloned().map(Change::Removed);
    let changes =
        removed.collect::<Vec<_>>().into_iter().chain(added).chain(updated).chain(reconciled).collect();
    set.pods = kept;
    set.seen = true;
    Merge { changes, duplicates }
}

fn by_uid(pods: &[Arc<Pod>]) -> BTreeMap<PodUid, Arc<Pod>> {
    pods.iter().map(|pod| (uid_of(pod), pod.clone())).collect()
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// What is known of a pod that came as the same object before.
fn unchanged<'a>(
    set: &'a SourceSet,
    delivered: &BTreeMap<PodUid, Arc<Pod>>,
    pod: &Arc<Pod>,
) -> Option<&'a PodView> {
    let uid = uid_of(pod);
    let same = delivered.get(&uid).is_some_and(|before| Arc::ptr_eq(before, pod));
    set.pods.get(&uid).filter(|_| same)
}

/// One pod came or changed. `Err`: another pod has its name in this set.
pub fn merge_one(
    set: &mut SourceSet,
    source: Source,
    pod: Arc<Pod>,
    now: Wall,
) -> Result<Option<Change>, Duplicate> {
    let view = PodView::new(pod, source);
    set.delivered.remove(&view.uid);
    let Some(old) = set.pods.get(&view.uid) else {
        if set.pods.values().any(|other| other.full_name == view.full_name) {
            return Err(Duplicate(view));
        }
        let view = annotate(view, seen_text(now));
        set.pods.insert(view.uid.clone(), view.clone());
        return Ok(Some(Change::Added(view)));
    };
    let view = annotate(view, annotation(old, ANNOTATION_SEEN).unwrap_or_default());
    let change = match compare(old, &view) {
        Difference::None => return Ok(None),
        Difference::Status => Change::Reconciled(view.clone()),
        Difference::Meaning => Change::Updated(view.clone()),
    };
    set.pods.insert(view.uid.clone(), view);
    Ok(Some(change))
}

/// One pod is no longer wanted.
pub fn remove_one(set: &mut SourceSet, uid: &PodUid) -> Option<Change> {
    set.delivered.remove(uid);
    set.pods.remove(uid).map(|_| Change::Removed(uid.clone()))
}

enum Difference {
    None,
    Status,
    Meaning,
}

fn compare(old: &PodView, new: &PodView) -> Difference {
    let (a, b) = (&old.pod, &new.pod);
    let same_meaning = a.spec == b.spec
        && a.metadata.labels == b.metadata.labels
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.metadata.deletion_grace_period_seconds == b.metadata.deletion_grace_period_seconds
        && meaningful_annotations(a) == meaningful_annotations(b);
    // A status may have changed there and back between two sights of it: whoever reports must know which one holds.
    let same_status = a.status == b.status && a.metadata.resource_version == b.metadata.resource_version;
    match (same_meaning, same_status) {
        (false, _) => Difference::Meaning,
        (true, false) => Difference::Status,
        (true, true) => Difference::None,
    }
}

/// Annotations without those that only this node writes.
fn meaningful_annotations(pod: &Pod) -> BTreeMap<&String, &String> {
    let local = [ANNOTATION_SOURCE, ANNOTATION_SEEN, ANNOTATION_MIRROR];
    pod.metadata.annotations.iter().flatten().filter(|(key, _)| !local.contains(&key.as_str())).collect()
}

fn annotation(view: &PodView, key: &str) -> Option<String> {
    view.pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned()
}

fn annotate(view: PodView, seen: String) -> PodView {
    let mut pod = Pod::clone(&view.pod);
    let annotations = pod.metadata.annotations.get_or_insert_with(Default::default);
    annotations.insert(ANNOTATION_SOURCE.into(), view.source.as_str().into());
    annotations.insert(ANNOTATION_SEEN.into(), seen);
    PodView::new(Arc::new(pod), view.source)
}

/// RFC 3339 with nine digits of a second, always.
fn seen_text(now: Wall) -> String {
    format!("{:.9}", now.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(uid: &str, name: &str, extra: Value) -> Arc<Pod> {
        let mut value = json!({
            "metadata": {"uid": uid, "name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "a"}]},
        });
        merge_json(&mut value, extra);
        Arc::new(serde_json::from_value(value).expect("a pod"))
    }
    fn merge_json(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge_json(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }
    fn words(changes: &[Change]) -> Vec<String> {
        let name = |c: &Change| match c {
            Change::Removed(uid) => format!("- {uid}"),
            Change::Added(v) => format!("+ {}", v.uid),
            Change::Updated(v) => format!("~ {}", v.uid),
            Change::Reconciled(v) => format!("= {}", v.uid),
        };
        changes.iter().map(name).collect()
    }
    fn run(steps: &[(Vec<Arc<Pod>>, &[&str])]) -> SourceSet {
        let mut set = SourceSet::default();
        for (at, (pods, expect)) in steps.iter().enumerate() {
            let merge = merge(&mut set, Source::File, pods.clone(), Wall(at as i64));
            assert_eq!(words(&merge.changes), *expect, "step {at}");
        }
        set
    }

    #[test]
    fn removed_comes_before_added() {
        run(&[
            (vec![pod("1", "a", json!({}))], &["+ 1"]),
            (vec![pod("2", "a", json!({}))], &["- 1", "+ 2"]),
            (vec![], &["- 2"]),
            (vec![], &[]),
        ]);
    }

    #[test]
    fn only_differences_of_meaning_are_updates() {
        let changed = |extra| vec![pod("1", "a", extra)];
        for (extra, expect) in [
            (json!({}), &[][..]),
            (json!({"metadata": {"generation": 3}}), &[]),
            (json!({"metadata": {"resourceVersion": "9"}}), &["= 1"]),
            (json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}), &[]),
            (json!({"status": {"phase": "Running"}}), &["= 1"]),
            (json!({"metadata": {"labels": {"a": "b"}}}), &["~ 1"]),
            (json!({"metadata": {"annotations": {"kubernetes.io/config.hash": "x"}}}), &["~ 1"]),
            (json!({"metadata": {"deletionGracePeriodSeconds": 3}}), &["~ 1"]),
            (json!({"spec": {"terminationGracePeriodSeconds": 3}}), &["~ 1"]),
        ] {
            run(&[(changed(json!({})), &["+ 1"]), (changed(extra), expect)]);
        }
    }

    #[test]
    fn the_first_sight_is_kept_over_updates() {
        let set = run(&[
            (vec![pod("1", "a", json!({}))], &["+ 1"]),
            (vec![pod("1", "a", json!({"metadata": {"labels": {"x": "y"}}}))], &["~ 1"]),
        ]);
        let view = &set.pods[&PodUid::from("1")];
        assert_eq!(annotation(view, ANNOTATION_SEEN).as_deref(), Some("1970-01-01T00:00:00.000000000Z"));
        assert_eq!(annotation(view, ANNOTATION_SOURCE).as_deref(), Some("file"));
    }

    #[test]
    fn the_same_object_again_is_no_change_whatever_came_between() {
        let (first, other) =
            (pod("1", "a", json!({})), pod("1", "a", json!({"metadata": {"labels": {"x": "y"}}})));
        let mut set = run(&[
            (vec![first.clone(), pod("2", "b", json!({}))], &["+ 1", "+ 2"]),
            (vec![first.clone()], &["- 2"]),
            (vec![first.clone(), pod("3", "a", json!({}))], &[]),
            (vec![other.clone()], &["~ 1"]),
            (vec![first.clone()], &["~ 1"]),
        ]);
        // Told of alone in between: the complete set that follows is compared again.
        assert!(matches!(merge_one(&mut set, Source::File, other, Wall(9)), Ok(Some(Change::Updated(_)))));
        assert_eq!(words(&merge(&mut set, Source::File, vec![first.clone()], Wall(9)).changes), ["~ 1"]);
        assert!(remove_one(&mut set, &PodUid::from("1")).is_some());
        assert_eq!(words(&merge(&mut set, Source::File, vec![first], Wall(9)).changes), ["+ 1"]);
    }

    #[test]
    fn the_second_of_one_name_is_ignored() {
        let mut set = SourceSet::default();
        let result =
            merge(&mut set, Source::File, vec![pod("1", "a", json!({})), pod("2", "a", json!({}))], Wall(0));
        assert_eq!(words(&result.changes), ["+ 1"]);
        assert_eq!(result.duplicates.len(), 1);
        assert_eq!(result.duplicates[0].0.uid, PodUid::from("2"));
    }
}
