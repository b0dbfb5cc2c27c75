//! Lists and removes what has no pod on disk and in the cgroup tree, and writes the cgroups above pods.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use decide::Sweep;
use decide::csi::{VolumeRequestFrom, VolumeRequestId};
use decide::event::{CgroupFailure, Event, PodArtifacts};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use model::PodUid;
use model::cgroup::{CgroupName, CgroupSpec};
use model::node::NodeConfig;
use model::pod::QosClass;
use ports::{CgroupError, Disposition};
use tokio::sync::watch;

use crate::context::EngineContext;
use crate::tear_down;

const REMOVALS_AT_ONCE: usize = 16;

/// Writes the cgroups above pods, one set at a time and always the newest: two concurrent writers could leave the older
/// numbers.
///
/// Once they are there, it is also reported when a cgroup below them is removed.
pub(crate) async fn apply_node_cgroups(ctx: EngineContext, mut wanted: watch::Receiver<Vec<CgroupSpec>>) {
    let mut removals: Option<Removals> = None;
    let mut watched: Vec<CgroupName> = Vec::new();
    loop {
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let newest = wanted.borrow_and_update().clone();
                watched = newest.iter().map(|spec| spec.name.clone()).collect();
                ensure_cgroups(&ctx, newest).await;
                if removals.is_none() {
                    removals = watch(&ctx, &watched).await;
                }
            }
            removed = next_removal(&mut removals) => match removed {
                Some(name) if watched.contains(&name) => removals = watch_again(&ctx, &watched).await,
                Some(name) => report_removal(&ctx, name).await,
                None => removals = watch_again(&ctx, &watched).await,
            },
        }
    }
}

type Removals = BoxStream<'static, CgroupName>;

/// A watch of a cgroup that is not there would tell of nothing, now and later. So there is none before all are there:
/// those that could not be written are written again.
async fn watch(ctx: &EngineContext, names: &[CgroupName]) -> Option<Removals> {
    for name in names {
        if !ctx.ports.cgroups.exists(name).await.unwrap_or(false) {
            return None;
        }
    }
    Some(ctx.ports.cgroups.removals(names.to_vec()))
}

/// One of the watched cgroups itself was removed, or the watch lost track. The cgroups that are gone are reported: they
/// are written again, and then watched. The watch of a cgroup that was made again meanwhile is of no use.
async fn watch_again(ctx: &EngineContext, names: &[CgroupName]) -> Option<Removals> {
    for name in names {
        report_removal(ctx, name.clone()).await;
    }
    watch(ctx, names).await
}

async fn next_removal(removals: &mut Option<Removals>) -> Option<CgroupName> {
    match removals {
        Some(removals) => removals.next().await,
        None => std::future::pending().await,
    }
}

/// A cgroup that was made again meanwhile is not gone.
async fn report_removal(ctx: &EngineContext, name: CgroupName) {
    if !ctx.ports.cgroups.exists(&name).await.unwrap_or(true) {
        ctx.outbox.send(Event::CgroupRemoved { name });
    }
}

async fn ensure_cgroups(ctx: &EngineContext, specs: Vec<CgroupSpec>) {
    let mut failures = Vec::new();
    for spec in specs {
        if let Err(error) = ctx.ports.cgroups.ensure(&spec).await {
            let message = with_cause(&error);
            tracing::error!("writing a cgroup above pods: {message}");
            failures.push(CgroupFailure { name: spec.name, message });
        }
    }
    ctx.outbox.send(Event::NodeCgroupsWritten { failures });
}

fn with_cause(error: &CgroupError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Writes into cgroups that others made, one after the other up to the first failure.
pub(crate) async fn update_reserved_cgroups(ctx: EngineContext, specs: Vec<CgroupSpec>) {
    let mut results = Vec::new();
    for spec in specs {
        let result = ctx.ports.cgroups.update(&spec).await;
        let failed = result.is_err();
        results.push(result.map_err(|error| with_cause(&error)));
        if failed {
            break;
        }
    }
    ctx.outbox.send(Event::ReservedCgroupsWritten { results });
}

/// Reads again what could not be read when the agent started.
pub(crate) async fn read_user_ids(ctx: EngineContext) {
    let found = ctx.ports.files.user_ids().await;
    for problem in found.problems {
        tracing::warn!("user namespaces of pods: {problem}");
    }
    ctx.outbox.send(Event::UserIdsRead { ids: found.ids, unlisted: found.unlisted });
}

pub(crate) async fn list_pod_artifacts(ctx: EngineContext, config: Arc<NodeConfig>) {
    let mut seen = PodArtifacts::default();
    // Remains of the previous sweep do not count for this one.
    ctx.ports.meter.record_sweep(0, 0);
    match ctx.ports.files.leftovers().await {
        Ok(found) => {
            seen.pod_dirs = found.pod_dirs;
            seen.pod_dirs_complete = found.pod_dirs_complete;
            seen.log_dirs = found.log_dirs;
            seen.dead_links = found.dead_links;
            for problem in found.problems {
                tracing::warn!("listing orphaned pod files: {problem}");
            }
        }
        Err(error) => tracing::warn!("listing orphaned pod files: {}", error.user_message()),
    }
    if config.cgroups_per_qos {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            seen.pod_cgroups.extend(pod_cgroups(&ctx, decide::cgroups::qos_cgroup(&config, class)).await);
        }
    }
    ctx.outbox.send(Event::PodArtifactsListed(seen));
}

async fn pod_cgroups(ctx: &EngineContext, above: CgroupName) -> Vec<CgroupName> {
    match ctx.ports.cgroups.children(&above).await {
        Ok(names) => names.into_iter().filter(|n| n.starts_with("pod")).map(|n| above.child(n)).collect(),
        Err(error) if error.disposition() == Disposition::Absent => Vec::new(),
        Err(error) => {
            tracing::warn!("listing orphaned pod cgroups: {error}");
            Vec::new()
        }
    }
}

pub(crate) async fn remove_leftovers(ctx: EngineContext, what: Sweep) {
    let files = &ctx.ports.files;
    let removals =
        what.pod_dirs.iter().map(|uid| (uid.clone(), remove_leftover_pod_dir(ctx.clone(), uid.clone())));
    let mut problems = remove_all(removals.collect()).await;
    ctx.ports.meter.record_sweep(what.pod_dirs.len(), problems.len());
    for name in &what.log_dirs {
        problems.extend(files.remove_log_dir(name).await.err().map(|e| e.user_message()));
    }
    for name in &what.links {
        problems.extend(files.remove_link(name).await.err().map(|e| e.user_message()));
    }
    for name in &what.cgroups {
        problems.extend(ctx.ports.cgroups.destroy(name).await.err().map(|e| e.to_string()));
    }
    ctx.outbox.send(Event::SweepEnded { problems });
}

/// Runs the removals concurrently and returns the failures, each with its pod. A removal that hangs or panics delays no
/// other. Each failure is part of the event that reports the end of the sweep.
async fn remove_all(removals: Vec<(PodUid, impl Future<Output = Result<(), String>>)>) -> Vec<String> {
    let removals = removals.into_iter().map(|(uid, removal)| async move {
        let removed = AssertUnwindSafe(removal).catch_unwind().await;
        let removed = removed.unwrap_or_else(|_| Err("internal error: removing it panicked".to_owned()));
        removed.map_err(|message| format!("pod {uid}: {message}"))
    });
    let removed: Vec<_> = futures::stream::iter(removals).buffer_unordered(REMOVALS_AT_ONCE).collect().await;
    removed.into_iter().filter_map(Result::err).collect()
}

async fn remove_leftover_pod_dir(ctx: EngineContext, uid: PodUid) -> Result<(), String> {
    let files = &ctx.ports.files;
    let request = VolumeRequestId { uid: uid.clone(), from: VolumeRequestFrom::Sweep };
    tear_down::tear_down_pod_volumes(files.tear_down_volumes(&uid), ctx.csi.as_ref(), request).await?;
    files.remove_pod_dir(&uid).await.map_err(|error| error.user_message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// More removals hang, for two minutes each, than run at once; and one panics.
    #[tokio::test(start_paused = true)]
    async fn a_piece_that_hangs_or_panics_is_told_and_the_rest_goes() {
        let gone = Arc::new(AtomicUsize::new(0));
        let removal = |number: usize| -> BoxFuture<'static, Result<(), String>> {
            let gone = gone.clone();
            Box::pin(async move {
                match number {
                    0..20 => {
                        tokio::time::sleep(Duration::from_secs(120)).await;
                        Err("its server does not answer".to_owned())
                    }
                    20 => std::panic::resume_unwind(Box::new("a bug")),
                    _ => {
                        gone.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                }
            })
        };
        let removals = (0..40).map(|number| (PodUid::new(format!("p{number}")), removal(number)));
        let problems = remove_all(removals.collect()).await;
        assert_eq!((problems.len(), gone.load(Ordering::Relaxed)), (21, 19));
        for expect in ["pod p7: its server does not answer", "pod p20: internal error: removing it panicked"]
        {
            assert!(problems.iter().any(|problem| problem == expect), "{problems:?}");
        }
    }
}
