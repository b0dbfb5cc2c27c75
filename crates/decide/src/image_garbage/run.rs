//! One run: the images that it may remove, and what became of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::Mono;
use model::image_garbage::{ImageFilesystem, ImageGarbageConfig};

use super::records::ImageRecord;
use super::references::ImageReferences;
use crate::action::CallFailure;
use crate::back_off::go_duration;
use crate::credentials::aggregate;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunPurpose {
    /// By age, and by the usage of the filesystem.
    Periodic,
    /// All unused images that have the minimum age, because something else needs the space.
    Reclaim,
}

/// Why an image was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectedBecause {
    Age,
    Space,
}

impl CollectedBecause {
    /// As the label of the metric has it.
    pub fn as_str(self) -> &'static str {
        match self {
            CollectedBecause::Age => "age",
            CollectedBecause::Space => "space",
        }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunEnd {
    pub purpose: RunPurpose,
    pub ended_at: Mono,
    pub removed: u64,
    /// The sizes of the removed images. Layers that other images share stay, so it may have been less.
    pub freed_bytes: u64,
    /// An Event about the node: its reason and message.
    pub warning: Option<(&'static str, String)>,
    pub failure: Option<String>,
    /// Images were too young to be removed although space is needed. The first of them is old enough then.
    pub old_enough_at: Option<Mono>,
}

#[derive(Clone, Debug, Default)]
struct Removals {
    count: u64,
    bytes: u64,
    failures: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub purpose: RunPurpose,
    began: Mono,
    pub listed: bool,
    list_failure: Option<String>,
    filesystem: Result<ImageFilesystem, String>,
    container_images: ImageReferences,
    /// Candidates, in their order.
    by_age: VecDeque<String>,
    by_space: VecDeque<String>,
    removing: Option<(String, CollectedBecause)>,
    tried: BTreeSet<String>,
    removed_by_age: Removals,
    removed_by_space: Removals,
    low_percent: u8,
    high_percent: u8,
    old_enough_at: Option<Mono>,
    runtime_away: bool,
}

impl Run {
    pub fn new(purpose: RunPurpose, began: Mono) -> Self {
        Self {
            purpose,
            began,
            listed: false,
            list_failure: None,
            filesystem: Ok(ImageFilesystem::default()),
            container_images: ImageReferences::default(),
            by_age: VecDeque::new(),
            by_space: VecDeque::new(),
            removing: None,
            tried: BTreeSet::new(),
            removed_by_age: Removals::default(),
            removed_by_space: Removals::default(),
            low_percent: 100,
            high_percent: 100,
            old_enough_at: None,
            runtime_away: false,
        }
    }

    pub fn list_failed(&mut self, message: String) {
        self.listed = true;
        self.list_failure = Some(message);
    }

    pub fn set_container_images(&mut self, images: &BTreeSet<String>) {
        self.container_images.extend(images);
    }

    /// Fills the queues.
    pub fn choose(
        &mut self,
        config: &ImageGarbageConfig,
        records: &BTreeMap<String, ImageRecord>,
        in_use: &ImageReferences,
        filesystem: Result<ImageFilesystem, String>,
    ) {
        self.listed = true;
        self.filesystem = filesystem;
        self.low_percent = config.low_percent;
        // A filesystem is never fuller than 100 %.
        self.high_percent = if config.removes_by_itself() { config.high_percent } else { 101 };
        let unused = |record: &ImageRecord| !record.pinned && !in_use.any_of(&record.references);
        let mut candidates: Vec<(&String, &ImageRecord)> =
            records.iter().filter(|(_, record)| unused(record)).collect();
        // Those that were never used come first.
        candidates.sort_by_key(|(key, record)| (record.last_used, record.first_detected, *key));
        let began = self.began;
        if let (RunPurpose::Periodic, Some(max_age)) = (self.purpose, config.max_age) {
            let old = candidates.iter().filter(|(_, record)| began.since(record.unused_since()) > max_age);
            self.by_age = old.map(|(key, _)| (*key).clone()).collect();
        }
        let is_young = |record: &ImageRecord| began.since(record.first_detected) < config.min_age;
        let (young, grown): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(_, record)| is_young(record));
        self.by_space = grown.into_iter().map(|(key, _)| key.clone()).collect();
        let ages = young.iter().map(|(_, record)| record.first_detected.plus(config.min_age));
        self.old_enough_at = ages.min();
    }

    /// The next image to remove, of those that are still unused.
    pub fn next_removal(
        &mut self,
        records: &BTreeMap<String, ImageRecord>,
        in_use: &ImageReferences,
    ) -> Option<String> {
        if self.runtime_away {
            return None;
        }
        let unused = |key: &String| {
            records.get(key).is_some_and(|record| {
                !in_use.any_of(&record.references) && !self.container_images.any_of(&record.references)
            })
        };
        let mut by_age = std::mem::take(&mut self.by_age);
        let mut by_space = std::mem::take(&mut self.by_space);
        let old = std::iter::from_fn(|| by_age.pop_front()).find(|key| unused(key));
        let next = match old {
            Some(key) => Some((key, CollectedBecause::Age)),
            None if self.removed_by_space.bytes < self.wanted_bytes() => {
                let untried = |key: &String| !self.tried.contains(key) && unused(key);
                let next = std::iter::from_fn(|| by_space.pop_front()).find(untried);
                next.map(|key| (key, CollectedBecause::Space))
            }
            None => None,
        };
        (self.by_age, self.by_space) = (by_age, by_space);
        self.removing = next;
        let image = self.removing.as_ref().map(|(key, _)| key.clone())?;
        self.tried.insert(image.clone());
        Some(image)
    }

    /// `None`: this image was not being removed.
    pub fn removal_ended(
        &mut self,
        image: &str,
        size: u64,
        result: &Result<(), CallFailure>,
    ) -> Option<CollectedBecause> {
        let (_, because) = self.removing.take_if(|(key, _)| key == image)?;
        let removals = match because {
            CollectedBecause::Age => &mut self.removed_by_age,
            CollectedBecause::Space => &mut self.removed_by_space,
        };
        match result {
            Ok(()) => {
                removals.count += 1;
                removals.bytes = removals.bytes.saturating_add(size);
            }
            Err(failure) => {
                removals.failures.push(failure.message.clone());
                self.runtime_away |= failure.unreachable;
            }
        }
        Some(because)
    }

    /// How many bytes the images that are removed for their space must have.
    fn wanted_bytes(&self) -> u64 {
        match (self.purpose, &self.filesystem) {
            (RunPurpose::Reclaim, _) => u64::MAX,
            (RunPurpose::Periodic, Err(_)) => 0,
            (RunPurpose::Periodic, Ok(filesystem)) => {
                let available = filesystem.available_bytes.saturating_add(self.removed_by_age.bytes);
                match usage_percent(filesystem.capacity_bytes, available) {
                    Some(used) if used >= self.high_percent => {
                        let free = u64::from(100_u8.saturating_sub(self.low_percent));
                        share(filesystem.capacity_bytes, free).saturating_sub(available)
                    }
                    _ => 0,
                }
            }
        }
    }

    pub fn end(self, config: &ImageGarbageConfig, now: Mono) -> RunEnd {
        let mut failures: Vec<String> = self.list_failure.iter().cloned().collect();
        let mut warning = None;
        if let (Some(age), false) = (config.max_age, self.removed_by_age.failures.is_empty()) {
            let errors = aggregate(&self.removed_by_age.failures);
            failures.push(format!(
                "wanted to free images older than {}, encountered errors in image deletion: {errors}",
                go_duration(age)
            ));
        }
        let (wanted, space) = (self.wanted_bytes(), &self.removed_by_space);
        if !space.failures.is_empty() {
            let errors = aggregate(&space.failures);
            failures.push(format!(
                "wanted to free {} bytes, but freed {} bytes space with errors in image deletion: {errors}",
                wanted.min(i64::MAX as u64),
                space.bytes
            ));
        }
        let missing = space.bytes < wanted;
        if self.purpose == RunPurpose::Periodic && self.list_failure.is_none() && config.removes_by_itself() {
            match &self.filesystem {
                Err(message) => failures.push(message.clone()),
                Ok(filesystem) if filesystem.capacity_bytes == 0 => {
                    warning = Some(("InvalidDiskCapacity", INVALID_CAPACITY.to_owned()));
                    failures.push(INVALID_CAPACITY.to_owned());
                }
                Ok(filesystem) if missing && space.failures.is_empty() => {
                    let message = insufficient(filesystem, self.removed_by_age.bytes, space.bytes);
                    failures.push(message.clone());
                    warning = Some(("FreeDiskSpaceFailed", message));
                }
                Ok(_) => {}
            }
        }
        RunEnd {
            purpose: self.purpose,
            ended_at: now,
            removed: self.removed_by_age.count + space.count,
            freed_bytes: self.removed_by_age.bytes.saturating_add(space.bytes),
            warning,
            failure: (!failures.is_empty()).then(|| failures.join("; ")),
            old_enough_at: self.old_enough_at.filter(|_| missing && self.purpose == RunPurpose::Periodic),
        }
    }
}

const INVALID_CAPACITY: &str = "invalid capacity 0 on image filesystem";

fn share(capacity: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(capacity) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// `None`: the filesystem has no size.
fn usage_percent(capacity: u64, available: u64) -> Option<u8> {
    let free = u128::from(available.min(capacity)) * 100;
    let free = free.checked_div(u128::from(capacity))?;
    Some(100_u8.saturating_sub(u8::try_from(free).unwrap_or(100)))
}

fn insufficient(filesystem: &ImageFilesystem, freed_by_age: u64, freed: u64) -> String {
    let available = filesystem.available_bytes.saturating_add(freed_by_age);
    let used = usage_percent(filesystem.capacity_bytes, available).unwrap_or(100);
    format!(
        "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed to free sufficient \
         space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active \
         images, logs, volumes, or other data.",
        size_text(filesystem.capacity_bytes)
    )
}

fn size_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| bytes >> power > 0) {
        Some((power, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << power) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_of_any_numbers() {
        for (capacity, available, expect) in [
            (0, 0, None),
            (100, 100, Some(0)),
            (100, 15, Some(85)),
            (1000, 155, Some(85)),
            (1000, 149, Some(86)),
            (100, 500, Some(0)),
            (u64::MAX, 0, Some(100)),
            (u64::MAX, u64::MAX, Some(0)),
        ] {
            assert_eq!(usage_percent(capacity, available), expect, "{capacity} {available}");
        }
        assert_eq!(share(u64::MAX, 100), u64::MAX);
    }

    #[test]
    fn sizes_are_told_in_the_largest_unit() {
        for (bytes, expect) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(size_text(bytes), expect);
        }
    }
}
