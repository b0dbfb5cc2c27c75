//! What several rules need to know of the pod, and rules that several fields share.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::report::{Path, ValidationErrors};

/// What mounts need to know of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValidVolume {
    /// Only claims can be used as block devices.
    pub(super) is_claim: bool,
}

/// The sound volumes of a pod by name.
pub(super) type ValidVolumes<'a> = BTreeMap<&'a str, ValidVolume>;

/// What the rules for a container need to know of its pod.
pub(super) struct PodContext<'a> {
    pub(super) spec: &'a PodSpec,
    pub(super) volumes: ValidVolumes<'a>,
    claims: BTreeSet<&'a str>,
}

impl<'a> PodContext<'a> {
    pub(super) fn new(spec: &'a PodSpec, volumes: ValidVolumes<'a>) -> Self {
        let claims = spec.resource_claims.iter().flatten().map(|claim| claim.name.as_str());
        PodContext { spec, volumes, claims: claims.filter(|name| !name.is_empty()).collect() }
    }

    pub(super) fn grace_period(&self) -> Option<i64> {
        self.spec.termination_grace_period_seconds
    }

    pub(super) fn os(&self) -> Option<&str> {
        self.spec.os.as_ref().map(|os| os.name.as_str())
    }

    pub(super) fn on_host_users(&self) -> bool {
        self.spec.host_users != Some(false)
    }

    pub(super) fn claims(&self) -> &BTreeSet<&str> {
        &self.claims
    }
}

/// Init containers, then regular ones, each with its path.
pub(super) fn all_containers<'a>(
    spec: &'a PodSpec,
    path: &Path,
) -> impl Iterator<Item = (&'a Container, Path)> {
    let (init_path, path) = (path.child("initContainers"), path.child("containers"));
    let init = spec.init_containers.iter().flatten().enumerate();
    init.map(move |(index, container)| (container, init_path.index(index))).chain(
        spec.containers.iter().enumerate().map(move |(index, container)| (container, path.index(index))),
    )
}

pub(super) fn port_number(number: i32, path: &Path, report: &mut ValidationErrors) {
    report.in_range(path, i64::from(number), 1, 65535);
}

pub(super) fn pull_policy(policy: Option<&str>, path: &Path, report: &mut ValidationErrors) {
    report.one_of_required(path, policy, &["Always", "IfNotPresent", "Never"]);
}
