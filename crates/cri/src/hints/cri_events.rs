//! CRI's `GetContainerEvents`.

use futures::stream::{self, StreamExt, TryStreamExt};
use ports::Hint;
use tonic::Response;
use tonic::transport::Channel;

use super::Hints;
use crate::endpoint::MAX_MESSAGE;
use crate::pb;
use crate::pb::runtime_service_client::RuntimeServiceClient;

pub(super) fn hints(channel: Channel) -> Hints {
    let subscribe = async move {
        let mut runtime = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        runtime.get_container_events(pb::GetEventsRequest {}).await.map(Response::into_inner)
    };
    stream::once(subscribe).try_flatten().try_filter_map(|event| async { Ok(hint(event)) }).boxed()
}

/// The pod when the event names it; after the sandbox went it may not.
fn hint(event: pb::ContainerEventResponse) -> Option<Hint> {
    let uid = event.pod_sandbox_status.and_then(|s| s.metadata).map(|m| m.uid).unwrap_or_default();
    match (uid.is_empty(), event.container_id.is_empty()) {
        (false, _) => Some(Hint::Pod(uid.into())),
        (true, false) => Some(Hint::ContainerOrSandbox(event.container_id)),
        (true, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_pod_or_its_container() {
        let check = |container: &str, uid: Option<&str>, expect| {
            let metadata = uid.map(|uid| pb::PodSandboxMetadata { uid: uid.into(), ..Default::default() });
            let event = pb::ContainerEventResponse {
                container_id: container.into(),
                pod_sandbox_status: Some(pb::PodSandboxStatus { metadata, ..Default::default() }),
            };
            assert_eq!(hint(event), expect);
        };
        check("c", Some("u"), Some(Hint::Pod("u".into())));
        check("c", Some(""), Some(Hint::ContainerOrSandbox("c".into())));
        check("c", None, Some(Hint::ContainerOrSandbox("c".into())));
        check("", None, None);
        assert_eq!(hint(pb::ContainerEventResponse::default()), None);
    }
}
