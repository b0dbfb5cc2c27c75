//! Traces at a collector of ours: what a pod's plans and calls to the runtime look like there, and a request that brings
//! its own trace.

use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{is_running, simple};
use otlp::collector::trace_service_server::{TraceService, TraceServiceServer};
use otlp::collector::{ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span, any_value};
use serde_json::json;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

struct Collector(Sender<(String, Span)>);

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|one| one.key == key).and_then(|one| one.value.clone());
    match found.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        None => String::new(),
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let service = resource.resource.map(|r| text(&r.attributes, "service.name")).unwrap_or_default();
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send((service.clone(), span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Listens until the test ends; gives the port and what comes.
fn collector() -> (tokio::runtime::Runtime, u16, Receiver<(String, Span)>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, spans) = channel();
    let service = TraceServiceServer::new(Collector(sender));
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (runtime, port, spans)
}

/// Everything that came, and the wait for what is missing.
struct Seen {
    spans: Receiver<(String, Span)>,
    all: Vec<Span>,
}

impl Seen {
    #[track_caller]
    fn wait(&mut self, what: &str, wanted: impl Fn(&Span, &[Span]) -> bool) -> Span {
        wait(what, 3 * SLOW, || {
            for (service, span) in self.spans.try_iter() {
                assert_eq!(service, "kubelet");
                self.all.push(span);
            }
            let found = self.all.iter().find(|span| wanted(span, &self.all)).cloned();
            found.ok_or_else(|| {
                let names: Vec<&str> = self.all.iter().map(|span| span.name.as_str()).collect();
                format!("{} spans: {names:?}", names.len())
            })
        })
    }
}

#[test]
fn plans_calls_and_requests_are_told_to_the_collector() {
    let (_runtime, port, spans) = collector();
    let mut seen = Seen { spans, all: Vec::new() };
    let node = Node::start_with(|config| {
        config["tracing"] =
            json!({ "endpoint": format!("127.0.0.1:{port}"), "samplingRatePerMillion": 1_000_000 });
    });
    node.agent.write_manifest("web", &simple("web"));
    node.wait_pod("web", 3 * SLOW, is_running);

    // Each call that made the pod is part of a plan of this pod.
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let name = format!("runtime.v1.RuntimeService/{call}");
        let call = seen.wait(&name, |span, all| {
            let is_plan = |plan: &Span| {
                plan.name == "syncPod"
                    && plan.span_id == span.parent_span_id
                    && plan.trace_id == span.trace_id
                    && text(&plan.attributes, "k8s.pod") == "default/web-node"
            };
            span.name == name && all.iter().any(is_plan)
        });
        assert_eq!((call.kind, call.status), (3, None), "{name}");
        assert!(call.start_time_unix_nano <= call.end_time_unix_nano);
    }

    // Somebody asks within a trace of their own: what the runtime is asked for it belongs to that.
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let url = format!("https://127.0.0.1:{}/run/default/web-node/c?cmd=true", node.agent.port);
    let asked = Command::new("curl")
        .args(["-sSk", "-X", "POST", "-H", &format!("traceparent: 00-{trace}-00f067aa0ba902b7-01"), &url])
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let request = seen.wait("the request", |span, _| span.name == "POST /run");
    assert_eq!(
        (hex(&request.trace_id), hex(&request.parent_span_id)),
        (trace.into(), "00f067aa0ba902b7".into())
    );
    let call = seen.wait("its command", |span, _| span.parent_span_id == request.span_id);
    assert_eq!(
        (call.name.as_str(), hex(&call.trace_id)),
        ("runtime.v1.RuntimeService/ExecSync", trace.into())
    );

    // The end of a pod has its names too, and what was not sent when the agent ends is sent then.
    node.agent.remove_manifest("web");
    node.wait_clean(3 * SLOW);
    let mut node = node;
    node.agent.terminate();
    for name in ["syncTerminatingPod", "syncTerminatedPod", "runtime.v1.RuntimeService/RemovePodSandbox"] {
        seen.wait(name, |span, _| span.name == name);
    }
}
