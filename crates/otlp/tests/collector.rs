//! Spans on the wire: what a collector gets, and what one that is away costs.

use std::sync::Arc;
use std::time::Duration;

use model::Wall;
use otlp::{OtlpSettings, OtlpTracer};
use ports::{Span, SpanKind, TraceContext, Tracing, WallClock};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

mod pb {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/server/opentelemetry.proto.collector.trace.v1.rs"));
}

struct Noon;

impl WallClock for Noon {
    fn wall(&self) -> Wall {
        Wall(12)
    }
}

struct Collector(mpsc::UnboundedSender<pb::ResourceSpans>);

#[tonic::async_trait]
impl pb::trace_service_server::TraceService for Collector {
    async fn export(
        &self,
        request: Request<pb::ExportTraceServiceRequest>,
    ) -> Result<Response<pb::ExportTraceServiceResponse>, Status> {
        for spans in request.into_inner().resource_spans {
            let _ = self.0.send(spans);
        }
        Ok(Response::new(pb::ExportTraceServiceResponse::default()))
    }
}

fn settings(endpoint: String) -> OtlpSettings {
    let resource = [("service.name", "kubelet".to_owned())].into();
    OtlpSettings { endpoint, sampled_per_million: 1_000_000, resource }
}

fn span(name: &str) -> Span {
    Span { name: name.to_owned().into(), kind: SpanKind::Client, attributes: vec![("key", "value".into())] }
}

#[tokio::test]
async fn what_was_done_arrives_also_when_the_agent_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, mut got) = mpsc::unbounded_channel();
    let service = pb::trace_service_server::TraceServiceServer::new(Collector(sender));
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let stop = CancellationToken::new();
    let (tracer, task) = OtlpTracer::start(&settings(at.to_string()), Arc::new(Noon), stop.clone()).unwrap();
    let tracing = Tracing::new(tracer);
    let inner = async {
        tracing.in_span(|| span("inner"), async { Err::<(), _>("bad") }, |r| r.err().map(str::to_owned)).await
    };
    let remote = TraceContext { trace: 5, span: 6, sampled: true };
    let _ = tracing.in_span_of(Some(remote), || span("outer"), inner, |_| None).await;
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    let mut spans = Vec::new();
    while let Ok(batch) = got.try_recv() {
        let resource = batch.resource.unwrap().attributes;
        assert_eq!(resource[0].key, "service.name");
        spans.extend(batch.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    let [inner, outer] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((inner.name.as_str(), outer.name.as_str()), ("inner", "outer"));
    assert_eq!(outer.parent_span_id, 6_u64.to_be_bytes());
    assert_eq!((&inner.parent_span_id, &inner.trace_id[..]), (&outer.span_id, &5_u128.to_be_bytes()[..]));
    assert_eq!((inner.start_time_unix_nano, inner.kind), (12, 3));
    let status = inner.status.clone().unwrap();
    assert_eq!((status.code, status.message.as_str()), (2, "bad"));
    assert_eq!(outer.status, None);
    assert_eq!(inner.attributes[0].key, "key");
}

#[tokio::test]
async fn a_collector_that_is_away_holds_nobody_up() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = taken.local_addr().unwrap().to_string();
    drop(taken);
    let stop = CancellationToken::new();
    let (tracer, task) = OtlpTracer::start(&settings(nobody), Arc::new(Noon), stop.clone()).unwrap();
    let tracing = Tracing::new(tracer);
    // Far more than the queue has room for.
    for _ in 0..10_000 {
        tracing.in_span(|| span("lost"), async {}, |()| None).await;
    }
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
}
