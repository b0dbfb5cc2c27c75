//! Mirror pods: API objects that show static pods.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use model::k8s::{Node, ObjectMeta, Pod};
use model::pod::{ANNOTATION_HASH, ANNOTATION_MIRROR, PodView, Source};
use model::{Mono, PodUid};

use crate::publish::retry_wait;

/// What is known of a static pod's mirror.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    pub seen: Option<PodView>,
    /// A call to create or delete the mirror is in flight.
    pub in_flight: bool,
    pub failures: u32,
    pub retry_at: Option<Mono>,
}

impl Mirror {
    pub fn failed(&mut self, refused: bool, retry_after: Option<Duration>, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now.plus(retry_wait(self.failures, refused, retry_after)));
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }
}

/// The next action for a mirror.
#[derive(Clone, PartialEq, Debug)]
pub enum MirrorAction {
    /// The mirror belongs to no static pod, is being deleted, or mirrors an older definition.
    Delete(PodUid),
    Create(Box<Pod>),
    Nothing,
}

pub fn is_mirror(view: &PodView) -> bool {
    view.source == Source::Api && annotation(view, ANNOTATION_MIRROR).is_some()
}

/// Whether the mirror shows this very pod.
pub fn is_mirror_of(mirror: &PodView, pod: &PodView) -> bool {
    mirror.full_name == pod.full_name
        && annotation(mirror, ANNOTATION_MIRROR).is_some()
        && annotation(mirror, ANNOTATION_MIRROR) == annotation(pod, ANNOTATION_HASH)
}

/// The state of earlier static pods with the mirror's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OldPods {
    /// Certainly nothing of any such pod is left.
    pub gone: bool,
    /// The pod that the mirror shows has not ended. The mirror stays until then, because clients watch that pod through
    /// it.
    pub shown_pod_ending: bool,
}

/// `pod`: the static pod of that name that is wanted.
pub(crate) fn next_mirror_action(
    mirror: Option<&PodView>,
    pod: Option<&PodView>,
    old_pods: OldPods,
    node: Option<&Node>,
) -> MirrorAction {
    match (mirror, pod) {
        (Some(mirror), Some(_)) if mirror.is_deleting() => MirrorAction::Delete(mirror.uid.clone()),
        (Some(mirror), Some(pod)) if !is_mirror_of(mirror, pod) && !old_pods.shown_pod_ending => {
            MirrorAction::Delete(mirror.uid.clone())
        }
        (Some(mirror), None) if old_pods.gone => MirrorAction::Delete(mirror.uid.clone()),
        (None, Some(pod)) => node
            .and_then(|node| object(pod, node))
            .map_or(MirrorAction::Nothing, |o| MirrorAction::Create(Box::new(o))),
        _ => MirrorAction::Nothing,
    }
}

/// The mirror to create. `None` while there is no Node object that can own it.
fn object(pod: &PodView, node: &Node) -> Option<Pod> {
    let uid = node.metadata.uid.clone().filter(|uid| !uid.is_empty())?;
    if node.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let meta = &pod.pod.metadata;
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    let hash = annotation(pod, ANNOTATION_HASH)?.to_owned();
    annotations.insert(ANNOTATION_MIRROR.into(), hash);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    };
    Some(Pod {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: pod.pod.spec.clone(),
        status: None,
    })
}

fn annotation<'a>(view: &'a PodView, key: &str) -> Option<&'a str> {
    view.pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::{Value, json};

    fn view(source: Source, uid: &str, annotations: Value, extra: Value) -> PodView {
        let mut metadata =
            json!({"name": "a-node", "namespace": "default", "uid": uid, "annotations": annotations});
        metadata.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        PodView::new(Arc::new(serde_json::from_value(pod).unwrap()), source)
    }
    fn of_file(hash: &str) -> PodView {
        view(Source::File, hash, json!({"kubernetes.io/config.hash": hash}), json!({}))
    }
    fn of_api(hash: &str, extra: Value) -> PodView {
        let annotations = json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash});
        view(Source::Api, "m1", annotations, extra)
    }
    fn node(meta: Value) -> Node {
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    #[test]
    fn what_is_done_about_a_mirror() {
        let delete = MirrorAction::Delete("m1".into());
        let here = node(json!({"name": "node", "uid": "n1"}));
        let dying = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let none = OldPods::default();
        let gone = OldPods { gone: true, ..none };
        let ending = OldPods { shown_pod_ending: true, ..none };
        let older = || Some(of_api("h0", json!({})));
        // name, mirror, pod, pods before it, expected
        let table = [
            ("shows it", Some(of_api("h1", json!({}))), Some(of_file("h1")), none, MirrorAction::Nothing),
            ("shows an older pod", older(), Some(of_file("h1")), none, delete.clone()),
            ("shows an older pod that ends", older(), Some(of_file("h1")), ending, MirrorAction::Nothing),
            (
                "is being deleted",
                Some(of_api("h1", dying.clone())),
                Some(of_file("h1")),
                none,
                delete.clone(),
            ),
            (
                "is being deleted before",
                Some(of_api("h0", dying)),
                Some(of_file("h1")),
                ending,
                delete.clone(),
            ),
            ("its pod still goes", Some(of_api("h1", json!({}))), None, ending, MirrorAction::Nothing),
            ("its pod is gone", Some(of_api("h1", json!({}))), None, gone, delete),
            ("neither", None, None, gone, MirrorAction::Nothing),
        ];
        for (name, mirror, pod, old_pods, expect) in table {
            let step = next_mirror_action(mirror.as_ref(), pod.as_ref(), old_pods, Some(&here));
            assert_eq!(step, expect, "{name}");
        }
    }

    #[test]
    fn a_missing_mirror_is_made_once_the_node_has_an_object() {
        let pod = of_file("h1");
        for (name, node) in [
            ("no object", None),
            ("no uid", Some(node(json!({"name": "node"})))),
            (
                "it is going",
                Some(node(json!({"name": "node", "uid": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}))),
            ),
        ] {
            assert_eq!(
                next_mirror_action(None, Some(&pod), OldPods::default(), node.as_ref()),
                MirrorAction::Nothing,
                "{name}"
            );
        }
        let here = node(json!({"name": "node", "uid": "n1"}));
        let MirrorAction::Create(made) =
            next_mirror_action(None, Some(&pod), OldPods::default(), Some(&here))
        else {
            panic!("not made");
        };
        assert_eq!(
            serde_json::to_value(&made.metadata).unwrap(),
            json!({
                "name": "a-node", "namespace": "default",
                "annotations": {"kubernetes.io/config.hash": "h1", "kubernetes.io/config.mirror": "h1"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "n1", "controller": true}
                ],
            })
        );
        assert!(is_mirror_of(&PodView::new(Arc::new(*made), Source::Api), &pod));
    }
}
