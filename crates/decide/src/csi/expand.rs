//! Volumes that grow: what this node has to do about one, and what its claim is told.
//!
//! ```text
//!   made larger behind the claim ──> NodeResizePending ──> NodeResizeInProgress ──> the driver ──> the claim's new size
//!                                                                                      ├──> failed: a condition, and again
//!                                                                                      └──> impossible: NodeResizeInfeasible
//! ```
//! Whatever is written names the version of the claim that it was decided from. A kill at any point leaves the claim at one
//! of these, and the next agent goes on from there: drivers may be asked to grow a volume again.

use std::collections::BTreeMap;

use model::Wall;
use model::csi::{Abilities, CsiVolume, Expand, Expansion};
use model::k8s::{self, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use model::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::calls::capability;

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const ERROR: &str = "NodeResizeError";
/// Conditions that tell of a growth. They go when it is done.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR];
/// Whoever made the volume larger has done everything.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// What is to be done about a claim whose volume is larger than it was.
#[derive(Clone, PartialEq, Debug)]
pub enum Growth {
    Due {
        size: Quantity,
        /// Written before the driver is asked.
        mark: Option<Value>,
        /// The claim has its new size already.
        told: bool,
        part: Part,
    },
    /// It has this size by now, and this node has no part in it.
    Done(Quantity),
    /// Somebody else has to do his part first, or has given up.
    NotYet,
}

/// Why this node has a part in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Whoever made the volume larger asks for it.
    Asked,
    /// Another node was first, and the volume is used on both. Drivers may have no part in that.
    Shared,
    /// An older controller, which does not tell what it has done: neither is it told.
    Untold,
}

/// `behind`: the size of what stands behind the claim.
pub fn growth(claim: &PersistentVolumeClaim, behind: Quantity) -> Growth {
    let status = claim.status.clone().unwrap_or_default();
    let stage = stage_of(&status);
    let has = capacity_of(claim).unwrap_or(Quantity::ZERO);
    let Some(allocated) = &status.allocated_resources else {
        if stage.is_none() {
            return Growth::Due { size: behind, mark: None, told: has >= behind, part: Part::Untold };
        }
        return by_stage(claim, stage, behind);
    };
    let size = quantity(Some(allocated)).unwrap_or(behind);
    let told = has >= size && stage.is_none();
    if told && is_shared(claim) && !is_not_required(claim) {
        return Growth::Due { size, mark: None, told, part: Part::Shared };
    }
    if told { Growth::Done(size) } else { by_stage(claim, stage, size) }
}

fn by_stage(claim: &PersistentVolumeClaim, stage: Option<&str>, size: Quantity) -> Growth {
    let mark = match stage {
        Some(PENDING) => Some(marked(claim, IN_PROGRESS)),
        Some(IN_PROGRESS) => None,
        _ => return Growth::NotYet,
    };
    Growth::Due { size, mark, told: false, part: Part::Asked }
}

fn stage_of(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    let stages = status.allocated_resource_statuses.as_ref()?;
    stages.get(STORAGE).map(String::as_str).filter(|stage| !stage.is_empty())
}

/// The size that a claim says to have.
pub fn capacity_of(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    quantity(claim.status.as_ref()?.capacity.as_ref())
}

/// Of storage, in a list of resources.
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

/// After a driver has refused for good: somebody asks for another size by now, so this one is not insisted on.
pub fn gives_up(claim: &PersistentVolumeClaim, size: Quantity) -> bool {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    quantity(wanted.and_then(|resources| resources.requests.as_ref())).is_some_and(|wanted| wanted != size)
}

/// The call that makes it larger.
pub fn expand_call(volume: &CsiVolume, can: Abilities, size: Quantity, wanted: &Expansion) -> Expand {
    Expand {
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

/// The patch of the claim's status after its volume has grown.
pub fn grown(claim: &PersistentVolumeClaim, size: Quantity) -> Value {
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

/// The patch of the claim's status after a driver refused. `None`: it says so already. Nobody's version is asked for: that
/// it failed is true whatever else was written.
pub fn refused(claim: &PersistentVolumeClaim, message: &str, impossible: bool, at: Wall) -> Option<Value> {
    let status = claim.status.clone().unwrap_or_default();
    let mut fields = Map::new();
    if impossible && stage_of(&status) != Some(INFEASIBLE) {
        fields.insert("allocatedResourceStatuses".into(), json!({ STORAGE: INFEASIBLE }));
    }
    let mut conditions = status.conditions.iter().flatten();
    if !conditions.any(|condition| condition.type_ == ERROR && condition.status == "True") {
        let message = format!("failed to expand pvc with {message}");
        let condition = json!({
            "type": ERROR, "status": "True", "lastTransitionTime": at.api_time(), "message": message,
        });
        fields.insert("conditions".into(), json!([condition]));
    }
    (!fields.is_empty()).then(|| json!({ "status": fields }))
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
        let check = |value: Value, expect: Growth| {
            assert_eq!(growth(&claim(value.clone()), size("2Gi")), expect, "{value}");
        };
        let due =
            |text: &str, told: bool, part: Part| Growth::Due { size: size(text), mark: None, told, part };
        check(status("1Gi", None, None), due("2Gi", false, Part::Untold));
        check(status("2Gi", None, None), due("2Gi", true, Part::Untold));
        let mark = json!({"metadata": {"resourceVersion": "7"},
            "status": {"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}});
        let marked = Growth::Due { size: size("3Gi"), mark: Some(mark), told: false, part: Part::Asked };
        check(status("1Gi", Some("3Gi"), Some("NodeResizePending")), marked);
        check(status("1Gi", Some("3Gi"), Some("NodeResizeInProgress")), due("3Gi", false, Part::Asked));
        check(status("1Gi", None, Some("NodeResizeInProgress")), due("2Gi", false, Part::Asked));
        for other in ["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInfeasible"] {
            check(status("1Gi", Some("3Gi"), Some(other)), Growth::NotYet);
        }
        check(status("1Gi", Some("3Gi"), None), Growth::NotYet);
        check(status("3Gi", Some("3Gi"), None), Growth::Done(size("3Gi")));
        // What is used on many nodes grows on each of them, unless somebody says that it need not.
        let mut shared = status("3Gi", Some("3Gi"), None);
        shared["spec"] = json!({"accessModes": ["ReadWriteMany"]});
        check(shared.clone(), due("3Gi", true, Part::Shared));
        shared["metadata"] = json!({"annotations": {NOT_REQUIRED: "true"}});
        check(shared, Growth::Done(size("3Gi")));
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
            refused(&plain, "no", false, Wall(0)),
            Some(json!({"status": {"conditions": [{"type": "NodeResizeError", "status": "True",
                "lastTransitionTime": "1970-01-01T00:00:00Z", "message": "failed to expand pvc with no"}]}}))
        );
        assert_eq!(refused(&before, "no", false, Wall(0)), None, "it is told once");
        assert_eq!(
            refused(&before, "no", true, Wall(0)),
            Some(json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}}))
        );
    }
}
