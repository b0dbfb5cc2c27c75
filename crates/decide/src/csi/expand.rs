//! Expansion of CSI volumes: what this node has to do, and what it writes to the claim.
//!
//! ```text
//!   PersistentVolume expanded ──> NodeResizePending ──> NodeResizeInProgress ──> driver ──> the claim's new size
//!                                                                                  ├──> failed: condition, retry
//!                                                                                  └──> NodeResizeInfeasible
//! ```
//! A patch that depends on the state of the claim contains the resource version that it was decided from. If the agent
//! is killed, the claim is in one of these states, and the next agent goes on from there: NodeExpandVolume is
//! idempotent.

use std::collections::BTreeMap;

use model::Wall;
use model::csi::{CsiVolume, Expansion, NodeExpandCall, NodeServiceCapabilities};
use model::k8s::{self, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use model::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::calls::{VolumeCallFailure, VolumeCallFailureKind, capability};
use crate::action::ExpandOutcome;

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const ERROR: &str = "NodeResizeError";
/// Conditions about an expansion. They are removed when it is done.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR];
/// Set if the controller has done the whole expansion.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// Whether this node has to call NodeExpandVolume for a claim.
#[derive(Clone, PartialEq, Debug)]
pub enum ExpansionNeed {
    Needed(NodeExpansion),
    /// Nothing to do: expansion is not needed, the controller is not done yet, or the expansion is infeasible.
    Settled(ExpandOutcome),
}

/// An expansion by this node.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeExpansion {
    pub size: Quantity,
    /// Patch of the claim's status before the driver is called.
    pub in_progress_patch: Option<Value>,
    /// The claim's status shows the new size already.
    pub claim_has_size: bool,
    pub trigger: ExpansionTrigger,
}

/// Why this node has to expand the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpansionTrigger {
    /// The controller requested it (NodeResizePending or NodeResizeInProgress).
    Requested,
    /// A ReadWriteMany volume that another node has already expanded. Drivers without EXPAND_VOLUME are skipped.
    OtherNodeExpanded,
    /// The controller does not write allocatedResourceStatuses, so this node does not write failures to the claim
    /// either.
    LegacyController,
}

/// `behind`: the size of the PersistentVolume.
pub fn expansion_need(claim: &PersistentVolumeClaim, behind: Quantity) -> ExpansionNeed {
    let status = claim.status.clone().unwrap_or_default();
    let stage = stage_of(&status);
    let has = capacity_of(claim).unwrap_or(Quantity::ZERO);
    let Some(allocated) = &status.allocated_resources else {
        if stage.is_none() {
            return ExpansionNeed::Needed(NodeExpansion {
                size: behind,
                in_progress_patch: None,
                claim_has_size: has >= behind,
                trigger: ExpansionTrigger::LegacyController,
            });
        }
        return by_stage(claim, stage, behind);
    };
    let size = quantity(Some(allocated)).unwrap_or(behind);
    let told = has >= size && stage.is_none();
    if told && is_shared(claim) && !is_not_required(claim) {
        return ExpansionNeed::Needed(NodeExpansion {
            size,
            in_progress_patch: None,
            claim_has_size: told,
            trigger: ExpansionTrigger::OtherNodeExpanded,
        });
    }
    if told { ExpansionNeed::Settled(unneeded(size)) } else { by_stage(claim, stage, size) }
}

fn by_stage(claim: &PersistentVolumeClaim, stage: Option<&str>, size: Quantity) -> ExpansionNeed {
    let mark = match stage {
        Some(PENDING) => Some(marked(claim, IN_PROGRESS)),
        Some(IN_PROGRESS) => None,
        _ => return ExpansionNeed::Settled(ExpandOutcome::NotYet),
    };
    ExpansionNeed::Needed(NodeExpansion {
        size,
        in_progress_patch: mark,
        claim_has_size: false,
        trigger: ExpansionTrigger::Requested,
    })
}

fn unneeded(size: Quantity) -> ExpandOutcome {
    ExpandOutcome::Unneeded { size: size.to_string() }
}

/// The next step, once the capabilities of the driver are known.
#[derive(Clone, PartialEq, Debug)]
pub enum ExpansionStep {
    Settled(ExpandOutcome),
    /// Mark the claim as in progress, then call the driver.
    CallDriver,
    /// Mark the claim as in progress, then write this failure to it.
    Fail(ExpansionFailure),
}

/// Why a volume was not expanded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpansionFailure {
    pub kind: ExpansionFailureKind,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpansionFailureKind {
    /// The driver does not support node expansion.
    NotSupported,
    /// The driver cannot be reached.
    Unreachable,
    /// The outcome is unknown; the driver may still be working.
    OutcomeUnknown,
    /// The driver answered with a final error.
    Final,
    /// The driver can't expand the volume to this size, now or later.
    Infeasible,
    /// The driver does not expand the volume while it is in use.
    InUse,
}

impl From<VolumeCallFailure> for ExpansionFailure {
    fn from(failure: VolumeCallFailure) -> Self {
        let kind = match failure.kind {
            VolumeCallFailureKind::NotRegistered => ExpansionFailureKind::Unreachable,
            VolumeCallFailureKind::InUse => ExpansionFailureKind::InUse,
            VolumeCallFailureKind::Infeasible => ExpansionFailureKind::Infeasible,
            VolumeCallFailureKind::Final => ExpansionFailureKind::Final,
            VolumeCallFailureKind::Open => ExpansionFailureKind::OutcomeUnknown,
        };
        ExpansionFailure { kind, message: failure.message }
    }
}

/// How a failure is handled.
#[derive(Clone, PartialEq, Debug)]
pub struct FailedExpansion {
    /// Patch of the claim's status.
    pub claim_patch: Option<Value>,
    /// The driver has refused to expand this volume.
    pub refused: bool,
    pub result: Result<ExpandOutcome, String>,
}

impl NodeExpansion {
    pub fn next_step(&self, driver: &str, can: NodeServiceCapabilities) -> ExpansionStep {
        match (can.expand_volume, self.trigger) {
            (true, _) => ExpansionStep::CallDriver,
            (false, ExpansionTrigger::Requested) => ExpansionStep::Fail(ExpansionFailure {
                kind: ExpansionFailureKind::NotSupported,
                message: format!("NodeExpand is not supported by the CSI driver {driver}"),
            }),
            (false, ExpansionTrigger::OtherNodeExpanded | ExpansionTrigger::LegacyController) => {
                ExpansionStep::Settled(unneeded(self.size))
            }
        }
    }

    /// `refused`: the driver has refused to expand this volume before, and has not succeeded since.
    pub fn failed(
        &self,
        claim: &PersistentVolumeClaim,
        failure: ExpansionFailure,
        refused: bool,
        at: Wall,
    ) -> FailedExpansion {
        let ExpansionFailure { kind, message } = failure;
        let what = "Expander.NodeExpand failed to expand the volume";
        let message = match kind {
            ExpansionFailureKind::NotSupported | ExpansionFailureKind::Unreachable => message,
            ExpansionFailureKind::Infeasible => format!("{what} {message}"),
            ExpansionFailureKind::OutcomeUnknown
            | ExpansionFailureKind::Final
            | ExpansionFailureKind::InUse => format!("{what} : {message}"),
        };
        let final_word = matches!(
            kind,
            ExpansionFailureKind::Final | ExpansionFailureKind::Infeasible | ExpansionFailureKind::InUse
        );
        let counts = final_word && self.trigger != ExpansionTrigger::LegacyController;
        let impossible = kind == ExpansionFailureKind::Infeasible
            || (counts && refused && other_size_requested(claim, self.size));
        let told = counts || kind == ExpansionFailureKind::NotSupported;
        FailedExpansion {
            claim_patch: told.then(|| refusal(claim, &message, impossible, at)).flatten(),
            refused: counts,
            result: match kind {
                ExpansionFailureKind::InUse => Ok(ExpandOutcome::InUse),
                _ => Err(message),
            },
        }
    }

    /// The patch of the claim's status after the expansion. `None`: it shows the size already.
    pub fn grown(&self, claim: &PersistentVolumeClaim) -> Option<Value> {
        (!self.claim_has_size).then(|| grown(claim, self.size))
    }
}

fn stage_of(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    let stages = status.allocated_resource_statuses.as_ref()?;
    stages.get(STORAGE).map(String::as_str).filter(|stage| !stage.is_empty())
}

/// The size in the claim's status.
pub fn capacity_of(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    quantity(claim.status.as_ref()?.capacity.as_ref())
}

/// The amount of storage in a list of resources.
pub fn quantity(list: Option<&BTreeMap<String, k8s::Quantity>>) -> Option<Quantity> {
    list?.get(STORAGE)?.0.parse().ok()
}

fn is_shared(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    modes.into_iter().flatten().any(|mode| mode == "ReadWriteMany")
}

fn is_not_required(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(NOT_REQUIRED))
}

/// Whether the claim requests another size by now. If the driver refused as well, this size counts as infeasible.
fn other_size_requested(claim: &PersistentVolumeClaim, size: Quantity) -> bool {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    quantity(wanted.and_then(|resources| resources.requests.as_ref())).is_some_and(|wanted| wanted != size)
}

/// The NodeExpandVolume call.
pub fn expand_call(
    volume: &CsiVolume,
    can: NodeServiceCapabilities,
    size: Quantity,
    wanted: &Expansion,
) -> NodeExpandCall {
    NodeExpandCall {
        handle: volume.id.handle.clone(),
        target: volume.paths.target.clone(),
        staging: volume.paths.staging.clone(),
        bytes: size.value(),
        capability: capability(volume, can),
        secrets: wanted.secrets.clone(),
    }
}

fn marked(claim: &PersistentVolumeClaim, stage: &str) -> Value {
    json!({
        "metadata": { "resourceVersion": claim.metadata.resource_version },
        "status": { "allocatedResourceStatuses": { STORAGE: stage } },
    })
}

fn grown(claim: &PersistentVolumeClaim, size: Quantity) -> Value {
    let status = claim.status.clone().unwrap_or_default();
    let mut fields = Map::new();
    fields.insert("capacity".into(), json!({ STORAGE: size.to_string() }));
    if stage_of(&status).is_some() {
        fields.insert("allocatedResourceStatuses".into(), json!({ STORAGE: null }));
    }
    let conditions = status.conditions.iter().flatten().map(|condition| condition.type_.as_str());
    let over: Vec<Value> = conditions
        .filter(|kind| CONDITIONS.contains(kind))
        .map(|kind| json!({ "$patch": "delete", "type": kind }))
        .collect();
    if !over.is_empty() {
        fields.insert("conditions".into(), Value::Array(over));
    }
    json!({ "metadata": { "resourceVersion": claim.metadata.resource_version }, "status": fields })
}

/// The patch of the claim's status after a driver refused. `None`: the status shows it already. The error condition is
/// true whatever else was written meanwhile, so it is patched without a version. `NodeResizeInfeasible` is true only of
/// the requested size, so that patch names the claim's version: another size may be requested by now.
fn refusal(claim: &PersistentVolumeClaim, message: &str, impossible: bool, at: Wall) -> Option<Value> {
    let status = claim.status.clone().unwrap_or_default();
    let mut patch = json!({ "status": {} });
    let mut conditions = status.conditions.iter().flatten();
    if !conditions.any(|condition| condition.type_ == ERROR && condition.status == "True") {
        patch["status"]["conditions"] = json!([{
            "type": ERROR, "status": "True", "lastTransitionTime": at.api_time(),
            "message": format!("failed to expand pvc with {message}"),
        }]);
    }
    if impossible && stage_of(&status) != Some(INFEASIBLE) {
        patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: INFEASIBLE });
        patch["metadata"] = json!({ "resourceVersion": claim.metadata.resource_version });
    }
    (patch["status"] != json!({})).then_some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(value: Value) -> PersistentVolumeClaim {
        let mut whole = json!({"metadata": {"name": "c", "resourceVersion": "7"}});
        for (key, part) in value.as_object().unwrap() {
            whole[key] = part.clone();
        }
        serde_json::from_value(whole).expect("a claim")
    }

    fn size(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn what_a_claim_asks_of_its_node() {
        let status = |has: &str, allocated: Option<&str>, stage: Option<&str>| {
            let mut status = json!({"capacity": {"storage": has}});
            if let Some(allocated) = allocated {
                status["allocatedResources"] = json!({"storage": allocated});
            }
            if let Some(stage) = stage {
                status["allocatedResourceStatuses"] = json!({"storage": stage});
            }
            json!({"status": status})
        };
        let check = |value: Value, expect: ExpansionNeed| {
            assert_eq!(expansion_need(&claim(value.clone()), size("2Gi")), expect, "{value}");
        };
        let due = |text: &str, told: bool, part: ExpansionTrigger| {
            ExpansionNeed::Needed(NodeExpansion {
                size: size(text),
                in_progress_patch: None,
                claim_has_size: told,
                trigger: part,
            })
        };
        check(status("1Gi", None, None), due("2Gi", false, ExpansionTrigger::LegacyController));
        check(status("2Gi", None, None), due("2Gi", true, ExpansionTrigger::LegacyController));
        let mark = json!({"metadata": {"resourceVersion": "7"},
            "status": {"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}});
        let marked = ExpansionNeed::Needed(NodeExpansion {
            size: size("3Gi"),
            in_progress_patch: Some(mark),
            claim_has_size: false,
            trigger: ExpansionTrigger::Requested,
        });
        check(status("1Gi", Some("3Gi"), Some("NodeResizePending")), marked);
        check(
            status("1Gi", Some("3Gi"), Some("NodeResizeInProgress")),
            due("3Gi", false, ExpansionTrigger::Requested),
        );
        check(
            status("1Gi", None, Some("NodeResizeInProgress")),
            due("2Gi", false, ExpansionTrigger::Requested),
        );
        for other in ["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInfeasible"] {
            check(status("1Gi", Some("3Gi"), Some(other)), ExpansionNeed::Settled(ExpandOutcome::NotYet));
        }
        check(status("1Gi", Some("3Gi"), None), ExpansionNeed::Settled(ExpandOutcome::NotYet));
        check(status("3Gi", Some("3Gi"), None), ExpansionNeed::Settled(unneeded(size("3Gi"))));
        // A shared volume is expanded on each node, unless the annotation says that it is not required.
        let mut shared = status("3Gi", Some("3Gi"), None);
        shared["spec"] = json!({"accessModes": ["ReadWriteMany"]});
        check(shared.clone(), due("3Gi", true, ExpansionTrigger::OtherNodeExpanded));
        shared["metadata"] = json!({"annotations": {NOT_REQUIRED: "true"}});
        check(shared, ExpansionNeed::Settled(unneeded(size("3Gi"))));
    }

    #[test]
    fn what_a_claim_is_told() {
        let before = claim(json!({"status": {
            "capacity": {"storage": "1Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
            "conditions": [
                {"type": "FileSystemResizePending", "status": "True"},
                {"type": "ModifyingVolume", "status": "True"},
                {"type": "NodeResizeError", "status": "True"},
            ],
        }}));
        assert_eq!(
            grown(&before, size("2Gi")),
            json!({"metadata": {"resourceVersion": "7"}, "status": {
                "capacity": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": null},
                "conditions": [
                    {"$patch": "delete", "type": "FileSystemResizePending"},
                    {"$patch": "delete", "type": "NodeResizeError"},
                ],
            }})
        );
        let plain = claim(json!({"status": {"capacity": {"storage": "1Gi"}}}));
        assert_eq!(
            grown(&plain, size("2Gi")),
            json!({"metadata": {"resourceVersion": "7"}, "status": {"capacity": {"storage": "2Gi"}}})
        );
        assert_eq!(
            refusal(&plain, "no", false, Wall(0)),
            Some(json!({"status": {"conditions": [{"type": "NodeResizeError", "status": "True",
                "lastTransitionTime": "1970-01-01T00:00:00Z", "message": "failed to expand pvc with no"}]}}))
        );
        assert_eq!(refusal(&before, "no", false, Wall(0)), None, "it is told once");
        assert_eq!(
            refusal(&before, "no", true, Wall(0)),
            Some(json!({"metadata": {"resourceVersion": "7"},
                "status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}}))
        );
        let due = |told: bool| NodeExpansion {
            size: size("2Gi"),
            in_progress_patch: None,
            claim_has_size: told,
            trigger: ExpansionTrigger::Requested,
        };
        assert_eq!(due(false).grown(&plain), Some(grown(&plain, size("2Gi"))));
        assert_eq!(due(true).grown(&plain), None);
    }

    const PARTS: [ExpansionTrigger; 3] = [
        ExpansionTrigger::Requested,
        ExpansionTrigger::OtherNodeExpanded,
        ExpansionTrigger::LegacyController,
    ];

    fn due(part: ExpansionTrigger) -> NodeExpansion {
        NodeExpansion { size: size("2Gi"), in_progress_patch: None, claim_has_size: false, trigger: part }
    }

    #[test]
    fn whether_a_driver_is_asked() {
        let able = NodeServiceCapabilities { expand_volume: true, ..NodeServiceCapabilities::default() };
        for part in PARTS {
            assert_eq!(due(part).next_step("d", able), ExpansionStep::CallDriver);
        }
        let unable = ExpansionFailure {
            kind: ExpansionFailureKind::NotSupported,
            message: "NodeExpand is not supported by the CSI driver d".into(),
        };
        let none = NodeServiceCapabilities::default();
        assert_eq!(due(ExpansionTrigger::Requested).next_step("d", none), ExpansionStep::Fail(unable));
        for part in [ExpansionTrigger::OtherNodeExpanded, ExpansionTrigger::LegacyController] {
            assert_eq!(
                due(part).next_step("d", none),
                ExpansionStep::Settled(unneeded(size("2Gi"))),
                "{part:?}"
            );
        }
    }

    #[test]
    fn what_a_failure_means() {
        use ExpansionFailureKind::*;
        let claim_for =
            |wanted: &str| claim(json!({"spec": {"resources": {"requests": {"storage": wanted}}}}));
        // Kind of failure, trigger, refused before; the claim's patch, whether this counts as a refusal.
        let check = |kind, part, refused, wanted: &str, expect: (&str, bool)| {
            let failure = ExpansionFailure { kind, message: "no".into() };
            let verdict = due(part).failed(&claim_for(wanted), failure, refused, Wall(0));
            let told = match &verdict.claim_patch {
                None => "nothing",
                Some(patch) if patch["status"]["allocatedResourceStatuses"].is_null() => "failed",
                Some(patch) => {
                    assert_eq!(patch["metadata"]["resourceVersion"], "7");
                    "impossible"
                }
            };
            assert_eq!((told, verdict.refused), expect, "{kind:?} {part:?} {refused} {wanted}");
            let what = "Expander.NodeExpand failed to expand the volume";
            let how = match kind {
                InUse => Ok(ExpandOutcome::InUse),
                NotSupported | Unreachable => Err("no".to_owned()),
                Infeasible => Err(format!("{what} no")),
                OutcomeUnknown | Final => Err(format!("{what} : no")),
            };
            assert_eq!(verdict.result, how, "{kind:?}");
        };
        for part in PARTS {
            for refused in [false, true] {
                check(Unreachable, part, refused, "3Gi", ("nothing", false));
                check(OutcomeUnknown, part, refused, "3Gi", ("nothing", false));
                check(NotSupported, part, refused, "3Gi", ("failed", false));
            }
        }
        for part in [ExpansionTrigger::Requested, ExpansionTrigger::OtherNodeExpanded] {
            check(Infeasible, part, false, "2Gi", ("impossible", true));
            for kind in [Final, InUse] {
                check(kind, part, false, "3Gi", ("failed", true));
                check(kind, part, true, "2Gi", ("failed", true));
                // Another size is requested by now, so this one counts as infeasible.
                check(kind, part, true, "3Gi", ("impossible", true));
            }
        }
        for kind in [Final, InUse, Infeasible] {
            check(kind, ExpansionTrigger::LegacyController, true, "3Gi", ("nothing", false));
        }
    }
}
