//! The simulated API server: objects of pods with their status and version, in the same set that the source delivers.

use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use decide::effect::{ApiCall, PodObject};
use decide::event::{ApiCallResult, ApiFailure, ApiFailureKind};
use decide::status::IllegalTransition;
use model::k8s::{Node, Pod, PodStatus};
use model::pod::{ANNOTATION_MIRROR, PodView, Source};
use serde_json::{Value, json};

use super::background_calls::BackgroundCall;
use super::scheduled_faults::uid_of;
use super::{SimEvent, Simulation};
use crate::faults::{CallBehavior, LateEffect};
use crate::time::{MILLI, SECOND};
use crate::workload::{GATE, make_node_status_extreme};

/// How long a call waits for its answer.
const DEADLINE: u64 = 10 * SECOND;

pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(ANNOTATION_MIRROR))
}

/// The API server's check of containers that had ended, against the spec that it holds.
fn illegal_transition(object: &Arc<Pod>, new: &PodStatus) -> Option<IllegalTransition> {
    let view = PodView::new(object.clone(), Source::Api);
    decide::status::illegal_transition(&view, object.status.as_ref()?, new)
}

impl Simulation {
    /// Registration takes a moment; then the Node object is known.
    pub(super) fn schedule_node_event(&mut self) {
        if self.config.sources.contains(&Source::Api) {
            let wait = self.rng.below(2 * SECOND);
            let background_call = BackgroundCall::ShowNode;
            self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
        }
    }

    pub(super) fn node_object(&self) -> Arc<Node> {
        let addresses = json!([{"type": "InternalIP", "address": "192.0.2.7"}]);
        let mut status = self.world.storage.attachments.node_status();
        status["addresses"] = addresses;
        if self.faults.extreme {
            make_node_status_extreme(&mut status);
        }
        let node = json!({"metadata": {"name": "node", "uid": "n1"}, "status": status});
        Arc::new(serde_json::from_value(node).unwrap_or_default())
    }

    /// An object that is created again keeps its status. `None`: a deleted object can't be marked for deletion.
    pub(super) fn admitted(&mut self, mut pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let known = self.object(&uid_of(&pod).to_string()).cloned();
        if known.is_none() && pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let version = self.number();
        let object = Arc::make_mut(&mut pod);
        object.metadata.resource_version = Some(version.to_string());
        object.status = known.and_then(|k| k.status.clone());
        Some(pod)
    }

    fn object(&self, uid: &str) -> Option<&Arc<Pod>> {
        let set = self.sources.get(&Source::Api)?;
        set.values().find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Another client writes a condition into the status of an object.
    pub(super) fn set_gate(&mut self, name: &str, open: bool) {
        let version = self.number();
        let condition =
            json!({"conditions": [{"type": GATE, "status": if open { "True" } else { "False" }}]});
        let set = self.sources.entry(Source::Api).or_default();
        let Some(object) = set.get_mut(name).filter(|pod| !is_mirror(pod)) else { return };
        let status = serde_json::to_value(object.status.clone().unwrap_or_default()).unwrap_or_default();
        let object = Arc::make_mut(object);
        object.status = serde_json::from_value(strategic_merge(status, &condition)).ok();
        object.metadata.resource_version = Some(version.to_string());
        let object = Arc::new(object.clone());
        self.announce_object(&object);
    }

    /// Sends a call to the server. It may never arrive.
    pub(super) fn call_api(&mut self, call: ApiCall) {
        let (now, generation) = (self.world.now, self.generation);
        let there = self.faults.latency(&mut self.rng, now);
        if let Some(failure) = self.api_says_no() {
            let background_call = BackgroundCall::ApiFails { call, failure };
            return self.plan_in(there, SimEvent::BackgroundCall { generation, background_call });
        }
        let nobody = model::PodUid::from("the API server");
        let fate = self.faults.call(&mut self.rng, now, &nobody, true);
        let (applies, answers) = match fate {
            CallBehavior::Works => (Some(there), None),
            CallBehavior::Refused => (None, Some(there)),
            CallBehavior::AppliedButFails => (Some(there), Some(there + MILLI)),
            CallBehavior::Hangs { effect: None } => (None, Some(DEADLINE)),
            CallBehavior::Hangs { effect: Some(LateEffect::BeforeDeadline) } => {
                (Some(self.rng.below(DEADLINE)), Some(DEADLINE))
            }
            CallBehavior::Hangs { effect: Some(LateEffect::AfterDeadline) } => {
                (Some(DEADLINE + self.rng.below(5 * SECOND)), Some(DEADLINE))
            }
        };
        if let Some(wait) = applies {
            let background_call = BackgroundCall::ApplyApi { call: call.clone(), tell: answers.is_none() };
            self.plan_in(wait, SimEvent::BackgroundCall { generation, background_call });
        }
        if let Some(wait) = answers {
            let failure = failure(ApiFailureKind::Unavailable, "the API server is away");
            self.plan_in(
                wait,
                SimEvent::BackgroundCall {
                    generation,
                    background_call: BackgroundCall::ApiFails { call, failure },
                },
            );
        }
    }

    /// Whether the server is unreachable, busy or refuses the call. The call has no effect then.
    pub(super) fn api_says_no(&mut self) -> Option<ApiFailure> {
        let now = self.world.now;
        if self.api_unreachable {
            return Some(failure(ApiFailureKind::Unavailable, "the API server can't be reached"));
        }
        if self.faults.api_refuses(&mut self.rng, now) {
            return Some(failure(ApiFailureKind::Refused, "403: forbidden for now"));
        }
        if self.faults.api_conflicts(&mut self.rng, now) {
            return Some(failure(ApiFailureKind::Refused, "409: the object has been modified"));
        }
        let busy = self.faults.api_is_busy(&mut self.rng, now);
        busy.then(|| ApiFailure {
            retry_after: self.rng.coin().then(|| Duration::from_secs(self.rng.between(1, 20))),
            ..failure(ApiFailureKind::Unavailable, "429: too many requests")
        })
    }

    pub(super) fn apply_api(&mut self, generation: u32, call: ApiCall, tell: bool) {
        let answer = match call {
            ApiCall::PatchStatus { uid, pod, patch } => {
                let result = self.patch_status(&pod, &patch["status"]);
                ApiCallResult::StatusPatched { uid, object: pod.uid, result }
            }
            ApiCall::DeletePod { uid, pod } => {
                self.check.object_deleted(&self.world, &uid);
                ApiCallResult::PodDeleted { uid, result: self.delete_object(pod.uid.as_str()) }
            }
            ApiCall::CreateMirror { full_name, pod } => {
                let result = self.create_mirror(&pod);
                ApiCallResult::MirrorCreated { full_name, result }
            }
            ApiCall::DeleteMirror { full_name, uid } => {
                let result = self.delete_object(uid.as_str());
                ApiCallResult::MirrorDeleted { full_name, uid, result }
            }
        };
        if tell {
            self.post(generation, Event::ApiAnswered(answer));
        }
    }

    pub(super) fn api_fails(&mut self, generation: u32, call: ApiCall, failure: ApiFailure) {
        let answer = match call {
            ApiCall::PatchStatus { uid, pod, .. } => {
                ApiCallResult::StatusPatched { uid, object: pod.uid, result: Err(failure) }
            }
            ApiCall::DeletePod { uid, .. } => ApiCallResult::PodDeleted { uid, result: Err(failure) },
            ApiCall::CreateMirror { full_name, .. } => {
                ApiCallResult::MirrorCreated { full_name, result: Err(failure) }
            }
            ApiCall::DeleteMirror { full_name, uid } => {
                ApiCallResult::MirrorDeleted { full_name, uid, result: Err(failure) }
            }
        };
        self.post(generation, Event::ApiAnswered(answer));
    }

    fn patch_status(&mut self, pod: &PodObject, patch: &Value) -> Result<Arc<Pod>, ApiFailure> {
        let version = self.number();
        let set = self.sources.entry(Source::Api).or_default();
        let Some(object) = set.get_mut(&pod.name).filter(|o| uid_of(o) == pod.uid) else {
            return Err(gone());
        };
        let status = serde_json::to_value(object.status.clone().unwrap_or_default()).unwrap_or_default();
        let status = serde_json::from_value(strategic_merge(status, patch));
        let Ok(status) = status else {
            self.check.violate("readable status", format!("{} gets {patch}", pod.uid));
            return Err(gone());
        };
        if let Some(illegal) = illegal_transition(object, &status) {
            // An agent that sends this status again is refused every time, and the run does not converge.
            return Err(failure(ApiFailureKind::Refused, &format!("422: {illegal}")));
        }
        let object = Arc::make_mut(object);
        object.status = Some(status);
        object.metadata.resource_version = Some(version.to_string());
        let object = Arc::new(object.clone());
        self.announce_object(&object);
        Ok(object)
    }

    fn delete_object(&mut self, uid: &str) -> Result<(), ApiFailure> {
        let set = self.sources.entry(Source::Api).or_default();
        let Some(name) =
            set.iter().find(|(_, p)| p.metadata.uid.as_deref() == Some(uid)).map(|(n, _)| n.clone())
        else {
            return Err(gone());
        };
        set.remove(&name);
        self.check.pod_removed(self.world.now, &uid.into());
        self.announce_object_removed(uid.into());
        Ok(())
    }

    fn create_mirror(&mut self, pod: &Pod) -> Result<Arc<Pod>, ApiFailure> {
        let (number, version) = (self.number(), self.number());
        let name = pod.metadata.name.clone().unwrap_or_default();
        let set = self.sources.entry(Source::Api).or_default();
        if set.contains_key(&name) {
            let message = format!("pods {name:?} already exists");
            return Err(ApiFailure { kind: ApiFailureKind::Refused, retry_after: None, message });
        }
        let mut made = pod.clone();
        made.metadata.uid = Some(format!("mirror-{number}"));
        made.metadata.resource_version = Some(version.to_string());
        let made = Arc::new(made);
        set.insert(name, made.clone());
        self.announce_object(&made);
        Ok(made)
    }

    /// The watch delivers one object, or the source is listed again.
    fn announce_object(&mut self, pod: &Arc<Pod>) {
        let listed = self
            .agent
            .as_ref()
            .and_then(|a| a.state.sources.get(&Source::Api))
            .is_some_and(|s| s.delivered_once);
        if !listed || self.rng.per_mille(100) {
            return self.source_changed(Source::Api);
        }
        let wait = self.rng.between(MILLI / 10, 100 * MILLI);
        let background_call = BackgroundCall::Watch(pod.clone());
        self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
    }

    /// The watch delivers a deletion, or the source is listed again.
    pub(super) fn announce_object_removed(&mut self, uid: model::PodUid) {
        let listed = self
            .agent
            .as_ref()
            .and_then(|a| a.state.sources.get(&Source::Api))
            .is_some_and(|s| s.delivered_once);
        if !listed || self.rng.coin() {
            return self.source_changed(Source::Api);
        }
        let wait = self.rng.between(MILLI / 10, 100 * MILLI);
        self.plan_in(
            wait,
            SimEvent::BackgroundCall {
                generation: self.generation,
                background_call: BackgroundCall::WatchGone(uid),
            },
        );
    }

    pub(super) fn watched_gone(&mut self, generation: u32, uid: model::PodUid) {
        if !self.api_unreachable && self.object(uid.as_str()).is_none() {
            self.post(generation, Event::PodRemoved { source: Source::Api, uid });
        }
    }

    /// No state older than that of a list may follow it: a watch keeps the order of versions.
    pub(super) fn watched(&mut self, generation: u32, pod: Arc<Pod>) {
        if self.api_unreachable {
            return;
        }
        let newest = self.object(pod.metadata.uid.as_deref().unwrap_or_default());
        if newest.is_some_and(|n| n.metadata.resource_version == pod.metadata.resource_version) {
            self.post(generation, Event::PodChanged { source: Source::Api, pod });
        }
    }
}

fn failure(kind: ApiFailureKind, message: &str) -> ApiFailure {
    ApiFailure { kind, retry_after: None, message: message.into() }
}

fn gone() -> ApiFailure {
    failure(ApiFailureKind::Gone, "not found")
}

/// Merges a status as the server does: conditions and addresses by their key, other lists as a whole.
pub fn strategic_merge(mut status: Value, patch: &Value) -> Value {
    for (key, value) in patch.as_object().into_iter().flatten().filter(|(key, _)| !key.starts_with('$')) {
        match key.as_str() {
            "conditions" => merge_list(&mut status[key], value, "type"),
            "podIPs" | "hostIPs" => merge_list(&mut status[key], value, "ip"),
            _ => merge(&mut status, key, value),
        }
    }
    for (key, by) in [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")] {
        if let (Some(order), Some(list)) = (
            patch[format!("$setElementOrder/{key}")].as_array(),
            status.get_mut(key).and_then(Value::as_array_mut),
        ) {
            list.sort_by_key(|entry| order.iter().position(|o| o[by] == entry[by]).unwrap_or(usize::MAX));
        }
    }
    status
}

fn merge(into: &mut Value, key: &str, value: &Value) {
    match value {
        Value::Null => {
            if let Some(map) = into.as_object_mut() {
                map.remove(key);
            }
        }
        Value::Object(fields) if into.get(key).is_some_and(Value::is_object) => {
            for (field, value) in fields {
                merge(&mut into[key], field, value);
            }
        }
        _ => into[key] = value.clone(),
    }
}

fn merge_list(list: &mut Value, changes: &Value, by: &str) {
    let mut entries = list.as_array().cloned().unwrap_or_default();
    for change in changes.as_array().into_iter().flatten() {
        let at = entries.iter().position(|e| e[by] == change[by]);
        match (at, change.get("$patch")) {
            (Some(at), Some(_)) => drop(entries.remove(at)),
            (Some(at), None) => {
                for (field, value) in change.as_object().into_iter().flatten() {
                    merge(&mut entries[at], field, value);
                }
            }
            (None, Some(_)) => {}
            (None, None) => entries.push(change.clone()),
        }
    }
    *list = Value::Array(entries);
}
