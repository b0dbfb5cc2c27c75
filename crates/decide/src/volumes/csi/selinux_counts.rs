//! Counts volumes by what their SELinux labels lead to, for metrics. What is only a warning today becomes an error when
//! the gate SELinuxMount is turned on, which is what administrators want to know beforehand.
//!
//! ```text
//!   containers of the pod that mount it have several labels ──> PodMismatch
//!   the driver can mount with a label ──> a label, and no pod counted before uses the volume ──> Admitted
//!                                     └─> another label than that of the pods counted before ──> VolumeMismatch
//! ```

use std::collections::BTreeMap;

use model::csi::{PLUGIN, VolumeId};
use model::k8s;
use model::report::{SelinuxCount, SelinuxOutcome};
use model::volume_source::PersistentSource;

use super::super::persistent::{self, ResolvedVolume};
use super::super::{VolumeInputs, mounted};
use super::{driver_object, selinux_label};

/// Access modes and their short names, the least restrictive first.
const ACCESS_MODES: [(&str, &str); 4] = [
    ("ReadWriteMany", "RWX"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteOnce", "RWO"),
    ("ReadWriteOncePod", "RWOP"),
];
/// Of volumes without a claim.
const INLINE: &str = "inline";

/// The counts over all pods that were added.
#[derive(Default)]
pub struct SelinuxCounts {
    /// The label of the first pod of each volume.
    labels: BTreeMap<VolumeId, String>,
    /// By outcome, plugin and access mode.
    counts: BTreeMap<(SelinuxOutcome, String, &'static str), usize>,
}

impl SelinuxCounts {
    /// Adds a pod that wants its volumes. A volume whose claim is not resolved (yet) is left out.
    pub fn add_pod(&mut self, inputs: &VolumeInputs<'_>) {
        for volume in mounted(inputs.pod) {
            match persistent::resolve_volume(inputs, volume) {
                None => self.add_inline(inputs, volume),
                Some(Ok(resolved)) => self.add_persistent(inputs, &resolved),
                Some(Err(_)) => {}
            }
        }
    }

    pub fn into_counts(self) -> Vec<SelinuxCount> {
        let count = |((outcome, plugin, access_mode), count): ((_, _, &str), _)| SelinuxCount {
            outcome,
            plugin,
            access_mode: access_mode.to_owned(),
            count,
        };
        self.counts.into_iter().map(count).collect()
    }

    fn count(&mut self, outcome: SelinuxOutcome, plugin: &str, access_mode: &'static str) {
        *self.counts.entry((outcome, plugin.to_owned(), access_mode)).or_default() += 1;
    }

    /// A volume without a claim is never mounted with a label.
    fn add_inline(&mut self, inputs: &VolumeInputs<'_>, volume: &k8s::Volume) {
        if selinux_label::container_labels(inputs, &volume.name).is_some_and(|labels| labels.len() > 1) {
            self.count(SelinuxOutcome::PodMismatchWarning, "", INLINE);
        }
    }

    fn add_persistent(&mut self, inputs: &VolumeInputs<'_>, resolved: &ResolvedVolume<'_>) {
        let Some(labels) = selinux_label::container_labels(inputs, &resolved.claim.volume.name) else {
            return;
        };
        let access_mode = access_mode_label(resolved.access_modes);
        let driver = match resolved.source {
            PersistentSource::Csi(source) => driver_object(inputs, &source.driver)
                .flatten()
                .map(|driver| (source, selinux_label::driver_supports(&driver.spec) && !resolved.block)),
            _ => None,
        };
        let mounts_with_label = driver.filter(|(_, supports)| *supports).map(|(source, _)| source);
        let is_error =
            mounts_with_label.is_some() && selinux_label::modes_are_supported(inputs, resolved.access_modes);
        if labels.len() > 1 {
            let outcome = match is_error {
                true => SelinuxOutcome::PodMismatchError,
                false => SelinuxOutcome::PodMismatchWarning,
            };
            return self.count(outcome, "", access_mode);
        }
        let Some(source) = mounts_with_label else { return };
        let label = selinux_label::label_by_policy(inputs, labels);
        let plugin = format!("{PLUGIN}/{}", source.driver);
        let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
        match self.labels.get(&id) {
            None => {
                if !label.is_empty() {
                    self.count(SelinuxOutcome::Admitted, &plugin, access_mode);
                }
                self.labels.insert(id, label);
            }
            Some(first) if *first == label => {}
            Some(_) if is_error => self.count(SelinuxOutcome::VolumeMismatchError, &plugin, access_mode),
            Some(_) => self.count(SelinuxOutcome::VolumeMismatchWarning, &plugin, access_mode),
        }
    }
}

fn access_mode_label(modes: &[String]) -> &'static str {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    ACCESS_MODES.iter().find(|(mode, _)| has(mode)).map_or(INLINE, |(_, label)| label)
}
