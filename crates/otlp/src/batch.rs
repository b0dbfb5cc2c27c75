//! Collects spans into batches and sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ports::{FinishedSpan, SpanKind};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::pb;
use crate::pb::trace_service_client::TraceServiceClient;
use crate::settings::OtlpSettings;

/// The most spans in one message.
const MAX_EXPORT_BATCH: usize = 512;
/// How long a span waits for others to be sent with it.
const BATCH_DELAY: Duration = Duration::from_secs(5);
/// Timeout of an export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an export when the agent ends.
const SHUTDOWN_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Name of the instrumentation scope.
const SCOPE: &str = "rubelet";

pub(crate) struct SpanExporter {
    client: TraceServiceClient<Channel>,
    resource: pb::Resource,
    dropped: Arc<AtomicU64>,
    /// The last export failed, and that was logged.
    is_away: bool,
}

impl SpanExporter {
    pub fn new(channel: Channel, settings: &OtlpSettings, dropped: Arc<AtomicU64>) -> Self {
        let attributes = settings.resource.iter().map(|(key, value)| attribute(key, value.clone())).collect();
        let client = TraceServiceClient::new(channel);
        Self { client, resource: pb::Resource { attributes }, dropped, is_away: false }
    }

    pub async fn run(mut self, mut spans: mpsc::Receiver<FinishedSpan>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(MAX_EXPORT_BATCH);
        while let Some(Some(first)) = stop.run_until_cancelled(spans.recv()).await {
            batch.push(first);
            let more = async {
                while batch.len() < MAX_EXPORT_BATCH {
                    match spans.recv().await {
                        Some(span) => batch.push(span),
                        None => return,
                    }
                }
            };
            tokio::select! {
                () = more => {}
                () = tokio::time::sleep(BATCH_DELAY) => {}
                () = stop.cancelled() => {}
            }
            let patience = if stop.is_cancelled() { SHUTDOWN_EXPORT_TIMEOUT } else { EXPORT_TIMEOUT };
            self.send(std::mem::take(&mut batch), patience).await;
        }
        while let Ok(span) = spans.try_recv() {
            batch.push(span);
        }
        if !batch.is_empty() {
            self.send(batch, SHUTDOWN_EXPORT_TIMEOUT).await;
        }
    }

    async fn send(&mut self, batch: Vec<FinishedSpan>, patience: Duration) {
        let count = batch.len();
        let scope =
            pb::InstrumentationScope { name: SCOPE.into(), version: env!("CARGO_PKG_VERSION").into() };
        let scope_spans =
            vec![pb::ScopeSpans { scope: Some(scope), spans: batch.into_iter().map(span).collect() }];
        let resource_spans = vec![pb::ResourceSpans { resource: Some(self.resource.clone()), scope_spans }];
        let mut request = tonic::Request::new(pb::ExportTraceServiceRequest { resource_spans });
        request.set_timeout(patience);
        let sent = tokio::time::timeout(patience, self.client.export(request)).await;
        let trouble = match sent {
            Ok(Ok(answer)) => {
                answer.into_inner().partial_success.filter(|part| part.rejected_spans > 0).map(|part| {
                    format!("the collector refused {} spans: {}", part.rejected_spans, part.error_message)
                })
            }
            Ok(Err(status)) => Some(format!("the collector of tracing.endpoint: {}", status.message())),
            Err(_) => Some(format!("the collector of tracing.endpoint did not answer within {patience:?}")),
        };
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "span queue full, spans dropped");
        }
        match (&trouble, self.is_away) {
            (Some(trouble), false) => tracing::warn!(spans = count, "exporting spans failed: {trouble}"),
            (Some(trouble), true) => tracing::debug!(spans = count, "traces are still lost: {trouble}"),
            (None, true) => tracing::info!("exporting spans works again"),
            (None, false) => {}
        }
        self.is_away = trouble.is_some();
    }
}

fn attribute(key: &str, value: String) -> pb::KeyValue {
    let value = pb::AnyValue { value: Some(pb::any_value::Value::StringValue(value)) };
    pb::KeyValue { key: key.to_owned(), value: Some(value) }
}

fn span(done: FinishedSpan) -> pb::Span {
    let FinishedSpan { span, context, parent, begun, ended, error } = done;
    let kind = match span.kind {
        SpanKind::Internal => pb::SpanKind::Internal,
        SpanKind::Server => pb::SpanKind::Server,
        SpanKind::Client => pb::SpanKind::Client,
    };
    let nanos = |at: model::Wall| u64::try_from(at.0).unwrap_or_default();
    pb::Span {
        trace_id: context.trace.to_be_bytes().into(),
        span_id: context.span.to_be_bytes().into(),
        parent_span_id: parent.map(|parent| parent.to_be_bytes().into()).unwrap_or_default(),
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(begun),
        end_time_unix_nano: nanos(ended),
        attributes: span.attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        status: error.map(|message| pb::Status { message, code: pb::StatusCode::Error.into() }),
        flags: u32::from(context.sampled),
    }
}
