//! Answers that are packed when the caller takes gzip: metrics of a node with hundreds of pods are megabytes of text.

use std::io::Write;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;

/// Packs the answers of these routes. They are made whole in memory, as those of metrics are.
pub(crate) fn with_gzip<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes.layer(middleware::from_fn(async |request: Request, next: Next| {
        let wanted = accepts_gzip(request.headers());
        let mut answer = next.run(request).await;
        // What keeps answers must keep both kinds apart.
        answer.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        if wanted && answer.status().is_success() { pack(answer).await } else { answer }
    }))
}

async fn pack(answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    let Ok(body) = body.collect().await else { return Response::from_parts(head, Body::empty()) };
    let plain = body.to_bytes();
    let source = plain.clone();
    // Megabytes take tens of milliseconds, in which others want to be answered.
    let packed = tokio::task::spawn_blocking(move || {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&source)?;
        packer.finish()
    });
    match packed.await {
        Ok(Ok(packed)) => {
            head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, Body::from(packed))
        }
        _ => Response::from_parts(head, Body::from(plain)),
    }
}

/// Is gzip among what the caller takes, and not with a weight of zero?
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight =
            parts.find_map(|part| part.strip_prefix("q=")).map(|weight| weight.trim().parse::<f32>());
        let refused = matches!(weight, Some(Ok(weight)) if weight <= 0.0);
        name.eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

    use crate::testing::{FakeAgentState, endpoints};

    #[test]
    fn who_takes_gzip() {
        let check = |accepted: &str, expect: bool| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expect, "{accepted}");
        };
        check("gzip", true);
        check("deflate, gzip;q=0.8", true);
        check("GZIP", true);
        check("gzip;q=0", false);
        check("gzip; q=0.000, identity", false);
        check("identity", false);
        check("", false);
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn metrics_are_packed_when_asked_for() {
        let router = endpoints(FakeAgentState::Well).read_only(&ports::Tracing::default());
        let ask = async |path: &str, accepted: &str| {
            let request = http::Request::get(path).header("accept-encoding", accepted);
            let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let coding = answer.headers().get(header::CONTENT_ENCODING).cloned();
            let kind = answer.headers()[header::CONTENT_TYPE].clone();
            (coding, kind, answer.into_body().collect().await.unwrap().to_bytes())
        };
        for path in ["/metrics", "/metrics/probes", "/metrics/slis"] {
            let (coding, kind, body) = ask(path, "gzip").await;
            assert_eq!(coding.as_ref().map(HeaderValue::as_bytes), Some(&b"gzip"[..]), "{path}");
            assert!(kind.to_str().unwrap().starts_with("text/plain; version=0.0.4"), "{path} {kind:?}");
            let mut text = String::new();
            std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&body[..]), &mut text).unwrap();
            assert!(text.contains("# TYPE"), "{path} {text}");
            let (coding, _, body) = ask(path, "identity").await;
            assert_eq!(coding, None);
            assert!(body.starts_with(b"# HELP"), "{path}");
        }
        assert_eq!(ask("/pods", "gzip").await.0, None);
    }
}
