//! Traces connect work of the agent, the API server and the runtime.
//!
//! ```text
//!   HTTP request (traceparent) ─> span ─> CRI call: span, traceparent ─> runtime
//!   plan of a pod ─> span ──────────────────┘
//! ```
//!
//! [`Tracing`] runs work in spans. Without a [`Tracer`] it is an empty handle: nothing is measured or allocated. The
//! current span is task-local, so nested calls need no argument for it.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use model::Wall;

/// Trace and span id of the current work. Unsampled work has one too, so that its children are not sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

impl TraceContext {
    /// The header `traceparent` (W3C Trace Context, version 00).
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }

    /// `None` for everything that the standard calls invalid.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, digits: usize| {
            let fine = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            text.len() == digits && text.bytes().all(fine)
        };
        // Later versions may have more parts.
        let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !(is_known && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
        Some(Self { trace, span, sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// Handling of a request.
    Server,
    /// Waiting for the answer to a request.
    Client,
}

/// Name, kind and attributes of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    pub attributes: Vec<(&'static str, String)>,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedSpan {
    pub span: Span,
    pub context: TraceContext,
    pub parent: Option<u64>,
    pub begun: Wall,
    pub ended: Wall,
    pub error: Option<String>,
}

/// Creates span ids, makes the sampling decision and receives finished spans.
pub trait Tracer: Send + Sync {
    /// A new span, in the trace of its parent if it has one.
    fn begin(&self, parent: Option<TraceContext>) -> TraceContext;
    /// Must not block: it is called in the middle of work.
    fn finish(&self, span: FinishedSpan);
    fn now(&self) -> Wall;
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Runs work in spans. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracing(Option<Arc<dyn Tracer>>);

impl std::fmt::Debug for Tracing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if self.0.is_some() { "Tracing(on)" } else { "Tracing(off)" })
    }
}

impl Tracing {
    pub fn new(tracer: Arc<dyn Tracer>) -> Self {
        Self(Some(tracer))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The current span of this task.
    pub fn current() -> Option<TraceContext> {
        CURRENT.try_get().ok()
    }

    /// Runs work in a span. `span` is called only if the work is sampled. `failed` extracts the error from the result.
    /// Work that is dropped half-way is recorded as well.
    pub async fn in_span<T>(
        &self,
        span: impl FnOnce() -> Span,
        work: impl Future<Output = T>,
        failed: impl FnOnce(&T) -> Option<String>,
    ) -> T {
        self.in_span_of(Self::current(), span, work, failed).await
    }

    /// Like `in_span`, with a given parent.
    pub async fn in_span_of<T>(
        &self,
        parent: Option<TraceContext>,
        span: impl FnOnce() -> Span,
        work: impl Future<Output = T>,
        failed: impl FnOnce(&T) -> Option<String>,
    ) -> T {
        let Some(tracer) = &self.0 else { return work.await };
        let context = tracer.begin(parent);
        if !context.sampled {
            return CURRENT.scope(context, work).await;
        }
        let mut open = OpenSpan {
            tracer: &**tracer,
            span: Some(span()),
            context,
            parent: parent.map(|parent| parent.span),
            begun: tracer.now(),
            error: Some("given up".into()),
        };
        let result = CURRENT.scope(context, work).await;
        open.error = failed(&result);
        result
    }
}

/// A span that ends when this is dropped.
struct OpenSpan<'a> {
    tracer: &'a dyn Tracer,
    span: Option<Span>,
    context: TraceContext,
    parent: Option<u64>,
    begun: Wall,
    error: Option<String>,
}

impl Drop for OpenSpan<'_> {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            let (context, parent, begun, ended) = (self.context, self.parent, self.begun, self.tracer.now());
            let error = self.error.take();
            self.tracer.finish(FinishedSpan { span, context, parent, begun, ended, error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[test]
    fn contexts_as_headers() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let found = TraceContext::parse(text).unwrap();
        assert_eq!((found.span, found.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(found.traceparent(), text);
        for (header, is_good) in [
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", true),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", false),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01", false),
            ("00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", false),
            ("", false),
        ] {
            assert_eq!(TraceContext::parse(header).is_some(), is_good, "{header}");
        }
    }

    /// Counts spans; samples traces of others as they were, and its own as it is told.
    struct Counting {
        next: AtomicU64,
        samples: bool,
        ended: Sender<FinishedSpan>,
    }

    impl Tracer for Counting {
        fn begin(&self, parent: Option<TraceContext>) -> TraceContext {
            let span = self.next.fetch_add(1, Ordering::SeqCst);
            match parent {
                Some(parent) => TraceContext { span, ..parent },
                None => TraceContext { trace: 7, span, sampled: self.samples },
            }
        }
        fn finish(&self, span: FinishedSpan) {
            let _ = self.ended.send(span);
        }
        fn now(&self) -> Wall {
            Wall(self.next.load(Ordering::SeqCst) as i64)
        }
    }

    fn tracing(samples: bool) -> (Tracing, Receiver<FinishedSpan>) {
        let (ended, spans) = channel();
        (Tracing::new(Arc::new(Counting { next: AtomicU64::new(1), samples, ended })), spans)
    }

    fn named(name: &'static str) -> impl FnOnce() -> Span {
        move || Span { name: name.into(), kind: SpanKind::Internal, attributes: Vec::new() }
    }

    #[tokio::test]
    async fn work_inside_work_is_its_child() {
        let (tracing, spans) = tracing(true);
        let inner = tracing.in_span(named("inner"), async { Err::<(), _>("bad") }, |r| {
            r.as_ref().err().map(ToString::to_string)
        });
        let outer = tracing.in_span(named("outer"), async { inner.await.is_err() }, |_| None);
        assert!(outer.await);
        assert_eq!(Tracing::current(), None);
        let told: Vec<_> = spans
            .try_iter()
            .map(|s| (s.span.name.into_owned(), s.context.trace, s.context.span, s.parent, s.error))
            .collect();
        let inner = ("inner".to_owned(), 7, 2, Some(1), Some("bad".to_owned()));
        assert_eq!(told, [inner, ("outer".to_owned(), 7, 1, None, None)]);
    }

    #[tokio::test]
    async fn what_is_not_sampled_is_not_even_described() {
        let (tracing, spans) = tracing(false);
        let undescribed = || -> Span { panic!("nobody wants to know") };
        let inner = tracing.in_span(undescribed, async { Tracing::current().unwrap().sampled }, |_| None);
        assert!(!tracing.in_span(undescribed, inner, |_| None).await);
        let off = Tracing::default();
        assert_eq!(off.in_span(undescribed, async { Tracing::current() }, |_| None).await, None);
        assert!(spans.try_iter().next().is_none());
        // Somebody else chose otherwise.
        let remote = TraceContext { trace: 9, span: 5, sampled: true };
        tracing.in_span_of(Some(remote), named("asked"), async {}, |()| None).await;
        let told = spans.try_iter().next().unwrap();
        assert_eq!((told.context.trace, told.parent), (9, Some(5)));
    }

    #[test]
    fn work_that_is_given_up_is_told() {
        let (tracing, spans) = tracing(true);
        {
            let mut work = Box::pin(tracing.in_span(named("slow"), std::future::pending::<()>(), |()| None));
            let mut context = std::task::Context::from_waker(futures::task::noop_waker_ref());
            assert!(work.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(spans.try_iter().next().unwrap().error.as_deref(), Some("given up"));
    }
}
