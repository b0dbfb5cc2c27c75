//! Which images are removed, and when.
//!
//! ```text
//!   timer, reclaim ──> list ──> remove one image after the other ──> ended ──> timer
//!                       └────── nothing is to be removed ──────────────┘
//! ```
//! Images go for two reasons: they were unused for longer than the maximum age, or their filesystem is too full. Then
//! those go first that were unused for the longest time. Before each removal it is checked again that nothing uses the
//! image: pods come and pulls end while others are removed.
//!
//! An image whose removal is under way counts as absent. What was read about it before its removal ended is read again
//! ([`OutdatedAnswers`]), so no container is made from an image that is about to vanish.
//!
//! A runtime that fails to remove an image costs that image only; one that is away ends the run.

mod outdated_answers;
mod records;
mod references;
mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use model::Mono;
use model::image_garbage::{ImageGarbageConfig, ImageListing};

pub use outdated_answers::{AnswerCheck, OutdatedAnswers};
pub use references::{ImageReferences, refs_without_image};
pub use run::{CollectedBecause, RunEnd, RunPurpose};

use crate::action::CallFailure;
use records::{ImageRecord, detect};
use run::Run;

/// From the end of one run to the next.
pub const PERIOD: Duration = Duration::from_secs(300);
/// The same after a pull, and after images were removed: their sizes tell only roughly how much space that gave.
pub const SOON: Duration = Duration::from_secs(10);

/// What is known of the images on the node.
#[derive(Clone, Debug, Default)]
pub struct ImageGarbage {
    /// By the image's id, and the handler whose storage has it .
    records: BTreeMap<String, ImageRecord>,
    run: Option<Run>,
    /// A run that removes all unused images follows.
    reclaim_wanted: bool,
    /// The time of the next run. `None`: it waits for a runtime that can be read.
    pub next_run: Option<Mono>,
    /// A pull ended during the run.
    pub pull_ended: bool,
    /// When the first of the runs ended that failed in a row.
    failing_since: Option<Mono>,
    /// When an Event of this reason was last recorded.
    warned: BTreeMap<&'static str, Mono>,
    pub outdated: OutdatedAnswers,
    /// How the last run for [`ImageGarbage::request_reclaim`] ended.
    pub last_reclaim: Option<RunEnd>,
}

/// What a run does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextStep {
    Remove(String),
    Ended(RunEnd),
}

impl ImageGarbage {
    /// A run that removes all unused images was requested, and has not ended.
    pub fn reclaim_running(&self) -> bool {
        self.reclaim_wanted || self.run.as_ref().is_some_and(|run| run.purpose == RunPurpose::Reclaim)
    }

    /// It is made when the present run has ended.
    pub fn request_reclaim(&mut self) {
        self.reclaim_wanted = true;
    }

    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Begins with a list. `None`: a run is going on, which no other may disturb.
    pub fn begin(&mut self, now: Mono) -> Option<RunPurpose> {
        if self.run.is_some() {
            return None;
        }
        let purpose = match std::mem::take(&mut self.reclaim_wanted) {
            true => RunPurpose::Reclaim,
            false => RunPurpose::Periodic,
        };
        self.run = Some(Run::new(purpose, now));
        Some(purpose)
    }

    /// There is no way to reclaim anything now.
    pub fn give_up_reclaim(&mut self) {
        self.reclaim_wanted = false;
    }

    /// The list arrived. `false`: no run waits for it.
    pub fn listed(
        &mut self,
        config: &ImageGarbageConfig,
        listing: Result<ImageListing, CallFailure>,
        in_use: ImageReferences,
        (by_handler, now): (bool, Mono),
    ) -> bool {
        let Some(run) = self.run.as_mut().filter(|run| !run.listed) else { return false };
        match listing {
            Err(failure) => run.list_failed(failure.message),
            Ok(listing) => {
                run.set_container_images(&listing.container_images);
                let mut in_use = in_use;
                in_use.extend(&listing.container_images);
                detect(&mut self.records, &listing.images, &in_use, (by_handler, now));
                run.choose(config, &self.records, &in_use, listing.filesystem);
            }
        }
        true
    }

    /// What the run does next. It has to have its list, and no removal may be under way.
    pub fn next_step(
        &mut self,
        config: &ImageGarbageConfig,
        in_use: &ImageReferences,
        now: Mono,
    ) -> Option<NextStep> {
        let run = self.run.as_mut()?;
        if let Some(image) = run.next_removal(&self.records, in_use) {
            let id = self.records.get(&image).map(|record| record.id.clone()).unwrap_or_default();
            self.outdated.removal_begins(id);
            return Some(NextStep::Remove(image));
        }
        let end = self.run.take()?.end(config, now);
        match end.purpose {
            RunPurpose::Reclaim => self.last_reclaim = Some(end.clone()),
            RunPurpose::Periodic if end.failure.is_some() => {
                self.failing_since.get_or_insert(now);
            }
            RunPurpose::Periodic => self.failing_since = None,
        }
        Some(NextStep::Ended(end))
    }

    /// A removal ended. `None`: it was not under way.
    pub fn removed(&mut self, image: &str, result: Result<(), CallFailure>) -> Option<CollectedBecause> {
        let run = self.run.as_mut()?;
        let size = self.records.get(image).map_or(0, |record| record.size);
        let because = run.removal_ended(image, size, &result)?;
        if result.is_ok() {
            self.records.remove(image);
        }
        Some(because)
    }

    /// A container or a pull uses the image from now on, or has used it until now.
    pub fn note_use(&mut self, reference: &str, now: Mono) {
        if let Some(record) = self.records.get_mut(reference) {
            record.last_used = Some(now);
        }
    }

    /// All runs of a whole period failed.
    pub fn keeps_failing(&self, now: Mono) -> bool {
        self.failing_since.is_some_and(|since| now.since(since) >= PERIOD)
    }

    /// Whether an Event of this reason is due: runs may follow each other closely, Events do not.
    pub fn may_warn(&mut self, reason: &'static str, now: Mono) -> bool {
        let due = self.warned.get(reason).is_none_or(|told| now.since(*told) >= PERIOD);
        if due {
            self.warned.insert(reason, now);
        }
        due
    }
}
