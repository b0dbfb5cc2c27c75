use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use ports::{FinishedSpan, TraceContext, Tracer, Tracing};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::testing::{Answer, FakeAgentState, endpoints, get_tcp, get_unix, tcp};
use crate::{ServerHandle, serve_tcp, serve_unix};

async fn serve(router: axum::Router) -> (ServerHandle, SocketAddr) {
    let serving = serve_tcp("test port", "127.0.0.1", 0, router, CancellationToken::new()).await.unwrap();
    let address = serving.address().unwrap();
    (serving, address)
}

fn check(answer: &Answer, status: u16, content_type: &str, body: &str) {
    assert_eq!(
        (answer.status, answer.content_type.as_str(), answer.body.as_str()),
        (status, content_type, body)
    );
}

const PLAIN: &str = "text/plain; charset=utf-8";

#[tokio::test]
async fn healthz_of_an_agent_that_is_well() {
    let (_serving, at) = serve(endpoints(FakeAgentState::Well).healthz()).await;
    check(&get_tcp(at, "/healthz").await, 200, PLAIN, "ok");
    check(&get_tcp(at, "/healthz/ping").await, 200, PLAIN, "ok");
    check(&get_tcp(at, "/healthz/syncloop").await, 200, PLAIN, "ok");
    check(&get_tcp(at, "/healthz/moon").await, 404, PLAIN, "404 page not found\n");
    let long = "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n";
    check(&get_tcp(at, "/healthz?verbose").await, 200, PLAIN, long);
    check(&get_tcp(at, "/healthz?verbose=true").await, 200, PLAIN, long);
    let without = "[+]ping excluded: ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n";
    check(&get_tcp(at, "/healthz?verbose&exclude=ping").await, 200, PLAIN, without);
    check(&tcp(at, "POST", "/healthz").await, 200, PLAIN, "ok");
    check(&get_tcp(at, "/pods").await, 404, PLAIN, "404 page not found\n");
}

/// CVE-2019-11248: profiles were served on the health port, where nobody is asked who they are.
#[tokio::test]
async fn the_health_port_serves_nothing_but_health() {
    let (_serving, at) = serve(endpoints(FakeAgentState::Well).healthz()).await;
    for path in [
        "/debug/pprof/",
        "/debug/pprof/profile",
        "/debug/flags/v",
        "/metrics",
        "/logs/",
        "/configz",
        "/exec/a/b/c",
    ] {
        check(&get_tcp(at, path).await, 404, PLAIN, "404 page not found\n");
    }
}

#[tokio::test]
async fn healthz_of_an_agent_that_has_ended() {
    let (_serving, at) = serve(endpoints(FakeAgentState::Ended).healthz()).await;
    let text = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
    check(&get_tcp(at, "/healthz").await, 500, PLAIN, text);
    check(&get_tcp(at, "/healthz/ping").await, 200, PLAIN, "ok");
    check(&get_tcp(at, "/healthz?exclude=syncloop").await, 200, PLAIN, "ok");
    check(
        &get_tcp(at, "/healthz/syncloop").await,
        500,
        PLAIN,
        "internal server error: the agent has ended\n",
    );
}

/// Without a socket, so that time can be paused: patience costs none then.
async fn ask_directly(router: &axum::Router, path: &str) -> (u16, String) {
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_hangs_is_unhealthy_and_hangs_nobody_else() {
    let router = endpoints(FakeAgentState::Hanging).read_only(&Tracing::default());
    let late = "internal server error: sync Loop took longer than expected\n";
    assert_eq!(ask_directly(&router, "/healthz/syncloop").await, (500, late.into()));
    let unanswered = "the agent did not answer within 10 seconds\n";
    assert_eq!(ask_directly(&router, "/pods").await, (503, unanswered.into()));
    let begun = tokio::time::Instant::now();
    let (status, metrics) = ask_directly(&router, "/metrics").await;
    assert_eq!((status, begun.elapsed()), (200, super::SCRAPE_TIMEOUT), "scrapers leave after ten seconds");
    assert!(metrics.contains("\nprocess_resident_memory_bytes "));
    assert!(!metrics.contains("kubelet_running_pods"), "what is not known is not told");
}

#[tokio::test]
async fn checks_are_counted_when_they_are_made() {
    let router = endpoints(FakeAgentState::Well).read_only(&Tracing::default());
    let (_, before) = ask_directly(&router, "/metrics/slis").await;
    assert!(!before.contains("kubernetes_healthcheck"), "{before}");
    for _ in 0..3 {
        ask_directly(&router, "/healthz").await;
    }
    for _ in 0..2 {
        let (_, text) = ask_directly(&router, "/metrics/slis").await;
        for line in [
            r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 1"#,
            r#"kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}

#[tokio::test]
async fn the_read_only_port_tells_pods_and_nothing_more() {
    let (_serving, at) = serve(endpoints(FakeAgentState::Well).read_only(&Tracing::default())).await;
    for (path, names) in [("/pods", vec!["web-vm", "db-vm"]), ("/pods/", vec!["web-vm", "db-vm"])] {
        let answer = get_tcp(at, path).await;
        assert_eq!((answer.status, answer.content_type.as_str()), (200, "application/json"), "{path}");
        let list: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")), "{path}");
        let items = list["items"].as_array().unwrap();
        let found: Vec<_> = items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{path}");
        assert_eq!(items[0]["spec"]["containers"], json!([{"name": "web", "image": "example/web:1"}]));
    }
    check(&get_tcp(at, "/healthz").await, 200, PLAIN, "ok");
    for path in ["/", "/configz", "/v1/pods", "/runningpods"] {
        assert_eq!(get_tcp(at, path).await.status, 404, "{path}");
    }
    for path in
        ["/exec/default/web-vm/web", "/runningpods/", "/logs/", "/logs/a", "/containerLogs/a/b/c", "/run/a"]
    {
        check(&get_tcp(at, path).await, 405, PLAIN, "Debug endpoints are disabled.\n");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        assert_eq!(tcp(at, method, "/pods").await.status, 405, "{method}");
    }
    // CVE-2025-0426: anybody could fill the disk with checkpoints of containers.
    assert_eq!(tcp(at, "POST", "/checkpoint/default/web-vm/web").await.status, 404);
    let head = tcp(at, "HEAD", "/pods").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn requests_are_counted_under_names_that_callers_cannot_choose() {
    let (_serving, at) = serve(endpoints(FakeAgentState::Well).read_only(&Tracing::default())).await;
    get_tcp(at, "/pods").await;
    get_tcp(at, "/pods/").await;
    get_tcp(at, "/a-name-of-my-own").await;
    tcp(at, "BREW", "/pods").await;
    // The last request may be answered a moment before it is counted.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = get_tcp(at, "/metrics").await;
    assert_eq!(answer.content_type, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    let line = |method: &str, path: &str, count: u32| {
        let labels =
            format!(r#"long_running="false",method="{method}",path="{path}",server_type="readonly""#);
        let line = format!("kubelet_http_requests_total{{{labels}}} {count}\n");
        assert!(answer.body.contains(&line), "{line} in {}", answer.body);
    };
    let probes = get_tcp(at, "/metrics/probes").await;
    assert_eq!((probes.status, &probes.content_type), (200, &answer.content_type));
    assert!(probes.body.contains("\nprocess_start_time_seconds "), "{}", probes.body);
    line("GET", "pods", 2);
    line("GET", "other", 1);
    line("other", "pods", 1);
}

#[tokio::test]
async fn the_control_socket_answers_in_the_models_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rubelet.sock");
    let router = endpoints(FakeAgentState::Well).control();
    let _serving = serve_unix("control socket", &path, router, CancellationToken::new()).await.unwrap();

    let pods = get_unix(&path, "/v1/pods").await;
    assert_eq!((pods.status, pods.content_type.as_str()), (200, "application/json"));
    let pods: Vec<model::report::PodReport> = serde_json::from_str(&pods.body).unwrap();
    assert_eq!(pods.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["web-vm", "old-vm", "db"]);

    let node: model::report::NodeReport =
        serde_json::from_str(&get_unix(&path, "/v1/node").await.body).unwrap();
    assert_eq!(node.message, "no CNI");

    for (query, namespace) in [
        ("/v1/why?name=a%20b", "any"),
        ("/v1/why?name=a%20b&namespace=", "any"),
        ("/v1/why?namespace=kube-system&name=a+b", "kube-system"),
    ] {
        let why: Vec<model::report::WhyReport> =
            serde_json::from_str(&get_unix(&path, query).await.body).unwrap();
        assert_eq!((why[0].namespace.as_str(), why[0].name.as_str()), (namespace, "a b"), "{query}");
        assert_eq!(why[0].reasons[0].next_attempt_secs, Some(1.5));
    }

    let nameless = get_unix(&path, "/v1/why").await;
    check(&nameless, 400, "application/json", r#"{"error":"the query must name a pod: name="}"#);
    assert_eq!(get_unix(&path, "/pods").await.status, 404);
}

#[tokio::test]
async fn the_control_socket_of_an_ending_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rubelet.sock");
    let router = endpoints(FakeAgentState::Ended).control();
    let _serving = serve_unix("control socket", &path, router, CancellationToken::new()).await.unwrap();
    for question in ["/v1/pods", "/v1/node", "/v1/why?name=x"] {
        let answer = get_unix(&path, question).await;
        check(&answer, 503, "application/json", r#"{"error":"the agent is shutting down"}"#);
    }
}

struct Kept(std::sync::mpsc::Sender<FinishedSpan>);

impl Tracer for Kept {
    fn begin(&self, parent: Option<TraceContext>) -> TraceContext {
        parent.unwrap_or(TraceContext { trace: 1, span: 2, sampled: true })
    }
    fn finish(&self, span: FinishedSpan) {
        let _ = self.0.send(span);
    }
    fn now(&self) -> model::Wall {
        model::Wall(1)
    }
}

/// Who asks on the read-only port is not known, so a trace of theirs is not gone on with.
#[tokio::test]
async fn the_read_only_port_makes_traces_of_its_own() {
    let (sender, spans) = std::sync::mpsc::channel();
    let tracing = Tracing::new(std::sync::Arc::new(Kept(sender)));
    let router = endpoints(FakeAgentState::Well).read_only(&tracing);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = http::Request::builder().uri("/pods").header("traceparent", trace);
    router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let span = spans.try_recv().unwrap();
    assert_eq!((span.span.name.as_ref(), span.parent, span.context.trace), ("GET /pods", None, 1));
}
