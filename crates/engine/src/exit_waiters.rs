//! Waits for the exit of containers, for readers that follow a log.
//!
//! The observation that shows the exit notifies them, so nothing is polled. Closed waiters are removed at the next
//! check.

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
            // The receiver may have been dropped.
            let _ = told.send(());
            return;
        }
        let waiting = self.0.entry(pod).or_default();
        waiting.retain(|(_, told)| !told.is_closed());
        waiting.push((container, told));
    }

    /// Called after an observation, and after a pod was forgotten.
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

/// The container has ended if its pod is unknown. If the pod was not observed yet we can't tell. If it was observed and
/// the container is not in it, the container was removed.
fn has_ended(state: &NodeState, pod: &PodUid, container: &ContainerId) -> bool {
    let Some(entry) = state.pods.get(pod) else { return true };
    let Some(reading) = &entry.observed else { return false };
    let seen = reading.pod.containers.iter().find(|seen| seen.id == *container);
    seen.is_none_or(|seen| seen.state != ContainerState::Running)
}
