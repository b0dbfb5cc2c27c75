//! Identities and their rights, through real TLS; the API server's answers are a table.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::middleware;
use ports::{AccessDecision, AccessReviews, ApiError, NodeAccess, UserInfo};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::tls::tests::{TestAuthority, TestClient, serve};
use crate::{ClientAuthority, ServingCertificate};

/// Tokens are names; `broken` can't be reviewed. `admin` may all, `scraper` may metrics and stats, and so on.
#[derive(Default)]
struct Table {
    tokens: AtomicUsize,
    accesses: AtomicUsize,
}

#[async_trait]
impl AccessReviews for Table {
    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, ApiError> {
        self.tokens.fetch_add(1, Ordering::SeqCst);
        match token {
            "broken" => Err(ApiError::TimedOut { call: "TokenReview".into(), after: Duration::from_secs(1) }),
            "unknown" => Ok(None),
            name => Ok(Some(UserInfo { name: name.into(), ..Default::default() })),
        }
    }
    async fn review_access(&self, wanted: &NodeAccess) -> Result<AccessDecision, ApiError> {
        self.accesses.fetch_add(1, Ordering::SeqCst);
        assert_eq!(wanted.node, "node-a");
        let allowed = match (wanted.who.name.as_str(), wanted.verb.as_str(), wanted.subresource.as_str()) {
            ("confusing", ..) => {
                let call = "create SubjectAccessReview".into();
                return Err(ApiError::TimedOut { call, after: Duration::from_secs(1) });
            }
            ("admin", ..) => true,
            ("scraper", "get", "metrics" | "stats") => true,
            ("reader", "get", "pods") => true,
            ("system:anonymous", "get", "healthz") => wanted.who.groups == ["system:unauthenticated"],
            ("grouped", "get", _) => wanted.who.groups == ["masters", "system:authenticated"],
            _ => false,
        };
        Ok(if allowed { AccessDecision::Allowed } else { AccessDecision::Denied(String::new()) })
    }
}

struct Bench {
    at: SocketAddr,
    server: TestAuthority,
    clients: TestAuthority,
    table: Arc<Table>,
    ca_file: std::path::PathBuf,
    _dir: tempfile::TempDir,
    _serving: crate::ServerHandle,
}

async fn bench(anonymous: bool, mode: &str) -> Bench {
    let (server, clients) = (TestAuthority::new("servers"), TestAuthority::new("clients"));
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.crt");
    std::fs::write(&ca_file, &clients.pem).unwrap();
    let authority = ClientAuthority::from_file(&ca_file, CancellationToken::new()).unwrap();
    let table = Arc::new(Table::default());
    let reviews: Arc<dyn AccessReviews> = table.clone();
    let authentication = Authentication::new(Some(authority.clone()));
    let authentication = authentication.with_tokens(Some(reviews.clone()), Duration::from_secs(120)).unwrap();
    let authentication = if anonymous { authentication.with_anonymous() } else { authentication };
    let minute = Duration::from_secs(60);
    let authorization = Authorization::for_mode(mode, "node-a", Some(reviews), minute, minute).unwrap();
    let access = Arc::new(Access { authentication, authorization });
    let router = Router::new().fallback(async || "let in");
    let router = router.layer(middleware::from_fn_with_state(access, authorize_request));
    let signed = server.server("node-a");
    let certificate = Arc::new(ServingCertificate::default());
    certificate.set_pem("test", signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let (serving, at) = serve(certificate, Some(authority), router).await;
    Bench { at, server, clients, table, ca_file, _dir: dir, _serving: serving }
}

impl Bench {
    fn client(&self, shows: Option<&crate::tls::tests::Signed>) -> TestClient {
        TestClient::new(&self.server.pem, shows)
    }
    async fn with_token(&self, token: &str, method: &str, path: &str) -> (u16, String) {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"));
        self.client(None).ask(self.at, request).await.unwrap()
    }
}

fn forbidden(user: &str, verb: &str, subresources: &str) -> (u16, String) {
    let text =
        format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n");
    (403, text)
}

fn let_in() -> (u16, String) {
    (200, "let in".into())
}

fn unauthorized() -> (u16, String) {
    (401, "Unauthorized".into())
}

#[tokio::test]
async fn tokens_and_what_they_open() {
    let bench = bench(false, "Webhook").await;
    for (token, method, path, expect) in [
        ("admin", "GET", "/pods", let_in()),
        ("admin", "POST", "/exec/a/b/c", let_in()),
        ("scraper", "GET", "/metrics/cadvisor", let_in()),
        ("scraper", "GET", "/stats/summary", let_in()),
        ("scraper", "POST", "/stats/summary", forbidden("scraper", "create", "stats")),
        ("scraper", "GET", "/pods", forbidden("scraper", "get", "pods proxy")),
        ("scraper", "GET", "/containerLogs/a/b/c", forbidden("scraper", "get", "proxy")),
        ("reader", "GET", "/pods/", let_in()),
        ("reader", "GET", "/runningpods/", let_in()),
        ("reader", "PUT", "/pods", forbidden("reader", "update", "pods proxy")),
        ("unknown", "GET", "/healthz", unauthorized()),
        ("broken", "GET", "/healthz", unauthorized()),
        (
            "confusing",
            "GET",
            "/pods",
            (500, "Authorization error (user=confusing, verb=get, resource=nodes, subresource=pods)".into()),
        ),
    ] {
        assert_eq!(bench.with_token(token, method, path).await, expect, "{token} {method} {path}");
    }
    assert_eq!(bench.client(None).get(bench.at, "/healthz").await, unauthorized());
}

/// Browsers can't set a header: the token is one of the protocols that they offer.
#[tokio::test]
async fn a_token_among_the_protocols_of_a_websocket() {
    let bench = bench(false, "Webhook").await;
    let offer = async |protocols: &str, upgrade: &str| {
        let request = http::Request::get("/exec/a/b/c").header("connection", "Upgrade");
        let request = request.header("upgrade", upgrade).header("sec-websocket-protocol", protocols);
        bench.client(None).ask(bench.at, request).await.unwrap()
    };
    // "admin", "unknown" and "reader".
    let token = |encoded: &str| format!("base64url.bearer.authorization.k8s.io.{encoded}");
    assert_eq!(offer(&format!("{}, v5.channel.k8s.io", token("YWRtaW4")), "websocket").await, let_in());
    assert_eq!(offer(&format!("{}, v5", token("dW5rbm93bg")), "websocket").await, unauthorized());
    assert_eq!(offer(&format!("{}, v5", token("cmVhZGVy")), "websocket").await.0, 403);
    assert_eq!(offer(&token("YWRtaW4"), "websocket").await, unauthorized(), "no other protocol");
    assert_eq!(offer(&format!("{}, v5", token("YWRtaW4")), "SPDY/3.1").await, unauthorized());
}

#[tokio::test]
async fn answers_are_remembered() {
    let bench = bench(false, "Webhook").await;
    for _ in 0..5 {
        assert_eq!(bench.with_token("admin", "GET", "/pods").await, let_in());
        assert_eq!(bench.with_token("nobody", "GET", "/metrics").await.0, 403);
        assert_eq!(bench.with_token("unknown", "GET", "/metrics").await.0, 401);
    }
    let asked = (bench.table.tokens.load(Ordering::SeqCst), bench.table.accesses.load(Ordering::SeqCst));
    assert_eq!(asked, (3, 2));
}

#[tokio::test]
async fn certificates_name_user_and_groups_and_bad_ones_name_nobody() {
    let bench = bench(true, "Webhook").await;
    let check = async |shows: &crate::tls::tests::Signed, path: &str, expect: (u16, String)| {
        assert_eq!(bench.client(Some(shows)).get(bench.at, path).await, expect);
    };
    check(&bench.clients.client("admin", &[]), "/exec/a/b/c", let_in()).await;
    check(&bench.clients.client("grouped", &["masters"]), "/pods", let_in()).await;
    // Reading is not running commands, though a WebSocket begins with a GET.
    check(
        &bench.clients.client("grouped", &["masters"]),
        "/exec/a/b/c",
        forbidden("grouped", "create", "proxy"),
    )
    .await;
    check(&bench.clients.client("grouped", &["others"]), "/pods", forbidden("grouped", "get", "pods proxy"))
        .await;
    check(&bench.clients.expired("admin"), "/healthz", unauthorized()).await;
    check(&TestAuthority::new("foreign").client("admin", &[]), "/healthz", unauthorized()).await;
    check(&bench.clients.server("admin"), "/healthz", unauthorized()).await;
    // Without a name it is as if none was shown.
    check(&bench.clients.client("", &[]), "/healthz", let_in()).await;
    assert_eq!(bench.client(None).get(bench.at, "/healthz").await, let_in());
    let anonymous = forbidden("system:anonymous", "get", "pods proxy");
    assert_eq!(bench.client(None).get(bench.at, "/pods").await, anonymous);
    assert_eq!(
        bench.with_token("unknown", "GET", "/healthz").await,
        unauthorized(),
        "bad is worse than none"
    );
}

#[tokio::test]
async fn always_allow_is_for_those_who_are_somebody() {
    let bench = bench(false, "AlwaysAllow").await;
    let client = bench.client(Some(&bench.clients.client("anybody", &[])));
    assert_eq!(client.get(bench.at, "/exec/a/b/c").await, let_in());
    assert_eq!(bench.client(None).get(bench.at, "/healthz").await, unauthorized());
    assert_eq!(bench.table.accesses.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn another_ca_file_counts_at_once_even_on_open_connections() {
    let bench = bench(false, "AlwaysAllow").await;
    let next = TestAuthority::new("next");
    let old = bench.client(Some(&bench.clients.client("admin", &[])));
    let new = bench.client(Some(&next.client("admin", &[])));
    assert_eq!(old.get(bench.at, "/").await, let_in());
    assert_eq!(new.get(bench.at, "/").await, unauthorized());
    std::fs::write(&bench.ca_file, "").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(old.get(bench.at, "/").await, let_in(), "an empty file changes nothing");
    std::fs::write(&bench.ca_file, &next.pem).unwrap();
    for _ in 0..100 {
        if new.get(bench.at, "/").await == let_in() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((new.get(bench.at, "/").await, old.get(bench.at, "/").await), (let_in(), unauthorized()));
}

#[test]
fn webhooks_need_somebody_to_ask() {
    let none = Authentication::new(None).with_tokens(None, Duration::ZERO).map(|_| ()).unwrap_err();
    assert_eq!(none.to_string(), "no client provided, cannot use webhook authentication");
    let mode = |mode| Authorization::for_mode(mode, "n", None, Duration::ZERO, Duration::ZERO).map(|_| ());
    assert_eq!(
        mode("Webhook").unwrap_err().to_string(),
        "no client provided, cannot use webhook authorization"
    );
    assert_eq!(mode("RBAC").unwrap_err().to_string(), "unknown authorization mode RBAC");
    assert_eq!(mode("AlwaysAllow"), Ok(()));
}
