//! Requests as part of traces: whoever asks may say which trace it is, and what the runtime is asked goes on with it.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use ports::{Span, SpanKind, TraceContext, Tracing};

use crate::endpoints::{method_label, path_label};

/// Whoever is allowed anything may ask for long paths and have them sampled; thousands of spans wait at a time.
const MAX_PATH_CHARS: usize = 512;

/// Whose traces go on here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerTrust {
    /// They are known: `access` stands before them.
    Authenticated,
    /// Nobody asks who they are. Their word that a trace is to be kept counts nothing: the rate alone decides.
    Unauthenticated,
}

/// Puts each request under a span, if traces are made at all.
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
