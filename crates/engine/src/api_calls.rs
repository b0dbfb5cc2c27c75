//! Calls to the API server about pods: each in a task of its own, at most [`CALLS_AT_ONCE`] at a time.

use std::sync::Arc;

use decide::Event;
use decide::effect::{ApiCall, PodObject};
use decide::event::{ApiCallResult, ApiFailure, ApiFailureKind};
use ports::{ApiError, Disposition, PodApi, PodRef};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::context::EngineContext;

/// Limits concurrent calls, so that a burst of pods does not overload the API server.
pub(crate) const CALLS_AT_ONCE: usize = 32;

pub(crate) async fn call_api_server(ctx: EngineContext, room: Arc<Semaphore>, call: ApiCall) {
    let Some(cluster) = &ctx.ports.cluster else { return };
    let begun = Instant::now();
    // The semaphore is never closed.
    let _place = room.acquire().await;
    let answer = carry_out(&*cluster.pods, call).await;
    if let ApiCallResult::StatusPatched { result: Ok(_), .. } = &answer {
        ctx.ports.meter.status_synced(begun.elapsed());
    }
    ctx.outbox.send(Event::ApiAnswered(answer));
}

/// Reads the Node object of this node, past the watch. It waits for no other call: a pod waits for it.
pub(crate) async fn read_node(ctx: EngineContext, name: String) {
    let read = match &ctx.ports.cluster {
        Some(cluster) => cluster.node.get(&name).await.map_err(|error| error.to_string()),
        None => Err("there is no cluster".to_owned()),
    };
    ctx.outbox.send(Event::NodeRead(read));
}

async fn carry_out(pods: &dyn PodApi, call: ApiCall) -> ApiCallResult {
    match call {
        ApiCall::PatchStatus { uid, pod, patch } => {
            let result = pods.patch_status(&reference(&pod), &patch).await.map_err(failure);
            ApiCallResult::StatusPatched { uid, object: pod.uid, result }
        }
        ApiCall::DeletePod { uid, pod } => {
            let result = pods.delete(&reference(&pod)).await.map_err(failure);
            ApiCallResult::PodDeleted { uid, result }
        }
        ApiCall::CreateMirror { full_name, pod } => {
            let result = pods.create(&pod).await.map_err(failure);
            ApiCallResult::MirrorCreated { full_name, result }
        }
        ApiCall::DeleteMirror { full_name, uid } => {
            let mirror = PodRef {
                namespace: full_name.namespace.to_string(),
                name: full_name.name.to_string(),
                uid: Some(uid.clone()),
            };
            let result = pods.delete(&mirror).await.map_err(failure);
            ApiCallResult::MirrorDeleted { full_name, uid, result }
        }
    }
}

fn reference(pod: &PodObject) -> PodRef {
    PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: Some(pod.uid.clone()) }
}

fn failure(error: ApiError) -> ApiFailure {
    let kind = match &error {
        // Either another object has this name now (every call names a UID), which the watch reports, or the server lost
        // a write conflict in etcd. The object may still exist, so a conflict does not show that it was deleted.
        ApiError::Conflict { .. } => ApiFailureKind::Refused,
        // The call may succeed later, with the next certificate or token.
        ApiError::Unauthorized { .. } | ApiError::Tls { .. } | ApiError::Decode { .. } => {
            ApiFailureKind::Unavailable
        }
        _ => match error.disposition() {
            Disposition::Absent => ApiFailureKind::Gone,
            Disposition::Refused | Disposition::Unsupported => ApiFailureKind::Refused,
            Disposition::Retry => ApiFailureKind::Unavailable,
        },
    };
    ApiFailure { kind, retry_after: error.retry_after(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by the simulation: when a conflict counted as the deletion of the object, no more status was sent for a
    /// running pod.
    #[test]
    fn a_conflict_is_no_proof_that_an_object_is_gone() {
        let (call, message) = (String::from("patch"), String::from("m"));
        let conflict = ApiError::Conflict { call: call.clone(), message: message.clone() };
        assert_eq!(failure(conflict).kind, ApiFailureKind::Refused);
        assert_eq!(failure(ApiError::NotFound { call, message }).kind, ApiFailureKind::Gone);
    }
}
