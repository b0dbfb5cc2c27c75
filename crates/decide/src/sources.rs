//! Merges what sources deliver: compares a complete set with the one before it.
//!
//! The order of the result matters: removals come first, so that the name is free for another pod of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::k8s::Pod;
use model::pod::{ANNOTATION_SEEN, ANNOTATION_SOURCE, PodView, Source, meaningful_annotations};
use model::{FullName, PodUid, Wall};

use crate::state::SourceSet;

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// With the last definition.
    Removed(PodView),
    Added(PodView),
    Updated(PodView),
    /// Only the status differs: our own report that comes back, or a condition of another writer.
    Reconciled(PodView),
}

impl Change {
    pub fn uid(&self) -> &PodUid {
        match self {
            Change::Removed(view)
            | Change::Added(view)
            | Change::Updated(view)
            | Change::Reconciled(view) => &view.uid,
        }
    }
}

/// A pod that was ignored because another pod of its name comes before it in the same set.
#[derive(Clone, Debug, PartialEq)]
pub struct Duplicate(pub PodView);

#[derive(Default)]
pub struct Merge {
    pub changes: Vec<Change>,
    pub duplicates: Vec<Duplicate>,
}

/// Replaces the source's set and returns the changes.
pub fn merge(set: &mut SourceSet, source: Source, pods: Vec<Arc<Pod>>, now: Wall) -> Merge {
    let merge = merge_part(set, source, &pods, now).unwrap_or_else(|| merge_all(set, source, &pods, now));
    set.in_merge = None;
    // The API server delivers changes one by one, so a second copy of all objects would only cost memory.
    set.last_delivery = if source.is_static() { pods } else { Vec::new() };
    set.delivered_once = true;
    merge
}

/// Fast path for one changed file of thousands: the objects before and after it in the set are identical and are
/// skipped. `None`: a name or UID conflicts, and conflicts are resolved by position in the whole set, so the whole set
/// must be merged.
fn merge_part(set: &mut SourceSet, source: Source, pods: &[Arc<Pod>], now: Wall) -> Option<Merge> {
    if !set.names_are_distinct || set.last_delivery.is_empty() {
        return None;
    }
    let same = |(a, b): &(&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(a, b);
    let head = set.last_delivery.iter().zip(pods).take_while(same).count();
    let (old, new) = (&set.last_delivery[head..], &pods[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let gone: BTreeSet<PodUid> = old.iter().map(|pod| uid_of(pod)).collect();
    let mut came = Vec::with_capacity(new.len());
    for pod in new {
        set.in_merge = Some(pod.clone());
        came.push(PodView::new(pod.clone(), source));
    }
    let (mut names, mut uids) = (BTreeSet::new(), BTreeSet::new());
    let alone = came.iter().all(|view| {
        set.names.get(&view.full_name).is_none_or(|holder| gone.contains(holder))
            && (gone.contains(&view.uid) || !set.pods.contains_key(&view.uid))
            && names.insert(&view.full_name)
            && uids.insert(&view.uid)
    });
    if !alone {
        return None;
    }
    let mut news = SetChanges::default();
    let mut kept = Vec::with_capacity(came.len());
    for view in &came {
        set.in_merge = Some(view.pod.clone());
        kept.push(news.classify(set, view.clone(), now));
    }
    let taken: Vec<PodView> = gone.iter().filter_map(|uid| set.remove_pod(uid)).collect();
    let removed = taken.into_iter().filter(|old| !uids.contains(&old.uid)).collect();
    kept.into_iter().for_each(|view| set.insert_pod(view));
    Some(Merge { changes: news.into_changes(removed), duplicates: Vec::new() })
}

fn merge_all(set: &mut SourceSet, source: Source, pods: &[Arc<Pod>], now: Wall) -> Merge {
    let delivered: BTreeMap<PodUid, Arc<Pod>> =
        std::mem::take(&mut set.last_delivery).into_iter().map(|pod| (uid_of(&pod), pod)).collect();
    let mut names: BTreeMap<FullName, PodUid> = BTreeMap::new();
    let mut duplicates = Vec::new();
    let mut kept: BTreeMap<PodUid, PodView> = BTreeMap::new();
    let mut news = SetChanges::default();
    for pod in pods {
        set.in_merge = Some(pod.clone());
        let unchanged = unchanged(set, &delivered, pod).cloned();
        let view = unchanged.clone().unwrap_or_else(|| PodView::new(pod.clone(), source));
        if names.contains_key(&view.full_name) {
            duplicates.push(Duplicate(view));
            continue;
        }
        names.insert(view.full_name.clone(), view.uid.clone());
        let view = unchanged.unwrap_or_else(|| news.classify(set, view, now));
        kept.insert(view.uid.clone(), view);
    }
    set.names_are_distinct = kept.len() == pods.len();
    set.names = names;
    let before = std::mem::replace(&mut set.pods, kept);
    let missing = before.into_values().filter(|old| !set.pods.contains_key(&old.uid));
    // An object that can't be decoded is not removed: its older version stays.
    let (unreadable, removed): (Vec<PodView>, Vec<PodView>) =
        missing.partition(|old| set.unreadable.contains_key(&old.uid));
    unreadable.into_iter().for_each(|view| set.insert_pod(view));
    Merge { changes: news.into_changes(removed), duplicates }
}

/// The changes of a set, by kind.
#[derive(Default)]
struct SetChanges {
    added: Vec<Change>,
    updated: Vec<Change>,
    reconciled: Vec<Change>,
}

impl SetChanges {
    /// Records the change of one pod. Returns the pod as it is to be stored.
    fn classify(&mut self, set: &SourceSet, view: PodView, now: Wall) -> PodView {
        let Some(old) = set.pods.get(&view.uid) else {
            let view = annotate(view, seen_text(now));
            self.added.push(Change::Added(view.clone()));
            return view;
        };
        let view = annotate(view, annotation(old, ANNOTATION_SEEN).unwrap_or_default());
        match compare(old, &view) {
            Difference::None => return old.clone(),
            Difference::Status => self.reconciled.push(Change::Reconciled(view.clone())),
            Difference::Definition => self.updated.push(Change::Updated(view.clone())),
        }
        view
    }

    fn into_changes(self, removed: Vec<PodView>) -> Vec<Change> {
        let removed = removed.into_iter().map(Change::Removed);
        removed.chain(self.added).chain(self.updated).chain(self.reconciled).collect()
    }
}

impl SourceSet {
    fn insert_pod(&mut self, view: PodView) {
        let (uid, name) = (view.uid.clone(), view.full_name.clone());
        if let Some(old) = self.pods.insert(uid.clone(), view).filter(|old| old.full_name != name) {
            self.names.remove(&old.full_name);
        }
        self.names.insert(name, uid);
    }

    fn remove_pod(&mut self, uid: &PodUid) -> Option<PodView> {
        let view = self.pods.remove(uid)?;
        if self.names.get(&view.full_name) == Some(uid) {
            self.names.remove(&view.full_name);
        }
        Some(view)
    }
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The stored pod, if the last set contained this very object.
fn unchanged<'a>(
    set: &'a SourceSet,
    delivered: &BTreeMap<PodUid, Arc<Pod>>,
    pod: &Arc<Pod>,
) -> Option<&'a PodView> {
    let uid = uid_of(pod);
    let same = delivered.get(&uid).is_some_and(|before| Arc::ptr_eq(before, pod));
    set.pods.get(&uid).filter(|_| same)
}

/// Merges one pod that was added or changed. `Err`: another pod has its name in this set.
pub(crate) fn merge_one(
    set: &mut SourceSet,
    source: Source,
    pod: Arc<Pod>,
    now: Wall,
) -> Result<Option<Change>, Duplicate> {
    set.in_merge = Some(pod.clone());
    let merged = merge_in(set, PodView::new(pod, source), now);
    set.in_merge = None;
    merged
}

fn merge_in(set: &mut SourceSet, view: PodView, now: Wall) -> Result<Option<Change>, Duplicate> {
    // The next complete set must be compared with the stored pods, not with the last complete set.
    set.last_delivery.clear();
    if !set.pods.contains_key(&view.uid) && set.names.contains_key(&view.full_name) {
        return Err(Duplicate(view));
    }
    let mut news = SetChanges::default();
    let view = news.classify(set, view, now);
    set.insert_pod(view);
    Ok(news.into_changes(Vec::new()).pop())
}

/// Removes one pod from the set.
pub(crate) fn remove_one(set: &mut SourceSet, uid: &PodUid) -> Option<Change> {
    set.last_delivery.clear();
    set.remove_pod(uid).map(Change::Removed)
}

enum Difference {
    None,
    Status,
    Definition,
}

fn compare(old: &PodView, new: &PodView) -> Difference {
    let (a, b) = (&old.pod, &new.pod);
    let same_meaning = a.spec == b.spec
        && a.metadata.labels == b.metadata.labels
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.metadata.deletion_grace_period_seconds == b.metadata.deletion_grace_period_seconds
        && meaningful_annotations(a) == meaningful_annotations(b);
    // A status may change back and forth between two deliveries. The resource version shows that, so that the report is
    // compared with the current status.
    let same_status = a.status == b.status && a.metadata.resource_version == b.metadata.resource_version;
    match (same_meaning, same_status) {
        (false, _) => Difference::Definition,
        (true, false) => Difference::Status,
        (true, true) => Difference::None,
    }
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
            Change::Removed(v) => format!("- {}", v.uid),
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
        // After a single change in between, the next complete set is compared again.
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

    /// What a set that is always looked at as a whole comes to.
    fn from_scratch(set: &SourceSet, pods: &[Arc<Pod>]) -> (Vec<String>, SourceSet) {
        let mut set = SourceSet { last_delivery: Vec::new(), ..set.clone() };
        (words(&merge(&mut set, Source::File, pods.to_vec(), Wall(9)).changes), set)
    }

    /// Each word is a pod: its UID, its name, and a star if it was changed. The same word is the same object.
    #[test]
    fn a_part_looked_at_is_as_good_as_the_whole() {
        let mut made: BTreeMap<&str, Arc<Pod>> = BTreeMap::new();
        let mut set = SourceSet::default();
        for (what, text) in [
            ("the first set", "1a 2b 3c"),
            ("the same", "1a 2b 3c"),
            ("one more in between", "1a 2b 4d 3c"),
            ("one goes", "1a 2b 3c"),
            ("the first goes", "2b 3c"),
            ("another in the place of one", "2b 6c"),
            ("another order", "6c 2b"),
            ("a name twice", "6c 2b 5c"),
            ("the first of the two goes", "2b 5c"),
            ("a UID under another name", "2b 2x"),
            ("both go", "5c"),
            ("a change", "5c*"),
            ("nothing", ""),
            ("all again", "1a 2b 3c 4d"),
            ("names change hands", "1a 7c 8b 4d"),
        ] {
            let pods: Vec<_> = text
                .split_whitespace()
                .map(|word| {
                    let labels = if word.ends_with('*') { json!({"x": "y"}) } else { json!({}) };
                    let make = || pod(&word[..1], &word[1..2], json!({"metadata": {"labels": labels}}));
                    made.entry(word).or_insert_with(make).clone()
                })
                .collect();
            let (expect, whole) = from_scratch(&set, &pods);
            assert_eq!(words(&merge(&mut set, Source::File, pods, Wall(9)).changes), expect, "{what}");
            assert_eq!(
                (&set.names, set.names_are_distinct),
                (&whole.names, whole.names_are_distinct),
                "{what}"
            );
            let uids = |set: &SourceSet| set.pods.keys().cloned().collect::<Vec<_>>();
            assert_eq!(uids(&set), uids(&whole), "{what}");
        }
    }

    #[test]
    fn a_name_is_free_once_its_pod_has_gone() {
        let mut set = run(&[(vec![pod("1", "a", json!({}))], &["+ 1"])]);
        let come = |set: &mut SourceSet, uid: &str| {
            merge_one(set, Source::Api, pod(uid, "a", json!({})), Wall(1))
                .map(|change| words(change.as_slice()))
        };
        assert!(come(&mut set, "2").is_err());
        assert!(remove_one(&mut set, &PodUid::from("1")).is_some());
        assert_eq!(come(&mut set, "2"), Ok(vec!["+ 2".to_owned()]));
        assert!(come(&mut set, "1").is_err());
    }
}
