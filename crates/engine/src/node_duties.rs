//! What an agent does for its node beside running pods: the tasks around the node keeper, and their start.
//!
//! Each of them may hang on its own without holding up another.

use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use decide::jitter::Seed;
use decide::node::{self, RuntimeView};
use futures::{FutureExt, StreamExt};
use model::ApiEvent;
use model::node::{HostAddresses, HostFacts, NodeSetup};
use ports::{ClusterPorts, HostFactsSource, Images, NodeApi, Runtime, Seen};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::csi::node_object::CsiNodeKeeper;
use crate::dispatcher::{Outbox, Shop};
use crate::lease_keeper::LeaseKeeper;
use crate::node_keeper::{Desk, ImageList, NodeKeeper, NodeNow};

/// Runtimes tell of images that come, not all of them of those that go: how often they are listed although nobody told.
const IMAGES_NET: Duration = Duration::from_secs(300);
/// A pull of many layers is told of many times.
const IMAGES_PAUSE: Duration = Duration::from_secs(1);
const FACTS_PERIOD_ALONE: Duration = Duration::from_secs(60);
const CIDR_RETRY: Duration = Duration::from_secs(5);

/// What a node's duties need beside the engine's own ports.
pub struct NodeDuties {
    pub setup: NodeSetup,
    pub facts: Arc<dyn HostFactsSource>,
    /// Where randomness begins; another number on every start.
    pub seed: u64,
    /// Told about the node when the agent starts.
    pub events_at_start: Vec<ApiEvent>,
}

/// What runs for a node of a cluster.
pub(crate) struct Started {
    /// Shows the node's object.
    pub node: watch::Receiver<NodeNow>,
    pub csi_node: Option<Arc<CsiNodeKeeper>>,
}

/// Returns what runs, in a cluster.
///
/// Without a cluster only the host's facts are kept fresh, and the runtime is told the configured range of addresses.
pub(crate) fn start(
    shop: &Shop,
    duties: NodeDuties,
    facts: Arc<HostFacts>,
    runtime: watch::Receiver<RuntimeView>,
    stop: &CancellationToken,
) -> Option<Started> {
    let setup = Arc::new(duties.setup);
    let (facts_now, facts) = watch::channel(facts);
    // A cluster is told of a new address with the next heartbeat; alone there is no hurry.
    let period = if shop.ports.cluster.is_some() { setup.status_period } else { FACTS_PERIOD_ALONE };
    let refresh = refresh_facts(duties.facts, period, facts_now, shop.outbox.clone());
    spawn_until(shop, stop, "the reader of the host's facts", refresh);
    let configured = Some(setup.pod_cidr.clone()).filter(|cidr| !cidr.is_empty());
    let (cidrs_now, cidrs) = watch::channel(configured.filter(|_| shop.ports.cluster.is_none()));
    let tell = tell_pod_cidrs(shop.ports.runtime.clone(), cidrs);
    spawn_until(shop, stop, "the runtime's address ranges", tell);
    let cluster = shop.ports.cluster.clone()?;

    let (images_now, images) = watch::channel(ImageList::default());
    let list = list_images(shop.ports.images.clone(), runtime.clone(), shop.image_news.clone(), images_now);
    spawn_until(shop, stop, "the list of images", list);
    let (node_now, node) = watch::channel(NodeNow::default());
    let name = setup.name.clone();
    let follow = follow_node(cluster.node.clone(), name, shop.outbox.clone(), node_now, cidrs_now);
    spawn_until(shop, stop, "the watch of the Node", follow);
    let has_drivers = shop.ports.csi.is_some();
    let csi_node = has_drivers.then(|| CsiNodeKeeper::new(cluster.clone(), setup.name.clone()));
    let storage = match &csi_node {
        Some(keeper) => {
            shop.essential.spawn("the keeper of the CSINode", keeper.clone().run(node.clone(), stop.clone()));
            keeper.trouble()
        }
        None => watch::channel(None).1,
    };
    let watched = Watched { node: node.clone(), facts, runtime, images, storage };
    let begins = Begins { seed: duties.seed, events: duties.events_at_start };
    start_keepers(shop, &cluster, setup, begins, stop, watched);
    Some(Started { node, csi_node })
}

struct Watched {
    node: watch::Receiver<NodeNow>,
    facts: watch::Receiver<Arc<HostFacts>>,
    runtime: watch::Receiver<RuntimeView>,
    images: watch::Receiver<ImageList>,
    storage: watch::Receiver<Option<String>>,
}

/// What the keepers begin with.
struct Begins {
    seed: u64,
    events: Vec<ApiEvent>,
}

fn start_keepers(
    shop: &Shop,
    cluster: &ClusterPorts,
    setup: Arc<NodeSetup>,
    Begins { seed, events }: Begins,
    stop: &CancellationToken,
    Watched { node, facts, runtime, images, storage }: Watched,
) {
    let keeper = LeaseKeeper {
        setup: setup.clone(),
        leases: cluster.leases.clone(),
        nodes: cluster.node.clone(),
        clock: shop.clock.clone(),
        seed: Seed(seed ^ 1),
        last: None,
    };
    if !setup.lease_duration.is_zero() {
        shop.essential.spawn("the keeper of the Lease", keeper.run(stop.clone()));
    }
    let desk = Desk {
        setup,
        api: cluster.node.clone(),
        events: shop.ports.events.clone(),
        clock: shop.clock.clone(),
        seed: Seed(seed),
        node,
        facts,
        runtime,
        images,
        storage,
        volumes: shop.volumes_in_use.subscribe(),
    };
    shop.essential.spawn("the keeper of the Node", NodeKeeper::new(desk).run(events, stop.clone()));
}

fn spawn_until(
    shop: &Shop,
    stop: &CancellationToken,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let task = stop.clone().run_until_cancelled_owned(task);
    shop.essential.spawn(name, task);
}

/// Passes the node's own object on: every state to the keeper, and to the dispatcher what pods can notice.
pub(crate) async fn follow_node(
    api: Arc<dyn NodeApi>,
    name: String,
    outbox: Outbox,
    now: watch::Sender<NodeNow>,
    cidrs: watch::Sender<Option<String>>,
) {
    let mut states = api.watch(&name);
    while let Some(state) = states.next().await {
        let node = match state {
            Seen::Is(node) => Some(node),
            Seen::Absent => None,
        };
        if node::pods_notice(now.borrow().node.as_deref(), node.as_deref()) {
            outbox.send(Event::NodeSeen(node.clone()));
        }
        if let Some(given) = node.as_deref().and_then(node::pod_cidrs) {
            cidrs.send_if_modified(|told| told.replace(given.clone()).as_ref() != Some(&given));
        }
        now.send_modify(|now| {
            let before = std::mem::replace(&mut now.node, node);
            if now.node.is_none() {
                now.gone = before.and_then(|node| node.metadata.uid.clone()).or(now.gone.take());
            }
        });
    }
}

/// Reads the host again and again. A resolver that hangs makes this late, and nothing else.
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

/// Addresses come and go with services and bridges; pods depend on the node's own only.
fn without_addresses(facts: &HostFacts) -> HostFacts {
    HostFacts { addresses: HostAddresses::default(), ..facts.clone() }
}

async fn list_images(
    images: Arc<dyn Images>,
    mut runtime: watch::Receiver<RuntimeView>,
    news: Arc<Notify>,
    now: watch::Sender<ImageList>,
) {
    // Before it was there once, asking it only makes noise.
    if runtime.wait_for(|view| view.answered.is_some()).await.is_err() {
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
        // Whichever comes first, it is looked at afterwards.
        let _ = tokio::time::timeout(IMAGES_NET, news.notified()).await;
        tokio::time::sleep(IMAGES_PAUSE).await;
        // What was told during the pause is seen by the same look.
        let _ = news.notified().now_or_never();
    }
}

async fn tell_pod_cidrs(runtime: Arc<dyn Runtime>, mut wanted: watch::Receiver<Option<String>>) {
    loop {
        let cidrs = wanted.borrow_and_update().clone();
        if let Some(cidrs) = cidrs {
            match runtime.update_runtime_config(&cidrs).await {
                Ok(()) => tracing::info!(cidrs, "the runtime knows the addresses of pods"),
                Err(error) => {
                    tracing::warn!(cidrs, "the runtime can't be told the addresses of pods: {error}");
                    // A newer range need not wait.
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
    use crate::testing::FakeApi;
    use async_trait::async_trait;
    use model::cri::{FilesystemUsage, Image, ImageSpec, RegistryAuth, SandboxConfig};
    use model::k8s::Node;
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

    /// Counts how often it was asked for its list.
    #[derive(Default)]
    struct Shelf(std::sync::atomic::AtomicUsize);

    #[async_trait]
    impl Images for Shelf {
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
        let (shelf, news) = (Arc::new(Shelf::default()), Arc::new(Notify::new()));
        let (view, runtime) = watch::channel(RuntimeView::default());
        let (now, images) = watch::channel(None);
        tokio::spawn(list_images(shelf.clone(), runtime, news.clone(), now));
        let asked = || shelf.0.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(IMAGES_NET * 2).await;
        assert_eq!(asked(), 0, "the runtime was never there");
        view.send_modify(|view| view.answered = Some(model::Mono::ZERO));
        tokio::time::sleep(IMAGES_NET / 2).await;
        assert_eq!(asked(), 1);
        for _ in 0..5 {
            news.notify_one();
        }
        tokio::time::sleep(IMAGES_PAUSE * 3).await;
        assert_eq!(asked(), 2, "many words in one moment are one look");
        assert_eq!(images.borrow().as_ref().map(|list| list.len()), Some(1));
        tokio::time::sleep(IMAGES_NET * 2).await;
        assert_eq!(asked(), 3, "the net");
    }

    #[tokio::test(start_paused = true)]
    async fn the_object_is_passed_on_as_far_as_pods_care() {
        let api = FakeApi::new();
        let (outbox, mut inbox) = mpsc::unbounded_channel();
        let (now, node) = watch::channel(NodeNow::default());
        let (cidrs, _told) = watch::channel(None);
        tokio::spawn(follow_node(api.clone(), "n".into(), Outbox(outbox), now, cidrs));
        let soon = || tokio::time::sleep(Duration::from_millis(5));
        soon().await;
        // That there is none is word enough for who waits for the first one.
        assert!(node.has_changed().unwrap());
        assert!(inbox.try_recv().is_err());
        api.put_node(Node::default()).await;
        soon().await;
        assert!(matches!(inbox.try_recv(), Ok(Event::NodeSeen(Some(_)))));
        api.change_node(|node| node.status.get_or_insert_default().conditions = Some(Vec::new())).await;
        soon().await;
        assert!(matches!(inbox.try_recv(), Ok(Event::NodeSeen(Some(_)))), "a status, though an empty one");
        api.change_node(|node| node.status.get_or_insert_default().images = Some(Vec::new())).await;
        soon().await;
        assert!(inbox.try_recv().is_err());
        api.delete_node();
        soon().await;
        assert!(matches!(inbox.try_recv(), Ok(Event::NodeSeen(None))));
        assert_eq!(node.borrow().gone.as_deref(), Some("uid-1"));
    }
}
