//! From figures to signals, and from configured thresholds to those that are met.

use std::collections::BTreeMap;

use model::Mono;
use model::eviction::{
    DiskFigures, EvictionConfig, EvictionSignal, EvictionThreshold, MemoryFigures, NodeFigures, SignalKind,
};
use model::node::ThresholdValue;
use model::quantity::{Format, Quantity};

/// What was available of something, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalReading {
    /// Less than nothing is possible: a working set may be above its limit.
    pub available: i64,
    pub capacity: i64,
    /// Taken before it was read.
    pub at: Mono,
}

/// Which filesystems are separate ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FilesystemLayout {
    /// Everything is on the filesystem of the root directory.
    #[default]
    Single,
    /// The runtime has a filesystem of its own, for images and the layers of containers.
    DedicatedImages,
    /// The runtime keeps images elsewhere than the layers of containers.
    Split,
}

pub fn layout(
    node: &DiskFigures,
    images: &DiskFigures,
    containers: Option<&DiskFigures>,
) -> FilesystemLayout {
    if containers.is_some_and(|containers| containers.device != images.device) {
        FilesystemLayout::Split
    } else if images.device != node.device {
        FilesystemLayout::DedicatedImages
    } else {
        FilesystemLayout::Single
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn of_memory(figures: &MemoryFigures, at: Mono) -> SignalReading {
    let available = signed(figures.limit_bytes).saturating_sub(signed(figures.working_set_bytes));
    SignalReading { available, capacity: available.saturating_add(signed(figures.working_set_bytes)), at }
}

fn of_disk(
    readings: &mut BTreeMap<EvictionSignal, SignalReading>,
    (bytes, inodes): (EvictionSignal, EvictionSignal),
    figures: &DiskFigures,
    at: Mono,
) {
    let reading =
        |available, capacity| SignalReading { available: signed(available), capacity: signed(capacity), at };
    if figures.capacity_bytes > 0 {
        readings.insert(bytes, reading(figures.available_bytes, figures.capacity_bytes));
    }
    if figures.inodes > 0 {
        readings.insert(inodes, reading(figures.inodes_free, figures.inodes));
    }
}

/// What a reading says of its own signals. Those of `containerfs` follow from the layout: see [`of_containerfs`].
pub fn readings(figures: &NodeFigures, at: Mono) -> BTreeMap<EvictionSignal, SignalReading> {
    use EvictionSignal::*;
    let mut readings = BTreeMap::new();
    match figures {
        NodeFigures::Memory { node, pods } => {
            if node.limit_bytes > 0 {
                readings.insert(MemoryAvailable, of_memory(node, at));
            }
            if let Some(pods) = pods {
                readings.insert(AllocatableMemoryAvailable, of_memory(pods, at));
            }
        }
        NodeFigures::NodeFilesystem(disk) => {
            of_disk(&mut readings, (NodefsAvailable, NodefsInodesFree), disk, at);
        }
        NodeFigures::ImageFilesystem { images, containers: _ } => {
            of_disk(&mut readings, (ImagefsAvailable, ImagefsInodesFree), images, at);
        }
        NodeFigures::Processes { most, running } => {
            let available = signed(*most).saturating_sub(signed(*running));
            readings.insert(PidAvailable, SignalReading { available, capacity: signed(*most), at });
        }
    }
    readings
}

/// Where containers write is one of the other filesystems, unless it is split from that of the images.
pub fn of_containerfs(
    layout: FilesystemLayout,
    readings: &mut BTreeMap<EvictionSignal, SignalReading>,
    containers: Option<(&DiskFigures, Mono)>,
) {
    use EvictionSignal::*;
    let copied = match layout {
        FilesystemLayout::Single => [NodefsAvailable, NodefsInodesFree],
        FilesystemLayout::DedicatedImages => [ImagefsAvailable, ImagefsInodesFree],
        FilesystemLayout::Split => {
            if let Some((figures, at)) = containers {
                of_disk(readings, (ContainerfsAvailable, ContainerfsInodesFree), figures, at);
            }
            return;
        }
    };
    for (from, to) in copied.into_iter().zip([ContainerfsAvailable, ContainerfsInodesFree]) {
        if let Some(reading) = readings.get(&from).copied() {
            readings.insert(to, reading);
        }
    }
}

/// The configured thresholds, and those of `containerfs`, which are equal to the ones of the filesystem it belongs to.
pub fn thresholds(config: &EvictionConfig, layout: FilesystemLayout) -> Vec<EvictionThreshold> {
    use EvictionSignal::*;
    let copied = |signal| match (layout, signal) {
        (FilesystemLayout::Single | FilesystemLayout::Split, NodefsAvailable) => Some(ContainerfsAvailable),
        (FilesystemLayout::Single | FilesystemLayout::Split, NodefsInodesFree) => Some(ContainerfsInodesFree),
        (FilesystemLayout::DedicatedImages, ImagefsAvailable) => Some(ContainerfsAvailable),
        (FilesystemLayout::DedicatedImages, ImagefsInodesFree) => Some(ContainerfsInodesFree),
        _ => None,
    };
    let own = config
        .thresholds
        .iter()
        .filter(|threshold| !matches!(threshold.signal, ContainerfsAvailable | ContainerfsInodesFree));
    let derived = config.thresholds.iter().filter_map(|threshold| {
        Some(EvictionThreshold { signal: copied(threshold.signal)?, ..threshold.clone() })
    });
    let mut all: Vec<EvictionThreshold> = own.cloned().chain(derived).collect();
    all.sort_by_key(|threshold| (threshold.signal, threshold.grace));
    all
}

/// Of a capacity. What can't be read as a quantity was refused at the start.
pub fn amount(value: &ThresholdValue, capacity: i64) -> i64 {
    match value {
        ThresholdValue::Amount(text) => Quantity::try_from(text).map_or(0, |quantity| quantity.value()),
        ThresholdValue::Fraction(part) => (capacity as f64 * f64::from(*part)) as i64,
    }
}

/// How much must be available so that a threshold is not met, or not met any more.
pub fn required(threshold: &EvictionThreshold, capacity: i64, with_reclaim: bool) -> i64 {
    let reclaim = threshold.minimum_reclaim.as_ref().filter(|_| with_reclaim);
    amount(&threshold.value, capacity).saturating_add(reclaim.map_or(0, |reclaim| amount(reclaim, capacity)))
}

/// The quantity of a signal as messages show it.
pub fn quantity(kind: SignalKind, amount: i64) -> Quantity {
    let format = match kind {
        SignalKind::Memory | SignalKind::Bytes => Format::BinarySi,
        SignalKind::Inodes | SignalKind::Processes => Format::DecimalSi,
    };
    Quantity::from_units(amount, format)
}

/// The quantity of a threshold as messages show it: a configured one as it was written.
pub fn threshold_quantity(threshold: &EvictionThreshold, capacity: i64) -> Quantity {
    match &threshold.value {
        ThresholdValue::Amount(text) => Quantity::try_from(text).unwrap_or(Quantity::ZERO),
        ThresholdValue::Fraction(_) => {
            Quantity::from_units(amount(&threshold.value, capacity), Format::BinarySi)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::k8s;

    use super::*;

    fn disk(device: u64, available: u64, inodes: u64) -> DiskFigures {
        DiskFigures { device, available_bytes: available, capacity_bytes: 1000, inodes_free: 5, inodes }
    }

    fn hard(signal: EvictionSignal, value: &str) -> EvictionThreshold {
        let value = ThresholdValue::Amount(k8s::Quantity(value.into()));
        EvictionThreshold { signal, value, grace: Duration::ZERO, minimum_reclaim: None }
    }

    #[test]
    fn the_layout_follows_from_the_devices() {
        for (node, images, containers, expect) in [
            (1, 1, None, FilesystemLayout::Single),
            (1, 1, Some(1), FilesystemLayout::Single),
            (1, 2, None, FilesystemLayout::DedicatedImages),
            (1, 2, Some(2), FilesystemLayout::DedicatedImages),
            (1, 2, Some(1), FilesystemLayout::Split),
            (1, 1, Some(2), FilesystemLayout::Split),
        ] {
            let containers = containers.map(|device| disk(device, 1, 1));
            let found = layout(&disk(node, 1, 1), &disk(images, 1, 1), containers.as_ref());
            assert_eq!(found, expect, "{node} {images} {containers:?}");
        }
    }

    #[test]
    fn a_working_set_above_the_limit_leaves_less_than_nothing() {
        let pods = MemoryFigures { limit_bytes: 100, usage_bytes: 200, working_set_bytes: 150 };
        let node = MemoryFigures { limit_bytes: 1000, usage_bytes: 400, working_set_bytes: 300 };
        let found = readings(&NodeFigures::Memory { node, pods: Some(pods) }, Mono::ZERO);
        let shown = |signal| (found[&signal].available, found[&signal].capacity);
        assert_eq!(shown(EvictionSignal::MemoryAvailable), (700, 1000));
        assert_eq!(shown(EvictionSignal::AllocatableMemoryAvailable), (-50, 100));
    }

    #[test]
    fn what_is_not_counted_has_no_reading() {
        let found = readings(&NodeFigures::NodeFilesystem(disk(1, 7, 0)), Mono::ZERO);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&EvictionSignal::NodefsAvailable]);
        let huge = MemoryFigures { limit_bytes: u64::MAX, usage_bytes: 0, working_set_bytes: u64::MAX };
        let found = readings(&NodeFigures::Memory { node: huge, pods: None }, Mono::ZERO);
        assert_eq!(found[&EvictionSignal::MemoryAvailable].available, 0);
    }

    #[test]
    fn where_containers_write_is_guarded_like_the_filesystem_it_is_on() {
        use EvictionSignal::*;
        let config = EvictionConfig {
            thresholds: vec![
                hard(NodefsAvailable, "10"),
                hard(ImagefsAvailable, "20"),
                hard(ContainerfsAvailable, "30"),
            ],
            ..EvictionConfig::default()
        };
        for (layout, expect) in [
            (FilesystemLayout::Single, 10),
            (FilesystemLayout::Split, 10),
            (FilesystemLayout::DedicatedImages, 20),
        ] {
            let all = thresholds(&config, layout);
            let of: Vec<i64> = all
                .iter()
                .filter(|threshold| threshold.signal == ContainerfsAvailable)
                .map(|threshold| amount(&threshold.value, 0))
                .collect();
            assert_eq!(of, [expect], "{layout:?}");
        }
        let figures = (disk(1, 7, 9), disk(2, 8, 9), disk(3, 9, 9));
        for (layout, expect) in [
            (FilesystemLayout::Single, 7),
            (FilesystemLayout::DedicatedImages, 8),
            (FilesystemLayout::Split, 9),
        ] {
            let mut found = readings(&NodeFigures::NodeFilesystem(figures.0), Mono::ZERO);
            let images = NodeFigures::ImageFilesystem { images: figures.1, containers: None };
            found.extend(readings(&images, Mono::ZERO));
            of_containerfs(layout, &mut found, Some((&figures.2, Mono::ZERO)));
            assert_eq!(found[&ContainerfsAvailable].available, expect, "{layout:?}");
        }
    }

    #[test]
    fn amounts_are_those_of_upstream() {
        // 10 % as a float of single precision is a little more than 10 %.
        assert_eq!(amount(&ThresholdValue::Fraction(0.1), 100_000_000_000), 10_000_000_149);
        let mut threshold = hard(EvictionSignal::MemoryAvailable, "100Mi");
        assert_eq!(required(&threshold, 0, true), 100 << 20);
        threshold.minimum_reclaim = Some(ThresholdValue::Fraction(0.5));
        assert_eq!(required(&threshold, 10, true), (100 << 20) + 5);
        assert_eq!(required(&threshold, 10, false), 100 << 20);
        assert_eq!(threshold_quantity(&threshold, 10).to_string(), "100Mi");
        assert_eq!(quantity(SignalKind::Memory, 104_857_601).to_string(), "104857601");
        assert_eq!(quantity(SignalKind::Bytes, 3 << 20).to_string(), "3Mi");
        assert_eq!(quantity(SignalKind::Inodes, 2000).to_string(), "2k");
    }
}
