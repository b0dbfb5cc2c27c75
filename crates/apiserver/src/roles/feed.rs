//! Pods that are bound to this node, as a source of pods.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use model::k8s::{ObjectMeta, Pod};
use model::pod::{Source, UnreadablePod};
use model::{FullName, PodUid};
use ports::{ApiError, FeedNotice, PodFeed, PodSet};

use super::reflect::{ListWatcher, ReflectorEvent, reflect};
use crate::calls::{Api, Freshness};
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::watch_event::UnreadableObject;
use crate::watch_progress::WatchStatuses;

pub struct ApiPodFeed {
    api: Api,
    node: String,
}

impl ApiPodFeed {
    pub fn new(api: &Api, node: &str) -> Self {
        Self { api: api.clone(), node: node.to_owned() }
    }
}

impl ListWatcher for ApiPodFeed {
    type Item = Pod;

    /// Never from the server's watch cache: a pod that was deleted while the agent was down must not reappear.
    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Pod>, ApiError>> {
        Box::pin(self.api.list_pods(&self.node, Freshness::Latest))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Pod>, ApiError>> {
        Box::pin(self.api.watch_pods(&self.node, WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.api.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("pods", String::new())
    }

    fn meta(pod: &Pod) -> &ObjectMeta {
        &pod.metadata
    }
}

impl PodFeed for ApiPodFeed {
    fn source(&self) -> Source {
        Source::Api
    }

    fn stream(self: Box<Self>) -> BoxStream<'static, FeedNotice> {
        let origin = self.api.connection().kubeconfig().server.to_string();
        reflect(*self).flat_map(move |notice| stream::iter(feed_notices(notice, &origin))).boxed()
    }
}

fn feed_notices(notice: ReflectorEvent<Pod>, origin: &str) -> Vec<FeedNotice> {
    let source = Source::Api;
    vec![match notice {
        ReflectorEvent::All { items, unreadable } => {
            let pods = unreadable.into_iter().filter_map(unreadable_pod).collect();
            let set = PodSet { source, pods: items.into_iter().map(Arc::new).collect() };
            return vec![FeedNotice::Unreadable { source, pods, complete: true }, FeedNotice::Set(set)];
        }
        ReflectorEvent::Changed(pod) => FeedNotice::Changed { source, pod: Arc::new(pod) },
        ReflectorEvent::Gone(identity) => {
            FeedNotice::Gone { source, uid: PodUid::new(identity.uid.as_str()) }
        }
        ReflectorEvent::Unreadable(object) => {
            let Some(pod) = unreadable_pod(object) else { return Vec::new() };
            FeedNotice::Unreadable { source, pods: vec![pod], complete: false }
        }
        ReflectorEvent::Failing(error) => {
            FeedNotice::Problem { source, origin: origin.to_owned(), message: error.to_string() }
        }
        ReflectorEvent::Recovered => FeedNotice::Resolved { source, origin: origin.to_owned() },
    }]
}

/// `None`: the object does not show which pod it is.
fn unreadable_pod(object: UnreadableObject) -> Option<UnreadablePod> {
    let UnreadableObject { identity, problem } = object;
    if identity.uid.is_empty() || identity.name.is_empty() {
        tracing::warn!("pod {identity} can't be read, nor which one it is: {problem}");
        return None;
    }
    let full_name = FullName::new(&identity.name, &identity.namespace);
    Some(UnreadablePod { uid: PodUid::new(identity.uid.as_str()), full_name, problem })
}
