//! What a whole pod asks for: its containers summed, init containers taken at their peak, pod-level values on top.

use model::k8s;
use model::pod::{PodView, is_sidecar};

use super::amounts::{Amounts, CPU, HUGE_PAGES_PREFIX, MEMORY};

/// Whether the runtime class's own cost counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overhead {
    Included,
    Excluded,
}

pub fn container_requests(container: &k8s::Container) -> Amounts {
    Amounts::from_api(container.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

pub fn container_limits(container: &k8s::Container) -> Amounts {
    Amounts::from_api(container.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

fn pod_level_requests(pod: &PodView) -> Amounts {
    Amounts::from_api(pod.spec().resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// `spec.resources.limits`.
pub fn pod_level_limits(pod: &PodView) -> Amounts {
    Amounts::from_api(pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref()))
}

/// Only these may be given for a pod as a whole.
fn counts_at_pod_level(resource: &str) -> bool {
    resource == CPU || resource == MEMORY || resource.starts_with(HUGE_PAGES_PREFIX)
}

fn any_at_pod_level(amounts: &Amounts) -> bool {
    amounts.iter().any(|(name, _)| counts_at_pod_level(name))
}

pub fn has_pod_level_requests(pod: &PodView) -> bool {
    any_at_pod_level(&pod_level_requests(pod))
}

pub fn has_pod_level_resources(pod: &PodView) -> bool {
    has_pod_level_requests(pod) || any_at_pod_level(&pod_level_limits(pod))
}

/// The containers' part of a total.
struct Aggregate {
    total: Amounts,
    /// What is in use while each container starts: its own for a regular one; for an init container its own and
    /// that of the sidecars before it.
    uses: Vec<Amounts>,
}

fn aggregate(pod: &PodView, amounts_of: fn(&k8s::Container) -> Amounts) -> Aggregate {
    let mut total = Amounts::default();
    let mut uses = Vec::new();
    for container in pod.containers() {
        let own = amounts_of(container);
        total.add(&own);
        uses.push(own);
    }
    let mut sidecars = Amounts::default();
    let mut peak = Amounts::default();
    for container in pod.init_containers() {
        let own = amounts_of(container);
        let in_use = own.clone().plus(&sidecars);
        if is_sidecar(container) {
            total.add(&own);
            sidecars = in_use.clone();
        }
        peak.raise_to(&in_use);
        uses.push(in_use);
    }
    total.raise_to(&peak);
    Aggregate { total, uses }
}

/// The sum of what containers ask for, without pod-level values and overhead.
pub(super) fn requests_of_containers(pod: &PodView) -> Amounts {
    aggregate(pod, container_requests).total
}

fn override_at_pod_level(total: &mut Amounts, pod_level: &Amounts) {
    for (name, amount) in pod_level.iter().filter(|(name, _)| counts_at_pod_level(name)) {
        total.set(name, amount);
    }
}

pub fn pod_requests(pod: &PodView, overhead: Overhead) -> Amounts {
    let mut total = requests_of_containers(pod);
    override_at_pod_level(&mut total, &pod_level_requests(pod));
    if overhead == Overhead::Included {
        total.add(&Amounts::from_api(pod.spec().overhead.as_ref()));
    }
    total
}

pub fn pod_limits(pod: &PodView, overhead: Overhead) -> Amounts {
    let mut total = aggregate(pod, container_limits).total;
    override_at_pod_level(&mut total, &pod_level_limits(pod));
    if overhead == Overhead::Included {
        // overhead on top of "no limit" would make a limit
        for (name, amount) in Amounts::from_api(pod.spec().overhead.as_ref()).iter() {
            if let Some(limit) = total.get(name).filter(|limit| !limit.is_zero()) {
                total.set(name, limit + amount);
            }
        }
    }
    total
}

/// Whether everything in a pod is limited, so that the pod as a whole can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitsDeclared {
    pub cpu: bool,
    pub memory: bool,
}

pub fn limits_declared(pod: &PodView) -> LimitsDeclared {
    let uses = aggregate(pod, container_limits).uses;
    let pod_level = pod_level_limits(pod);
    let declared = |resource: &str| {
        !pod_level.amount(resource).is_zero() || uses.iter().all(|used| !used.amount(resource).is_zero())
    };
    LimitsDeclared { cpu: declared(CPU), memory: declared(MEMORY) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn amounts(text: &str) -> Amounts {
        text.split_whitespace()
            .map(|part| {
                let (name, amount) = part.split_once('=').unwrap();
                (name, amount.parse().unwrap())
            })
            .collect()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn sidecar(requests: Value) -> Value {
        json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": requests}})
    }

    #[test]
    fn requests_are_the_sum_or_the_init_peak() {
        let check = |spec: Value, expect: &str| {
            let pod = sample::pod(spec.clone());
            assert_eq!(pod_requests(&pod, Overhead::Included), amounts(expect), "{spec}");
        };
        let c = |cpu: &str| container(json!({ "cpu": cpu }), json!({}));
        let s = |cpu: &str| sidecar(json!({ "cpu": cpu }));
        check(json!({"containers": [{"name": "c"}]}), "");
        check(json!({"containers": [c("1"), c("500m")]}), "cpu=1500m");
        // an init container counts only where it needs more than what runs later
        check(json!({"containers": [c("1")], "initContainers": [c("500m")]}), "cpu=1");
        check(json!({"containers": [c("1")], "initContainers": [c("3"), c("2")]}), "cpu=3");
        // sidecars run beside everything that comes after them
        check(json!({"containers": [c("1")], "initContainers": [s("1")]}), "cpu=2");
        check(json!({"containers": [c("1")], "initContainers": [s("1"), c("5"), s("2")]}), "cpu=6");
        check(json!({"containers": [c("1")], "initContainers": [c("5"), s("1"), s("2")]}), "cpu=5");
        check(json!({"containers": [c("4")], "initContainers": [s("1"), c("5"), s("2")]}), "cpu=7");
        // the pod level overrides, for the resources it may be given for
        check(
            json!({"containers": [c("1")], "resources": {"requests": {"cpu": "3", "memory": "1Gi", "x.io/y": "2"}}}),
            "cpu=3 memory=1Gi",
        );
        check(
            json!({"containers": [c("1")], "overhead": {"cpu": "250m", "memory": "1Mi"}}),
            "cpu=1250m memory=1Mi",
        );
    }

    #[test]
    fn limits_take_overhead_only_where_there_is_one() {
        let spec = json!({
            "containers": [container(json!({}), json!({"cpu": "1", "memory": "0"})), container(json!({}), json!({"cpu": "1"}))],
            "overhead": {"cpu": "250m", "memory": "1Mi"},
        });
        let pod = sample::pod(spec);
        assert_eq!(pod_limits(&pod, Overhead::Included), amounts("cpu=2250m memory=0"));
        assert_eq!(pod_limits(&pod, Overhead::Excluded), amounts("cpu=2 memory=0"));
        assert_eq!(pod_requests(&pod, Overhead::Excluded), amounts(""));
    }

    #[test]
    fn a_pod_is_limited_when_all_of_it_is() {
        let check = |spec: Value, cpu: bool, memory: bool| {
            assert_eq!(limits_declared(&sample::pod(spec.clone())), LimitsDeclared { cpu, memory }, "{spec}");
        };
        let both = || container(json!({}), json!({"cpu": "1", "memory": "1Mi"}));
        let cpu_only = || container(json!({}), json!({"cpu": "1"}));
        check(json!({"containers": [both()]}), true, true);
        check(json!({"containers": [both(), cpu_only()]}), true, false);
        check(json!({"containers": [both()], "initContainers": [cpu_only()]}), true, false);
        check(json!({"containers": [cpu_only()], "resources": {"limits": {"memory": "1Gi"}}}), true, true);
        check(json!({"containers": [{"name": "c"}]}), false, false);
    }

    fn containers(prefix: &'static str) -> impl Strategy<Value = Vec<Value>> {
        prop::collection::vec((0u32..5000, any::<bool>()), 0..5).prop_map(move |list| {
            let one = |(index, (cpu, sidecar)): (usize, (u32, bool))| {
                let mut container = container(json!({"cpu": format!("{cpu}m")}), json!({}));
                container["name"] = json!(format!("{prefix}{index}"));
                if sidecar && prefix == "i" {
                    container["restartPolicy"] = json!("Always");
                }
                container
            };
            list.into_iter().enumerate().map(one).collect()
        })
    }

    proptest! {
        /// Whatever runs at one time fits into the total, and the order of regular containers does not matter.
        #[test]
        fn a_total_covers_every_moment(regular in containers("c"), init in containers("i")) {
            let pod = sample::pod(json!({"containers": regular, "initContainers": init}));
            let total = pod_requests(&pod, Overhead::Included).cpu_millis();
            let own = |c: &k8s::Container| container_requests(c).cpu_millis();
            let sidecars: i64 = pod.init_containers().iter().filter(|c| is_sidecar(c)).map(own).sum();
            prop_assert!(total >= pod.containers().iter().map(own).sum::<i64>() + sidecars);
            let mut running = 0;
            for container in pod.init_containers() {
                prop_assert!(total >= running + own(container));
                running += if is_sidecar(container) { own(container) } else { 0 };
            }
            let reversed: Vec<Value> = regular.into_iter().rev().collect();
            let other = sample::pod(json!({"containers": reversed, "initContainers": init}));
            prop_assert_eq!(pod_requests(&other, Overhead::Included).cpu_millis(), total);
        }
    }
}
