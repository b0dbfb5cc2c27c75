//! Objects of the cluster: watches that exist while pods need them, tokens, services.
//!
//! ```text
//!   WatchObject ──> a task that forwards what it sees ──> ObjectObserved ...   until UnwatchObject
//!   RequestToken ──> one call ──> TokenIssued
//!   RequestCertificate ──> one call ──> CertificateRequested
//!   ReadStorageObject ──> one call ──> StorageRead
//! ```
//! Streams reconnect by themselves. If one ends all the same, it is started again after a delay. A panic in a watch that
//! all pods share ends the engine; the watch of a single object is started again, with back-off.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::cluster::{ObjectKey, PodTokenRequest, Token};
use model::k8s;
use model::pod::Source;
use model::pod_certificate::{CertificateSource, CertificateWanted};
use model::runtime_class::RuntimeClass;
use model::storage::{StorageKey, StorageState};
use ports::{ApiError, CertificateRequestError, ClusterPorts, ObjectApi};
use tokio_util::sync::CancellationToken;

use crate::outbox::Outbox;
use crate::tasks::{EssentialTasks, restart_after_panic, spawn_call};

/// The delay before a watch that ended is started again.
pub(crate) const WATCH_RESTART_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct ClusterObjectWatches {
    /// `None`: the node runs without a cluster.
    cluster: Option<ClusterPorts>,
    outbox: Outbox,
    stop: CancellationToken,
    essential: EssentialTasks,
    watches: HashMap<ObjectKey, CancellationToken>,
}

fn runtime_class_entry(class: &k8s::RuntimeClass) -> (String, RuntimeClass) {
    let overhead = class.overhead.as_ref().and_then(|o| o.pod_fixed.clone()).unwrap_or_default();
    let name = class.metadata.name.clone().unwrap_or_default();
    (name, RuntimeClass { handler: class.handler.clone(), overhead })
}

impl ClusterObjectWatches {
    pub fn new(
        cluster: Option<ClusterPorts>,
        outbox: Outbox,
        stop: CancellationToken,
        essential: EssentialTasks,
    ) -> Self {
        Self { cluster, outbox, stop, essential, watches: HashMap::new() }
    }

    /// Follows objects that all pods share. `open` begins a watch of all of them, whose every state is an event.
    fn follow<T: Send + 'static>(
        &self,
        what: &'static str,
        open: impl Fn(&ClusterPorts) -> BoxStream<'static, T> + Send + 'static,
        event: impl Fn(T) -> Event + Send + 'static,
    ) {
        let Some(cluster) = self.cluster.clone() else { return };
        let outbox = self.outbox.clone();
        self.essential.spawn_until(what, &self.stop, async move {
            loop {
                let mut states = open(&cluster);
                while let Some(state) = states.next().await {
                    outbox.send(event(state));
                }
                tokio::time::sleep(WATCH_RESTART_DELAY).await;
            }
        });
    }

    pub fn follow_services(&self) {
        self.follow("the watch of Services", |cluster| cluster.shared.services(), Event::Services);
    }

    /// Watches which runtime handler each RuntimeClass names. The overhead is already in the spec of pods from the API.
    pub fn follow_runtime_classes(&self) {
        let event = |classes: Vec<Arc<k8s::RuntimeClass>>| {
            let classes = classes.iter().map(|class| runtime_class_entry(class)).collect();
            Event::RuntimeClasses { source: Source::Api, classes }
        };
        self.follow("the watch of RuntimeClasses", |cluster| cluster.shared.runtime_classes(), event);
    }

    pub fn follow_csi_drivers(&self) {
        self.follow("the watch of CSIDrivers", |cluster| cluster.shared.csi_drivers(), Event::CsiDrivers);
    }

    pub fn follow_trust_bundles(&self) {
        let open = |cluster: &ClusterPorts| cluster.shared.trust_bundles();
        self.follow("the watch of ClusterTrustBundles", open, Event::TrustBundles);
    }

    pub fn follow_certificate_requests(&self, node: String) {
        let open = move |cluster: &ClusterPorts| cluster.certificates.requests(&node);
        self.follow("the watch of PodCertificateRequests", open, Event::CertificateRequests);
    }

    /// Reads once; whether to read again is decided by a step.
    pub fn read_storage(&self, key: StorageKey) {
        let Some(cluster) = &self.cluster else { return };
        let (storage, outbox) = (cluster.storage.clone(), self.outbox.clone());
        let asked = key.clone();
        let failed =
            |message| Some(Event::StorageRead { key: asked, state: StorageState::Unreachable { message } });
        let read = async move {
            let state = match storage.read(&key).await {
                Ok(object) => StorageState::Present(object),
                Err(ApiError::NotFound { message, .. }) => StorageState::Absent { message },
                Err(ApiError::Forbidden { message, .. }) => StorageState::Denied { message },
                Err(error) => StorageState::Unreachable { message: error.to_string() },
            };
            outbox.send(Event::StorageRead { key, state });
        };
        spawn_call(&self.outbox, read, failed);
    }

    pub fn watch(&mut self, key: ObjectKey) {
        let Some(cluster) = &self.cluster else { return };
        let stop = self.stop.child_token();
        if let Some(old) = self.watches.insert(key.clone(), stop.clone()) {
            old.cancel();
        }
        let (objects, outbox) = (cluster.objects.clone(), self.outbox.clone());
        let what = format!("the watch of {} {}/{}", key.kind.word(), key.namespace, key.name);
        let watch = async move {
            restart_after_panic(&what, || forward_states(&objects, &key, &outbox)).await;
        };
        tokio::spawn(stop.run_until_cancelled_owned(watch));
    }

    pub fn unwatch(&mut self, key: &ObjectKey) {
        if let Some(stop) = self.watches.remove(key) {
            stop.cancel();
        }
    }

    pub fn request_token(&self, wanted: PodTokenRequest) {
        let Some(cluster) = &self.cluster else { return };
        let (tokens, outbox) = (cluster.tokens.clone(), self.outbox.clone());
        let asked = wanted.clone();
        let failed = |message| Some(Event::TokenIssued { wanted: asked, result: Err(message) });
        let request = async move {
            let issued = tokens.request(&wanted).await;
            let result = issued.map(|issued| Token { token: issued.token, expires: issued.expires });
            // Users see only the server's message; the log also names the call.
            let result = result.map_err(|error| {
                tracing::debug!(pod_uid = %wanted.pod_uid, "{error}");
                server_message(&error)
            });
            outbox.send(Event::TokenIssued { wanted, result });
        };
        spawn_call(&self.outbox, request, failed);
    }

    pub fn request_certificate(&self, source: CertificateSource, call: u64, wanted: CertificateWanted) {
        let Some(cluster) = &self.cluster else { return };
        let (certificates, outbox) = (cluster.certificates.clone(), self.outbox.clone());
        let asked = source.clone();
        let failed =
            move |message| Some(Event::CertificateRequested { source: asked, call, result: Err(message) });
        let request = async move {
            let result = certificates.request(&wanted).await;
            let result = result.map_err(|error| with_cause(&error));
            outbox.send(Event::CertificateRequested { source, call, result });
        };
        spawn_call(&self.outbox, request, failed);
    }
}

async fn forward_states(objects: &Arc<dyn ObjectApi>, key: &ObjectKey, outbox: &Outbox) {
    loop {
        let mut states = objects.watch(key);
        while let Some(state) = states.next().await {
            outbox.send(Event::ObjectObserved { key: key.clone(), state });
        }
        tracing::warn!(
            kind = key.kind.word(),
            namespace = key.namespace,
            name = key.name,
            "watch ended, starting it again"
        );
        tokio::time::sleep(WATCH_RESTART_DELAY).await;
    }
}

fn with_cause(error: &CertificateRequestError) -> String {
    match error {
        CertificateRequestError::Key { .. } => error.to_string(),
        CertificateRequestError::ServiceAccount(cause) | CertificateRequestError::Create(cause) => {
            format!("{error}: {}", server_message(cause))
        }
    }
}

/// The server's message if there is one, otherwise the whole error.
fn server_message(error: &ports::ApiError) -> String {
    match error {
        ports::ApiError::NotFound { message, .. }
        | ports::ApiError::Forbidden { message, .. }
        | ports::ApiError::Invalid { message, .. }
        | ports::ApiError::Conflict { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
