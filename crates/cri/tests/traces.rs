//! Calls as part of a trace: the runtime is told which one, and a call that fails says so in its span.

mod false_runtime;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use false_runtime::{FalseRuntime, LONG, client, pb, socket};
use model::Wall;
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{FinishedSpan, Runtime, Span, SpanKind, TraceContext, Tracer, Tracing};
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Tells what it heard of traces, in the name of the runtime.
struct Listening;

#[tonic::async_trait]
impl RuntimeService for Listening {
    async fn version(
        &self,
        request: Request<pb::VersionRequest>,
    ) -> Result<Response<pb::VersionResponse>, Status> {
        let heard = request.metadata().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
        Ok(Response::new(pb::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: heard.unwrap_or_else(|| "nothing".into()),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        }))
    }
}

struct Numbering {
    next: AtomicU64,
    ended: mpsc::UnboundedSender<FinishedSpan>,
}

impl Tracer for Numbering {
    fn begin(&self, parent: Option<TraceContext>) -> TraceContext {
        let span = self.next.fetch_add(1, Ordering::SeqCst);
        TraceContext { trace: parent.map_or(0xabc, |parent| parent.trace), span, sampled: true }
    }
    fn finish(&self, span: FinishedSpan) {
        let _ = self.ended.send(span);
    }
    fn now(&self) -> Wall {
        Wall(1)
    }
}

#[tokio::test]
async fn the_runtime_hears_of_the_trace_and_the_collector_of_the_call() {
    let (_directory, path) = socket();
    let _runtime = FalseRuntime::serve(&path, Routes::new(RuntimeServiceServer::new(Listening)));
    let plain = client(&path, LONG);
    assert_eq!(plain.version().await.unwrap().runtime_name, "nothing");

    let (ended, mut spans) = mpsc::unbounded_channel();
    let tracing = Tracing::new(Arc::new(Numbering { next: AtomicU64::new(1), ended }));
    let traced = plain.with_tracing(tracing.clone());
    let outer = || Span { name: "outer".into(), kind: SpanKind::Internal, attributes: Vec::new() };
    let heard =
        tracing.in_span(outer, async { traced.version().await.unwrap().runtime_name }, |_| None).await;
    assert_eq!(heard, format!("00-{:032x}-{:016x}-01", 0xabc, 2));
    let call = spans.try_recv().unwrap();
    assert_eq!((call.span.name.as_ref(), call.parent), ("runtime.v1.RuntimeService/Version", Some(1)));
    assert_eq!((call.span.kind, call.error), (SpanKind::Client, None));
    assert!(call.span.attributes.contains(&("rpc.method", "Version".into())), "{:?}", call.span);
    assert_eq!(spans.try_recv().unwrap().span.name, "outer");

    traced.status().await.unwrap_err();
    let failed = spans.try_recv().unwrap();
    assert_eq!((failed.span.name.as_ref(), failed.parent), ("runtime.v1.RuntimeService/Status", None));
    assert!(failed.error.unwrap().contains("Status"));
}
