//! Resources as a status shows them: what was allocated, corrected by what the runtime reports to be in force.

use std::collections::BTreeMap;

use model::cri::LinuxResources;
use model::k8s;
use model::observed::{ContainerState, ObservedContainer};
use model::quantity::{Format, Quantity};

use super::state;
use crate::resources::cpu_shares;
use model::PodPhase;

pub type ResourceList = BTreeMap<String, k8s::Quantity>;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
/// The kernel's smallest shares stand for anything up to this request.
const MIN_REQUEST_MILLIS: i64 = 2;
/// The kernel's smallest quota stands for anything up to this limit.
const MIN_LIMIT_MILLIS: i64 = 10;
const MIN_SHARES: i64 = 2;
const SHARES_PER_CPU: i64 = 1024;

/// Totals of a pod: containers summed, init containers at their peak, pod-level values on top.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PodResources {
    pub requests: ResourceList,
    pub limits: ResourceList,
    /// Whether the pod as a whole is limited: one container without a limit leaves the pod without.
    pub cpu_limited: bool,
    pub memory_limited: bool,
    /// What the pod as a whole asks for, as its spec has it.
    pub pod_level: k8s::ResourceRequirements,
}

/// Pod-level part of a status.
pub struct PodStatusResources {
    pub allocated: Option<ResourceList>,
    pub applied: k8s::ResourceRequirements,
}

/// Before a pod runs, what it asks for. Once it runs, what is in force: its own values, and the CPU and memory of its
/// cgroup. One container without a limit leaves the cgroup without.
pub fn of_pod(resources: &PodResources, api_phase: Option<PodPhase>) -> PodStatusResources {
    let (requests, limits) = match api_phase {
        Some(PodPhase::Running) => (requests_in_force(resources), limits_in_force(resources)),
        _ => (resources.requests.clone(), resources.limits.clone()),
    };
    PodStatusResources {
        allocated: some_unless_empty(resources.requests.clone()),
        applied: k8s::ResourceRequirements {
            requests: some_unless_empty(requests),
            limits: some_unless_empty(limits),
            claims: None,
        },
    }
}

fn requests_in_force(resources: &PodResources) -> ResourceList {
    let mut list = resources.pod_level.requests.clone().unwrap_or_default();
    let shares = cpu_shares(millis_of(&resources.requests, CPU));
    let cpu = Quantity::from_millis(shares_to_millis(i64::try_from(shares).unwrap_or(i64::MAX)));
    apply_reported_amount(&mut list, CPU, Some(cpu), MIN_REQUEST_MILLIS, None);
    if let Some(memory) = resources.requests.get(MEMORY).filter(|_| !list.contains_key(MEMORY)) {
        list.insert(MEMORY.to_owned(), memory.clone());
    }
    list
}

fn limits_in_force(resources: &PodResources) -> ResourceList {
    let mut list = resources.pod_level.limits.clone().unwrap_or_default();
    if resources.cpu_limited {
        let cpu = Quantity::from_millis(millis_of(&resources.limits, CPU).max(MIN_LIMIT_MILLIS));
        apply_reported_amount(&mut list, CPU, Some(cpu), MIN_LIMIT_MILLIS, None);
    }
    if let Some(memory) = resources.limits.get(MEMORY).filter(|_| resources.memory_limited) {
        list.insert(MEMORY.to_owned(), memory.clone());
    }
    list
}

fn millis_of(list: &ResourceList, name: &str) -> i64 {
    list.get(name).and_then(|text| Quantity::try_from(text).ok()).unwrap_or_default().milli_value()
}

pub(crate) fn allocated_requests(container: &k8s::Container) -> Option<ResourceList> {
    container.resources.as_ref().and_then(|r| r.requests.clone()).and_then(some_unless_empty)
}

/// `old` is the last status of the container, and `id` how a status names this instance.
pub fn of_container(
    container: &k8s::Container,
    instance: &ObservedContainer,
    id: &str,
    old: Option<&k8s::ContainerStatus>,
) -> k8s::ResourceRequirements {
    let mut shown = container.resources.clone().unwrap_or_default();
    if instance.state == ContainerState::Running {
        let reported = instance.resources.as_ref().map(Reported::read).unwrap_or_default();
        let same = |status: &&k8s::ContainerStatus| {
            state::running(status).is_some() && status.container_id.as_deref() == Some(id)
        };
        let before = old.filter(same).and_then(|status| status.resources.as_ref());
        if let Some(limits) = &mut shown.limits {
            let before = before.and_then(|resources| resources.limits.as_ref());
            apply_reported_amount(limits, CPU, reported.cpu_limit, MIN_LIMIT_MILLIS, before);
            apply_reported_amount(limits, MEMORY, reported.memory_limit, 0, before);
        }
        if let Some(requests) = &mut shown.requests {
            let before = before.and_then(|resources| resources.requests.as_ref());
            apply_reported_amount(requests, CPU, reported.cpu_request, MIN_REQUEST_MILLIS, before);
        }
    }
    shown.limits = shown.limits.and_then(some_unless_empty);
    shown.requests = shown.requests.and_then(some_unless_empty);
    shown
}

/// Puts the reported amount in place of the allocated one. Amounts up to `floor_millis` can't be told apart by the
/// kernel: there the allocated one stays. Without a report the amount that was shown before stays.
fn apply_reported_amount(
    list: &mut ResourceList,
    name: &str,
    reported: Option<Quantity>,
    floor_millis: i64,
    before: Option<&ResourceList>,
) {
    match reported {
        Some(amount) => {
            if amount.milli_value() > floor_millis || millis_of(list, name) > floor_millis {
                list.insert(name.to_owned(), amount.to_api());
            }
        }
        None => {
            if let Some(amount) = before.and_then(|before| before.get(name)) {
                list.insert(name.to_owned(), amount.clone());
            }
        }
    }
}

/// What a runtime says of a container's limits; absent where it says nothing or "no limit".
#[derive(Default)]
struct Reported {
    cpu_limit: Option<Quantity>,
    cpu_request: Option<Quantity>,
    memory_limit: Option<Quantity>,
}

impl Reported {
    fn read(resources: &LinuxResources) -> Self {
        let millis = |millis: i64| (millis > 0).then(|| Quantity::from_millis(millis));
        let memory = resources.memory_limit_in_bytes;
        Self {
            cpu_limit: millis(quota_to_millis(resources.cpu_quota, resources.cpu_period)),
            cpu_request: millis(shares_to_millis(resources.cpu_shares)),
            memory_limit: (memory > 0).then(|| Quantity::from_units(memory, Format::BinarySi)),
        }
    }
}

fn shares_to_millis(shares: i64) -> i64 {
    if shares < MIN_SHARES {
        return 0;
    }
    let scaled = shares.saturating_mul(1000);
    scaled / SHARES_PER_CPU + i64::from(scaled % SHARES_PER_CPU != 0)
}

/// 0: no limit.
fn quota_to_millis(quota: i64, period: i64) -> i64 {
    if quota <= 0 || period <= 0 { 0 } else { quota.saturating_mul(1000) / period }
}

fn some_unless_empty(list: ResourceList) -> Option<ResourceList> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_quotas_become_millicores() {
        let check = |shares, millis| assert_eq!(shares_to_millis(shares), millis, "{shares} shares");
        check(0, 0);
        check(1, 0);
        check(2, 2);
        check(51, 50);
        check(102, 100);
        check(256, 250);
        check(1024, 1000);
        check(262_144, 256_000);
        let check =
            |quota, period, millis| assert_eq!(quota_to_millis(quota, period), millis, "{quota}/{period}");
        check(-1, 100_000, 0);
        check(0, 100_000, 0);
        check(10_000, 0, 0);
        check(1_000, 100_000, 10);
        check(10_000, 100_000, 100);
        check(250_000, 100_000, 2_500);
    }
}
