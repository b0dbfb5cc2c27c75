//! Keeps the resources that were allocated to a pod at admission while its spec requests others.
//!
//! This node does not resize pods in place. In a spec that was resized, the requested resources are replaced by the
//! allocated ones:
//! ```text
//!   spec as delivered ──keep/recall──> spec with what was allocated ──> status, sums of the node, new containers
//!                            └──> PendingResize ──> condition PodResizePending, Event ResizeInfeasible
//! ```
//! While the agent runs, the allocated resources are those of the definition before the update. After a restart they
//! are read from the pod's own status, where this agent wrote what it had applied.

use std::sync::Arc;

use model::ApiEvent;
use model::k8s::{Container, ContainerStatus, Pod, ResourceRequirements};
use model::pod::{PodView, is_sidecar};
use serde_json::{Value, json};

use crate::resources::{Amounts, CPU, MEMORY, cpu_quota};

pub(crate) const INFEASIBLE: &str = "Infeasible";
pub(crate) const RESIZE_UNSUPPORTED_MESSAGE: &str = "In-place pod resize is not supported on this node";

/// The kernel counts memory in pages.
const PAGE: i64 = 4096;

/// A resize that was requested and not applied.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PendingResize {
    /// Generation of the spec that requests it.
    pub generation: Option<i64>,
    /// Features that a node must have declared to support the resize. Sorted.
    pub features: Vec<&'static str>,
    /// The requested resources, for the Event.
    wanted: Value,
}

/// A definition with the allocated resources.
#[derive(Clone, Debug)]
pub struct Allocated {
    pub view: PodView,
    pub pending: Option<PendingResize>,
}

/// Replaces the resources of `view` by those of `before`.
pub(crate) fn keep_allocated(view: PodView, before: &PodView) -> Allocated {
    let has = |container: &Container| before.container(&container.name).map(|(_, c)| &c.resources);
    let mut containers = view.containers().iter().chain(view.init_containers());
    // Fast path: almost no update changes resources.
    if view.spec().resources == before.spec().resources
        && containers.all(|c| has(c).is_none_or(|resources| *resources == c.resources))
    {
        return Allocated { view, pending: None };
    }
    let of = |container: &Container| has(container).cloned();
    apply_allocated(view, Some(before.spec().resources.clone()), of)
}

/// Replaces the resources of `view` by those that its status shows as allocated. `period_micros`: the period of CPU
/// quotas.
pub(crate) fn restore_allocated(view: PodView, period_micros: i64) -> Allocated {
    let pod = view.pod.clone();
    let Some(status) = pod.status.as_ref().filter(|status| status.start_time.is_some()) else {
        return Allocated { view, pending: None };
    };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let of = |container: &Container| {
        let shown = lists.iter().flat_map(|list| list.iter().flatten()).find(|s| s.name == container.name)?;
        shown_resources(container, shown, period_micros)
    };
    // Pod-level resources can't be resized on a node that does not declare the feature, so they are taken from the
    // spec.
    apply_allocated(view, None, of)
}

/// The allocated resources that the status shows of a container. `None` if they agree with the spec.
fn shown_resources(
    container: &Container,
    shown: &ContainerStatus,
    period_micros: i64,
) -> Option<Option<ResourceRequirements>> {
    let in_force = shown.resources.as_ref()?;
    let own = container.resources.clone().unwrap_or_default();
    let same_requests =
        Amounts::from_api(own.requests.as_ref()) == Amounts::from_api(shown.allocated_resources.as_ref());
    let asked = Amounts::from_api(own.limits.as_ref());
    let limits = Amounts::from_api(in_force.limits.as_ref());
    if same_requests && limits_follow(&asked, &limits, period_micros) {
        return None;
    }
    Some(Some(ResourceRequirements {
        requests: shown.allocated_resources.clone(),
        limits: in_force.limits.clone(),
        claims: own.claims,
    }))
}

/// Whether `reported` is what a runtime reports after it was given the limits `asked`.
fn limits_follow(asked: &Amounts, reported: &Amounts, period_micros: i64) -> bool {
    let names = |amounts: &Amounts| amounts.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    names(asked) == names(reported)
        && asked.iter().all(|(name, amount)| {
            let shown = reported.amount(name);
            match name {
                CPU => {
                    let quota = cpu_quota(amount.milli_value(), period_micros);
                    amount == shown
                        || quota.saturating_mul(1000) / period_micros.max(1) == shown.milli_value()
                }
                MEMORY => amount.value() / PAGE == shown.value() / PAGE,
                _ => amount == shown,
            }
        })
}

/// `of` gives the allocated resources of a container (`None`: unknown, keep the spec). `whole` gives those of pod-level
/// resources.
fn apply_allocated(
    view: PodView,
    whole: Option<Option<ResourceRequirements>>,
    of: impl Fn(&Container) -> Option<Option<ResourceRequirements>>,
) -> Allocated {
    let changed = |container: &Container| of(container).is_some_and(|has| !same(&container.resources, &has));
    let init_changed = view.init_containers().iter().any(|c| !is_sidecar(c) && changed(c));
    let whole_changed = whole.as_ref().is_some_and(|has| !same(&view.spec().resources, has));
    let any = view.containers().iter().chain(view.init_containers()).any(changed);
    if !any && !whole_changed {
        return Allocated { view, pending: None };
    }
    let needs = [
        ("InPlacePodLevelResourcesVerticalScaling", whole_changed),
        ("InPlacePodVerticalScalingInitContainers", init_changed),
    ];
    let pending = PendingResize {
        generation: view.generation(),
        features: needs.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name).collect(),
        wanted: wanted(&view),
    };
    let mut pod = Pod::clone(&view.pod);
    if let Some(spec) = &mut pod.spec {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(has) = of(container) {
                container.resources = has;
            }
        }
        if let Some(whole) = whole {
            spec.resources = whole;
        }
    }
    Allocated { view: view.with_pod(Arc::new(pod)), pending: Some(pending) }
}

fn same(one: &Option<ResourceRequirements>, other: &Option<ResourceRequirements>) -> bool {
    let amounts = |resources: &Option<ResourceRequirements>| {
        let resources = resources.as_ref();
        let requests = Amounts::from_api(resources.and_then(|r| r.requests.as_ref()));
        (requests, Amounts::from_api(resources.and_then(|r| r.limits.as_ref())))
    };
    amounts(one) == amounts(other)
}

/// The resources that the spec requests, as the Event about a resize shows them.
fn wanted(view: &PodView) -> Value {
    let list = |containers: &[Container]| -> Vec<Value> {
        let one =
            |c: &Container| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()});
        containers.iter().map(one).collect()
    };
    let mut wanted = json!({"containers": list(view.containers())});
    if !view.init_containers().is_empty() {
        wanted["initContainers"] = Value::from(list(view.init_containers()));
    }
    wanted
}

impl PendingResize {
    /// The Event which says that the resize is not possible.
    pub fn event(&self) -> ApiEvent {
        let mut text = self.wanted.clone();
        text["generation"] = json!(self.generation.unwrap_or_default());
        text["error"] = json!(RESIZE_UNSUPPORTED_MESSAGE);
        ApiEvent::warning("ResizeInfeasible", format!("Pod resize Infeasible: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use model::pod::Source;
    use serde_json::json;

    use super::*;
    use crate::resources::{Overhead, pod_requests};

    const PERIOD: i64 = 100_000;

    fn resources(requests: &str, limits: &str) -> Value {
        json!({"requests": {"cpu": requests, "memory": "64Mi"}, "limits": {"cpu": limits, "memory": "128Mi"}})
    }

    fn pod(own: Value, init: Value, whole: Value, status: Value) -> PodView {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 2},
            "spec": {
                "resources": whole,
                "initContainers": [{"name": "i", "resources": init}],
                "containers": [{"name": "c", "resources": own}],
            },
            "status": status,
        });
        PodView::new(Arc::new(serde_json::from_value(pod).expect("a pod")), Source::Api)
    }

    fn cpu(view: &PodView) -> i64 {
        pod_requests(view, Overhead::Included).cpu_millis()
    }

    #[test]
    fn an_update_keeps_what_was_allocated() {
        let none = || json!({});
        let before = pod(resources("100m", "1"), none(), Value::Null, none());
        let check = |own: Value, init: Value, whole: Value, features: Option<&[&str]>| {
            let kept = keep_allocated(pod(own.clone(), init, whole, none()), &before);
            let found = kept.pending.as_ref().map(|pending| pending.features.as_slice());
            assert_eq!(found, features, "{own}");
            assert_eq!(cpu(&kept.view), 100, "{own}");
        };
        check(resources("100m", "1"), none(), Value::Null, None);
        // the same amounts in other words
        check(resources("0.1", "1000m"), none(), none(), None);
        check(resources("200m", "1"), none(), Value::Null, Some(&[]));
        check(resources("100m", "2"), none(), Value::Null, Some(&[]));
        let init = json!({"requests": {"cpu": "1"}});
        check(resources("100m", "1"), init, Value::Null, Some(&["InPlacePodVerticalScalingInitContainers"]));
        let whole = json!({"requests": {"cpu": "2"}});
        let features = Some(&["InPlacePodLevelResourcesVerticalScaling"][..]);
        check(resources("100m", "1"), none(), whole, features);
    }

    #[test]
    fn a_new_agent_recalls_what_the_status_shows() {
        let status = |requests: &str, limits: Value| {
            json!({"startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": requests, "memory": "64Mi"},
                "resources": {"requests": {"cpu": requests, "memory": "64Mi"}, "limits": limits},
            }]})
        };
        let check = |requests: &str, limits: &str, status: Value, pending: bool, millis: i64| {
            let view = pod(resources(requests, limits), json!({}), Value::Null, status.clone());
            let recalled = restore_allocated(view, PERIOD);
            assert_eq!(
                (recalled.pending.is_some(), cpu(&recalled.view)),
                (pending, millis),
                "{requests} {status}"
            );
        };
        let limits = || json!({"cpu": "1", "memory": "134217728"});
        check("100m", "1", status("100m", limits()), false, 100);
        check("300m", "1", status("100m", limits()), true, 100);
        check("100m", "2", status("100m", limits()), true, 100);
        // a runtime reports what its kernel makes of a limit
        check("100m", "1000500u", status("100m", json!({"cpu": "1001m", "memory": "128Mi"})), false, 100);
        // one whose containers were never made has what its spec asks for
        check("300m", "1", json!({"startTime": "2026-01-01T00:00:00Z"}), false, 300);
        check("300m", "1", json!({}), false, 300);
    }

    #[test]
    fn the_event_tells_what_was_asked_for() {
        let before = pod(resources("100m", "1"), json!({}), Value::Null, json!({}));
        let kept = keep_allocated(pod(resources("200m", "1"), json!({}), Value::Null, json!({})), &before);
        let event = kept.pending.expect("a resize").event();
        let (prefix, text) = event.message.split_once(": ").expect("two parts");
        let told: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!((event.reason.as_str(), prefix), ("ResizeInfeasible", "Pod resize Infeasible"));
        assert_eq!(told["containers"][0]["resources"]["requests"]["cpu"], "200m");
        assert_eq!((&told["generation"], &told["error"]), (&json!(2), &json!(RESIZE_UNSUPPORTED_MESSAGE)));
    }
}
