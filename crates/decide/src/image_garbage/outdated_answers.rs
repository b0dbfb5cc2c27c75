//! Answers of the runtime about an image that was removed meanwhile.
//!
//! ```text
//!   inspection or pull ──> answer during a removal of its image ──> held ──> removal ended ──> inspected again
//!                     └──> answer after it ──> inspected again
//! ```
//! An inspection that saw the image before it was removed, or a pull that ended before, would let a pod start from an
//! image that is not there.

use std::collections::{BTreeMap, BTreeSet};

use crate::image_pull::PullKey;

#[derive(Clone, Debug, Default)]
pub struct OutdatedAnswers {
    /// The id of the image that is being removed.
    removing: Option<String>,
    /// Images to be inspected when the removal has ended.
    held: BTreeSet<String>,
    /// Ids whose removal ended while the image was being inspected.
    during_inspection: BTreeMap<String, BTreeSet<String>>,
    during_pull: BTreeMap<PullKey, BTreeSet<String>>,
}

/// What an answer is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerCheck {
    Valid,
    /// The image is being removed: it is inspected when that has ended.
    Held,
    /// The image was removed: it has to be inspected now.
    Outdated,
}

impl OutdatedAnswers {
    /// The id of the image that is being removed.
    pub fn removing(&self) -> Option<&str> {
        self.removing.as_deref()
    }

    pub(super) fn removal_begins(&mut self, id: String) {
        self.removing = Some(id);
    }

    /// Whether it succeeded or not: one that failed for the agent may have happened. Returns the images to inspect.
    pub fn removal_ended<'a>(
        &mut self,
        inspecting: impl Iterator<Item = &'a String>,
        pulling: impl Iterator<Item = &'a PullKey>,
    ) -> BTreeSet<String> {
        let held = std::mem::take(&mut self.held);
        if let Some(id) = self.removing.take() {
            for image in inspecting.filter(|image| !held.contains(*image)) {
                self.during_inspection.entry(image.clone()).or_default().insert(id.clone());
            }
            for pull in pulling {
                self.during_pull.entry(pull.clone()).or_default().insert(id.clone());
            }
        }
        held
    }

    /// The inspection of `image` found the image of this id, or none.
    pub fn check_inspection(&mut self, image: &str, found: Option<&str>) -> AnswerCheck {
        let gone = self.during_inspection.remove(image).unwrap_or_default();
        self.check(&gone, image, found.as_slice())
    }

    /// The pull gave this image: its reference and, if the runtime showed the image, its id.
    pub fn check_pull(&mut self, pull: &PullKey, found: &[&str]) -> AnswerCheck {
        let gone = self.during_pull.remove(pull).unwrap_or_default();
        self.check(&gone, &pull.image, found)
    }

    fn check(&mut self, gone: &BTreeSet<String>, image: &str, found: &[&str]) -> AnswerCheck {
        if found.iter().any(|id| self.removing.as_deref() == Some(*id)) {
            self.held.insert(image.to_owned());
            return AnswerCheck::Held;
        }
        if found.iter().any(|id| gone.contains(*id)) { AnswerCheck::Outdated } else { AnswerCheck::Valid }
    }
}
