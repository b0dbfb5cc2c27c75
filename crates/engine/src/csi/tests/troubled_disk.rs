//! Disks that fail, and walks through volumes whose server does not answer.

use model::GrpcCode;
use std::sync::Arc;
use std::time::Duration;

use model::PodUid;
use model::csi::{CsiVolume, FsGroup};
use model::volume::MountStage;
use tokio_util::sync::CancellationToken;

use super::keeper::{Keeper, Trouble};
use super::world::{World, volume};
use super::{HOUR, on_node};

/// A volume with an fsGroup.
fn grouped(uid: &str, handle: &str) -> CsiVolume {
    let group = Some(FsGroup { id: 7, by_agent: true, on_root_mismatch: false });
    CsiVolume { fs_group: group, ..volume(uid, handle) }
}

async fn set_up(keeper: &Arc<Keeper>, volume: &CsiVolume, uid: &str) -> Result<(), Trouble> {
    let stays = CancellationToken::new();
    keeper.set_up(&PodUid::new(uid), volume, &stays).await.expect("nobody cancels it")
}

/// Runs in its own task.
fn spawn_set_up(
    keeper: &Arc<Keeper>,
    uid: &'static str,
    volume: CsiVolume,
    cancel: &CancellationToken,
) -> tokio::task::JoinHandle<Option<Result<(), Trouble>>> {
    let (keeper, cancel) = (keeper.clone(), cancel.clone());
    tokio::spawn(async move { keeper.set_up(&PodUid::new(uid), &volume, &cancel).await })
}

const OF_A: &str = "walk /pods/a/v/mount";

#[tokio::test(start_paused = true)]
async fn a_walk_that_hangs_is_told_and_keeps_its_own_volume_only() {
    let world = World::new();
    let (keeper, mut inbox) = world.keeper();
    keeper.clone().look_around().await;
    let (a, b) = (PodUid::new("a"), PodUid::new("b"));
    world.hang(OF_A);
    let walk = spawn_set_up(&keeper, "a", grouped("a", "v"), &CancellationToken::new());
    world.rest().await;
    assert_eq!(world.asked().await, ["stage v", "publish /pods/a/v/mount", OF_A]);

    // Meanwhile another pod with the volume, and the pod's other volume, can be set up and torn down.
    set_up(&keeper, &grouped("b", "v"), "b").await.map_err(|trouble| trouble.message).unwrap();
    assert_eq!(world.asked().await, ["publish /pods/b/v/mount", "walk /pods/b/v/mount"]);
    set_up(&keeper, &grouped("a", "w"), "a").await.map_err(|trouble| trouble.message).unwrap();
    keeper.tear_down(&b).await.unwrap();
    assert!(!walk.is_finished());
    world.asked().await;

    let trouble = walk.await.unwrap().unwrap().unwrap_err();
    assert_eq!(trouble.stage, MountStage::SetUp);
    let expect = "applyFSGroup failed for vol v: walking through /pods/a/v/mount made no progress for";
    assert!(trouble.message.starts_with(expect), "{}", trouble.message);

    // The tear-down fails while a thread may touch the pod's volume, names it, and has released the others.
    let message = keeper.tear_down(&a).await.unwrap_err();
    let expect = "UnmountVolume.TearDown failed for volume \"v\" : earlier work on /pods/a/v/mount made no progress for";
    assert!(message.starts_with(expect), "{message}");
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/w/mount", "unstage w"]);
    assert_eq!(on_node(&mut inbox), Some(vec!["v".to_owned()]));

    world.heal(OF_A);
    keeper.tear_down(&a).await.unwrap();
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount", "unstage v"]);
    assert_eq!(on_node(&mut inbox), Some(vec![]));
    assert_eq!(world.record_count().await, 0);
}

/// A walk is cancelled, and nothing is unmounted under it until it has stopped.
#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_leaves_its_walk_and_waits_for_its_end() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let cancel = CancellationToken::new();
    world.hang(OF_A);
    let walk = spawn_set_up(&keeper, "a", grouped("a", "v"), &cancel);
    world.rest().await;
    cancel.cancel();
    assert!(walk.await.unwrap().is_none(), "who wants the pod gone does not wait");
    let other = keeper.clone();
    let gone = tokio::spawn(async move { other.tear_down(&PodUid::new("a")).await });
    world.rest().await;
    assert!(!gone.is_finished());
    assert_eq!(world.asked().await, ["stage v", "publish /pods/a/v/mount", OF_A]);
    world.heal(OF_A);
    assert_eq!(gone.await.unwrap(), Ok(()));
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/v/mount", "unstage v"]);
    assert_eq!(keeper.remembered().await, 0, "nothing is remembered of it");
}

/// The next attempt for the same pod waits for the thread of the first.
#[tokio::test(start_paused = true)]
async fn a_second_walk_waits_for_the_first() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    world.hang(OF_A);
    assert!(set_up(&keeper, &grouped("a", "v"), "a").await.is_err());
    assert!(set_up(&keeper, &grouped("a", "v"), "a").await.is_err());
    let walks = world.asked().await.into_iter().filter(|call| call == OF_A).count();
    assert_eq!(walks, 1);
    // While it waits, other pods can use the volume.
    let again = spawn_set_up(&keeper, "a", grouped("a", "v"), &CancellationToken::new());
    world.rest().await;
    let of_b = grouped("b", "v");
    let other = tokio::time::timeout(Duration::from_secs(1), set_up(&keeper, &of_b, "b"));
    assert!(other.await.expect("it does not wait").is_ok());
    assert!(!again.is_finished());
    assert!(again.await.unwrap().unwrap().is_err());
    world.heal(OF_A);
    assert!(set_up(&keeper, &grouped("a", "v"), "a").await.is_ok());
}

/// A driver that hangs on one volume of a pod does not delay the pod's other volumes.
#[tokio::test(start_paused = true)]
async fn the_other_volumes_of_a_pod_go_while_one_is_being_published() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    set_up(&keeper, &volume("a", "w"), "a").await.map_err(|trouble| trouble.message).unwrap();
    let cancel = CancellationToken::new();
    world.hang("publish");
    let hung = spawn_set_up(&keeper, "a", volume("a", "v"), &cancel);
    world.rest().await;
    cancel.cancel();
    assert!(hung.await.unwrap().is_none());
    world.asked().await;
    let other = keeper.clone();
    let gone = tokio::spawn(async move { other.tear_down(&PodUid::new("a")).await });
    world.rest().await;
    assert_eq!(world.asked().await, ["unpublish /pods/a/w/mount"]);
    assert!(!gone.is_finished());
    world.heal("publish");
    assert_eq!(gone.await.unwrap(), Ok(()));
    world.rest().await;
    let mut asked = world.asked().await;
    asked.sort();
    assert_eq!(asked, ["unpublish /pods/a/v/mount", "unstage v", "unstage w"]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_is_told_with_how_far_it_came() {
    let stages = [
        ("make a directory", MountStage::MountDevice, "the disk refuses to make a directory"),
        ("write a record", MountStage::MountDevice, "the disk refuses to write a record"),
        ("list records", MountStage::SetUp, "the disk refuses to list records"),
        ("walk", MountStage::SetUp, "applyFSGroup failed for vol v: the disk refuses to walk"),
    ];
    for (step, stage, message) in stages {
        let world = World::new();
        let (keeper, _inbox) = world.keeper();
        world.break_disk(step).await;
        let trouble = set_up(&keeper, &grouped("a", "v"), "a").await.unwrap_err();
        assert_eq!((trouble.stage, trouble.message.as_str()), (stage, message), "{step}");
        world.mend_disk().await;
        assert!(set_up(&keeper, &grouped("a", "v"), "a").await.is_ok(), "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_removed_is_tried_again() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let a = PodUid::new("a");
    set_up(&keeper, &volume("a", "v"), "a").await.map_err(|trouble| trouble.message).unwrap();
    world.asked().await;
    world.break_disk("remove").await;
    let message = keeper.tear_down(&a).await.unwrap_err();
    assert_eq!(message, "UnmountVolume.TearDown failed for volume \"v\" : the disk refuses to remove");
    world.mend_disk().await;
    keeper.tear_down(&a).await.unwrap();
    world.rest().await;
    let again = "unpublish /pods/a/v/mount";
    assert_eq!(world.asked().await, [again, again, "unstage v"]);

    // The same for the volume's mount on the node, however often that has to be retried.
    set_up(&keeper, &volume("a", "v"), "a").await.map_err(|trouble| trouble.message).unwrap();
    world.asked().await;
    // Before the tear-down ends: whoever uses the volume is looked for as soon as it has.
    world.break_disk("list all records").await;
    keeper.tear_down(&a).await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.record_count().await, 1, "nobody knows who has it");
    world.mend_disk().await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.record_count().await, 0);
}

/// After a driver has refused, it is not called again, and what it has left is reported.
#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_let_go_keeps_its_record() {
    let world = World::new();
    let (keeper, _inbox) = world.keeper();
    let a = PodUid::new("a");
    set_up(&keeper, &volume("a", "v"), "a").await.map_err(|trouble| trouble.message).unwrap();
    for code in [GrpcCode::Internal, GrpcCode::DeadlineExceeded] {
        world.fail("unpublish", code).await;
        let message = keeper.tear_down(&a).await.unwrap_err();
        assert!(message.ends_with(&format!("code = {code} desc = no")), "{message}");
        assert_eq!(world.record_count().await, 2, "{code}");
    }
    world.mend("unpublish").await;
    let gone = tokio::time::timeout(Duration::from_secs(1), keeper.tear_down(&a)).await;
    assert_eq!(gone, Ok(Ok(())));
}
