//! HTTP requests of lifecycle hooks: to the pod itself, without certificate verification; every response is a success.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use model::hook::HttpHook;
use ports::{HookAnswer, HttpHooks};

const AGENT: &str = "kube-lifecycle/1.36";
const MAX_REDIRECTS: usize = 10;
const MAX_DRAINED: usize = 10 << 10;

/// Keeps no connections: a container that is about to stop should not hold one of ours.
pub struct HookClient {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Default for HookClient {
    fn default() -> Self {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::trusting_everybody().with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Self { client }
    }
}

#[async_trait]
impl HttpHooks for HookClient {
    async fn get(&self, hook: &HttpHook) -> Result<HookAnswer, String> {
        let headers = headers(hook)?;
        let scheme = if hook.https { "https" } else { "http" };
        match self.follow(url(hook, scheme)?, &headers).await {
            Ok(()) => Ok(HookAnswer::Answered),
            Err(failure) if hook.https && failure.answered_without_tls => {
                // Credentials must only be sent over an encrypted connection.
                let mut headers = headers;
                headers.remove(AUTHORIZATION);
                let answered = self.follow(url(hook, "http")?, &headers).await;
                answered.map(|()| HookAnswer::AnsweredWithoutTls).map_err(|f| f.words)
            }
            Err(failure) => Err(failure.words),
        }
    }
}

struct Failure {
    words: String,
    /// The server answered the TLS handshake with something else.
    answered_without_tls: bool,
}

impl Failure {
    fn new(url: &Uri, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut words = error.to_string();
        let mut spoke_plainly = false;
        let mut cause = error.source();
        while let Some(error) = cause {
            spoke_plainly |= error.to_string().contains("InvalidContentType");
            words = format!("{words}: {error}");
            cause = error.source();
        }
        Self { words: format!("Get \"{url}\": {words}"), answered_without_tls: spoke_plainly }
    }
}

impl HookClient {
    /// Follows redirects on the same host only; other hosts do not belong to the pod.
    async fn follow(&self, mut url: Uri, headers: &HeaderMap) -> Result<(), Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&url, headers).await?;
            let next = redirect(&url, &response).filter(|next| next.host() == url.host());
            drain(response).await;
            match next {
                Some(next) => url = next,
                None => return Ok(()),
            }
        }
        Err(Failure {
            words: format!("Get \"{url}\": stopped after {MAX_REDIRECTS} redirects"),
            answered_without_tls: false,
        })
    }

    async fn ask(&self, url: &Uri, headers: &HeaderMap) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::get(url.clone()).body(Empty::new()).map_err(|e| Failure::new(url, &e))?;
        *request.headers_mut() = headers.clone();
        self.client.request(request).await.map_err(|e| Failure::new(url, &e))
    }
}

fn redirect(url: &Uri, response: &Response<Incoming>) -> Option<Uri> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let target: Uri = location.parse().ok()?;
    if target.host().is_some() {
        return Some(target);
    }
    let path = target.path_and_query()?.clone();
    Uri::builder()
        .scheme(url.scheme()?.clone())
        .authority(url.authority()?.clone())
        .path_and_query(path)
        .build()
        .ok()
}

/// Reads the response to its end, so that the server can finish it. Errors are ignored.
async fn drain(response: Response<Incoming>) {
    let _ = Limited::new(response.into_body(), MAX_DRAINED).collect().await;
}

fn url(hook: &HttpHook, scheme: &str) -> Result<Uri, String> {
    let host = if hook.host.contains(':') { format!("[{}]", hook.host) } else { hook.host.clone() };
    let path = if hook.path.starts_with('/') { hook.path.clone() } else { format!("/{}", hook.path) };
    let text = format!("{scheme}://{host}:{}{path}", hook.port);
    text.parse().map_err(|error| format!("{text:?} is no URL: {error}"))
}

fn headers(hook: &HttpHook) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &hook.headers {
        let bad = |error: &dyn std::fmt::Display| format!("header {name:?} can't be sent: {error}");
        let key: HeaderName = name.parse().map_err(|e| bad(&e))?;
        let value: HeaderValue = value.parse().map_err(|e| bad(&e))?;
        match key == HOST {
            true => drop(headers.insert(key, value)),
            false => drop(headers.append(key, value)),
        }
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers each connection with the next of `answers`, and sends the request to the test.
    async fn server(answers: &'static [&'static str]) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut asked = vec![0; 4096];
                let read = stream.read(&mut asked).await.expect("a request");
                let _ = tell.send(String::from_utf8_lossy(&asked[..read]).into_owned());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, heard)
    }

    fn hook(port: u16, https: bool) -> HttpHook {
        let headers = vec![("Authorization".into(), "secret".into()), ("X-A".into(), "b".into())];
        HttpHook { https, host: "127.0.0.1".into(), port, path: "go?x=1".into(), headers }
    }

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const BROKEN: &str =
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const AWAY: &str = "HTTP/1.1 302 Found\r\nlocation: http://elsewhere.test/\r\ncontent-length: 0\r\n\r\n";
    const SELF: &str =
        "HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn any_answer_is_success() {
        for answers in [&[OK][..], &[BROKEN], &[AWAY]] {
            let (port, mut heard) = server(answers).await;
            let client = HookClient::default();
            assert_eq!(client.get(&hook(port, false)).await, Ok(HookAnswer::Answered), "{answers:?}");
            let asked = heard.recv().await.expect("a request").to_lowercase();
            assert!(asked.starts_with("get /go?x=1 http/1.1"), "{asked}");
            assert!(asked.contains("user-agent: kube-lifecycle/1.36"), "{asked}");
            assert!(asked.contains("x-a: b"), "{asked}");
        }
    }

    #[tokio::test]
    async fn a_redirect_to_itself_is_followed() {
        let (port, mut heard) = server(&[SELF, OK]).await;
        assert_eq!(HookClient::default().get(&hook(port, false)).await, Ok(HookAnswer::Answered));
        heard.recv().await.expect("the first request");
        assert!(heard.recv().await.expect("the second").starts_with("GET /again "));
    }

    #[tokio::test]
    async fn a_plain_server_behind_https_is_asked_plainly_without_credentials() {
        let (port, mut heard) = server(&[BROKEN, OK]).await;
        assert_eq!(HookClient::default().get(&hook(port, true)).await, Ok(HookAnswer::AnsweredWithoutTls));
        heard.recv().await.expect("the greeting");
        let asked = heard.recv().await.expect("the request").to_lowercase();
        assert!(asked.contains("x-a: b") && !asked.contains("authorization"), "{asked}");
    }

    #[tokio::test]
    async fn nobody_there_is_a_failure_that_names_the_place() {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let error = HookClient::default().get(&hook(port, false)).await.expect_err("nobody listens");
        assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("refused"), "{error}");
    }
}
