//! Spans of requests. A request continues the trace of its `traceparent` header, and so do the runtime calls made for
//! it.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use ports::{Span, SpanKind, TraceContext, Tracing};

use crate::endpoints::{method_label, path_label};

/// Longest path in a span. Callers choose the path, and thousands of spans may wait to be sent.
const MAX_PATH_CHARS: usize = 512;

/// Whether a caller's `traceparent` header is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerTrust {
    /// `access` has authenticated the callers.
    Authenticated,
    /// Callers are not authenticated. Their `traceparent` header is ignored, and the sampling rate decides.
    Unauthenticated,
}

/// Makes a span for each request, if tracing is on.
pub(crate) fn with_tracing(router: Router, tracing: Tracing, callers: CallerTrust) -> Router {
    if !tracing.is_on() {
        return router;
    }
    let put_under = move |State(tracing): State<Tracing>, request: Request, next: Next| async move {
        let cause = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        let cause = cause.and_then(TraceContext::parse).filter(|_| callers == CallerTrust::Authenticated);
        let (method, path) = (method_label(request.method()), path_label(request.uri().path()));
        let target = shortened(request.uri().path());
        let span = || Span {
            name: format!("{method} /{path}").into(),
            kind: SpanKind::Server,
            attributes: vec![("http.request.method", method.to_owned()), ("url.path", target)],
        };
        let failed =
            |answer: &Response| answer.status().is_server_error().then(|| answer.status().to_string());
        tracing.in_span_of(cause, span, next.run(request), failed).await
    };
    router.layer(middleware::from_fn_with_state(tracing, put_under))
}

fn shortened(path: &str) -> String {
    path.chars().take(MAX_PATH_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_keeps_the_beginning_of_a_long_path() {
        assert_eq!(shortened("/pods"), "/pods");
        let long = format!("/logs/{}", "é".repeat(60_000));
        let kept = shortened(&long);
        assert!(long.starts_with(&kept) && kept.chars().count() == MAX_PATH_CHARS);
    }
}
