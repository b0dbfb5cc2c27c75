//! Which pod and container a path names.

use axum::response::Response;
use http::StatusCode;
use model::ContainerId;
use model::observed::ContainerState;
use ports::PodInside;
use serde::Deserialize;

use super::{SecureApi, failure};
use crate::endpoints::ask;

/// The parts of a path; which of them are there is the route's business.
#[derive(Deserialize)]
pub(super) struct Place {
    pub namespace: String,
    pub pod: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub container: String,
}

impl Place {
    /// As the kubelet writes it.
    pub fn full_name(&self) -> String {
        format!("{}_{}", self.pod, self.namespace)
    }

    /// Is it the pod that the path means?
    pub fn fits(&self, pod: &PodInside) -> bool {
        self.uid.is_empty() || self.uid == pod.uid.as_str()
    }
}

impl SecureApi {
    /// The pod, or the answer that there is none.
    pub(super) async fn pod(
        &self,
        place: &Place,
        missing: impl FnOnce() -> String,
    ) -> Result<PodInside, Response> {
        match ask(self.endpoints.agent.find(place.namespace.clone(), place.pod.clone())).await {
            Ok(Some(pod)) => Ok(pod),
            Ok(None) => Err(failure(StatusCode::NOT_FOUND, missing())),
            Err(unanswered) => Err(failure(StatusCode::SERVICE_UNAVAILABLE, unanswered)),
        }
    }
}

/// The running instance of a container.
pub(super) fn running<'a>(pod: &'a PodInside, place: &Place) -> Option<&'a ContainerId> {
    let observed = pod.observed.as_ref().filter(|_| place.fits(pod))?;
    let is_it = |container: &&model::observed::ObservedContainer| {
        container.name == place.container && container.state == ContainerState::Running
    };
    observed.containers.iter().find(is_it).map(|container| &container.id)
}

/// What the definition of a container, of whatever kind, says about terminals; `None` when there is no such.
pub(super) fn tty(pod: &PodInside, container: &str) -> Option<bool> {
    let spec = pod.pod.spec.as_ref()?;
    let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut regular = regular.filter(|c| c.name == container).map(|c| c.tty.unwrap_or(false));
    let mut ephemeral = spec.ephemeral_containers.iter().flatten().filter(|c| c.name == container);
    regular.next().or_else(|| ephemeral.next().map(|c| c.tty.unwrap_or(false)))
}
