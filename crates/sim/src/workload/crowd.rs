//! A node with little room: pods of the API that request much of its CPUs, some of them critical.

use model::node::NodeConfig;
use model::pod::Source;

use super::{SimulatedPod, Task, Workload, config, facts, images};
use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};

/// A label of the Node that its watch does not show.
pub const NEW_LABEL: [&str; 2] = ["new", "yes"];
/// A label that the Node never has.
pub(super) const NO_LABEL: &str = "none";

/// CPUs that the pods share.
const CPUS: u32 = 4;

/// Below, at and above the critical priority; `None` counts as unimportant.
const PRIORITIES: [Option<i32>; 6] =
    [None, Some(0), Some(100), Some(2_000_000_000), Some(2_000_000_000), Some(2_000_001_000)];

impl Workload {
    /// Pods come and go all the time, and seldom all of them fit.
    pub fn crowded(rng: &mut Rng, during: Nanos) -> Self {
        let config = NodeConfig { sources: vec![Source::Api], serialize_image_pulls: false, ..config(rng) };
        let (images, _) = images(rng, SECOND);
        let mut tasks = Vec::new();
        for number in 0..rng.between(4, 10) {
            let name = format!("p{number}");
            let mut now = rng.below(during / 2);
            let mut version = 1;
            while now < during {
                tasks.push((now, crowding_pod(rng, &name, version).put(Source::Api)));
                now += rng.between(100 * MILLI, 30 * SECOND);
                if now >= during || rng.per_mille(300) {
                    break;
                }
                tasks.push((now, Task::Remove { source: Source::Api, name: name.clone() }));
                now += rng.between(MILLI, 5 * SECOND);
                version += 1;
            }
        }
        let facts = model::node::HostFacts { cpus: CPUS, ..facts() };
        Self { config, facts, images, tasks, hints_by_id: rng.coin(), attaches: false }
    }
}

fn crowding_pod(rng: &mut Rng, name: &str, version: u64) -> SimulatedPod {
    let label = match rng.below(12) {
        0 => Some((NO_LABEL, "yes")),
        1 | 2 => Some((NEW_LABEL[0], NEW_LABEL[1])),
        _ => None,
    };
    let (cpu_millis, grace_secs) = (rng.between(1, 25) * 100, rng.below(8));
    SimulatedPod::plain(name, &format!("{name}-{version}"))
        .with_requests(cpu_millis, *rng.pick(&PRIORITIES), grace_secs)
        .selecting(label)
}
