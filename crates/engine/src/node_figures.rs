//! Readings of what the node has left, and of what pods use of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::cgroups;
use decide::event::Event;
use futures::StreamExt;
use futures::stream;
use model::eviction::{
    ContainerFigures, FigureGroup, MemoryNoticeLevels, NodeFigures, PodFigures, PodToMeasure, SignalKind,
};
use model::node::NodeConfig;
use model::text_limits::{self, TextLimit};
use model::{Mono, PodUid};
use ports::{CgroupDetailLevel, PodCgroupUsage, PodCgroups};
use tokio_util::sync::CancellationToken;

use crate::context::EngineContext;

/// A filesystem or a runtime that hangs delays its own figures only.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Pods whose trees could not be measured within this are left without figures.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many pods' trees are measured at once.
const PODS_AT_ONCE: usize = 4;

fn pods_cgroup(config: &NodeConfig) -> Option<String> {
    config.cgroups_per_qos.then(|| cgroups::kubepods(config).to_path(config.cgroup_driver))
}

pub(crate) async fn read(ctx: EngineContext, config: Arc<NodeConfig>, group: FigureGroup, at: Mono) {
    let result = match tokio::time::timeout(READ_TIMEOUT, figures(&ctx, &config, group)).await {
        Ok(result) => result.map_err(|message| text_limits::truncate_text(message, TextLimit::LogLine)),
        Err(_) => Err(format!("no answer within {} s", READ_TIMEOUT.as_secs())),
    };
    ctx.outbox.send(Event::NodeFiguresRead { group, at, result });
}

async fn figures(
    ctx: &EngineContext,
    config: &NodeConfig,
    group: FigureGroup,
) -> Result<NodeFigures, String> {
    let signals = &ctx.ports.node_signals;
    let text = |error: std::io::Error| error.to_string();
    match group {
        FigureGroup::Memory => {
            let (node, pods) = signals.memory(pods_cgroup(config).as_deref()).await.map_err(text)?;
            Ok(NodeFigures::Memory { node, pods })
        }
        FigureGroup::NodeFilesystem => {
            Ok(NodeFigures::NodeFilesystem(signals.disk(&config.root_dir).await.map_err(text)?))
        }
        FigureGroup::ImageFilesystem => {
            let told = ctx.ports.images.image_fs_info().await;
            let (images, containers) = told.map_err(|error| error.user_message())?;
            let images = images.first().ok_or("the runtime names no filesystem of images")?;
            let images = signals.disk(&images.mountpoint).await.map_err(text)?;
            let containers = match containers.first() {
                Some(place) => Some(signals.disk(&place.mountpoint).await.map_err(text)?),
                None => None,
            };
            Ok(NodeFigures::ImageFilesystem { images, containers })
        }
        FigureGroup::Processes => {
            let (most, running) = signals.processes().await.map_err(text)?;
            Ok(NodeFigures::Processes { most, running })
        }
    }
}

/// Ends without an event when another wait replaces this one.
pub(crate) async fn await_memory_pressure(
    ctx: EngineContext,
    config: Arc<NodeConfig>,
    levels: MemoryNoticeLevels,
    cancel: CancellationToken,
) {
    let cgroup = pods_cgroup(&config);
    let wait = ctx.ports.node_signals.memory_runs_short(cgroup.as_deref(), &levels);
    if let Some(result) = cancel.run_until_cancelled(wait).await {
        let result = result.map_err(|error| error.to_string());
        ctx.outbox.send(Event::MemoryRunsShort { result });
    }
}

pub(crate) async fn measure_pods(ctx: EngineContext, call: u64, kind: SignalKind, pods: Vec<PodToMeasure>) {
    let pods = match kind {
        SignalKind::Memory | SignalKind::Processes => from_cgroups(&ctx, pods).await,
        SignalKind::Bytes | SignalKind::Inodes => from_disks(&ctx, pods).await,
    };
    ctx.outbox.send(Event::PodFiguresRead { call, pods });
}

async fn from_cgroups(ctx: &EngineContext, pods: Vec<PodToMeasure>) -> BTreeMap<PodUid, PodFigures> {
    let query = |pod: &PodToMeasure| PodCgroups {
        cgroup: pod.cgroup.clone().unwrap_or_default(),
        sandbox: pod.sandbox.clone(),
        containers: pod.containers.values().map(ToString::to_string).collect(),
        own_network: false,
    };
    let pods: Vec<_> = pods.into_iter().filter(|pod| pod.cgroup.is_some()).collect();
    let read = ctx.ports.usage.pods(pods.iter().map(query).collect(), CgroupDetailLevel::Basic);
    let found = match tokio::time::timeout(READ_TIMEOUT, read).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            tracing::warn!("what pods use can't be read: {error}");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!("what pods use can't be read in time");
            Vec::new()
        }
    };
    let known = pods.into_iter().zip(found).filter(|(_, usage)| usage.whole.is_some());
    known.map(|(pod, usage)| (pod.uid.clone(), of_cgroups(&pod, &usage))).collect()
}

fn of_cgroups(pod: &PodToMeasure, usage: &PodCgroupUsage) -> PodFigures {
    let containers = pod.containers.keys().zip(&usage.containers).filter_map(|(name, found)| {
        let memory_bytes = found.as_ref()?.usage.working_set_bytes;
        Some((name.clone(), ContainerFigures { memory_bytes, ..ContainerFigures::default() }))
    });
    PodFigures {
        memory_bytes: usage.whole.as_ref().and_then(|whole| whole.working_set_bytes),
        processes: usage.whole.as_ref().and_then(|whole| whole.tasks),
        containers: containers.collect(),
        ..PodFigures::default()
    }
}

async fn from_disks(ctx: &EngineContext, pods: Vec<PodToMeasure>) -> BTreeMap<PodUid, PodFigures> {
    let measured = stream::iter(pods).map(|pod| async move { (pod.uid.clone(), of_disk(ctx, &pod).await) });
    let in_time = measured.buffer_unordered(PODS_AT_ONCE).take_until(tokio::time::sleep(MEASURE_TIMEOUT));
    in_time.collect().await
}

/// What can't be measured is left out.
async fn of_disk(ctx: &EngineContext, pod: &PodToMeasure) -> PodFigures {
    let mut found = PodFigures::default();
    for volume in &pod.volumes {
        if let Ok((tree, _)) = ctx.ports.usage.tree(volume).await {
            found.volume_bytes = found.volume_bytes.saturating_add(tree.bytes);
            found.volume_inodes = found.volume_inodes.saturating_add(tree.inodes);
        }
    }
    let logs = ctx.ports.usage.directories(pod.logs.values().cloned().collect()).await.unwrap_or_default();
    for (name, log) in pod.logs.keys().zip(logs) {
        let figures = found.containers.entry(name.clone()).or_default();
        figures.log_bytes = log.map(|log| log.bytes);
        figures.log_inodes = log.map(|log| log.inodes);
    }
    for (name, id) in &pod.containers {
        let Ok(stats) = ctx.ports.runtime.container_stats(id).await else { continue };
        let figures = found.containers.entry(name.clone()).or_default();
        figures.layer_bytes = stats.writable_layer.as_ref().map(|layer| layer.used_bytes);
        figures.layer_inodes = stats.writable_layer.as_ref().map(|layer| layer.inodes_used);
    }
    found
}
