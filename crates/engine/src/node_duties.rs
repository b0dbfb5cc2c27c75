//! What an agent does for its node besides running pods: the tasks around the Node object, and their start.
//!
//! Each of them may hang without delaying another.

use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use decide::jitter::JitterSeed;
use decide::node::{self, RuntimeSnapshot};
use futures::{FutureExt, StreamExt};
use model::ApiEvent;
use model::k8s::Node;
use model::node::{HostAddresses, HostFacts, NodeObjectConfig};
use ports::{ClusterPorts, HostFactsSource, Images, NodeApi, ObservedObject, Runtime};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::context::EngineContext;
use crate::csi::node_object::CsiNodeReconciler;
use crate::lease_renewer::LeaseRenewer;
use crate::node_reconciler::{ImageList, NodeReconciler, NodeReconcilerDeps, WatchedNode};
use crate::object_watches::WATCH_RESTART_DELAY;
use crate::outbox::Outbox;

/// Runtimes send events when images are added, but not all do when images are removed. So images are also listed at
/// this period.
const IMAGE_LIST_PERIOD: Duration = Duration::from_secs(300);
/// The pull of an image with many layers sends many events, so we wait this long before we list.
const IMAGE_LIST_DELAY: Duration = Duration::from_secs(1);
const FACTS_PERIOD_ALONE: Duration = Duration::from_secs(60);
const CIDR_RETRY: Duration = Duration::from_secs(5);

/// What the node's duties need besides the engine's own ports.
pub struct NodeDuties {
    pub setup: NodeObjectConfig,
    pub facts: Arc<dyn HostFactsSource>,
    /// Seed for jitter; different at every start.
    pub seed: u64,
    /// Events about the node that are sent when the agent starts.
    pub events_at_start: Vec<ApiEvent>,
}

/// The tasks' outputs in a cluster.
pub(crate) struct RunningDuties {
    /// The Node object as the watch shows it.
    pub node: watch::Receiver<WatchedNode>,
    pub csi_node: Option<Arc<CsiNodeReconciler>>,
}

/// Starts the tasks. In a cluster, returns their outputs.
///
/// Without a cluster only the host's facts are refreshed, and the runtime is sent the configured pod CIDR.
pub(crate) fn start(
    ctx: &EngineContext,
    duties: NodeDuties,
    facts: Arc<HostFacts>,
    runtime: watch::Receiver<RuntimeSnapshot>,
    stop: &CancellationToken,
) -> Option<RunningDuties> {
    let setup = Arc::new(duties.setup);
    let (facts_now, facts) = watch::channel(facts);
    // In a cluster a new address is sent with the next status update; without one there is no hurry.
    let period = if ctx.ports.cluster.is_some() { setup.status_period } else { FACTS_PERIOD_ALONE };
    let refresh = refresh_facts(duties.facts, period, facts_now, ctx.outbox.clone());
    ctx.essential_tasks.spawn_until("reading host facts", stop, refresh);
    let configured = Some(setup.pod_cidr.clone()).filter(|cidr| !cidr.is_empty());
    let (cidrs_now, cidrs) = watch::channel(configured.filter(|_| ctx.ports.cluster.is_none()));
    let tell = send_pod_cidrs_to_runtime(ctx.ports.runtime.clone(), cidrs);
    // Without a cluster it ends when the configured CIDR has been sent.
    let tell = stop.clone().run_until_cancelled_owned(tell);
    ctx.essential_tasks.spawn("sending pod CIDRs to the runtime", tell);
    let cluster = ctx.ports.cluster.clone()?;

    let (images_now, images) = watch::channel(ImageList::default());
    let list = list_images(ctx.ports.images.clone(), runtime.clone(), ctx.images_changed.clone(), images_now);
    ctx.essential_tasks.spawn_until("the list of images", stop, list);
    let (node_now, node) = watch::channel(WatchedNode::default());
    let name = setup.name.clone();
    let follow = follow_node(cluster.node.clone(), name, ctx.outbox.clone(), node_now, cidrs_now);
    ctx.essential_tasks.spawn_until("the watch of the Node", stop, follow);
    let has_drivers = ctx.ports.csi.is_some();
    let csi_node = has_drivers.then(|| CsiNodeReconciler::new(cluster.clone(), setup.name.clone()));
    let storage = match &csi_node {
        Some(keeper) => {
            let run = keeper.clone().run(node.clone(), stop.clone());
            ctx.essential_tasks.spawn_until("CSINode updates", stop, run);
            keeper.not_ready_reason()
        }
        None => watch::channel(None).1,
    };
    let watched = NodeFeeds { node: node.clone(), facts, runtime, images, storage };
    let begins = NodeStartInputs { seed: duties.seed, events: duties.events_at_start };
    start_keepers(ctx, &cluster, setup, begins, stop, watched);
    Some(RunningDuties { node, csi_node })
}

struct NodeFeeds {
    node: watch::Receiver<WatchedNode>,
    facts: watch::Receiver<Arc<HostFacts>>,
    runtime: watch::Receiver<RuntimeSnapshot>,
    images: watch::Receiver<ImageList>,
    storage: watch::Receiver<Option<String>>,
}

/// What the Node and Lease tasks start with.
struct NodeStartInputs {
    seed: u64,
    events: Vec<ApiEvent>,
}

fn start_keepers(
    ctx: &EngineContext,
    cluster: &ClusterPorts,
    setup: Arc<NodeObjectConfig>,
    NodeStartInputs { seed, events }: NodeStartInputs,
    stop: &CancellationToken,
    NodeFeeds { node, facts, runtime, images, storage }: NodeFeeds,
) {
    let keeper = LeaseRenewer {
        setup: setup.clone(),
        leases: cluster.leases.clone(),
        nodes: cluster.node.clone(),
        clock: ctx.clock.clone(),
        seed: JitterSeed(seed ^ 1),
        last: None,
    };
    if !setup.lease_duration.is_zero() {
        ctx.essential_tasks.spawn_until("Lease renewal", stop, keeper.run(stop.clone()));
    }
    let deps = NodeReconcilerDeps {
        setup,
        api: cluster.node.clone(),
        events: ctx.ports.events.clone(),
        clock: ctx.clock.clone(),
        seed: JitterSeed(seed),
        node,
        facts,
        runtime,
        images,
        storage,
        volumes: ctx.volumes_in_use.subscribe(),
        pressure: ctx.node_pressure.subscribe(),
    };
    let run = NodeReconciler::new(deps).run(events, stop.clone());
    ctx.essential_tasks.spawn_until("Node status updates", stop, run);
}

/// Forwards the Node object: every state to the Node reconciler, and what affects pods to the dispatcher.
pub(crate) async fn follow_node(
    api: Arc<dyn NodeApi>,
    name: String,
    outbox: Outbox,
    now: watch::Sender<WatchedNode>,
    cidrs: watch::Sender<Option<String>>,
) {
    loop {
        let mut states = api.watch(&name);
        while let Some(state) = states.next().await {
            let node = match state {
                ObservedObject::Present(node) => Some(node),
                ObservedObject::Absent => None,
            };
            take_node(node, &outbox, &now, &cidrs);
        }
        tracing::warn!("the watch of the Node ended, starting it again");
        tokio::time::sleep(WATCH_RESTART_DELAY).await;
    }
}

fn take_node(
    node: Option<Arc<Node>>,
    outbox: &Outbox,
    now: &watch::Sender<WatchedNode>,
    cidrs: &watch::Sender<Option<String>>,
) {
    if node::changed_for_pods(now.borrow().node.as_deref(), node.as_deref()) {
        outbox.send(Event::NodeObserved(node.clone()));
    }
    if let Some(given) = node.as_deref().and_then(node::pod_cidrs) {
        cidrs.send_if_modified(|told| told.replace(given.clone()).as_ref() != Some(&given));
    }
    now.send_modify(|now| {
        let before = std::mem::replace(&mut now.node, node);
        if now.node.is_none() {
            now.deleted_uid = before.and_then(|node| node.metadata.uid.clone()).or(now.deleted_uid.take());
        }
    });
}

/// Reads the facts about the host again and again. A DNS resolver that hangs delays only these facts.
pub(crate) async fn refresh_facts(
    source: Arc<dyn HostFactsSource>,
    period: Duration,
    now: watch::Sender<Arc<HostFacts>>,
    outbox: Outbox,
) {
    loop {
        tokio::time::sleep(period).await;
        let read = match source.read().await {
            Ok(facts) => Arc::new(facts),
            Err(error) => {
                tracing::warn!("facts of the host can't be read: {error}");
                continue;
            }
        };
        let before = now.borrow().clone();
        if *before == *read {
            continue;
        }
        if without_addresses(&before) != without_addresses(&read) {
            outbox.send(Event::FactsChanged(read.clone()));
        }
        now.send_replace(read);
    }
}

/// The host's addresses change with services and bridges; pods depend only on the node's own address.
fn without_addresses(facts: &HostFacts) -> HostFacts {
    HostFacts { addresses: HostAddresses::default(), ..facts.clone() }
}

async fn list_images(
    images: Arc<dyn Images>,
    mut runtime: watch::Receiver<RuntimeSnapshot>,
    news: Arc<Notify>,
    now: watch::Sender<ImageList>,
) {
    // Wait until the runtime has answered once; calls before that only fail and fill the log.
    if runtime.wait_for(|view| view.answered_at.is_some()).await.is_err() {
        return;
    }
    loop {
        match images.list_images().await {
            Ok(list) => {
                now.send_if_modified(|known| {
                    let changed = known.as_deref() != Some(&list);
                    *known = Some(Arc::new(list));
                    changed
                });
            }
            Err(error) => tracing::debug!("images can't be listed: {error}"),
        }
        // Images are listed after a notification and after a timeout alike.
        let _ = tokio::time::timeout(IMAGE_LIST_PERIOD, news.notified()).await;
        tokio::time::sleep(IMAGE_LIST_DELAY).await;
        // A notification during the pause is covered by this list.
        let _ = news.notified().now_or_never();
    }
}

async fn send_pod_cidrs_to_runtime(runtime: Arc<dyn Runtime>, mut wanted: watch::Receiver<Option<String>>) {
    loop {
        let cidrs = wanted.borrow_and_update().clone();
        if let Some(cidrs) = cidrs {
            match runtime.update_runtime_config(&cidrs).await {
                Ok(()) => tracing::info!(cidrs, "the pod CIDRs were sent to the runtime"),
                Err(error) => {
                    tracing::warn!(cidrs, "the pod CIDRs could not be sent to the runtime: {error}");
                    // Retry at once when the CIDR changes.
                    let _ = tokio::time::timeout(CIDR_RETRY, wanted.changed()).await;
                    continue;
                }
            }
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use async_trait::async_trait;
    use model::cri::{FilesystemUsage, Image, ImageSpec, RegistryAuth, SandboxConfig};
    use ports::{FactsError, RuntimeError};
    use tokio::sync::mpsc;

    struct Host(watch::Receiver<HostFacts>);

    #[async_trait]
    impl HostFactsSource for Host {
        async fn read(&self) -> Result<HostFacts, FactsError> {
            Ok(self.0.borrow().clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn facts_are_read_again_and_pods_hear_of_what_they_need() {
        let (host, on_host) = watch::channel(HostFacts::default());
        let (outbox, mut inbox) = mpsc::unbounded_channel();
        let (now, facts) = watch::channel(Arc::new(HostFacts::default()));
        let period = Duration::from_secs(10);
        tokio::spawn(refresh_facts(Arc::new(Host(on_host)), period, now, Outbox(outbox)));
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!(!facts.has_changed().unwrap());
        host.send_modify(|facts| facts.addresses.local.push("192.0.2.9".parse().unwrap()));
        tokio::time::sleep(period).await;
        assert_eq!(facts.borrow().addresses.local.len(), 1);
        assert!(inbox.try_recv().is_err());
        host.send_modify(|facts| facts.cpus = 9);
        tokio::time::sleep(period).await;
        assert!(matches!(inbox.try_recv(), Ok(Event::FactsChanged(facts)) if facts.cpus == 9));
    }

    /// Counts how often the list was requested.
    #[derive(Default)]
    struct FakeImages(std::sync::atomic::AtomicUsize);

    #[async_trait]
    impl Images for FakeImages {
        async fn list_images(&self) -> Result<Vec<Image>, RuntimeError> {
            let asked = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok((0..asked).map(|n| Image { id: n.to_string(), ..Default::default() }).collect())
        }
        async fn image_status(&self, _: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
            Ok(None)
        }
        async fn pull_image(
            &self,
            _: &ImageSpec,
            _: Option<&RegistryAuth>,
            _: Option<&SandboxConfig>,
        ) -> Result<String, RuntimeError> {
            Err(RuntimeError::Unsupported { call: "PullImage" })
        }
        async fn remove_image(&self, _: &ImageSpec) -> Result<(), RuntimeError> {
            Ok(())
        }
        async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError> {
            Ok(Default::default())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn images_are_listed_when_somebody_tells_of_them() {
        let (fake_images, news) = (Arc::new(FakeImages::default()), Arc::new(Notify::new()));
        let (view, runtime) = watch::channel(RuntimeSnapshot::default());
        let (now, images) = watch::channel(None);
        tokio::spawn(list_images(fake_images.clone(), runtime, news.clone(), now));
        let asked = || fake_images.0.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(IMAGE_LIST_PERIOD * 2).await;
        assert_eq!(asked(), 0, "the runtime was never there");
        view.send_modify(|view| view.answered_at = Some(model::Mono::ZERO));
        tokio::time::sleep(IMAGE_LIST_PERIOD / 2).await;
        assert_eq!(asked(), 1);
        for _ in 0..5 {
            news.notify_one();
        }
        tokio::time::sleep(IMAGE_LIST_DELAY * 3).await;
        assert_eq!(asked(), 2, "many words in one moment are one look");
        assert_eq!(images.borrow().as_ref().map(|list| list.len()), Some(1));
        tokio::time::sleep(IMAGE_LIST_PERIOD * 2).await;
        assert_eq!(asked(), 3, "the net");
    }

    #[tokio::test(start_paused = true)]
    async fn the_object_is_passed_on_as_far_as_pods_care() {
        let api = FakeApi::new();
        let (outbox, mut inbox) = mpsc::unbounded_channel();
        let (now, node) = watch::channel(WatchedNode::default());
        let (cidrs, _told) = watch::channel(None);
        tokio::spawn(follow_node(api.clone(), "n".into(), Outbox(outbox), now, cidrs));
        let soon = || tokio::time::sleep(Duration::from_millis(5));
        soon().await;
        // The first message arrives even if there is no Node, because a receiver waits for it.
        assert!(node.has_changed().unwrap());
        assert!(inbox.try_recv().is_err());
        api.put_node(Node::default()).await;
        soon().await;
        assert!(matches!(inbox.try_recv(), Ok(Event::NodeObserved(Some(_)))));
        api.change_node(|node| node.status.get_or_insert_default().conditions = Some(Vec::new())).await;
        soon().await;
        assert!(
            matches!(inbox.try_recv(), Ok(Event::NodeObserved(Some(_)))),
            "a status, though an empty one"
        );
        api.change_node(|node| node.status.get_or_insert_default().images = Some(Vec::new())).await;
        soon().await;
        assert!(inbox.try_recv().is_err());
        api.delete_node();
        soon().await;
        assert!(matches!(inbox.try_recv(), Ok(Event::NodeObserved(None))));
        assert_eq!(node.borrow().deleted_uid.as_deref(), Some("uid-1"));
    }
}
