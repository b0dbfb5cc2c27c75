//! The quality of service class: how well a pod is kept when the node runs short.

use model::k8s;
use model::pod::{PodView, QosClass};
use model::quantity::Quantity;

use super::amounts::{Amounts, CPU, MEMORY};
use super::totals::{container_limits, container_requests};

/// The class that the API server wrote down, or the one that the spec gives.
pub fn qos_class(pod: &PodView) -> QosClass {
    let recorded = pod.pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    match recorded {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => computed_class(pod),
    }
}

fn computed_class(pod: &PodView) -> QosClass {
    let mut requests = Amounts::default();
    let mut limits = Amounts::default();
    let mut all_limited = true;
    for (own_requests, own_limits) in resource_pairs(pod) {
        requests.add(&compute_amounts(&own_requests));
        let own_limits = compute_amounts(&own_limits);
        all_limited &= own_limits.get(CPU).is_some() && own_limits.get(MEMORY).is_some();
        limits.add(&own_limits);
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Requests and limits of everything that counts: the pod level alone where it is given, else each container.
/// Ephemeral containers can't ask for anything.
fn resource_pairs(pod: &PodView) -> Vec<(Amounts, Amounts)> {
    if let Some(resources) = &pod.spec().resources {
        return vec![(
            Amounts::from_api(resources.requests.as_ref()),
            Amounts::from_api(resources.limits.as_ref()),
        )];
    }
    let pair = |container: &k8s::Container| (container_requests(container), container_limits(container));
    pod.containers().iter().chain(pod.init_containers()).map(pair).collect()
}

/// Only cpu and memory decide, and only where there is some of it.
fn compute_amounts(amounts: &Amounts) -> Amounts {
    let counts = |(name, amount): &(&str, Quantity)| {
        (*name == CPU || *name == MEMORY) && !amount.is_zero() && !amount.is_negative()
    };
    amounts.iter().filter(counts).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    #[test]
    fn classes() {
        let check = |spec: Value, expect: QosClass| {
            assert_eq!(qos_class(&sample::pod(spec.clone())), expect, "{spec}");
        };
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let c = |requests: Value, limits: Value| json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let full = || c(json!({"cpu": "1", "memory": "1Mi"}), json!({"cpu": "1", "memory": "1Mi"}));
        check(json!({"containers": [{"name": "c"}]}), BestEffort);
        check(json!({"containers": [c(json!({"cpu": "0"}), json!({"memory": "0"}))]}), BestEffort);
        check(json!({"containers": [c(json!({"x.io/y": "1"}), json!({"x.io/y": "1"}))]}), BestEffort);
        check(json!({"containers": [full()]}), Guaranteed);
        check(
            json!({"containers": [c(json!({"cpu": "1000m", "memory": "1024Ki"}), json!({"cpu": "1", "memory": "1Mi"}))]}),
            Guaranteed,
        );
        check(json!({"containers": [full(), full()], "initContainers": [full()]}), Guaranteed);
        check(json!({"containers": [full(), {"name": "d"}]}), Burstable);
        check(json!({"containers": [full()], "initContainers": [{"name": "i"}]}), Burstable);
        check(json!({"containers": [c(json!({"cpu": "1"}), json!({}))]}), Burstable);
        check(json!({"containers": [c(json!({}), json!({"cpu": "1", "memory": "1Mi"}))]}), Burstable);
        check(
            json!({"containers": [c(json!({"cpu": "1", "memory": "1Mi"}), json!({"cpu": "2", "memory": "1Mi"}))]}),
            Burstable,
        );
        // the pod level alone decides where it is given
        let level = |requests: Value, limits: Value, container: Value| json!({"containers": [container], "resources": {"requests": requests, "limits": limits}});
        check(
            level(
                json!({"cpu": "1", "memory": "1Mi"}),
                json!({"cpu": "1", "memory": "1Mi"}),
                json!({"name": "c"}),
            ),
            Guaranteed,
        );
        check(level(json!({"cpu": "1"}), json!({}), full()), Burstable);
        check(level(json!({}), json!({"cpu": "1", "memory": "1Mi"}), full()), Burstable);
    }

    #[test]
    fn the_recorded_class_wins() {
        let mut pod = sample::api_pod(json!({"containers": [{"name": "c"}]}));
        pod.status =
            Some(model::k8s::PodStatus { qos_class: Some("Guaranteed".into()), ..Default::default() });
        assert_eq!(qos_class(&sample::view(pod)), QosClass::Guaranteed);
    }
}
