//! With paused time, against an API that fails.

use std::time::Duration;

use model::k8s::Node;
use tokio::time::sleep;

use super::*;
use crate::fake_api::{FakeApi, Fault, TestWall};

async fn start(api: &Arc<FakeApi>) -> tokio_util::sync::DropGuard {
    let stop = CancellationToken::new();
    let keeper = LeaseRenewer {
        setup: Arc::new(NodeObjectConfig { name: "n".into(), ..NodeObjectConfig::default() }),
        leases: api.clone(),
        nodes: api.clone(),
        clock: Clock::new(TestWall::new()),
        seed: JitterSeed(1),
        last: None,
    };
    tokio::spawn(keeper.run(stop.clone()));
    sleep(Duration::from_millis(5)).await;
    stop.drop_guard()
}

async fn with_node() -> Arc<FakeApi> {
    let api = FakeApi::new();
    api.put_node(Node::default()).await;
    api
}

#[tokio::test(start_paused = true)]
async fn renewed_every_ten_seconds() {
    let api = with_node().await;
    let _stop = start(&api).await;
    assert_eq!(api.calls().await, ["get lease", "get node", "create lease"]);
    let first = api.lease().await.unwrap();
    assert_eq!(first.metadata.owner_references.as_ref().unwrap()[0].uid, "uid-1");
    sleep(Duration::from_secs(100)).await;
    let calls = api.timed_calls().await;
    assert!((9..=10).contains(&calls.len()), "{calls:?}");
    for pair in calls.windows(2) {
        let wait = pair[1].0 - pair[0].0;
        assert!((10.0..10.5).contains(&wait), "{calls:?}");
        assert_eq!(pair[1].1, "update lease");
    }
    let renewed = |lease: &Lease| lease.spec.as_ref().unwrap().renew_time.clone();
    assert!(renewed(&api.lease().await.unwrap()) > renewed(&first));
}

#[tokio::test(start_paused = true)]
async fn one_that_others_changed_is_read_again() {
    let api = with_node().await;
    let _stop = start(&api).await;
    api.calls().await;
    api.change_lease(|lease| {
        let labels = [("a".to_owned(), "b".to_owned())].into();
        lease.as_mut().unwrap().metadata.labels = Some(labels);
    })
    .await;
    sleep(Duration::from_secs(11)).await;
    assert_eq!(api.calls().await, ["update lease", "get lease", "update lease"]);
    assert!(api.lease().await.unwrap().metadata.labels.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_that_was_deleted_is_made_again() {
    let api = with_node().await;
    let _stop = start(&api).await;
    api.calls().await;
    api.change_lease(|lease| *lease = None).await;
    sleep(Duration::from_secs(11)).await;
    assert_eq!(api.calls().await, ["update lease", "get lease", "get node", "create lease"]);
}

#[tokio::test(start_paused = true)]
async fn not_before_there_is_a_node() {
    let api = FakeApi::new();
    let _stop = start(&api).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(api.lease().await, None);
    let tries: Vec<f64> =
        api.timed_calls().await.into_iter().filter(|(_, c)| c == "get lease").map(|(at, _)| at).collect();
    let waits: Vec<u64> = tries.windows(2).map(|pair| ((pair[1] - pair[0]) * 10.0).round() as u64).collect();
    assert_eq!(waits, [2, 4, 8, 16, 32, 64, 70][..waits.len()]);
    api.put_node(Node::default()).await;
    sleep(Duration::from_secs(8)).await;
    assert!(api.lease().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn goes_on_when_calls_hang_or_fail() {
    for fault in [Fault::Hang, Fault::Server] {
        let api = with_node().await;
        let _stop = start(&api).await;
        api.fail("update lease", fault, 4).await;
        api.fail("get lease", fault, 2).await;
        sleep(Duration::from_secs(100)).await;
        api.calls().await;
        sleep(Duration::from_secs(21)).await;
        assert_eq!(api.calls().await, ["update lease"; 2], "{fault:?}");
    }
}
