//! Listing and removing what is on disk and in the cgroup tree without a pod, and the cgroups above pods.

use std::sync::Arc;

use decide::Sweep;
use decide::event::{Event, LeftoversSeen};
use futures::StreamExt;
use model::PodUid;
use model::cgroup::{CgroupName, CgroupSpec};
use model::node::NodeConfig;
use model::pod::QosClass;
use ports::Disposition;
use tokio::sync::watch;

use crate::dispatcher::Shop;
use crate::tear_down;

const REMOVALS_AT_ONCE: usize = 16;

/// Writes the cgroups above pods, one set after the other and always the newest: two writers at once could leave the
/// older numbers.
pub(crate) async fn keep_cgroups(shop: Shop, mut wanted: watch::Receiver<Vec<CgroupSpec>>) {
    while wanted.changed().await.is_ok() {
        let newest = wanted.borrow_and_update().clone();
        ensure_cgroups(&shop, newest).await;
    }
}

async fn ensure_cgroups(shop: &Shop, specs: Vec<CgroupSpec>) {
    let mut failed = false;
    for spec in specs {
        if let Err(error) = shop.ports.cgroups.ensure(&spec).await {
            let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
            tracing::error!("writing a cgroup above pods: {error}{cause}");
            failed = true;
        }
    }
    if failed {
        shop.outbox.send(Event::NodeCgroupsFailed);
    }
}

pub(crate) async fn list(shop: Shop, config: Arc<NodeConfig>) {
    let mut seen = LeftoversSeen::default();
    // What is left of the last time does not count for this one.
    shop.ports.meter.swept(0, 0);
    match shop.ports.files.leftovers().await {
        Ok(found) => {
            seen.pod_dirs = found.pod_dirs;
            seen.log_dirs = found.log_dirs;
            seen.dead_links = found.dead_links;
        }
        Err(error) => tracing::warn!("looking for leftovers of pods: {}", error.user_message()),
    }
    if config.cgroups_per_qos {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            seen.pod_cgroups.extend(pod_cgroups(&shop, decide::cgroups::qos_cgroup(&config, class)).await);
        }
    }
    shop.outbox.send(Event::Leftovers(seen));
}

async fn pod_cgroups(shop: &Shop, above: CgroupName) -> Vec<CgroupName> {
    match shop.ports.cgroups.children(&above).await {
        Ok(names) => names.into_iter().filter(|n| n.starts_with("pod")).map(|n| above.child(n)).collect(),
        Err(error) if error.disposition() == Disposition::Absent => Vec::new(),
        Err(error) => {
            tracing::warn!("looking for leftovers of pods: {error}");
            Vec::new()
        }
    }
}

pub(crate) async fn sweep(shop: Shop, what: Sweep) {
    let files = &shop.ports.files;
    let mut problems = Vec::new();
    let removals: Vec<_> = what.pod_dirs.iter().map(|uid| remove_pod(shop.clone(), uid.clone())).collect();
    // One whose server does not answer holds up itself only.
    let removed: Vec<_> = futures::stream::iter(removals).buffer_unordered(REMOVALS_AT_ONCE).collect().await;
    problems.extend(removed.into_iter().filter_map(Result::err));
    shop.ports.meter.swept(what.pod_dirs.len(), problems.len());
    for name in &what.log_dirs {
        problems.extend(files.remove_log_dir(name).await.err().map(|e| e.user_message()));
    }
    for name in &what.links {
        problems.extend(files.remove_link(name).await.err().map(|e| e.user_message()));
    }
    for name in &what.cgroups {
        problems.extend(shop.ports.cgroups.destroy(name).await.err().map(|e| e.to_string()));
    }
    shop.outbox.send(Event::Swept { problems });
}

async fn remove_pod(shop: Shop, uid: PodUid) -> Result<(), String> {
    let files = &shop.ports.files;
    let failed = |message: String| format!("pod {uid}: {message}");
    let torn_down = tear_down::volumes(files.tear_down_volumes(&uid), shop.csi.as_ref(), &uid).await;
    torn_down.map_err(failed)?;
    files.remove_pod_dir(&uid).await.map_err(|error| failed(error.user_message()))
}
