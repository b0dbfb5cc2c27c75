//! Claims that pods use, and the CSI driver that serves them, over a run.

use super::Task;
use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::ClaimChange;

/// How many claims there are. The last one may be used by one pod at a time.
pub const CLAIMS: u64 = 2;

/// In runs with devices: whether pods get the volume of this claim as a device.
pub fn is_block(number: u64) -> bool {
    number == 0
}

pub fn claim_name(number: u64) -> String {
    format!("claim-{number}")
}

/// Claims are created late, bound late, deleted and created again with another volume. In the end each exists and is
/// bound, and the driver, which registers and disappears in between, is registered.
pub fn seeded(rng: &mut Rng, during: Nanos, devices: bool, tasks: &mut Vec<(Nanos, Task)>) {
    for number in 0..CLAIMS {
        let comes =
            ClaimChange::Comes { exclusive: number == CLAIMS - 1, block: devices && is_block(number) };
        let mut now = rng.below(during / 6);
        let mut put = |at: Nanos, change| {
            tasks.push((at.min(during - 1), Task::Claim { name: claim_name(number), change }));
        };
        loop {
            put(now, comes);
            now += pause(rng);
            put(now, ClaimChange::GetsVolume);
            now += pause(rng);
            put(now, ClaimChange::Binds);
            if rng.per_mille(400) {
                put(now + rng.between(SECOND, 30 * SECOND), ClaimChange::Grows);
            }
            // Most claims stay to the end.
            if rng.per_mille(600) {
                break;
            }
            now += rng.between(SECOND, 40 * SECOND);
            if now >= during {
                break;
            }
            put(now, ClaimChange::Vanishes);
            now += pause(rng);
        }
    }
    tasks.push((rng.below(during / 6), Task::Driver { there: true }));
    for _ in 0..rng.below(3) {
        let at = rng.below(during);
        let back = (at + rng.between(10 * MILLI, 10 * SECOND)).min(during - 1);
        tasks.extend([(at, Task::Driver { there: false }), (back, Task::Driver { there: true })]);
    }
    tasks.push((during - 1, Task::Driver { there: true }));
}

fn pause(rng: &mut Rng) -> Nanos {
    if rng.coin() { rng.between(MILLI, 300 * MILLI) } else { rng.between(300 * MILLI, 8 * SECOND) }
}
