//! Which pods have to go so that a critical pod fits.
//!
//! The choice is upstream's: guaranteed pods go only for what all others together would not free, burstable ones only for
//! what the best-effort ones and the chosen guaranteed ones would not free. Within a class the pod goes whose requests come
//! nearest to what is still lacking.

use model::PodUid;
use model::pod::{PodView, QosClass};

use super::predicates::{Shortage, amount_of};
use crate::resources::{Amounts, is_critical};

/// A pod that may be preempted.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub uid: &'a PodUid,
    pub qos: QosClass,
    /// What the node gets back when the pod has ended.
    pub requests: &'a Amounts,
}

/// What is lacking of one resource. Never zero or less.
#[derive(Clone, PartialEq, Debug)]
struct Lacking {
    name: String,
    amount: i64,
}

/// Whether `victim` may be ended so that `pod` can run.
pub(crate) fn may_preempt(pod: &PodView, victim: &PodView) -> bool {
    if is_critical(pod) && !is_critical(victim) {
        return true;
    }
    match (pod.spec().priority, victim.spec().priority) {
        (Some(own), Some(other)) => own > other,
        _ => false,
    }
}

/// The victims in the order in which they are named. The error lists what all candidates together would not free.
pub(crate) fn choose_victims(
    shortages: &[Shortage],
    candidates: &[Candidate<'_>],
) -> Result<Vec<PodUid>, String> {
    let lacking: Vec<Lacking> = shortages
        .iter()
        .map(|shortage| Lacking { name: shortage.name.clone(), amount: shortage.lacking() })
        .filter(|lacking| lacking.amount > 0)
        .collect();
    let still = without(&lacking, candidates);
    if !still.is_empty() {
        return Err(format!("no set of running pods found to reclaim resources: {}", listed(&still)));
    }
    let of = |class: QosClass| -> Vec<Candidate<'_>> {
        candidates.iter().filter(|candidate| candidate.qos == class).copied().collect()
    };
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let guaranteed = nearest(guaranteed, without(&without(&lacking, &best_effort), &burstable));
    let burstable = nearest(burstable, without(&without(&lacking, &best_effort), &guaranteed));
    let best_effort = nearest(best_effort, without(&without(&lacking, &burstable), &guaranteed));
    let chosen = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(chosen.map(|candidate| candidate.uid.clone()).collect())
}

/// What is lacking when these pods have ended.
fn without(lacking: &[Lacking], pods: &[Candidate<'_>]) -> Vec<Lacking> {
    let left = lacking.iter().map(|Lacking { name, amount }| {
        let freed = pods.iter().fold(0i64, |sum, pod| sum.saturating_add(freed_by(pod, name)));
        Lacking { name: name.clone(), amount: amount.saturating_sub(freed) }
    });
    left.filter(|lacking| lacking.amount > 0).collect()
}

fn freed_by(pod: &Candidate<'_>, resource: &str) -> i64 {
    amount_of(resource, pod.requests).max(0)
}

/// Takes the nearest pod again and again, until nothing is lacking.
fn nearest<'a>(mut pods: Vec<Candidate<'a>>, mut lacking: Vec<Lacking>) -> Vec<Candidate<'a>> {
    let mut chosen = Vec::new();
    while !lacking.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (at, pod) in pods.iter().enumerate() {
            let distance = distance(pod, &lacking);
            let nearer = best.is_none_or(|(known, least)| {
                distance < least || (distance == least && !requests_more(pod, &pods[known]))
            });
            if nearer {
                best = Some((at, distance));
            }
        }
        let Some((at, _)) = best else { break };
        // The last one takes its place, as with upstream: of equal pods the later one goes.
        let pod = pods.swap_remove(at);
        lacking = without(&lacking, &[pod]);
        chosen.push(pod);
    }
    chosen
}

/// 0: the pod frees all that is lacking. Each resource adds at most 1.
fn distance(pod: &Candidate<'_>, lacking: &[Lacking]) -> f64 {
    let of_resource = |Lacking { name, amount }: &Lacking| {
        let missing = amount.saturating_sub(freed_by(pod, name)).max(0);
        (missing as f64 / *amount as f64).powi(2)
    };
    lacking.iter().map(of_resource).sum()
}

/// Compares memory first, then CPU.
fn requests_more(pod: &Candidate<'_>, other: &Candidate<'_>) -> bool {
    let size = |pod: &Candidate<'_>| (pod.requests.memory_bytes(), pod.requests.cpu_millis());
    size(pod) > size(other)
}

/// In upstream's form.
fn listed(lacking: &[Lacking]) -> String {
    let items = lacking.iter().map(|Lacking { name, amount }| format!("(res: {name}, q: {amount}), "));
    format!("[{}]", items.collect::<String>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn amounts(text: &str) -> Amounts {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        let list = pairs.map(|(name, amount)| (name.to_owned(), model::k8s::Quantity(amount.to_owned())));
        Amounts::from_api(Some(&list.collect()))
    }

    /// `cpu=500`: 500 thousandths are lacking.
    fn shortages(text: &str) -> Vec<Shortage> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        let shortage = |(name, amount): (&str, &str)| Shortage {
            name: name.to_owned(),
            requested: amount.parse().unwrap(),
            used: 0,
            capacity: 0,
        };
        pairs.map(shortage).collect()
    }

    /// `b-1 cpu=1` is a burstable pod, `g-…` a guaranteed one, and every other one is best-effort.
    #[track_caller]
    fn check(lacking: &str, pods: &[&str], expect: Result<&str, &str>) {
        let pods: Vec<(PodUid, Amounts)> = pods
            .iter()
            .map(|text| {
                let (uid, requests) = text.split_once(' ').unwrap_or((text, ""));
                (uid.into(), amounts(requests))
            })
            .collect();
        let chosen = choose_victims(&shortages(lacking), &candidates(&pods));
        let chosen = chosen.map(|uids| uids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(chosen, expect.map(str::to_owned).map_err(str::to_owned), "{lacking}");
    }

    fn candidates(pods: &[(PodUid, Amounts)]) -> Vec<Candidate<'_>> {
        let candidate = |(uid, requests)| {
            let qos = match &PodUid::as_str(uid)[..2] {
                "g-" => QosClass::Guaranteed,
                "b-" => QosClass::Burstable,
                _ => QosClass::BestEffort,
            };
            Candidate { uid, qos, requests }
        };
        pods.iter().map(|(uid, requests)| candidate((uid, requests))).collect()
    }

    #[test]
    fn the_victims() {
        check("cpu=500", &["b-1 cpu=1"], Ok("b-1"));
        check(
            "cpu=500 memory=10",
            &["b-1 cpu=200m"],
            Err(
                "no set of running pods found to reclaim resources: [(res: cpu, q: 300), (res: memory, q: 10), ]",
            ),
        );
        check("pods=1", &[], Err("no set of running pods found to reclaim resources: [(res: pods, q: 1), ]"));
        // Nothing is lacking, so nobody goes.
        check("cpu=0", &["b-1 cpu=1"], Ok(""));
        // A guaranteed pod stays if the others suffice, however near it is.
        check("cpu=500", &["g-1 cpu=500m", "b-1 cpu=3"], Ok("b-1"));
        check("cpu=500", &["g-1 cpu=500m", "b-1 cpu=200m"], Ok("g-1"));
        // The nearest: one that is enough, and of several that are enough the smallest.
        check("cpu=500", &["b-1 cpu=100m", "b-2 cpu=400m", "b-3 cpu=600m", "b-4 cpu=2"], Ok("b-3"));
        check("memory=500", &["b-1 memory=9k", "b-2 memory=600", "b-3 memory=700"], Ok("b-2"));
        check("cpu=500", &["b-1 cpu=1 memory=2", "b-2 cpu=2 memory=1"], Ok("b-2"));
        // Two that are not enough alone: the larger one first, then the one that is nearest to what is left.
        check("cpu=900", &["b-1 cpu=400m", "b-2 cpu=300m", "b-3 cpu=700m"], Ok("b-3 b-2"));
        // All equal: the later one, and then the one that took its place.
        check("pods=1", &["e-1", "e-2", "e-3"], Ok("e-3"));
        check("pods=2", &["e-1", "e-2", "e-3"], Ok("e-3 e-2"));
        // A burstable pod goes for what the guaranteed one does not free; the best-effort one is spared then.
        check("pods=2 memory=50", &["e-1", "b-1 memory=10", "g-1 memory=45"], Ok("b-1 g-1"));
        check("pods=2 memory=50", &["e-1", "b-1", "g-1 memory=55"], Ok("e-1 g-1"));
        check("example.com/gpu=2", &["e-1", "b-1 example.com/gpu=1", "b-2 example.com/gpu=1"], Ok("b-2 b-1"));
    }

    #[test]
    fn who_may_preempt_whom() {
        let pod = |priority: Value| sample::pod(json!({"priority": priority, "containers": []}));
        let (critical, higher) = (json!(2_000_000_000), json!(2_000_001_000));
        // may preempt?, who, whom
        let table = [
            (true, &critical, json!(0)),
            (true, &critical, json!(null)),
            (true, &critical, json!(1_999_999_999)),
            (false, &critical, critical.clone()),
            (false, &critical, higher.clone()),
            (true, &higher, critical.clone()),
            (false, &json!(5), json!(null)),
            (true, &json!(5), json!(4)),
        ];
        for (expect, own, other) in table {
            assert_eq!(may_preempt(&pod(own.clone()), &pod(other.clone())), expect, "{own} {other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// The victims free enough, no victim is named twice, and without candidates' help there is an error.
        #[test]
        fn victims_are_enough(
            pods in prop::collection::vec((0..3usize, 0..2000i64, 0..5000i64), 0..12),
            (cpu, memory, count) in (0..6000i64, 0..9000i64, 0..4i64),
        ) {
            let pods: Vec<(PodUid, Amounts)> = pods
                .iter()
                .enumerate()
                .map(|(number, (class, cpu, memory))| {
                    let uid = format!("{}{number}", ["e-", "b-", "g-"][*class]);
                    (uid.as_str().into(), amounts(&format!("cpu={cpu}m memory={memory}")))
                })
                .collect();
            let shortages = shortages(&format!("pods={count} cpu={cpu} memory={memory}"));
            let all = candidates(&pods);
            let sum = |uids: &[PodUid], name: &str| -> i64 {
                all.iter().filter(|c| uids.contains(c.uid)).map(|c| freed_by(c, name)).sum()
            };
            let everybody: Vec<PodUid> = pods.iter().map(|(uid, _)| uid.clone()).collect();
            let enough = |uids: &[PodUid]| shortages.iter().all(|s| sum(uids, &s.name) >= s.requested);
            match choose_victims(&shortages, &all) {
                Ok(victims) => {
                    prop_assert!(enough(&victims));
                    let distinct: std::collections::BTreeSet<_> = victims.iter().collect();
                    prop_assert_eq!(distinct.len(), victims.len());
                }
                Err(_) => prop_assert!(!enough(&everybody)),
            }
        }
    }

    #[test]
    fn amounts_beyond_all_measure() {
        check("cpu=9223372036854775807", &["b-1 cpu=9e28", "b-2 cpu=9e28"], Ok("b-2"));
        let huge = Shortage { name: "cpu".into(), requested: i64::MAX, used: i64::MAX, capacity: i64::MIN };
        assert_eq!(huge.lacking(), i64::MAX);
    }
}
