//! Prepares the engine, and starts it: the dispatcher, the feeds and the tasks beside it.

use std::sync::Arc;

use decide::node::RuntimeSnapshot;
use decide::{Event, NodeState};
use futures::StreamExt;
use model::pod::Source;
use ports::{FeedNotice, PodFeed};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::context::EngineContext;
use crate::csi::registry::Registry;
use crate::csi::{VolumeCalls, VolumeRequests};
use crate::dispatcher::{Dispatcher, EngineError, Inputs, TaskChannels};
use crate::engine_ports::Ports;
use crate::node_duties::NodeDuties;
use crate::node_reconciler::WatchedNode;
use crate::object_watches::ClusterObjectWatches;
use crate::outbox::Outbox;
use crate::query::EngineHandle;
use crate::tasks::{EssentialTasks, restart_after_panic};
use crate::{disk_calls, image_calls, node_duties, probe_calls, sweep};

/// Everything a start needs.
pub(crate) struct PreparedEngine {
    dispatcher: Dispatcher,
    inputs: Inputs,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
    pub duties: Option<NodeDuties>,
}

pub(crate) fn prepare(
    state: NodeState,
    ports: Ports,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
) -> (EngineHandle, PreparedEngine) {
    let (events, inbox) = mpsc::unbounded_channel();
    let (queries, questions) = mpsc::channel(64);
    let (volume_requests, wanted_volumes) = VolumeRequests::new();
    let csi = ports.csi.is_some().then_some(volume_requests);
    let storage = ports.cluster.as_ref().map(|cluster| cluster.storage.clone());
    let volume_calls = ports.csi.clone().map(|ports| VolumeCalls { ports, storage });
    let (essential_tasks, task_failures) = EssentialTasks::new();
    let ctx = EngineContext {
        clock: Clock::new(ports.wall.clone()),
        ports,
        outbox: Outbox(events),
        image_call_state: Arc::default(),
        runtime_view: Arc::new(watch::Sender::new(RuntimeSnapshot::default())),
        images_changed: Arc::default(),
        csi,
        volumes_in_use: Arc::new(watch::Sender::new(None)),
        node_pressure: Arc::default(),
        node_info_refresh_periods: Arc::default(),
        essential_tasks,
    };
    let (probe_records, to_keep) = mpsc::unbounded_channel();
    ctx.essential_tasks.spawn("saving probe results", probe_calls::save_probe_records(ctx.clone(), to_keep));
    let (node_cgroups, wanted_cgroups) = watch::channel(Vec::new());
    ctx.essential_tasks
        .spawn("updating the node's cgroups", sweep::apply_node_cgroups(ctx.clone(), wanted_cgroups));
    let objects = ClusterObjectWatches::new(
        ctx.ports.cluster.clone(),
        ctx.outbox.clone(),
        stop.clone(),
        ctx.essential_tasks.clone(),
    );
    let channels = TaskChannels { probe_records, node_cgroups };
    let dispatcher = Dispatcher::new(state, ctx, channels, objects, volume_calls);
    let inputs = Inputs { inbox, questions, task_failures, wanted_volumes };
    let ready = PreparedEngine { dispatcher, inputs, feeds, stop, duties: None };
    (EngineHandle::new(queries), ready)
}

impl PreparedEngine {
    /// See [`crate::Engine::with_test_panic`].
    #[cfg(debug_assertions)]
    pub fn with_test_panic(&mut self, name: String) {
        self.dispatcher.panic_on_name = Some(name);
    }

    /// See [`crate::Engine::with_task_panic`].
    #[cfg(debug_assertions)]
    pub fn with_task_panic(&mut self, panic: crate::TaskPanic) {
        let tasks = &mut self.dispatcher.ctx.essential_tasks;
        *tasks = tasks.clone().with_test_panic(panic);
    }

    pub fn start(mut self) -> tokio::task::JoinHandle<Result<(), EngineError>> {
        let ctx = self.dispatcher.ctx.clone();
        let node = self.duties.and_then(|duties| {
            let facts = self.dispatcher.state.facts.clone();
            node_duties::start(&ctx, duties, facts, ctx.runtime_view.subscribe(), &self.stop)
        });
        let (node, csi_node) = node.map_or((None, None), |started| (Some(started.node), started.csi_node));
        if let Some(csi) = &ctx.ports.csi {
            ctx.outbox.send(Event::CsiEnabled);
            let periods = ctx.node_info_refresh_periods.subscribe();
            let registry = Registry::new(csi.clone(), csi_node, ctx.outbox.clone(), periods);
            self.dispatcher.registry = Some(registry.clone());
            let run = registry.run(self.stop.clone());
            ctx.essential_tasks.spawn_until("plugin registration", &self.stop, run);
        }
        for feed in self.feeds {
            let first = node.clone().filter(|_| feed.source() == Source::Api);
            let forward = forward_feed(feed, first, ctx.outbox.clone(), self.stop.clone());
            ctx.essential_tasks.spawn_until("a feed of pods", &self.stop, forward);
        }
        ctx.essential_tasks
            .spawn("resolving image pull intents", image_calls::resolve_pull_intents(ctx.clone()));
        self.dispatcher.objects.follow_services();
        self.dispatcher.objects.follow_runtime_classes();
        self.dispatcher.objects.follow_csi_drivers();
        ctx.essential_tasks.spawn_until(
            "volume events",
            &self.stop,
            disk_calls::forward_volume_notices(ctx.clone()),
        );
        let kills = forward_oom_kills(ctx.clone());
        ctx.essential_tasks.spawn_until("kills by the kernel", &self.stop, kills);
        let hints = forward_hints(ctx.clone(), self.stop.clone());
        ctx.essential_tasks.spawn_until("runtime events", &self.stop, hints);
        tokio::spawn(self.dispatcher.run(self.inputs, self.stop))
    }
}

/// `first`: no pod is forwarded before the Node watch has sent its first state, because admission reads the Node.
async fn forward_feed(
    feed: Box<dyn PodFeed>,
    first: Option<watch::Receiver<WatchedNode>>,
    outbox: Outbox,
    stop: CancellationToken,
) {
    if let Some(mut node) = first
        && !matches!(stop.run_until_cancelled(node.changed()).await, Some(Ok(())))
    {
        return;
    }
    let mut notices = feed.stream();
    while let Some(Some(notice)) = stop.run_until_cancelled(notices.next()).await {
        match notice {
            FeedNotice::Set(set) => {
                outbox.send(Event::PodSetDelivered { source: set.source, pods: set.pods })
            }
            FeedNotice::Changed { source, pod } => outbox.send(Event::PodChanged { source, pod }),
            FeedNotice::Gone { source, uid } => outbox.send(Event::PodRemoved { source, uid }),
            FeedNotice::Unreadable { source, pods, complete } => {
                outbox.send(Event::UnreadablePods { source, pods, complete });
            }
            FeedNotice::RuntimeClasses { source, classes } => {
                outbox.send(Event::RuntimeClasses { source, classes });
            }
            FeedNotice::Objects { source, objects } => outbox.send(Event::LocalObjects { source, objects }),
            FeedNotice::Problem { source, origin, message } => {
                tracing::error!(source = source.as_str(), origin, "{message}");
            }
            FeedNotice::Resolved { source, origin } => {
                tracing::info!(source = source.as_str(), origin, "this pod source is readable again");
            }
        }
    }
}

/// Pods run as well without: the agent goes on when the kernel's log can't be read.
async fn forward_oom_kills(ctx: EngineContext) {
    let follow = || async {
        let mut kills = ctx.ports.oom_kills.kills();
        let problem = loop {
            match kills.next().await {
                Some(Ok(kill)) => ctx.outbox.send(Event::OomKilled(kill)),
                Some(Err(error)) => break error.to_string(),
                None => break "its reader ended".to_owned(),
            }
        };
        tracing::warn!(
            "the kernel's log can't be read, so its kills for want of memory go unnoticed: {problem}"
        );
    };
    restart_after_panic("reading the kernel's log", follow).await;
    std::future::pending().await
}

async fn forward_hints(ctx: EngineContext, stop: CancellationToken) {
    let mut hints = ctx.ports.hints.hints();
    while let Some(Some(hint)) = stop.run_until_cancelled(hints.next()).await {
        if matches!(hint, ports::Hint::Images | ports::Hint::Everything) {
            ctx.images_changed.notify_one();
        }
        let hint = match hint {
            ports::Hint::Pod(uid) => decide::Hint::Pod(uid),
            ports::Hint::ContainerOrSandbox(id) => decide::Hint::ContainerOrSandbox(id),
            ports::Hint::Images => decide::Hint::Images,
            ports::Hint::Everything => decide::Hint::Everything,
        };
        ctx.outbox.send(Event::Hint(hint));
    }
}
