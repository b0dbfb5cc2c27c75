//! Usage of pods and containers from the runtime, with the gate `PodAndContainerStatsFromCRI`.
//!
//! ```text
//!   ListPodSandboxStats ──> those of pods that the agent knows ──> PodFigures
//!            | not implemented
//!            +──> None: they come from cgroups
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Wall;
use model::cri::{ContainerStats, InterfaceStats, ResourceUsage, SandboxStats};
use ports::{
    CgroupUsage, Disposition, InterfaceFigures, PsiByResource, PsiData, PsiStats, Runtime, SandboxFilter,
    TrafficFigures,
};
use tokio::sync::Mutex;

use super::StatsError;
use super::figures::{PodFigures, PodToRead};

/// Shortest interval over which a CPU rate is computed.
const SHORTEST_RATE: i64 = 1_000_000_000;

/// What is remembered between two answers of the runtime.
#[derive(Default)]
pub(super) struct RuntimeFigures {
    rates: Mutex<Rates>,
    /// The fallback to cgroups was logged.
    fell_back: AtomicBool,
}

impl RuntimeFigures {
    /// Usage of the pods for which the runtime reports it. `None` when the runtime does not implement the call.
    pub async fn pods(
        &self,
        runtime: &dyn Runtime,
        wanted: Vec<PodToRead>,
        now: Wall,
    ) -> Result<Option<Vec<PodFigures>>, StatsError> {
        let stats = match runtime.list_pod_sandbox_stats(&SandboxFilter::default()).await {
            Ok(stats) => stats,
            Err(error) if error.disposition() == Disposition::Unsupported => {
                if !self.fell_back.swap(true, Ordering::Relaxed) {
                    let gate = "PodAndContainerStatsFromCRI";
                    tracing::warn!(gate, %error, "figures of pods and containers come from cgroups");
                }
                return Ok(None);
            }
            Err(error) => return Err(StatsError::Runtime(error)),
        };
        self.fell_back.store(false, Ordering::Relaxed);
        let mut by_id: BTreeMap<String, SandboxStats> =
            stats.into_iter().map(|one| (one.id.clone(), dated(one, now))).collect();
        let mut rates = self.rates.lock().await;
        rates.0.retain(|id, _| by_id.values().any(|sandbox| names(sandbox, id)));
        let figures = |pod: PodToRead| {
            let stats = by_id.remove(pod.sandbox_id())?;
            Some(figures(pod, stats, &mut rates))
        };
        Ok(Some(wanted.into_iter().filter_map(figures).collect()))
    }
}

/// What has no figures (a container that has just started, say) has no time either: upstream shows the time of its own
/// reading then.
fn dated(mut sandbox: SandboxStats, now: Wall) -> SandboxStats {
    let of_containers = sandbox.containers.iter_mut().map(|container| &mut container.usage);
    for usage in of_containers.chain([&mut sandbox.usage]) {
        if usage.timestamp <= 0 {
            usage.timestamp = now.0;
        }
    }
    sandbox
}

fn names(sandbox: &SandboxStats, id: &str) -> bool {
    sandbox.id == id || sandbox.containers.iter().any(|container| container.id == id)
}

fn figures(pod: PodToRead, stats: SandboxStats, rates: &mut Rates) -> PodFigures {
    let mut usage = usage(&stats.id, &stats.usage, rates);
    usage.tasks = stats.process_count;
    // The interface has no swap of a sandbox.
    let swap = |part: fn(&ResourceUsage) -> Option<u64>| {
        stats.containers.iter().filter_map(|one| part(&one.usage)).reduce(u64::saturating_add)
    };
    usage.swap_bytes = swap(|usage| usage.swap_usage_bytes);
    let available = swap(|usage| usage.swap_available_bytes);
    usage.swap_limit_bytes = limit(available, usage.swap_bytes);
    let mut containers: BTreeMap<String, ContainerStats> =
        stats.containers.into_iter().map(|one| (one.id.clone(), one)).collect();
    let of_container = |id: &str| {
        let stats = containers.remove(id)?;
        let usage = self::usage(&stats.id, &stats.usage, rates);
        Some((String::new(), usage, stats.writable_layer))
    };
    let mut figures = pod.figures(of_container);
    figures.usage = Some(usage);
    figures.default_interface = stats.default_interface.as_ref().and_then(interface);
    figures.interfaces = stats.interfaces.iter().filter_map(interface).collect();
    figures
}

fn usage(id: &str, told: &ResourceUsage, rates: &mut Rates) -> CgroupUsage {
    CgroupUsage {
        at: Wall(told.timestamp),
        cpu_nanos: told.cpu_usage_core_nano_seconds,
        cpu_nano_cores: told.cpu_usage_nano_cores.or_else(|| rates.since_last(id, told)),
        memory_bytes: told.memory_usage_bytes,
        working_set_bytes: told.memory_working_set_bytes,
        rss_bytes: told.memory_rss_bytes,
        page_faults: told.memory_page_faults,
        major_page_faults: told.memory_major_page_faults,
        memory_limit_bytes: limit(told.memory_available_bytes, told.memory_working_set_bytes),
        swap_bytes: told.swap_usage_bytes,
        swap_limit_bytes: limit(told.swap_available_bytes, told.swap_usage_bytes),
        pressure: PsiByResource {
            cpu: told.cpu_pressure.as_ref().map(pressure),
            memory: told.memory_pressure.as_ref().map(pressure),
            io: told.io_pressure.as_ref().map(pressure),
        },
        ..Default::default()
    }
}

/// The runtime reports what is available instead of the limit.
fn limit(available: Option<u64>, used: Option<u64>) -> Option<u64> {
    available.map(|available| available.saturating_add(used.unwrap_or(0)))
}

/// The total is passed on in the runtime's unit, as upstream does: the interface says nanoseconds, but runtimes copy
/// the kernel's microseconds.
fn pressure(told: &model::cri::Pressure) -> PsiStats {
    let stall = |told: &model::cri::PressureStall| PsiData {
        total_micros: told.total,
        averages: [told.avg10, told.avg60, told.avg300],
    };
    PsiStats { some: stall(&told.some), full: stall(&told.full) }
}

/// `None` unless the runtime reports all numbers of a summary: a missing number is not shown as zero.
fn interface(told: &InterfaceStats) -> Option<InterfaceFigures> {
    let traffic = |bytes: Option<u64>, errors: Option<u64>| {
        Some(TrafficFigures { bytes: bytes?, errors: errors?, ..Default::default() })
    };
    let (rx, tx) = (traffic(told.rx_bytes, told.rx_errors)?, traffic(told.tx_bytes, told.tx_errors)?);
    Some(InterfaceFigures { name: told.name.clone(), rx, tx })
}

/// CPU rates, by id, where the runtime reports only the total CPU time.
#[derive(Default)]
struct Rates(BTreeMap<String, Sample>);

struct Sample {
    at: i64,
    cpu_nanos: u64,
    nano_cores: Option<u64>,
}

impl Rates {
    /// Over the time since the last answer that is old enough. If the runtime's clock was set back, the last rate is kept
    /// until a second has passed on the new time.
    fn since_last(&mut self, id: &str, told: &ResourceUsage) -> Option<u64> {
        let (at, cpu_nanos) = (told.timestamp, told.cpu_usage_core_nano_seconds?);
        let nano_cores = match self.0.get(id) {
            Some(last) if at < last.at => last.nano_cores,
            Some(last) if at.saturating_sub(last.at) < SHORTEST_RATE => return last.nano_cores,
            Some(last) => cpu_nanos.checked_sub(last.cpu_nanos).map(|used| {
                let seconds = at.saturating_sub(last.at) as f64 / 1e9;
                (used as f64 / seconds) as u64
            }),
            None => None,
        };
        self.0.insert(id.to_owned(), Sample { at, cpu_nanos, nano_cores });
        nano_cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_use_is_told_over_a_second_at_least() {
        let mut rates = Rates::default();
        let mut check = |millis: i64, cpu_millis: u64, expect: Option<u64>| {
            let told = ResourceUsage {
                timestamp: millis * 1_000_000,
                cpu_usage_core_nano_seconds: Some(cpu_millis * 1_000_000),
                ..Default::default()
            };
            assert_eq!(usage("c1", &told, &mut rates).cpu_nano_cores, expect, "{millis} {cpu_millis}");
        };
        check(1000, 10, None);
        check(1500, 400, None);
        check(3000, 1010, Some(500_000_000));
        check(3500, 9000, Some(500_000_000));
        // A container that was started anew under its id would have used less than before.
        check(5000, 20, None);
        check(7000, 20, Some(0));
    }

    #[test]
    fn cpu_use_goes_on_after_the_runtimes_clock_was_set_back() {
        let mut rates = Rates::default();
        let mut check = |seconds: i64, cpu_seconds: u64, expect: Option<u64>| {
            let told = ResourceUsage {
                timestamp: seconds * 1_000_000_000,
                cpu_usage_core_nano_seconds: Some(cpu_seconds * 1_000_000_000),
                ..Default::default()
            };
            assert_eq!(usage("c1", &told, &mut rates).cpu_nano_cores, expect, "{seconds} {cpu_seconds}");
        };
        check(10_000, 100, None);
        check(10_010, 105, Some(500_000_000));
        check(5_000, 107, Some(500_000_000));
        check(5_010, 117, Some(1_000_000_000));
    }

    #[test]
    fn what_is_available_makes_the_limit() {
        assert_eq!(limit(Some(5), Some(7)), Some(12));
        assert_eq!(limit(Some(u64::MAX), Some(7)), Some(u64::MAX));
        assert_eq!(limit(None, Some(7)), None);
    }

    #[test]
    fn an_interface_is_told_whole_or_not_at_all() {
        let number = |value| Some(value);
        let whole = InterfaceStats {
            name: "eth0".into(),
            rx_bytes: number(1),
            rx_errors: number(2),
            tx_bytes: number(3),
            tx_errors: number(4),
        };
        let found = interface(&whole).unwrap();
        assert_eq!((found.rx.bytes, found.rx.errors, found.tx.bytes, found.tx.errors), (1, 2, 3, 4));
        assert_eq!(interface(&InterfaceStats { tx_errors: None, ..whole }), None);
    }
}
