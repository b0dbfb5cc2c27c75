//! Maintains the Node object: creates it, updates its status, and creates it again when it was deleted.
//!
//! ```text
//!            ┌────────────── object gone ───────────────┐
//!            v                                          │
//!   register (back-off) ──> sync: set status, patch if changed or due ──> wait for a change, a tick, a report
//!                            ^                                                              │
//!                            └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! It has its own task beside the dispatcher, so the number of pods does not delay status updates. Everything that can
//! hang (facts, images, the runtime) is read by other tasks and arrives here through watch channels.

use std::sync::Arc;
use std::time::Duration;

use decide::jitter::JitterSeed;
use decide::node::{
    self, NodePressure, NodeStatusInputs, NodeStatusOutcome, ReportedEvents, RuntimeSnapshot,
    StatusReportSchedule,
};
use model::cri::Image;
use model::k8s::Node;
use model::node::{HostFacts, NodeObjectConfig};
use model::{ApiEvent, EventSubject, Mono};
use ports::{ApiError, EventSink, NodeApi};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

const STATUS_UPDATE_RETRIES: u32 = 5;
const TICK_JITTER: f64 = 0.04;
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LAST_BACK_OFF: Duration = Duration::from_secs(7);

/// The last list of images.
pub(crate) type ImageList = Option<Arc<Vec<Image>>>;

/// The object as the watch shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedNode {
    pub node: Option<Arc<Node>>,
    /// UID of the Node that was deleted. `None` if the watch has never shown one.
    pub deleted_uid: Option<String>,
}

/// What the reconciler works with.
pub(crate) struct NodeReconcilerDeps {
    pub setup: Arc<NodeObjectConfig>,
    pub api: Arc<dyn NodeApi>,
    pub events: Arc<dyn EventSink>,
    pub clock: Clock,
    pub seed: JitterSeed,
    pub node: watch::Receiver<WatchedNode>,
    pub facts: watch::Receiver<Arc<HostFacts>>,
    pub runtime: watch::Receiver<RuntimeSnapshot>,
    pub images: watch::Receiver<ImageList>,
    /// Why the node can't take volumes yet.
    pub storage: watch::Receiver<Option<String>>,
    /// Attached volumes that are in use. `None`: not known yet.
    pub volumes: watch::Receiver<Option<Vec<String>>>,
    /// What the node is short of.
    pub pressure: watch::Receiver<NodePressure>,
}

pub(crate) struct NodeReconciler {
    deps: NodeReconcilerDeps,
    /// The newest state of the object, from the watch or from a response.
    known: Option<Arc<Node>>,
    registered: bool,
    /// How often in a row the object did not exist when its status was to be sent.
    times_not_found: u32,
    told: ReportedEvents,
    reports: StatusReportSchedule,
    pod_cidrs: Option<String>,
    next: Mono,
}

impl NodeReconciler {
    pub fn new(deps: NodeReconcilerDeps) -> Self {
        let reports = StatusReportSchedule::new(deps.setup.report_period);
        Self {
            deps,
            known: None,
            registered: false,
            times_not_found: 0,
            told: ReportedEvents::default(),
            reports,
            pod_cidrs: None,
            next: Mono::ZERO,
        }
    }

    /// `events`: sent when the agent starts, besides the event about the start itself.
    pub async fn run(mut self, events: Vec<ApiEvent>, stop: CancellationToken) {
        self.record(&[ApiEvent::normal("Starting", "Starting kubelet.")]);
        self.record(&events);
        stop.run_until_cancelled(async move {
            loop {
                if self.deps.setup.register && !self.registered {
                    self.register().await;
                }
                self.sync().await;
                if self.registered || !self.deps.setup.register {
                    self.wait().await;
                } else if self.times_not_found > 1 {
                    // After the first loss the Node is created again at once. If it disappears repeatedly, we wait
                    // longer each time.
                    tokio::time::sleep(back_off(self.times_not_found)).await;
                }
            }
        })
        .await;
    }

    /// Waits until an input has changed or the next status update is due.
    async fn wait(&mut self) {
        loop {
            let at = self.deps.clock.instant(self.next);
            let deps = &mut self.deps;
            let (changed, by_watch) = tokio::select! {
                changed = deps.node.changed() => (changed, true),
                changed = deps.facts.changed() => (changed, false),
                changed = deps.runtime.changed() => (changed, false),
                changed = deps.images.changed() => (changed, false),
                Ok(()) = deps.storage.changed() => (Ok(()), false),
                changed = deps.volumes.changed() => (changed, false),
                changed = deps.pressure.changed() => (changed, false),
                () = tokio::time::sleep_until(at) => return,
            };
            if changed.is_err() {
                // A sender was dropped, so the agent is shutting down. Status updates continue at their period until
                // then.
                tokio::time::sleep_until(at).await;
                return;
            }
            // If the watch only shows our own patch, nothing has changed.
            if !by_watch || self.take_watched() {
                return;
            }
        }
    }

    /// Takes the state that the watch shows. Returns whether it is newer than what is known.
    fn take_watched(&mut self) -> bool {
        let now = self.deps.node.borrow_and_update().clone();
        match (now.node, &self.known) {
            (Some(shown), Some(known)) if !is_newer(&shown, known) => false,
            (Some(shown), _) => {
                self.known = Some(shown);
                true
            }
            (None, Some(known)) if now.deleted_uid.is_some() && now.deleted_uid == known.metadata.uid => {
                tracing::warn!("the Node object is gone");
                self.known = None;
                self.registered = false;
                true
            }
            (None, _) => false,
        }
    }

    /// Retries until a Node object exists that belongs to this agent.
    async fn register(&mut self) {
        let mut failures = 0;
        loop {
            match self.try_register().await {
                Ok(node) => {
                    tracing::info!(node = self.deps.setup.name, "the node is registered");
                    self.known = Some(node);
                    self.registered = true;
                    return;
                }
                Err(error) => tracing::warn!(failures, "the node can't be registered: {error}"),
            }
            failures += 1;
            tokio::time::sleep(back_off(failures)).await;
        }
    }

    async fn try_register(&mut self) -> Result<Arc<Node>, ApiError> {
        let mut told = self.told.clone();
        let now = self.deps.clock.now();
        let (initial, outcome) = self.with_inputs(|inputs| node::initial_node(inputs, &mut told, now));
        match self.deps.api.create(&initial).await {
            Ok(made) => {
                self.told = told;
                self.log_and_record(&outcome);
                self.reports.record_sent(true, self.deps.setup.report_period, &mut self.deps.seed, now.mono);
                return Ok(made);
            }
            Err(ApiError::AlreadyExists { .. }) => {}
            // An agent that may not create Nodes can still use one that exists.
            Err(ApiError::Forbidden { .. }) if !self.deps.setup.get_on_exists_only => {}
            Err(error) => return Err(error),
        }
        let name = self.deps.setup.name.clone();
        let existing = self.deps.api.get(&name).await?;
        let mut wanted = (*existing).clone();
        // No device is on record here: see `docs/gaps.md`.
        node::reconcile(&mut wanted, &initial, true);
        match node::patch(&existing, &wanted) {
            Some(patch) => self.deps.api.patch_status(&name, &patch, self.api_timeout()).await,
            None => Ok(existing),
        }
    }

    /// Updates the object's status if it changed or an update is due.
    async fn sync(&mut self) {
        for attempt in 0..STATUS_UPDATE_RETRIES {
            let before = match self.object_to_patch(attempt).await {
                Ok(Some(before)) => before,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(attempt, "the node's status can't be read: {error}");
                    if self.forget_object_if_not_found(&error) {
                        break;
                    }
                    continue;
                }
            };
            match self.try_sync(before).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(attempt, "the node's status can't be sent: {error}");
                    if self.forget_object_if_not_found(&error) {
                        break;
                    }
                    if attempt + 1 == STATUS_UPDATE_RETRIES {
                        tracing::error!("update node status exceeds retry count");
                    }
                }
            }
        }
        self.next = self.next_status_update();
    }

    /// Forgets the object if the error says that it does not exist.
    fn forget_object_if_not_found(&mut self, error: &ApiError) -> bool {
        let gone = matches!(error, ApiError::NotFound { .. });
        if gone {
            self.known = None;
            self.registered = false;
            self.times_not_found = self.times_not_found.saturating_add(1);
        }
        gone
    }

    /// The first attempt patches the known object; later attempts read it from the server.
    async fn object_to_patch(&mut self, attempt: u32) -> Result<Option<Arc<Node>>, ApiError> {
        if attempt == 0 {
            self.take_watched();
            return Ok(self.known.clone());
        }
        self.deps.api.get(&self.deps.setup.name).await.map(Some)
    }

    async fn try_sync(&mut self, before: Arc<Node>) -> Result<(), ApiError> {
        let mut told = self.told.clone();
        let mut after = (*before).clone();
        let now = self.deps.clock.now();
        let outcome = self.with_inputs(|inputs| {
            node::require_platform_labels(&mut after, inputs.facts);
            node::set_status(&mut after, inputs, &mut told, now)
        });
        let pod_cidrs = node::pod_cidrs(&before);
        let changed = node::status_changed(&before, &after) || pod_cidrs != self.pod_cidrs;
        if (changed || self.reports.is_due(now.mono))
            && let Some(patch) = node::patch(&before, &after)
        {
            let name = self.deps.setup.name.clone();
            let sent = self.deps.api.patch_status(&name, &patch, self.api_timeout()).await?;
            self.reports.record_sent(changed, self.deps.setup.report_period, &mut self.deps.seed, now.mono);
            self.known = Some(sent);
        } else {
            self.known = Some(before);
        }
        self.times_not_found = 0;
        self.pod_cidrs = pod_cidrs;
        self.told = told;
        self.log_and_record(&outcome);
        let next = [Some(self.next_status_update()), outcome.changes_at, self.reports.next_at()]
            .into_iter()
            .flatten()
            .min();
        self.next = next.unwrap_or(now.mono);
        Ok(())
    }

    fn next_status_update(&mut self) -> Mono {
        let wait = self.deps.seed.add_jitter(self.deps.setup.status_period, TICK_JITTER);
        self.deps.clock.mono().plus(wait)
    }

    fn api_timeout(&self) -> Duration {
        decide::lease::renew_timeout(&self.deps.setup)
    }

    fn with_inputs<T>(&mut self, run: impl FnOnce(&NodeStatusInputs<'_>) -> T) -> T {
        let deps = &mut self.deps;
        let (facts, runtime) = (deps.facts.borrow_and_update(), deps.runtime.borrow_and_update());
        let images = deps.images.borrow_and_update();
        let troubles: Vec<String> = deps.storage.borrow_and_update().iter().cloned().collect();
        let volumes = deps.volumes.borrow_and_update();
        run(&NodeStatusInputs {
            setup: &deps.setup,
            facts: &facts,
            runtime: &runtime,
            images: images.as_ref().map(|list| list.as_slice()),
            pressure: *deps.pressure.borrow_and_update(),
            not_ready_reasons: &troubles,
            volumes_in_use: volumes.as_deref(),
        })
    }

    fn log_and_record(&self, outcome: &NodeStatusOutcome) {
        for problem in &outcome.log_messages {
            tracing::error!("node status: {problem}");
        }
        self.record(&outcome.events);
    }

    fn record(&self, events: &[ApiEvent]) {
        let about = EventSubject::Node { name: self.deps.setup.name.clone() };
        for event in events {
            self.deps.events.record(&about, event);
        }
    }
}

/// The wait after the `failures`-th failure in a row.
fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LAST_BACK_OFF)
}

/// Resource versions of one object only grow.
fn is_newer(shown: &Node, known: &Node) -> bool {
    let version = |node: &Node| node.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    match (version(shown), version(known)) {
        (Some(shown), Some(known)) => shown > known,
        _ => shown.metadata.resource_version != known.metadata.resource_version,
    }
}

#[cfg(test)]
mod tests;
