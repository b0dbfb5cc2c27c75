//! Counts requests in flight. A request is in flight until its response has been read or its stream has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::access::Peer;
use crate::endpoints::{method_label, path_label};
use crate::metrics::{AgentMetrics, InflightRequest};

/// Stored in the request's extensions. A task that continues a request after the response (exec, attach, port-forward)
/// keeps a clone. Dropping the last clone ends the request in the metrics.
#[derive(Clone)]
pub(crate) struct InflightGuard {
    _until_dropped: Arc<InflightRequest>,
}

impl InflightGuard {
    fn new(metrics: &Arc<AgentMetrics>, request: &Request, server_type: &str) -> Self {
        if let Some(expires) = request.extensions().get::<Peer>().and_then(|peer| peer.expires) {
            metrics.observe_certificate(expires);
        }
        let (method, path) = (method_label(request.method()), path_label(request.uri().path()));
        Self { _until_dropped: Arc::new(metrics.clone().request(method, path, server_type)) }
    }
}

/// Counts the requests of a port.
pub(crate) fn count_requests(
    router: Router,
    metrics: Arc<AgentMetrics>,
    server_type: &'static str,
) -> Router {
    let count = move |State(metrics): State<Arc<AgentMetrics>>, mut request: Request, next: Next| async move {
        let counted = InflightGuard::new(&metrics, &request, server_type);
        request.extensions_mut().insert(counted.clone());
        next.run(request).await.map(|inner| Body::new(InflightBody { inner, _counted: counted }))
    };
    router.layer(middleware::from_fn_with_state(metrics, count))
}

/// A body that counts as in flight until it was read or dropped.
struct InflightBody {
    inner: Body,
    _counted: InflightGuard,
}

impl HttpBody for InflightBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
