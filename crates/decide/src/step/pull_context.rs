//! What the runtime and the credential plugins are told about the pod that a pull is for.
//!
//! One pull serves several pods, and the pull request names one of them. So pods share a pull only if the runtime and
//! the plugins would treat them alike: the same namespace (runtimes have signature policies per namespace), the same
//! annotations (a runtime may choose where it unpacks an image by one of them) and, where a plugin takes tokens, the
//! same service account.

use std::sync::Arc;

use model::PodUid;
use model::credentials::CredentialPlugin;
use model::observed::ObservedPod;
use model::pod::PodView;

use super::Context;
use super::plan_inputs::plan_inputs;
use super::sandbox_placement::choose_placement;
use crate::credentials::plugin::matches_image;
use crate::credentials::{credentials_fingerprint, repository};
use crate::image_pull::{PullContext, PullKey, PullingPod};
use crate::images::{PullRequest, split_key};
use crate::objects::pull_secret_candidates;
use crate::plan::pull_sandbox_config;
use crate::state::NodeState;
use model::hash::fnv1a_64;

/// Prefix of the agent's own annotations about the source of a pod. They differ between all pods and don't affect a
/// pull.
const SOURCE_ANNOTATIONS: &str = "kubernetes.io/config.";

/// The pull that a pod needs for an image.
pub(super) fn request(state: &NodeState, uid: &PodUid, image: &str) -> PullRequest {
    let Some(entry) = state.pods.get(uid) else {
        let key = PullKey { image: image.to_owned(), ..PullKey::default() };
        return PullRequest { key, pod_credentials: Vec::new(), asks_plugins: false };
    };
    let own = state
        .objects
        .as_ref()
        .map(|desk| pull_secret_candidates(desk, entry.view(), image))
        .unwrap_or_default();
    let has_account = !service_account(entry.view()).is_empty();
    let asked = asked_plugins(state, image, has_account);
    let takes_token = has_account && asked.iter().any(|plugin| plugin.token.is_some());
    let key = PullKey {
        image: image.to_owned(),
        access: credentials_fingerprint(&own),
        requester: requester_id(entry.view(), takes_token),
    };
    PullRequest { key, pod_credentials: own, asks_plugins: !asked.is_empty() }
}

fn asked_plugins<'a>(state: &'a NodeState, image: &str, has_account: bool) -> Vec<&'a CredentialPlugin> {
    let plugins = &state.config.credential_plugins;
    if plugins.is_empty() {
        return Vec::new();
    }
    let repository = repository(split_key(image).0);
    plugins.iter().filter(|plugin| matches_image(plugin, &repository, has_account)).collect()
}

/// Whether a plugin may have credentials for the image that belong to the pod's service account.
pub(super) fn service_account_may_have_credentials(state: &NodeState, uid: &PodUid, image: &str) -> bool {
    let Some(entry) = state.pods.get(uid) else { return false };
    !service_account(entry.view()).is_empty()
        && asked_plugins(state, image, true).iter().any(|plugin| plugin.token.is_some())
}

fn requester_id(pod: &PodView, takes_token: bool) -> u64 {
    let mut text = format!("{:?}", pod.namespace());
    for (name, value) in pod.pod.metadata.annotations.iter().flatten() {
        if !name.starts_with(SOURCE_ANNOTATIONS) {
            text.push_str(&format!(" {name:?}={value:?}"));
        }
    }
    if takes_token {
        text.push_str(&format!(" as {:?}", service_account(pod)));
    }
    fnv1a_64(text.as_bytes())
}

fn service_account(pod: &PodView) -> &str {
    pod.spec().service_account_name.as_deref().unwrap_or_default()
}

pub(super) fn pulling_pod(state: &NodeState, uid: &PodUid) -> PullingPod {
    let view = state.pods.get(uid).map(|entry| entry.view());
    PullingPod {
        namespace: view.map(|view| view.namespace().to_owned()).unwrap_or_default(),
        name: view.map(|view| view.name().to_owned()).unwrap_or_default(),
        uid: uid.clone(),
        service_account: view.map(|view| service_account(view).to_owned()).unwrap_or_default(),
    }
}

/// What the pull request contains about the pod. If the sandbox configuration can't be made, the pod's plan reports
/// why.
pub(super) fn pull_context(state: &mut NodeState, cx: &Context, uid: &PodUid) -> PullContext {
    let Some(entry) = state.pods.get(uid) else { return PullContext::default() };
    let view = entry.view().clone();
    let annotations = view.pod.metadata.annotations.clone().unwrap_or_default();
    let observed = match &entry.observed {
        Some(reading) => reading.pod.clone(),
        None => Arc::new(ObservedPod::empty(view.uid.clone(), view.full_name.clone())),
    };
    let place = choose_placement(state, &view, &observed);
    let inputs = plan_inputs(state, uid, &observed, place, cx.now);
    PullContext { annotations, sandbox: inputs.and_then(|inputs| pull_sandbox_config(&inputs)) }
}
