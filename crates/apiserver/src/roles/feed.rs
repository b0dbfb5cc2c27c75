//! Pods that are bound to this node, as a source of pods.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use model::PodUid;
use model::k8s::{ObjectMeta, Pod};
use model::pod::Source;
use ports::{ApiError, FeedNotice, PodFeed, PodSet};

use super::reflect::{Notice, Target, reflect};
use crate::calls::{Api, Freshness, Listed};
use crate::watch::{Since, Watch};

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
        reflect(*self).map(move |notice| feed_notice(notice, &origin)).boxed()
    }
}

fn feed_notice(notice: Notice<Pod>, origin: &str) -> FeedNotice {
    let source = Source::Api;
    match notice {
        Notice::All(pods) => {
            FeedNotice::Set(PodSet { source, pods: pods.into_iter().map(Arc::new).collect() })
        }
        Notice::Changed(pod) => FeedNotice::Changed { source, pod: Arc::new(pod) },
        Notice::Gone(pod) => {
            let uid = PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default());
            FeedNotice::Gone { source, uid }
        }
        Notice::Failing(error) => {
            FeedNotice::Problem { source, origin: origin.to_owned(), message: error.to_string() }
        }
        Notice::Recovered => FeedNotice::Resolved { source, origin: origin.to_owned() },
    }
}
