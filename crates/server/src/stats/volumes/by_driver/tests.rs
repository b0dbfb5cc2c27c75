//! Against a driver that tells, refuses or hangs, with a clock that stands still between two waits.

use model::GrpcCode;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, VolumeCondition,
    VolumeUsage,
};
use model::{FullName, PodUid};
use ports::{
    CgroupDetailLevel, CgroupUsage, EventSink, MachineUsage, PodCgroupUsage, PodCgroups, TreeSource,
    UsageReader,
};
use tokio::sync::{Semaphore, mpsc, watch};

use super::super::{FIRST_WAIT, VolumeCache, VolumeStatsByPod};
use super::*;

const PERIOD: Duration = Duration::from_secs(60);
const CAN: NodeServiceCapabilities = NodeServiceCapabilities {
    stage_unstage_volume: false,
    single_node_multi_writer: false,
    volume_mount_group: false,
    expand_volume: false,
    get_volume_stats: true,
    volume_condition: true,
};

/// What the driver does when it is asked.
#[derive(Clone)]
enum FakeDriverState {
    Tells(NodeVolumeStats),
    Refuses,
    /// Until the deadline of a call, as the port has it.
    Hangs,
}

struct Driver {
    can: NodeServiceCapabilities,
    mood: watch::Sender<FakeDriverState>,
    asked: watch::Sender<Vec<String>>,
}

#[async_trait]
impl CsiDrivers for Driver {
    fn set_endpoint(&self, _: &str, _: Option<&str>) {}
    async fn node_get_info(&self, _: &str) -> Result<DriverNodeInfo, CsiError> {
        Ok(DriverNodeInfo::default())
    }
    async fn node_get_capabilities(&self, _: &str) -> Result<NodeServiceCapabilities, CsiError> {
        Ok(self.can)
    }
    async fn node_stage_volume(&self, _: &str, _: &NodeStageCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_publish_volume(&self, _: &str, _: &NodePublishCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_unpublish_volume(&self, _: &str, _: &str, _: &str) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_unstage_volume(&self, _: &str, _: &str, _: &str) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_expand_volume(&self, _: &str, _: &NodeExpandCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_get_volume_stats(
        &self,
        driver: &str,
        handle: &str,
        path: &str,
    ) -> Result<NodeVolumeStats, CsiError> {
        self.asked.send_modify(|asked| asked.push(format!("{driver} {handle} {path}")));
        let mood = self.mood.borrow().clone();
        match mood {
            FakeDriverState::Tells(told) => Ok(told),
            FakeDriverState::Refuses => {
                Err(CsiError::Rpc { code: GrpcCode::NotFound, message: "no such volume".into() })
            }
            FakeDriverState::Hangs => {
                tokio::time::sleep(2 * PERIOD).await;
                Err(CsiError::timed_out())
            }
        }
    }
}

/// Every volume of the host is empty; nothing else is read.
struct Host;

#[async_trait]
impl UsageReader for Host {
    async fn machine(&self, _: CgroupDetailLevel) -> io::Result<MachineUsage> {
        Err(io::Error::other("not read"))
    }
    async fn cgroups(&self, _: Vec<String>, _: CgroupDetailLevel) -> io::Result<Vec<Option<CgroupUsage>>> {
        Err(io::Error::other("not read"))
    }
    async fn pods(&self, _: Vec<PodCgroups>, _: CgroupDetailLevel) -> io::Result<Vec<PodCgroupUsage>> {
        Err(io::Error::other("not read"))
    }
    async fn cgroup_start(&self, _: &str) -> Option<Wall> {
        None
    }
    async fn own_cgroup(&self) -> Option<String> {
        None
    }
    async fn directories(&self, _: Vec<String>) -> io::Result<Vec<Option<TreeFigures>>> {
        Err(io::Error::other("not read"))
    }
    async fn filesystem(&self, _: &str) -> io::Result<FilesystemFigures> {
        Ok(FilesystemFigures::default())
    }
    async fn tree(&self, _: &str) -> io::Result<(TreeFigures, TreeSource)> {
        Ok((TreeFigures::default(), TreeSource::Walk))
    }
}

struct Events(mpsc::UnboundedSender<(EventSubject, ApiEvent)>);

impl EventSink for Events {
    fn record(&self, about: &EventSubject, event: &ApiEvent) {
        self.0.send((about.clone(), event.clone())).unwrap();
    }
}

struct Scene {
    driver: Arc<Driver>,
    sizes: Arc<VolumeSizes>,
    events: mpsc::UnboundedReceiver<(EventSubject, ApiEvent)>,
}

fn scene(can: NodeServiceCapabilities, health: bool, mood: FakeDriverState) -> Scene {
    let (told, events) = mpsc::unbounded_channel();
    let driver = Driver { can, mood: watch::Sender::new(mood), asked: watch::Sender::default() };
    let driver = Arc::new(driver);
    let sizes = VolumeSizes {
        usage: Arc::new(Host),
        drivers: Some(driver.clone()),
        events: Arc::new(Events(told)),
        wall: Arc::new(crate::testing::StoppedClock),
        metrics: crate::testing::metrics(),
        period: Some(PERIOD),
        health,
        known: watch::Sender::new(VolumeCache::default()),
        measurement_slots: Semaphore::new(1),
    };
    Scene { driver, sizes: Arc::new(sizes), events }
}

fn volume(name: &str, of_driver: bool) -> MeasuredVolume {
    MeasuredVolume {
        name: name.into(),
        path: format!("/v/{name}"),
        plugin: "p".into(),
        ephemeral: !of_driver,
        on_disk: false,
        claim: of_driver.then(|| "data".into()),
        of_driver: of_driver.then(|| VolumeId { driver: "d".into(), handle: format!("h-{name}") }),
    }
}

fn pod(uid: &str, volumes: Vec<MeasuredVolume>) -> PodVolumes {
    let name = FullName { namespace: "ns".into(), name: "web".into() };
    PodVolumes { uid: PodUid::new(uid), name, volumes }
}

fn told(abnormal: bool) -> NodeVolumeStats {
    NodeVolumeStats {
        bytes: Some(VolumeUsage { total: 100, used: 40, available: 60 }),
        inodes: Some(VolumeUsage { total: 10, used: 4, available: 6 }),
        condition: VolumeCondition { abnormal, message: "torn".into() },
    }
}

fn names(sizes: &VolumeStatsByPod, uid: &str) -> Vec<String> {
    let of_pod = sizes.get(&PodUid::new(uid)).cloned().unwrap_or_default();
    of_pod.iter().map(|one| one.volume.name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_drivers_figures_are_told_and_not_asked_for_again_within_the_period() {
    let scene = scene(CAN, false, FakeDriverState::Tells(told(true)));
    let asked = || vec![pod("u", vec![volume("data", true)])];
    let found = scene.sizes.of(asked()).await;
    let one = &found[&PodUid::new("u")][0];
    let filesystem = FilesystemFigures {
        available_bytes: 60,
        capacity_bytes: 100,
        used_bytes: 40,
        inodes: 10,
        inodes_free: 6,
    };
    assert_eq!((one.filesystem.clone(), one.used), (filesystem, TreeFigures { bytes: 40, inodes: 4 }));
    assert_eq!(one.abnormal, None, "health is behind a gate");
    assert_eq!(*scene.driver.asked.borrow(), ["d h-data /v/data"]);
    scene.sizes.of(asked()).await;
    assert_eq!(scene.driver.asked.borrow().len(), 1);
    tokio::time::advance(PERIOD).await;
    assert_eq!(names(&scene.sizes.of(asked()).await, "u"), ["data"], "the old ones, at once");
}

#[tokio::test(start_paused = true)]
async fn who_tells_what() {
    let empty = |abnormal| NodeVolumeStats { bytes: None, inodes: None, ..told(abnormal) };
    // What the driver can, the gate, what it says; whether there are figures, what is told of health, and an event.
    for (get_volume_stats, volume_condition, health, mood, figures, abnormal, event) in [
        (false, true, true, FakeDriverState::Tells(told(true)), false, None, false),
        (true, false, true, FakeDriverState::Tells(told(true)), true, None, false),
        (true, true, false, FakeDriverState::Tells(told(true)), true, None, false),
        (true, true, true, FakeDriverState::Tells(told(false)), true, Some(false), false),
        (true, true, true, FakeDriverState::Tells(told(true)), true, Some(true), true),
        (true, false, true, FakeDriverState::Tells(empty(true)), false, None, false),
        (true, true, true, FakeDriverState::Tells(empty(true)), true, Some(true), true),
        (true, true, true, FakeDriverState::Refuses, false, None, false),
    ] {
        let mut scene =
            scene(NodeServiceCapabilities { get_volume_stats, volume_condition, ..CAN }, health, mood);
        let found = scene.sizes.of(vec![pod("u", vec![volume("data", true)])]).await;
        let case = (get_volume_stats, volume_condition, health);
        assert_eq!(names(&found, "u").len(), usize::from(figures), "{case:?}");
        let one = found.get(&PodUid::new("u")).and_then(|of_pod| of_pod.first());
        assert_eq!(one.and_then(|one| one.abnormal), abnormal, "{case:?}");
        let seen = scene.events.try_recv().ok();
        assert_eq!(seen.is_some(), event, "{case:?}");
        if let Some((about, event)) = seen {
            assert_eq!(event, ApiEvent::warning("VolumeConditionAbnormal", "Volume data: torn"));
            assert!(matches!(about, EventSubject::Pod { uid, .. } if uid.as_str() == "u"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_holds_up_one_answer_for_a_moment_and_nothing_else() {
    let scene = scene(CAN, false, FakeDriverState::Hangs);
    let asked = || {
        let stuck = pod("u", vec![volume("files", false), volume("data", true)]);
        vec![stuck, pod("other", vec![volume("files", false)])]
    };
    let begun = Instant::now();
    let found = scene.sizes.of(asked()).await;
    assert_eq!(begun.elapsed(), FIRST_WAIT);
    assert_eq!(
        (names(&found, "u"), names(&found, "other")),
        (vec!["files".to_owned()], vec!["files".into()])
    );
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(names(&scene.sizes.of(asked()).await, "u"), ["files"]);
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for it again");
    assert_eq!(scene.driver.asked.borrow().len(), 1, "and nobody asks again meanwhile");
}

#[tokio::test(start_paused = true)]
async fn figures_stay_while_a_driver_hangs_and_go_when_it_refuses() {
    let scene = scene(CAN, false, FakeDriverState::Tells(told(false)));
    let asked = || vec![pod("u", vec![volume("data", true)])];
    assert_eq!(names(&scene.sizes.of(asked()).await, "u"), ["data"]);
    scene.driver.mood.send_replace(FakeDriverState::Hangs);
    // Past the period, while the call is at work, and after its deadline.
    for _ in 0..4 {
        tokio::time::sleep(PERIOD).await;
        assert_eq!(names(&scene.sizes.of(asked()).await, "u"), ["data"]);
    }
    scene.driver.mood.send_replace(FakeDriverState::Refuses);
    tokio::time::sleep(3 * PERIOD).await;
    scene.sizes.of(asked()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&scene.sizes.of(asked()).await, "u"), [""; 0]);
}
