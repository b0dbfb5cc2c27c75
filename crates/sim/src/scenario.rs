//! All that is decided before a run starts: what users ask of the node, the scheduled faults, and the rates of failing
//! calls. Each part has a name, so that a run can be repeated with some parts only.

use std::collections::BTreeSet;

use crate::drive::scheduled_faults::{self, ScheduledFault};
use crate::faults::Faults;
use crate::rng::Rng;
use crate::run::Profile;
use crate::time::{Nanos, SECOND};
use crate::workload::{Task, Workload, WorkloadSize};

pub struct Scenario {
    pub workload: Workload,
    pub scheduled_faults: Vec<(Nanos, ScheduledFault)>,
    pub faults: Faults,
    /// How long pods are added and removed, and faults happen.
    pub during: Nanos,
}

/// Pods that are added at the start must run by then.
const FIRST_PODS_RUN: Nanos = 20 * SECOND;

/// The names of parts: `t3` is a task, `x1` a scheduled fault; a word is the rate of a fault.
pub type ScenarioParts = BTreeSet<String>;

impl Scenario {
    pub fn seeded(rng: &mut Rng, profile: Profile) -> Self {
        let during = match profile {
            Profile::Short => rng.between(3, 15) * SECOND,
            Profile::Storage
            | Profile::Devices
            | Profile::Certificates
            | Profile::Logs
            | Profile::Crowded => rng.between(10, 60) * SECOND,
            _ => rng.between(40, 180) * SECOND,
        };
        let (workload, faults) = match profile {
            Profile::Calm => (Workload::seeded(rng, during, WorkloadSize::Full), Faults::none()),
            Profile::Faults => {
                (Workload::seeded(rng, during, WorkloadSize::Full), Faults::seeded(rng, during))
            }
            Profile::Short => {
                (Workload::seeded(rng, during, WorkloadSize::Small), Faults::seeded(rng, during))
            }
            Profile::Logs => {
                let workload = Workload::seeded(rng, during, WorkloadSize::Small).with_log_rotation();
                (workload, Faults::seeded(rng, during))
            }
            Profile::Crowded => (Workload::crowded(rng, during), Faults::seeded(rng, during)),
            Profile::Pressure => (Workload::that_grows(rng), Faults::seeded(rng, during)),
            Profile::Images => {
                let workload = Workload::seeded(rng, during, WorkloadSize::Small).with_image_garbage(rng);
                (workload, Faults::seeded(rng, during))
            }
            Profile::Certificates => {
                (Workload::seeded(rng, during, WorkloadSize::Certified), Faults::seeded(rng, during))
            }
            Profile::Storage | Profile::Devices => {
                let devices = profile == Profile::Devices;
                let size = if devices { WorkloadSize::WithDevices } else { WorkloadSize::WithClaims };
                let workload = Workload::seeded(rng, during, size);
                let detached = if workload.attaches { rng.below(3) } else { 0 };
                let broken_records = rng.below(3);
                let driver_lies = if rng.coin() { rng.below(200) } else { 0 };
                let faults = Faults::seeded(rng, during);
                (workload, Faults { detached, broken_records, driver_lies, ..faults })
            }
            Profile::Poisoned => {
                let panicking_pod = Some("p0".to_owned());
                match rng.coin() {
                    true => {
                        let workload = Workload::plain(rng, 5).with_overhead("p0");
                        (workload, Faults { panicking_pod, ..Faults::none() })
                    }
                    false => {
                        let workload = Workload::seeded(rng, during, WorkloadSize::Small);
                        (workload, Faults { panicking_pod, ..Faults::seeded(rng, during) })
                    }
                }
            }
            Profile::Extreme => {
                let clock_jumps = rng.below(3);
                let (until, dies, extreme) = (during, rng.below(5), true);
                (Workload::extreme(rng), Faults { until, clock_jumps, dies, extreme, ..Faults::none() })
            }
            Profile::Stuck => {
                let stuck_pod = Some("p0-1".into());
                (Workload::plain(rng, 5), Faults { until: during, storms: 3, stuck_pod, ..Faults::none() })
            }
            Profile::Refused => {
                let workload =
                    Workload::plain(rng, 5).with_late(rng, FIRST_PODS_RUN, during).with_log_rotation();
                (workload, Faults::refused_statuses(rng, during, "p0-1".into()))
            }
            Profile::Ghosts => {
                let workload = Workload::plain(rng, 6).with_late(rng, FIRST_PODS_RUN, during);
                let gone = ["p0", "p1", "p2", "p3", "p4"];
                let removed_but_listed_of = gone.map(|name| format!("{name}-1").as_str().into()).to_vec();
                let faults = Faults { until: during, removed_but_listed_of, ..Faults::none() };
                (workload.without(rng, &gone, FIRST_PODS_RUN, during), faults)
            }
        };
        let mut scheduled_faults = scheduled_faults::seeded(rng, &faults);
        if matches!(profile, Profile::Refused | Profile::Ghosts) {
            let dies = |rng: &mut Rng| (rng.between(FIRST_PODS_RUN, during), ScheduledFault::AgentDies);
            scheduled_faults.extend((0..rng.between(1, 4)).map(|_| dies(rng)));
        }
        Self { workload, scheduled_faults, faults, during }
    }

    /// What the run is made of.
    pub fn parts(&mut self) -> ScenarioParts {
        let tasks = self.workload.tasks.iter().enumerate();
        let tasks = tasks.filter(|(_, (_, task))| !is_prerequisite(task)).map(|(n, _)| format!("t{n}"));
        let scheduled_faults = (0..self.scheduled_faults.len()).map(|n| format!("x{n}"));
        let rates = self.faults.rates();
        let rates = rates.into_iter().filter(|(_, rate)| **rate > 0).map(|(name, _)| name.to_owned());
        tasks.chain(scheduled_faults).chain(rates).collect()
    }

    /// Removes all parts that are not among these.
    pub fn keep(&mut self, only: &ScenarioParts) {
        let mut number = 0;
        self.workload.tasks.retain(|(_, task)| {
            number += 1;
            is_prerequisite(task) || only.contains(&format!("t{}", number - 1))
        });
        number = 0;
        self.scheduled_faults.retain(|_| {
            number += 1;
            only.contains(&format!("x{}", number - 1))
        });
        for (name, rate) in self.faults.rates() {
            if !only.contains(name) {
                *rate = 0;
            }
        }
    }

    /// Each part with its description.
    pub fn descriptions(&mut self) -> Vec<(String, String)> {
        let tasks = self.workload.tasks.iter().enumerate();
        let task = |(n, (at, task)): (usize, &(Nanos, Task))| {
            (format!("t{n}"), describe_at(*at, &task.description()))
        };
        let mut words: Vec<_> = tasks.map(task).collect();
        let scheduled_faults = self.scheduled_faults.iter().enumerate();
        words.extend(
            scheduled_faults.map(|(n, (at, t))| (format!("x{n}"), describe_at(*at, &format!("{t:?}")))),
        );
        for (name, rate) in self.faults.rates().into_iter().filter(|(_, rate)| **rate > 0) {
            words.push((name.to_owned(), format!("{rate} of 1000")));
        }
        words
    }
}

/// Objects and claims are never left out: without them pods would wait for ever and the run would fail for another
/// reason.
fn is_prerequisite(task: &Task) -> bool {
    matches!(task, Task::Object { .. } | Task::Claim { .. } | Task::Driver { .. })
}

fn describe_at(at: Nanos, what: &str) -> String {
    format!("at {:.3} s: {what}", at as f64 / SECOND as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_all_parts_changes_nothing_and_keeping_none_leaves_nothing() {
        let of = |only: Option<&ScenarioParts>| {
            let mut scenario = Scenario::seeded(&mut Rng::new(5), Profile::Faults);
            if let Some(only) = only {
                scenario.keep(only);
            }
            scenario
        };
        let all = of(None).parts();
        assert!(all.len() > 10, "{all:?}");
        assert_eq!(of(Some(&all)).descriptions(), of(None).descriptions());
        assert!(of(Some(&ScenarioParts::new())).parts().is_empty());
        let one: ScenarioParts = ["t1".to_owned()].into();
        assert_eq!(of(Some(&one)).descriptions()[0].1, of(None).descriptions()[1].1);
    }
}
