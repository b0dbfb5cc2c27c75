//! Which pod and container a path names.

use axum::response::Response;
use http::StatusCode;
use model::ContainerId;
use model::observed::ContainerState;
use ports::PodDetails;
use serde::Deserialize;

use super::{SecureApi, plain_text};
use crate::endpoints::ask_agent;

/// The parts of a path; which of them are there is the route's business.
#[derive(Deserialize)]
pub(super) struct RequestParams {
    pub namespace: String,
    pub pod: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub container: String,
}

impl RequestParams {
    /// As the kubelet writes it.
    pub fn full_name(&self) -> String {
        format!("{}_{}", self.pod, self.namespace)
    }

    /// Is it the pod that the path means?
    pub fn matches_uid(&self, pod: &PodDetails) -> bool {
        self.uid.is_empty() || self.uid == pod.uid.as_str()
    }
}

impl SecureApi {
    /// The pod, or the answer that there is none.
    pub(super) async fn pod(
        &self,
        params: &RequestParams,
        missing: impl FnOnce() -> String,
    ) -> Result<PodDetails, Response> {
        match ask_agent(self.endpoints.agent.find_pod(params.namespace.clone(), params.pod.clone())).await {
            Ok(Some(pod)) => Ok(pod),
            Ok(None) => Err(plain_text(StatusCode::NOT_FOUND, missing())),
            Err(unanswered) => Err(plain_text(StatusCode::SERVICE_UNAVAILABLE, unanswered)),
        }
    }
}

/// The running instance of a container.
pub(super) fn running<'a>(pod: &'a PodDetails, params: &RequestParams) -> Option<&'a ContainerId> {
    let observed = pod.observed.as_ref().filter(|_| params.matches_uid(pod))?;
    let is_it = |container: &&model::observed::ObservedContainer| {
        container.name == params.container && container.state == ContainerState::Running
    };
    observed.containers.iter().find(is_it).map(|container| &container.id)
}

/// What the definition of a container, of whatever kind, says about terminals; `None` when there is no such.
pub(super) fn tty(pod: &PodDetails, container: &str) -> Option<bool> {
    let spec = pod.pod.spec.as_ref()?;
    let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut regular = regular.filter(|c| c.name == container).map(|c| c.tty.unwrap_or(false));
    let mut ephemeral = spec.ephemeral_containers.iter().flatten().filter(|c| c.name == container);
    regular.next().or_else(|| ephemeral.next().map(|c| c.tty.unwrap_or(false)))
}
