//! CSI volumes with the shipped calls, and the registry, in paused time.

mod growing;
mod keeper;
mod registering;
mod troubled_disk;
mod world;

use model::GrpcCode;
use std::time::Duration;

use decide::csi::{VolumeRequestFrom, VolumeRequestId};
use model::PodUid;
use model::csi::CsiVolume;
use ports::FilesError;
use tokio_util::sync::CancellationToken;

use crate::tear_down;
use keeper::OnNode;
use world::{World, volume};

const HOUR: Duration = Duration::from_secs(3600);

/// The handles of the volumes on the node, as they were last sent.
fn on_node(inbox: &mut OnNode) -> Option<Vec<String>> {
    let mut last = None;
    while let Ok(volumes) = inbox.try_recv() {
        last = Some(volumes.into_iter().map(|id| id.handle).collect());
    }
    last
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_staged_once_and_unstaged_after_the_last_pod() {
    let world = World::new();
    let (keeper, mut inbox) = world.keeper();
    keeper.clone().look_around().await;
    let (a, b, stays) = (PodUid::new("a"), PodUid::new("b"), CancellationToken::new());
    for uid in [&a, &b] {
        let done = keeper.set_up(uid, &volume(uid.as_str(), "v"), &stays).await;
        assert!(matches!(done, Some(Ok(()))));
    }
    assert_eq!(world.asked().await, ["stage v", "publish /pods/a/v/mount", "publish /pods/b/v/mount"]);
    assert_eq!(on_node(&mut inbox), Some(vec!["v".to_owned()]));
    keeper.tear_down(&a).await.unwrap();
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount"], "the other one uses it");
    keeper.tear_down(&b).await.unwrap();
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/b/v/mount", "unstage v"]);
    assert_eq!(on_node(&mut inbox), Some(vec![]));
    assert_eq!(world.record_count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_staged_anew_for_another_label() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let stays = CancellationToken::new();
    let with = |uid: &str, label: &str| CsiVolume { selinux_context: label.into(), ..volume(uid, "v") };
    let (a, b) = (PodUid::new("a"), PodUid::new("b"));
    assert!(matches!(keeper.set_up(&a, &with("a", "one"), &stays).await, Some(Ok(()))));
    assert!(matches!(keeper.set_up(&a, &with("a", "one"), &stays).await, Some(Ok(()))));
    let again = ["stage v", "publish /pods/a/v/mount", "publish /pods/a/v/mount"];
    assert_eq!(world.asked().await, again, "the same label is staged once");
    let trouble = keeper.set_up(&b, &with("b", "two"), &stays).await.unwrap().unwrap_err();
    assert_eq!(trouble.message, "pod a has the volume with another SELinux label");
    // The pod was deleted, and an agent that has ended since could not unstage the volume.
    world.fail("unstage", GrpcCode::Internal).await;
    keeper.tear_down(&a).await.unwrap();
    world.rest().await;
    world.mend("unstage").await;
    world.asked().await;
    let (next, _inbox) = world.keeper();
    assert!(matches!(next.set_up(&b, &with("b", "two"), &stays).await, Some(Ok(()))));
    assert_eq!(world.asked().await, ["unstage v", "stage v", "publish /pods/b/v/mount"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_does_not_wait_for_its_staging() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let (uid, cancel) = (PodUid::new("a"), CancellationToken::new());
    world.hang("stage");
    let (other, token) = (keeper.clone(), cancel.clone());
    let work = tokio::spawn(async move { other.set_up(&PodUid::new("a"), &volume("a", "v"), &token).await });
    world.rest().await;
    cancel.cancel();
    assert!(work.await.unwrap().is_none());
    let gone = tokio::time::timeout(Duration::from_secs(1), keeper.tear_down(&uid)).await;
    assert_eq!(gone.expect("it does not wait"), Ok(()));
    assert_eq!(world.asked().await, ["stage v"]);
    world.heal("stage");
    world.rest().await;
    assert_eq!(world.asked().await, ["unstage v"], "it is never published, and let go of");
    assert_eq!(world.record_count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_away_under_a_publication() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let (uid, cancel) = (PodUid::new("a"), CancellationToken::new());
    world.hang("publish");
    let (other, token) = (keeper.clone(), cancel.clone());
    let work = tokio::spawn(async move { other.set_up(&PodUid::new("a"), &volume("a", "v"), &token).await });
    world.rest().await;
    cancel.cancel();
    assert!(work.await.unwrap().is_none(), "who wants the pod gone does not wait");
    let other = keeper.clone();
    let gone = tokio::spawn(async move { other.tear_down(&uid).await });
    world.rest().await;
    assert!(!gone.is_finished());
    assert_eq!(world.asked().await, ["stage v", "publish /pods/a/v/mount"]);
    world.heal("publish");
    assert_eq!(gone.await.unwrap(), Ok(()));
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount", "unstage v"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_unstaging_hangs_is_staged_again_for_the_next_pod() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let (a, b, stays) = (PodUid::new("a"), PodUid::new("b"), CancellationToken::new());
    assert!(matches!(keeper.set_up(&a, &volume("a", "v"), &stays).await, Some(Ok(()))));
    world.hang("unstage");
    keeper.tear_down(&a).await.unwrap();
    world.rest().await;
    world.asked().await;
    // The driver's call ends only at its deadline.
    let done = tokio::time::timeout(HOUR, keeper.set_up(&b, &volume("b", "v"), &stays)).await;
    assert!(matches!(done, Ok(Some(Ok(())))));
    assert_eq!(world.asked().await, ["stage v", "publish /pods/b/v/mount"]);
    // A pod uses it again: NodeUnstageVolume is not retried any more.
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.asked().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_call_leaves_depends_on_what_the_driver_said() {
    let world = World::new();
    let (keeper, mut on_node) = world.keeper();
    keeper.clone().look_around().await;
    assert!(on_node.recv().await.is_some_and(|volumes| volumes.is_empty()), "the records are read");
    let stays = CancellationToken::new();
    world.fail("stage", GrpcCode::Internal).await;
    let failed = keeper.set_up(&PodUid::new("a"), &volume("a", "v"), &stays).await;
    let trouble = failed.unwrap().unwrap_err();
    assert_eq!(trouble.message, "rpc error: code = Internal desc = no");
    assert_eq!(world.record_count().await, 0, "the driver has said that there is nothing");
    world.fail("stage", GrpcCode::DeadlineExceeded).await;
    assert!(keeper.set_up(&PodUid::new("a"), &volume("a", "v"), &stays).await.unwrap().is_err());
    assert_eq!(world.record_count().await, 1, "it may still be at work");
    world.mend("stage").await;
    assert!(matches!(keeper.set_up(&PodUid::new("a"), &volume("a", "v"), &stays).await, Some(Ok(()))));
    assert_eq!(world.record_count().await, 2);
}

#[tokio::test(start_paused = true)]
async fn other_volumes_go_on_while_one_hangs() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    world.hang("publish");
    let other = keeper.clone();
    let hung = tokio::spawn(async move {
        other.set_up(&PodUid::new("a"), &volume("a", "v"), &CancellationToken::new()).await
    });
    world.rest().await;
    world.asked().await;
    let other = keeper.clone();
    let free = tokio::spawn(async move {
        other.set_up(&PodUid::new("b"), &volume("b", "w"), &CancellationToken::new()).await
    });
    world.rest().await;
    assert_eq!(world.asked().await, ["stage w", "publish /pods/b/w/mount"], "it has a lane of its own");
    let trouble = hung.await.unwrap().unwrap().unwrap_err();
    assert_eq!(trouble.message, "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    assert!(free.await.unwrap().unwrap().is_err());
}

/// A bind mount of the agent itself still shows the volume: it must not be unpublished.
#[tokio::test(start_paused = true)]
async fn drivers_are_asked_when_nothing_of_the_pod_is_bound_elsewhere() {
    let world = World::new();
    let (keeper, mut inbox) = world.keeper();
    keeper.clone().look_around().await;
    let (uid, stays) = (PodUid::new("a"), CancellationToken::new());
    assert!(matches!(keeper.set_up(&uid, &volume("a", "v"), &stays).await, Some(Ok(()))));
    world.asked().await;
    let request = || VolumeRequestId { uid: uid.clone(), from: VolumeRequestFrom::Sweep };
    let busy = || async { Err(FilesError::Mounted { path: "/pods/a/volume-subpaths/v/c/0".into() }) };
    for _ in 0..2 {
        let error =
            tear_down::tear_down_pod_volumes(busy(), Some(&keeper.requests), request()).await.unwrap_err();
        assert!(error.contains("/pods/a/volume-subpaths/v/c/0"), "{error}");
        world.rest().await;
        assert_eq!(world.asked().await, Vec::<String>::new());
        assert_eq!(world.record_count().await, 2);
        assert!(on_node(&mut inbox).is_none_or(|on_node| on_node == ["v"]), "still in use here");
    }
    world.fail("unpublish", GrpcCode::Internal).await;
    let error = tear_down::tear_down_pod_volumes(async { Ok(()) }, Some(&keeper.requests), request())
        .await
        .unwrap_err();
    assert!(error.contains("UnmountVolume.TearDown failed for volume"), "{error}");
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount"], "not unstaged: the pod still has it");
    world.mend("unpublish").await;
    tear_down::tear_down_pod_volumes(async { Ok(()) }, Some(&keeper.requests), request()).await.unwrap();
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount", "unstage v"]);
    assert_eq!(world.record_count().await, 0);
    assert_eq!(on_node(&mut inbox), Some(vec![]));
    assert_eq!(
        tear_down::tear_down_pod_volumes(async { Ok(()) }, None, request()).await,
        Ok(()),
        "no driver can register"
    );
}
