//! `activeDeadlineSeconds`: how long a pod may be active on the node.

use model::pod::PodView;
use model::{Now, Wall, k8s};

pub const DEADLINE_EXCEEDED_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// The instant at which the pod's time is up; none without a deadline or before the pod got its start time.
pub fn deadline(pod: &PodView, old: Option<&k8s::PodStatus>) -> Option<Wall> {
    let seconds = pod.spec().active_deadline_seconds?;
    let start_of = |status: &k8s::PodStatus| status.start_time.clone();
    let start = old.and_then(start_of).or_else(|| pod.pod.status.as_ref().and_then(start_of))?;
    let start = Wall::from_timestamp(start.0);
    Some(Wall(start.0.saturating_add(Wall::from_seconds(seconds).0)))
}

pub fn deadline_exceeded(pod: &PodView, old: Option<&k8s::PodStatus>, now: Now) -> bool {
    deadline(pod, old).is_some_and(|deadline| now.wall >= deadline)
}
