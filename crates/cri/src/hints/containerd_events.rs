//! containerd's own events, of Kubernetes' namespace, as far as they mark what a kubelet must see.
//!
//! They come before containerd's CRI part has written the new state down, so each waits here until CRI shows what
//! the event tells: whoever hears the hint and looks at once must not see the old state.

use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use ports::Hint;
use prost::Message;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::Hints;
use crate::containerd::events_client::EventsClient;
use crate::containerd::{ContainerDelete, Envelope, SubscribeRequest, TaskChange, TaskExit};
use crate::endpoint::MAX_MESSAGE;
use crate::pb;
use crate::pb::runtime_service_client::RuntimeServiceClient;

const NAMESPACE: &str = "k8s.io";
const START: &str = "/tasks/start";
const EXIT: &str = "/tasks/exit";
const OOM: &str = "/tasks/oom";
const DELETE: &str = "/containers/delete";

/// How many events may wait for their state at once. More than a node has pods.
const MAX_PENDING_EVENTS: usize = 512;
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(4);
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_millis(64);
/// containerd failed to handle its own event, or is overloaded: then the hint goes out as it is.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);

/// What CRI will show of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpectedState {
    Started,
    Ended,
    Gone,
    /// Nothing that could be waited for.
    Nothing,
}

#[derive(Clone, PartialEq, Debug)]
struct ContainerdChange {
    /// Of a container or a sandbox; both are containers to containerd.
    id: String,
    outcome: ExpectedState,
}

pub(super) fn hints(channel: Channel) -> Hints {
    let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let subscribe = async move {
        let mut events = EventsClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        events.subscribe(SubscribeRequest { filters: filters() }).await.map(Response::into_inner)
    };
    stream::once(subscribe)
        .try_flatten()
        .try_filter_map(|envelope| async move { Ok(change(&envelope)) })
        .map_ok(move |change| {
            let runtime = runtime.clone();
            async move {
                until_visible(runtime, &change).await;
                Ok(Hint::ContainerOrSandbox(change.id))
            }
        })
        .try_buffer_unordered(MAX_PENDING_EVENTS)
        .boxed()
}

/// One filter per topic: an event passes when any of them does.
fn filters() -> Vec<String> {
    [START, EXIT, OOM, DELETE].map(|topic| format!(r#"namespace=="{NAMESPACE}",topic=="{topic}""#)).into()
}

/// What an event tells; `None` when it is not for us, or can't be read.
fn change(envelope: &Envelope) -> Option<ContainerdChange> {
    let payload = envelope.event.as_ref()?.value.as_slice();
    let (id, outcome) = match envelope.topic.as_str() {
        START => (TaskChange::decode(payload).ok()?.container_id, ExpectedState::Started),
        OOM => (TaskChange::decode(payload).ok()?.container_id, ExpectedState::Nothing),
        EXIT => {
            let exit = TaskExit::decode(payload).ok()?;
            // The end of an exec is no change of its container.
            if exit.id != exit.container_id {
                return None;
            }
            (exit.container_id, ExpectedState::Ended)
        }
        DELETE => (ContainerDelete::decode(payload).ok()?.id, ExpectedState::Gone),
        _ => return None,
    };
    (!id.is_empty()).then_some(ContainerdChange { id, outcome })
}

/// Waits until CRI shows the outcome. An error of the question is a reason to look, too.
async fn until_visible(mut runtime: RuntimeServiceClient<Channel>, change: &ContainerdChange) {
    let give_up = Instant::now() + VISIBLE_WITHIN;
    let mut pause = FIRST_LOOK_AFTER;
    loop {
        match tokio::time::timeout_at(give_up, is_visible(&mut runtime, change)).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true) | Err(_)) | Err(_) => return,
        }
        if Instant::now() + pause >= give_up {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_BETWEEN_LOOKS);
    }
}

async fn is_visible(
    runtime: &mut RuntimeServiceClient<Channel>,
    change: &ContainerdChange,
) -> Result<bool, Status> {
    if change.outcome == ExpectedState::Nothing {
        return Ok(true);
    }
    if let Some(state) = container_state(runtime, &change.id).await? {
        return Ok(match change.outcome {
            ExpectedState::Started => state != pb::ContainerState::ContainerCreated as i32,
            // Not merely "not running": one that ends at once is still called created while its start is being
            // answered, then running, and only then exited.
            ExpectedState::Ended => {
                let created = state == pb::ContainerState::ContainerCreated as i32;
                !created && state != pb::ContainerState::ContainerRunning as i32
            }
            ExpectedState::Gone | ExpectedState::Nothing => false,
        });
    }
    // No container: a sandbox, or nothing any more. The start of a sandbox is seen by who asked for it.
    if change.outcome == ExpectedState::Started {
        return Ok(true);
    }
    let state = sandbox_state(runtime, &change.id).await?;
    Ok(match change.outcome {
        ExpectedState::Ended => state != Some(pb::PodSandboxState::SandboxReady as i32),
        _ => state.is_none(),
    })
}

/// `None`: CRI has no such container.
async fn container_state(
    runtime: &mut RuntimeServiceClient<Channel>,
    id: &str,
) -> Result<Option<i32>, Status> {
    let request = pb::ContainerStatusRequest { container_id: id.into(), verbose: false };
    match runtime.container_status(request).await {
        Ok(answer) => Ok(answer.into_inner().status.map(|s| s.state)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// `None`: CRI has no such sandbox.
async fn sandbox_state(runtime: &mut RuntimeServiceClient<Channel>, id: &str) -> Result<Option<i32>, Status> {
    let request = pb::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
    match runtime.pod_sandbox_status(request).await {
        Ok(answer) => Ok(answer.into_inner().status.map(|s| s.state)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_tell_changes() {
        let check = |topic: &str, value: Vec<u8>, expect: Option<(&str, ExpectedState)>| {
            let event = Some(prost_types::Any { type_url: String::new(), value });
            let envelope = Envelope { namespace: NAMESPACE.into(), topic: topic.into(), event };
            let expect = expect.map(|(id, outcome)| ContainerdChange { id: id.into(), outcome });
            assert_eq!(change(&envelope), expect, "{topic}");
        };
        let exit = |id: &str| TaskExit { container_id: "c".into(), id: id.into() }.encode_to_vec();
        let task = TaskChange { container_id: "c".into() }.encode_to_vec();
        check(EXIT, exit("c"), Some(("c", ExpectedState::Ended)));
        check(EXIT, exit("exec-1"), None);
        check(EXIT, vec![0xff, 0xff], None);
        check(EXIT, Vec::new(), None);
        check(START, task.clone(), Some(("c", ExpectedState::Started)));
        check(OOM, task.clone(), Some(("c", ExpectedState::Nothing)));
        check(DELETE, ContainerDelete { id: "c".into() }.encode_to_vec(), Some(("c", ExpectedState::Gone)));
        check("/tasks/exec-started", task, None);
        let empty = Envelope { namespace: NAMESPACE.into(), topic: EXIT.into(), event: None };
        assert_eq!(change(&empty), None);
    }
}
