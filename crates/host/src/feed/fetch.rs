//! One GET request, with redirects, a limit on the response, and errors in one line.

use bytes::Bytes;
use http::header::LOCATION;
use http::uri::Scheme;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};

use super::MAX_BYTES;
use super::http::Endpoint;

const MAX_REDIRECTS: usize = 10;

pub enum FetchResult {
    /// The body of a 200.
    Content(Bytes),
    Failed(String),
}

type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Keeps connections open. The system's certificates are read at the first https request.
pub struct Fetcher {
    plain: HttpClient,
    secure: Option<HttpClient>,
}

impl Fetcher {
    pub fn new() -> Self {
        Self { plain: client(trust(RootCertStore::empty())), secure: None }
    }

    #[cfg(test)]
    pub fn trusting(roots: RootCertStore) -> Self {
        Self { secure: Some(client(trust(roots))), ..Self::new() }
    }

    pub async fn get(&mut self, endpoint: &Endpoint) -> FetchResult {
        match self.follow(endpoint).await {
            Ok(content) => FetchResult::Content(content),
            Err(why) => FetchResult::Failed(why),
        }
    }

    async fn follow(&mut self, endpoint: &Endpoint) -> Result<Bytes, String> {
        let mut redirected: Option<Endpoint> = None;
        for _ in 0..=MAX_REDIRECTS {
            let to = redirected.as_ref().unwrap_or(endpoint);
            let response = self.ask(to).await?;
            if response.status().as_u16() == 200 {
                return content(response).await;
            }
            let status = status_line(&response);
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            match location {
                Some(location) if matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) => {
                    redirected = Some(to.redirected(location).ok_or(status)?);
                }
                _ => return Err(status),
            }
        }
        Err(format!("stopped after {MAX_REDIRECTS} redirects"))
    }

    async fn ask(&mut self, endpoint: &Endpoint) -> Result<Response<Incoming>, String> {
        let mut request =
            Request::get(endpoint.url.clone()).body(Empty::new()).map_err(|error| error_chain(&error))?;
        request.headers_mut().extend(endpoint.headers.clone());
        let client = if endpoint.url.scheme() == Some(&Scheme::HTTPS) { self.secure()? } else { &self.plain };
        client.request(request).await.map_err(|error| error_chain(&error))
    }

    fn secure(&mut self) -> Result<&HttpClient, String> {
        if self.secure.is_none() {
            let provider = rustls::crypto::ring::default_provider();
            let connector = HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)
                .map_err(|error| format!("read the system's certificates: {error}"))?;
            let connector = connector.https_or_http().enable_http1().build();
            self.secure = Some(Client::builder(TokioExecutor::new()).build(connector));
        }
        self.secure.as_ref().ok_or_else(|| "no client for https".to_owned())
    }
}

fn trust(roots: RootCertStore) -> ClientConfig {
    let provider = rustls::crypto::ring::default_provider();
    ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("ring has the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn client(tls: ClientConfig) -> HttpClient {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Client::builder(TokioExecutor::new()).build(connector)
}

async fn content(response: Response<Incoming>) -> Result<Bytes, String> {
    // A response of exactly the limit is too large already.
    match Limited::new(response.into_body(), MAX_BYTES - 1).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err("the answer has 10 MiB or more".to_owned()),
        Err(error) => Err(error_chain(error.as_ref())),
    }
}

/// `404 Not Found`, with the server's reason phrase.
fn status_line<B>(response: &Response<B>) -> String {
    let status = response.status();
    let own = response.extensions().get::<hyper::ext::ReasonPhrase>();
    let reason = own.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let reason = reason.unwrap_or_else(|| status.canonical_reason().unwrap_or_default().to_owned());
    format!("{} {reason}", status.as_str()).trim_end().to_owned()
}

/// An error and its causes.
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text.replace(['\n', '\r'], " ")
}
