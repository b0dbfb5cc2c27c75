//! Pods that are bound to this node, as a source of pods.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use model::k8s::{ObjectMeta, Pod};
use model::pod::{Source, UnreadablePod};
use model::{FullName, PodUid};
use ports::{ApiError, FeedNotice, PodFeed, PodSet};

use super::progress::WatchEntries;
use super::reflect::{Notice, Target, reflect};
use crate::calls::{Api, Freshness, Listed};
use crate::watch::{Since, UnreadableObject, Watch};

pub struct ApiPodFeed {
    api: Api,
    node: String,
}

impl ApiPodFeed {
    pub fn new(api: &Api, node: &str) -> Self {
        Self { api: api.clone(), node: node.to_owned() }
    }
}

impl Target for ApiPodFeed {
    type Item = Pod;

    /// Never from the server's memory: a pod that was deleted while we were away must not come back.
    fn list(&self) -> BoxFuture<'_, Result<Listed<Pod>, ApiError>> {
        Box::pin(self.api.list_pods(&self.node, Freshness::Latest))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Pod>, ApiError>> {
        Box::pin(self.api.watch_pods(&self.node, Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.api.watch_entries()
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
        let origin = self.api.connection().access().server.to_string();
        reflect(*self).flat_map(move |notice| stream::iter(feed_notices(notice, &origin))).boxed()
    }
}

fn feed_notices(notice: Notice<Pod>, origin: &str) -> Vec<FeedNotice> {
    let source = Source::Api;
    vec![match notice {
        Notice::All { items, unreadable } => {
            let pods = unreadable.into_iter().filter_map(unreadable_pod).collect();
            let set = PodSet { source, pods: items.into_iter().map(Arc::new).collect() };
            return vec![FeedNotice::Unreadable { source, pods, complete: true }, FeedNotice::Set(set)];
        }
        Notice::Changed(pod) => FeedNotice::Changed { source, pod: Arc::new(pod) },
        Notice::Gone(identity) => FeedNotice::Gone { source, uid: PodUid::new(identity.uid.as_str()) },
        Notice::Unreadable(object) => {
            let Some(pod) = unreadable_pod(object) else { return Vec::new() };
            FeedNotice::Unreadable { source, pods: vec![pod], complete: false }
        }
        Notice::Failing(error) => {
            FeedNotice::Problem { source, origin: origin.to_owned(), message: error.to_string() }
        }
        Notice::Recovered => FeedNotice::Resolved { source, origin: origin.to_owned() },
    }]
}

/// `None`: nobody can tell which pod it is.
fn unreadable_pod(object: UnreadableObject) -> Option<UnreadablePod> {
    let UnreadableObject { identity, problem } = object;
    if identity.uid.is_empty() || identity.name.is_empty() {
        tracing::warn!("pod {identity} can't be read, nor which one it is: {problem}");
        return None;
    }
    let full_name = FullName::new(&identity.name, &identity.namespace);
    Some(UnreadablePod { uid: PodUid::new(identity.uid.as_str()), full_name, problem })
}
