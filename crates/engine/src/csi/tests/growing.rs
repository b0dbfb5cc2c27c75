//! Volumes that are expanded.

use model::GrpcCode;
use std::sync::Arc;

use async_trait::async_trait;
use decide::action::ExpandOutcome;
use model::PodUid;
use model::csi::{ClaimObject, Expansion, NodeServiceCapabilities};
use model::k8s::PersistentVolumeClaim;
use model::storage::{StorageKey, StorageObject};
use ports::{ApiError, StorageApi};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::keeper::Keeper;
use super::world::{World, volume};

/// One claim, and the statuses that were written to it.
struct Claims {
    claim: Value,
    written: Mutex<Vec<Value>>,
}

#[async_trait]
impl StorageApi for Claims {
    async fn read(&self, _: &StorageKey) -> Result<StorageObject, ApiError> {
        Ok(StorageObject::Claim(Arc::new(serde_json::from_value(self.claim.clone()).unwrap())))
    }
    async fn patch_claim_status(
        &self,
        _: &ClaimObject,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ApiError> {
        self.written.lock().await.push(patch["status"].clone());
        let mut after = self.claim.clone();
        after["metadata"]["resourceVersion"] = json!("2");
        Ok(Arc::new(serde_json::from_value(after).unwrap()))
    }
}

struct Case {
    world: Arc<World>,
    claims: Arc<Claims>,
}

impl Case {
    fn new(stage: &str) -> Self {
        let mut status = json!({"capacity": {"storage": "1Gi"}});
        if !stage.is_empty() {
            status["allocatedResources"] = json!({"storage": "2Gi"});
            status["allocatedResourceStatuses"] = json!({"storage": stage});
        }
        let claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": status,
        });
        Self { world: World::new(), claims: Arc::new(Claims { claim, written: Mutex::default() }) }
    }

    async fn run(&self) -> Result<ExpandOutcome, String> {
        let (keeper, _inbox) = Keeper::start(self.world.ports(), Some(self.claims.clone()));
        let wanted = Expansion {
            claim: ClaimObject { namespace: "ns".into(), name: "c".into(), uid: "u".into() },
            size: "2Gi".into(),
            secrets: Default::default(),
            version: "1".into(),
            online: true,
        };
        keeper.expand(&PodUid::new("a"), volume("a", "v"), wanted).await
    }

    /// The parts of the status that were written, in order.
    async fn written(&self) -> Vec<String> {
        let all = self.claims.written.lock().await.clone();
        let keys = |one: &Value| {
            let mut keys: Vec<String> = one.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join("+")
        };
        all.iter().map(keys).collect()
    }
}

fn grown() -> Result<ExpandOutcome, String> {
    Ok(ExpandOutcome::Grown { size: "2Gi".into() })
}

#[tokio::test(start_paused = true)]
async fn the_claim_is_told_before_and_after() {
    let case = Case::new("NodeResizePending");
    assert_eq!(case.run().await, grown());
    assert_eq!(case.world.asked().await, ["expand v to 2147483648"]);
    assert_eq!(case.written().await, ["allocatedResourceStatuses", "allocatedResourceStatuses+capacity"]);
    // An agent that was killed in between continues.
    let case = Case::new("NodeResizeInProgress");
    assert_eq!(case.run().await, grown());
    assert_eq!(case.written().await, ["allocatedResourceStatuses+capacity"]);
    // A controller that does not report its progress.
    let case = Case::new("");
    assert_eq!(case.run().await, grown());
    assert_eq!(case.written().await, ["capacity"]);
}

#[tokio::test(start_paused = true)]
async fn it_is_not_done_out_of_turn() {
    for stage in ["ControllerResizeInProgress", "NodeResizeInfeasible"] {
        let case = Case::new(stage);
        assert_eq!(case.run().await, Ok(ExpandOutcome::NotYet), "{stage}");
        assert_eq!(case.world.asked().await, Vec::<String>::new());
        assert_eq!(case.written().await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_as_what_they_are() {
    let said = |code: GrpcCode, colon: &str| {
        format!("Expander.NodeExpand failed to expand the volume {colon}rpc error: code = {code} desc = no")
    };
    let marked = "allocatedResourceStatuses";
    let table = [
        // The error code, whether the controller is an older one, the result, and the status written to the claim.
        (
            GrpcCode::Internal,
            "NodeResizePending",
            Err(said(GrpcCode::Internal, ": ")),
            vec![marked, "conditions"],
        ),
        (
            GrpcCode::DeadlineExceeded,
            "NodeResizePending",
            Err(said(GrpcCode::DeadlineExceeded, ": ")),
            vec![marked],
        ),
        (
            GrpcCode::OutOfRange,
            "NodeResizePending",
            Err(said(GrpcCode::OutOfRange, "")),
            vec![marked, "allocatedResourceStatuses+conditions"],
        ),
        (
            GrpcCode::FailedPrecondition,
            "NodeResizePending",
            Ok(ExpandOutcome::InUse),
            vec![marked, "conditions"],
        ),
        (GrpcCode::Internal, "", Err(said(GrpcCode::Internal, ": ")), vec![]),
        (GrpcCode::FailedPrecondition, "", Ok(ExpandOutcome::InUse), vec![]),
    ];
    for (code, stage, expect, written) in table {
        let case = Case::new(stage);
        case.world.fail("expand", code).await;
        assert_eq!(case.run().await, expect, "{code} {stage}");
        assert_eq!(case.written().await, written, "{code} {stage}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_a_part_in_it_is_not_asked() {
    let case = Case::new("");
    case.world.inner.lock().await.can = NodeServiceCapabilities::default();
    assert_eq!(case.run().await, Ok(ExpandOutcome::Unneeded { size: "2Gi".into() }));
    let case = Case::new("NodeResizePending");
    case.world.inner.lock().await.can = NodeServiceCapabilities::default();
    let expect = "NodeExpand is not supported by the CSI driver d.example";
    assert_eq!(case.run().await, Err(expect.to_owned()));
    assert_eq!(case.written().await, ["allocatedResourceStatuses", "conditions"]);
    assert_eq!(case.world.asked().await, Vec::<String>::new());
}
