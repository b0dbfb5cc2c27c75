//! The record of a panic in a step.

use model::k8s::Pod;
use model::panic_record::{PanicRecord, PanickedPod};
use model::pod::PodView;
use model::{PodUid, Wall};

use super::NodeState;
use crate::set_aside::{definition_hash, make_panic_record};
use crate::volume_operations::WorksFor;

impl NodeState {
    /// Makes the record of a panic in a step. The pod is the one that the step was about.
    pub fn panic_record(&self, event: &str, message: &str, at: Wall) -> PanicRecord {
        let merging = self.sources.values().find_map(|set| set.in_merge.as_deref());
        let of_object = |pod: &Pod| pod.metadata.uid.as_deref().map(PodUid::from);
        // The end of a call about a volume may let another pod's operation go on.
        let in_step = match self.csi_volumes.works_for() {
            WorksFor::Nobody => self.pod_in_step.clone(),
            WorksFor::Node => None,
            WorksFor::Pod(uid) => Some(uid.clone()),
        };
        let uid = merging.and_then(of_object).or(in_step);
        let pod = uid.map(|uid| {
            let entry = self.pods.get(&uid);
            let known = || self.delivered(&uid).or(entry.map(|entry| entry.view())).map(|view| &*view.pod);
            let object = merging.or_else(known);
            let meta = object.map(|pod| &pod.metadata);
            PanickedPod {
                namespace: meta.and_then(|meta| meta.namespace.clone()).unwrap_or_default(),
                name: meta.and_then(|meta| meta.name.clone()).unwrap_or_default(),
                definition: object.map_or(0, definition_hash),
                set_aside: entry.is_some_and(|entry| entry.standing().is_set_aside()),
                in_merge: merging.is_some(),
                uid,
            }
        });
        make_panic_record(pod, event, message, at)
    }

    fn delivered(&self, uid: &PodUid) -> Option<&PodView> {
        self.sources.values().find_map(|set| set.pods.get(uid))
    }

    /// Hash of the pod's definition as its source delivered it; of `view` if no source has the pod.
    ///
    /// The entry of a pod is no measure: it has the resources that were allocated to the pod, and the overhead of its
    /// RuntimeClass. Both may be other ones after a restart.
    pub(crate) fn delivered_definition(&self, view: &PodView) -> u64 {
        definition_hash(&self.delivered(&view.uid).unwrap_or(view).pod)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::node::{HostFacts, NodeConfig};
    use model::pod::Source;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_names_the_pod_in_work() {
        let config = NodeConfig { sources: [Source::File].into(), ..NodeConfig::default() };
        let mut state = NodeState::new(config, HostFacts::default(), Wall(0));
        let got = state.panic_record("services", "x", Wall(7));
        assert_eq!((got.pod, got.event.as_str(), got.at), (None, "services", Wall(7)));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u", "name": "n", "namespace": "s"}, "spec": {"containers": []},
        }))
        .unwrap();
        let set = state.sources.entry(Source::File).or_default();
        set.pods.insert("u".into(), PodView::new(Arc::new(pod.clone()), Source::File));
        state.pod_in_step = Some("u".into());
        let got = state.panic_record("pods", &"ä".repeat(400), Wall(7));
        let about = got.pod.expect("a pod");
        assert_eq!((about.name.as_str(), about.namespace.as_str(), about.uid.as_str()), ("n", "s", "u"));
        assert_eq!(
            (about.definition, about.set_aside, about.in_merge),
            (definition_hash(&pod), false, false)
        );
        assert_eq!(got.message, "ä".repeat(256));

        // An object that is being merged: its set has an older version of it, or none.
        let mut newer = pod.clone();
        newer.spec.get_or_insert_default().node_name = Some("here".into());
        state.sources.entry(Source::File).or_default().in_merge = Some(Arc::new(newer.clone()));
        for in_step in [None, Some("other".into())] {
            state.pod_in_step = in_step;
            let about = state.panic_record("pods", "x", Wall(7)).pod.expect("a pod");
            assert_eq!((about.uid.as_str(), about.name.as_str()), ("u", "n"));
            assert_eq!((about.definition, about.in_merge), (definition_hash(&newer), true));
        }
    }
}
