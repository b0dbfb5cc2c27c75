//! Ids and names of images. A runtime, a container and a spec may name the same image differently.

use std::collections::BTreeSet;

use model::credentials::PulledRecord;
use model::cri::Image;

use crate::credentials::repository;

/// Each image in all spellings, so that two sets are about the same image if they share one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImageReferences(BTreeSet<String>);

impl ImageReferences {
    pub fn of_image(image: &Image) -> Self {
        let mut references = Self::default();
        references.add_image(image);
        references
    }

    fn add_image(&mut self, image: &Image) {
        self.extend([&image.id].into_iter().chain(&image.repo_tags).chain(&image.repo_digests));
    }

    pub fn extend<'a>(&mut self, names: impl IntoIterator<Item = &'a String>) {
        names.into_iter().for_each(|name| self.add(name));
    }

    /// Adds an id, or a name as a spec or the runtime has it.
    pub fn add(&mut self, name: &str) {
        if name.is_empty() {
            return;
        }
        // Runtimes show ids with and without their algorithm.
        self.0.insert(name.strip_prefix("sha256:").unwrap_or(name).to_owned());
        let repository = repository(name);
        let (tagged, digest) =
            name.split_once('@').map_or((name, None), |(name, digest)| (name, Some(digest)));
        match digest {
            Some(digest) => self.0.insert(format!("{repository}@{digest}")),
            None => self.0.insert(format!("{repository}:{}", tag(tagged).unwrap_or("latest"))),
        };
    }

    pub fn any_of(&self, image: &Self) -> bool {
        image.0.iter().any(|name| self.0.contains(name))
    }
}

fn tag(name: &str) -> Option<&str> {
    name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))
}

/// What the runtime knows those images by that have a record and are not there.
pub fn refs_without_image(records: &[PulledRecord], images: &[Image]) -> Vec<String> {
    let mut present = ImageReferences::default();
    images.iter().for_each(|image| present.add_image(image));
    let is_gone = |record: &&PulledRecord| {
        let mut image = ImageReferences::default();
        image.add(&record.image_ref);
        !present.any_of(&image)
    };
    records.iter().filter(is_gone).map(|record| record.image_ref.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_image_has_many_spellings() {
        let digest = "sha256:1f1c";
        let shown = |id: &str, tags: &[&str], digests: &[&str]| Image {
            id: id.into(),
            repo_tags: tags.iter().map(|tag| (*tag).into()).collect(),
            repo_digests: digests.iter().map(|digest| (*digest).into()).collect(),
            ..Image::default()
        };
        let busybox =
            shown("sha256:abc", &["docker.io/library/busybox:1"], &["docker.io/library/busybox@sha256:1f1c"]);
        let latest = shown("def", &["registry.test:5000/a/b:latest"], &[]);
        let untagged = shown("sha256:77", &[], &[]);
        for (name, image, expect) in [
            ("busybox:1", &busybox, true),
            ("library/busybox:1", &busybox, true),
            ("index.docker.io/library/busybox:1", &busybox, true),
            ("busybox", &busybox, false),
            ("busybox:2", &busybox, false),
            (&format!("busybox@{digest}"), &busybox, true),
            (&format!("busybox:other@{digest}"), &busybox, true),
            ("busybox@sha256:0", &busybox, false),
            ("sha256:abc", &busybox, true),
            ("abc", &busybox, true),
            ("ab", &busybox, false),
            ("registry.test:5000/a/b", &latest, true),
            ("registry.test:5000/a/b:latest", &latest, true),
            ("registry.test/a/b", &latest, false),
            ("sha256:def", &latest, true),
            ("sha256:77", &untagged, true),
            ("", &untagged, false),
        ] {
            let mut used = ImageReferences::default();
            used.add(name);
            assert_eq!(used.any_of(&ImageReferences::of_image(image)), expect, "{name} {image:?}");
        }
    }
}
