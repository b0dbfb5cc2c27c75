//! Tests of what concurrent requests cost.

use std::io;

use async_trait::async_trait;
use model::Wall;
use ports::{
    CgroupUsage, FilesystemFigures, MachineUsage, NamedUsage, PodCgroupUsage, PodCgroups, TreeFigures,
    TreeSource,
};
use tokio::sync::watch;

use super::*;
use crate::metered::tests::{CountingEventSink, FakeImages};
use crate::testing::{FakeAgent, FakeAgentState, FakeRuntime, StoppedClock, metrics};

/// Records what was read.
#[derive(Default)]
pub(super) struct RecordingUsageReader(watch::Sender<Vec<String>>);

impl RecordingUsageReader {
    fn at(&self, what: impl ToString) {
        self.0.send_modify(|looks| looks.push(what.to_string()));
    }
}

#[async_trait]
impl UsageReader for RecordingUsageReader {
    async fn machine(&self, _: CgroupDetailLevel) -> io::Result<MachineUsage> {
        self.at("machine");
        Ok(MachineUsage::default())
    }
    async fn cgroups(
        &self,
        paths: Vec<String>,
        _: CgroupDetailLevel,
    ) -> io::Result<Vec<Option<CgroupUsage>>> {
        Ok(vec![None; paths.len()])
    }
    async fn pods(&self, wanted: Vec<PodCgroups>, _: CgroupDetailLevel) -> io::Result<Vec<PodCgroupUsage>> {
        self.at("pods");
        let found = |query: &PodCgroups| PodCgroupUsage {
            containers: query.containers.iter().map(|_| Some(NamedUsage::default())).collect(),
            ..Default::default()
        };
        Ok(wanted.iter().map(found).collect())
    }
    async fn cgroup_start(&self, _: &str) -> Option<Wall> {
        None
    }
    async fn own_cgroup(&self) -> Option<String> {
        None
    }
    async fn directories(&self, paths: Vec<String>) -> io::Result<Vec<Option<TreeFigures>>> {
        paths.iter().for_each(|path| self.at(path));
        Ok(vec![Some(TreeFigures { bytes: 5, inodes: 1 }); paths.len()])
    }
    async fn filesystem(&self, path: &str) -> io::Result<FilesystemFigures> {
        self.at(format!("filesystem of {path}"));
        Ok(FilesystemFigures::default())
    }
    async fn tree(&self, _: &str) -> io::Result<(TreeFigures, TreeSource)> {
        Ok((TreeFigures::default(), TreeSource::Walk))
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_at_twice_in_a_moment() {
    let usage = Arc::new(RecordingUsageReader::default());
    let ports = StatsPorts {
        agent: Arc::new(FakeAgent(FakeAgentState::Well)),
        usage: usage.clone(),
        runtime: Arc::new(FakeRuntime::default()),
        images: Arc::new(FakeImages),
        drivers: None,
        events: Arc::new(CountingEventSink::default()),
        wall: Arc::new(StoppedClock),
    };
    let settings = StatsSettings { root_dir: "/root-dir".into(), ..Default::default() };
    let stats = NodeStats::new(ports, settings, metrics());
    let everything = async || {
        stats.summary(false).await.unwrap();
        assert!(stats.log_sizes().await.iter().all(|(_, bytes)| *bytes == 5));
        assert_eq!(stats.log_sizes().await.len(), 2);
        assert_eq!(stats.pull_records().await, Some([1, 1]));
        stats.resource_metrics().await;
    };
    everything().await;
    let looks = usage.0.borrow().clone();
    let times = |what: &str| looks.iter().filter(|look| *look == what).count();
    // One per container, which have the same directory here.
    assert_eq!(times("/logs"), 2, "{looks:?}");
    assert_eq!(
        (times("/root-dir/image_manager/pulled"), times("pods"), times("machine")),
        (1, 1, 1),
        "{looks:?}"
    );
    everything().await;
    assert_eq!(*usage.0.borrow(), looks, "nothing more");
    tokio::time::advance(2 * MAX_DISK_READING_AGE).await;
    everything().await;
    assert_eq!(usage.0.borrow().len(), 2 * looks.len(), "and again when that is old");
}
