//! Whether the node is short of something, since when, and whether a pod has to go for it.
//!
//! ```text
//!   timer, notice of the kernel ──> read ──> figures ──> which thresholds are met, and for how long
//!         ^                                                │ none, or not long enough
//!         └────────────────────────────────────────────────┤
//!                                                          v
//!   nothing is short any more <── fresh figures <── dead containers and unused images are removed (disks only)
//!                                       │ still short
//!                                       v
//!                     measure the pods ──> evict the first that may go ──> wait for its end ──> fresh figures
//! ```
//! One pod goes at a time, and only figures whose reading began after the end of the last one count for the next.

pub mod rank;
pub mod schedule;
pub mod signals;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::eviction::{
    DiskFigures, EvictionConfig, EvictionSignal, EvictionThreshold, FigureGroup, MemoryNoticeLevels,
    NodeFigures, NodePressure, SignalKind,
};
use model::report::SignalReport;
use model::{Mono, PodUid};

use rank::Shortage;
use signals::{FilesystemLayout, SignalReading};

/// After a reading that failed, and after an attempt to end a shortage that came to nothing.
const NEXT_ATTEMPT: Duration = Duration::from_secs(10);
/// Notices are asked for anew when the level differs by more than this part of the limit.
const LEVEL_TOLERANCE: u64 = 200;

/// Whether unused images are removed. An image that only dead containers use is unused once these are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageReclaim {
    No,
    AfterContainers,
    /// `collected`: how many images had been removed when the time of this step was set last.
    Running {
        collected: u64,
    },
}

/// What is being done about a shortage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Activity {
    #[default]
    Watching,
    /// Dead containers of these pods are removed, and then images that nothing uses.
    Reclaiming { signal: EvictionSignal, containers: BTreeSet<PodUid>, images: ImageReclaim },
    /// What pods use is measured, in this call.
    MeasuringPods { call: u64, signal: EvictionSignal },
    /// The pod was evicted and has not ended yet. `late`: it has had all the time that was given to it.
    Evicting { pod: PodUid, signal: EvictionSignal, late: bool },
}

/// Of one group.
#[derive(Clone, Debug, Default)]
struct Group {
    latest: Option<(Mono, NodeFigures)>,
    before: BTreeMap<EvictionSignal, SignalReading>,
    in_flight: bool,
    /// A reading that begins at or after this is wanted.
    wanted: Option<Mono>,
    failure: Option<String>,
}

/// The filesystems of the runtime, as they were read last.
struct ImageDisks {
    images: DiskFigures,
    containers: Option<DiskFigures>,
    at: Mono,
}

type ThresholdKey = (EvictionSignal, Duration);

fn key(threshold: &EvictionThreshold) -> ThresholdKey {
    (threshold.signal, threshold.grace)
}

/// A threshold that is met for longer than its grace period.
#[derive(Clone, PartialEq, Debug)]
pub struct Due {
    pub threshold: EvictionThreshold,
    pub reading: SignalReading,
}

impl Due {
    pub fn shortage(&self) -> Shortage {
        Shortage {
            signal: self.threshold.signal,
            threshold: signals::threshold_quantity(&self.threshold, self.reading.capacity),
            reading: self.reading,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct NodeEviction {
    groups: BTreeMap<FigureGroup, Group>,
    /// Since when each threshold is met without a break.
    first_met: BTreeMap<ThresholdKey, Mono>,
    /// Thresholds that were met for longer than their grace at the last look: they stay met until the minimum is reclaimed.
    unresolved: BTreeSet<ThresholdKey>,
    /// When each signal was last below one of its thresholds.
    last_short: BTreeMap<EvictionSignal, Mono>,
    pressure: NodePressure,
    pub activity: Activity,
    /// Figures that were not read after this are older than what was done last.
    fresh_after: Option<Mono>,
    /// Signals for which dead containers and unused images were removed since the last eviction.
    pub reclaimed: BTreeSet<EvictionSignal>,
    /// The kernel gave no notices, and the log says so.
    pub notices_failed: bool,
    /// Nothing could be done, so nothing is tried before this.
    not_before: Mono,
    /// Which notices of the kernel were asked for.
    notices: Option<MemoryNoticeLevels>,
    pub calls: u64,
}

impl NodeEviction {
    pub fn pressure(&self) -> NodePressure {
        self.pressure
    }

    /// Whether a threshold was met for longer than its grace at the last look.
    pub fn is_anything_due(&self) -> bool {
        !self.unresolved.is_empty()
    }

    /// The groups whose figures the thresholds are about.
    pub fn groups(config: &EvictionConfig) -> BTreeSet<FigureGroup> {
        let of = |threshold: &EvictionThreshold| match threshold.signal.kind() {
            SignalKind::Memory => vec![FigureGroup::Memory],
            SignalKind::Bytes | SignalKind::Inodes => {
                vec![FigureGroup::NodeFilesystem, FigureGroup::ImageFilesystem]
            }
            SignalKind::Processes => vec![FigureGroup::Processes],
        };
        config.thresholds.iter().flat_map(of).collect()
    }

    /// Whether the group is to be read now. If it is being read, it is read again after that.
    pub fn request(&mut self, group: FigureGroup, now: Mono) -> bool {
        let group = self.groups.entry(group).or_default();
        if group.in_flight {
            group.wanted = Some(now);
            return false;
        }
        (group.in_flight, group.wanted) = (true, None);
        true
    }

    /// Takes a reading that began at `at`. `Some`: a message for the log.
    pub fn figures_read(
        &mut self,
        group: FigureGroup,
        at: Mono,
        result: Result<NodeFigures, String>,
    ) -> Option<String> {
        let before = self.own_readings(group);
        let known = self.groups.entry(group).or_default();
        known.in_flight = false;
        match result {
            Ok(figures) if figures.group() == group => {
                known.before = before;
                known.latest = Some((at, figures));
                known.failure = None;
                None
            }
            Ok(_) => None,
            Err(message) => {
                let told = known.failure.as_ref() == Some(&message);
                known.failure = Some(message.clone());
                (!told).then(|| format!("figures of the node ({group:?}) can't be read: {message}"))
            }
        }
    }

    fn own_readings(&self, group: FigureGroup) -> BTreeMap<EvictionSignal, SignalReading> {
        let latest = self.groups.get(&group).and_then(|group| group.latest.as_ref());
        latest.map(|(at, figures)| signals::readings(figures, *at)).unwrap_or_default()
    }

    fn disks(&self) -> (Option<DiskFigures>, Option<ImageDisks>) {
        let latest = |group| self.groups.get(&group).and_then(|known| known.latest.as_ref());
        let node = latest(FigureGroup::NodeFilesystem).and_then(|(_, figures)| match figures {
            NodeFigures::NodeFilesystem(disk) => Some(*disk),
            _ => None,
        });
        let images = latest(FigureGroup::ImageFilesystem).and_then(|(at, figures)| match figures {
            NodeFigures::ImageFilesystem { images, containers } => {
                Some(ImageDisks { images: *images, containers: *containers, at: *at })
            }
            _ => None,
        });
        (node, images)
    }

    pub fn layout(&self) -> FilesystemLayout {
        match self.disks() {
            (Some(node), Some(disks)) => signals::layout(&node, &disks.images, disks.containers.as_ref()),
            // Until the runtime has told.
            _ => FilesystemLayout::Single,
        }
    }

    /// The latest reading of each signal.
    pub fn readings(&self) -> BTreeMap<EvictionSignal, SignalReading> {
        let mut all = BTreeMap::new();
        for group in self.groups.keys() {
            all.extend(self.own_readings(*group));
        }
        let disks = self.disks().1;
        let containers = disks.as_ref().and_then(|disks| Some((disks.containers.as_ref()?, disks.at)));
        signals::of_containerfs(self.layout(), &mut all, containers);
        all
    }

    /// Compares the latest readings with the thresholds. Returns those that are due, the ones to act upon first.
    pub fn assess(&mut self, config: &EvictionConfig, now: Mono) -> Vec<Due> {
        let readings = self.readings();
        let mut due = Vec::new();
        let mut first_met = BTreeMap::new();
        for threshold in signals::thresholds(config, self.layout()) {
            let Some(reading) = readings.get(&threshold.signal).copied() else { continue };
            let with_reclaim = self.unresolved.contains(&key(&threshold));
            if signals::required(&threshold, reading.capacity, with_reclaim) <= reading.available {
                continue;
            }
            let since = self.first_met.get(&key(&threshold)).copied().unwrap_or(now);
            first_met.insert(key(&threshold), since);
            self.last_short.insert(threshold.signal, now);
            if now.since(since) >= threshold.grace {
                due.push(Due { threshold, reading });
            }
        }
        self.first_met = first_met;
        self.unresolved = due.iter().map(|due| key(&due.threshold)).collect();
        self.reclaimed.retain(|signal| due.iter().any(|due| due.threshold.signal == *signal));
        self.last_short.retain(|_, last| now.since(*last) < config.pressure_transition || *last == now);
        self.pressure = NodePressure::default();
        for signal in self.last_short.keys() {
            self.pressure.add(*signal);
        }
        due
    }

    /// The first of those that are due on which an eviction may be based now.
    pub fn actionable(&self, due: &[Due], now: Mono) -> Option<Due> {
        // The last reading of these failed, so what is known of them is old.
        let failed: BTreeSet<EvictionSignal> = self
            .groups
            .iter()
            .filter(|(_, known)| known.failure.is_some())
            .flat_map(|(group, _)| self.own_readings(*group).into_keys())
            .collect();
        let fresh = |due: &&Due| {
            self.fresh_after.is_none_or(|done| due.reading.at > done)
                && !failed.contains(&due.threshold.signal)
        };
        let idle = self.activity == Activity::Watching && now >= self.not_before;
        due.iter().filter(|_| idle).find(fresh).cloned()
    }

    /// Nothing can be done about the shortage now. The next attempt begins with what can be removed.
    pub fn give_up_for_now(&mut self, now: Mono) {
        self.activity = Activity::Watching;
        self.reclaimed.clear();
        self.not_before = now.plus(NEXT_ATTEMPT);
    }

    /// Something was done that changes the figures: what could be removed for this signal, or (`None`) an eviction.
    pub fn done(&mut self, reclaimed: Option<EvictionSignal>, now: Mono) {
        self.activity = Activity::Watching;
        match reclaimed {
            Some(signal) => drop(self.reclaimed.insert(signal)),
            None => self.reclaimed.clear(),
        }
        self.fresh_after = Some(now);
        self.not_before = now;
    }

    /// When something changes by time alone: a grace period ends, or a condition has stayed long enough.
    pub fn next_change(&self, config: &EvictionConfig, now: Mono) -> Option<Mono> {
        let graces = self.first_met.iter().map(|((_, grace), since)| since.plus(*grace));
        let conditions = self.last_short.values().map(|last| last.plus(config.pressure_transition));
        let attempt = (!self.unresolved.is_empty()).then_some(self.not_before);
        graces.chain(conditions).chain(attempt).filter(|at| *at > now).min()
    }

    /// When the group is read next.
    pub fn next_reading(&self, config: &EvictionConfig, group: FigureGroup, now: Mono) -> Mono {
        let Some(known) = self.groups.get(&group) else { return now };
        if let Some(at) = known.wanted {
            return at.max(now);
        }
        if known.failure.is_some() {
            return now.plus(NEXT_ATTEMPT);
        }
        let readings = self.own_readings(group);
        let pauses = config.thresholds.iter().filter_map(|threshold| {
            let reading = readings.get(&threshold.signal)?;
            let with_reclaim = self.unresolved.contains(&key(threshold));
            let room = reading.available.saturating_sub(signals::required(
                threshold,
                reading.capacity,
                with_reclaim,
            ));
            let rate =
                known.before.get(&threshold.signal).map_or(0, |before| schedule::rate(before, reading));
            Some(schedule::pause(group, threshold.signal.kind(), room, rate))
        });
        now.plus(pauses.min().unwrap_or(schedule::longest_pause(group)))
    }

    /// After a notice: as soon as the group may be read again.
    pub fn noticed(&mut self, group: FigureGroup, now: Mono) -> Mono {
        self.notices = None;
        let last = self.groups.get(&group).and_then(|known| known.latest.as_ref()).map(|(at, _)| *at);
        last.map_or(now, |last| schedule::soonest(group, last)).max(now)
    }

    /// How far the node is from each threshold, as far as that is known.
    pub fn report(&self, config: &EvictionConfig, now: Mono) -> Vec<SignalReport> {
        let readings = self.readings();
        let report = |threshold: EvictionThreshold| {
            let reading = readings.get(&threshold.signal)?;
            let with_reclaim = self.unresolved.contains(&key(&threshold));
            Some(SignalReport {
                signal: threshold.signal.as_str().to_owned(),
                available: reading.available,
                threshold: signals::required(&threshold, reading.capacity, with_reclaim),
                grace_secs: threshold.grace.as_secs(),
                read_secs_ago: now.since(reading.at).as_secs_f64(),
            })
        };
        signals::thresholds(config, self.layout()).into_iter().filter_map(report).collect()
    }

    /// Which notices to ask the kernel for, if they differ from those that were asked for. A threshold that is met needs
    /// none.
    pub fn notices_to_request(&mut self, config: &EvictionConfig) -> Option<MemoryNoticeLevels> {
        let latest = self.groups.get(&FigureGroup::Memory)?.latest.as_ref();
        let NodeFigures::Memory { node, pods } = latest.map(|(_, figures)| figures)? else { return None };
        let readings = self.own_readings(FigureGroup::Memory);
        let level = |signal: EvictionSignal, usage: u64, working_set: u64| {
            let reading = readings.get(&signal)?;
            let of_signal = config.thresholds.iter().filter(|threshold| threshold.signal == signal);
            let unmet = of_signal
                .map(|threshold| signals::required(threshold, reading.capacity, false))
                .filter(|required| *required < reading.available);
            let room = reading.available.saturating_sub(unmet.max()?);
            Some(usage.max(working_set).saturating_add(u64::try_from(room).ok()?))
        };
        let wanted = MemoryNoticeLevels {
            node_usage_bytes: level(
                EvictionSignal::MemoryAvailable,
                node.usage_bytes,
                node.working_set_bytes,
            ),
            pods_usage_bytes: pods.and_then(|pods| {
                let signal = EvictionSignal::AllocatableMemoryAvailable;
                level(signal, pods.usage_bytes, pods.working_set_bytes)
            }),
        };
        let near = |asked: Option<u64>, wanted: Option<u64>| match (asked, wanted) {
            (Some(asked), Some(wanted)) => asked.abs_diff(wanted) <= node.limit_bytes / LEVEL_TOLERANCE,
            (asked, wanted) => asked == wanted,
        };
        let known = self.notices.is_some_and(|asked| {
            near(asked.node_usage_bytes, wanted.node_usage_bytes)
                && near(asked.pods_usage_bytes, wanted.pods_usage_bytes)
        });
        let nothing = wanted == MemoryNoticeLevels::default();
        if known || nothing {
            return None;
        }
        self.notices = Some(wanted);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests;
