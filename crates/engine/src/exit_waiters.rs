//! Who waits for the end of a container: readers that follow a log.
//!
//! They are told by the reading that shows the end, and cost nothing in between. Those that left are forgotten at the
//! next occasion.

use std::collections::BTreeMap;

use decide::NodeState;
use model::observed::ContainerState;
use model::{ContainerId, PodUid};
use tokio::sync::oneshot;

#[derive(Default)]
pub(crate) struct ExitWaiters(BTreeMap<PodUid, Vec<(ContainerId, oneshot::Sender<()>)>>);

impl ExitWaiters {
    pub fn add(&mut self, state: &NodeState, pod: PodUid, container: ContainerId, told: oneshot::Sender<()>) {
        if has_ended(state, &pod, &container) {
            // Who asked may have left.
            let _ = told.send(());
            return;
        }
        let waiting = self.0.entry(pod).or_default();
        waiting.retain(|(_, told)| !told.is_closed());
        waiting.push((container, told));
    }

    /// After something was read, or a pod was forgotten.
    pub fn notify_exited(&mut self, state: &NodeState) {
        self.0.retain(|pod, waiting| {
            for (_, told) in
                waiting.extract_if(.., |(id, told)| told.is_closed() || has_ended(state, pod, id))
            {
                let _ = told.send(());
            }
            !waiting.is_empty()
        });
    }
}

/// Whose pod is not known has gone with it. A pod that was not read yet may have anything; what is missing in a reading
/// is gone, since an instance is only known here by a reading.
fn has_ended(state: &NodeState, pod: &PodUid, container: &ContainerId) -> bool {
    let Some(entry) = state.pods.get(pod) else { return true };
    let Some(reading) = &entry.observed else { return false };
    let seen = reading.pod.containers.iter().find(|seen| seen.id == *container);
    seen.is_none_or(|seen| seen.state != ContainerState::Running)
}
