//! The feed of an HTTP endpoint, which is read once per period.
//!
//! The URL may contain a user and a password. They are sent, and never logged.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, Uri};
use model::pod::Source;
use ports::{FeedNotice, PodFeed};
use tokio::time::MissedTickBehavior;

use super::fetch::{FetchResult, Fetcher};
use super::notices::{NoticeQueue, SourceSnapshot};
use super::{ManifestDecoder, decode};

const TIME_OUT: Duration = Duration::from_secs(10);

#[derive(thiserror::Error, Debug)]
pub enum HttpFeedError {
    #[error("parse the manifest URL")]
    Url(#[from] http::uri::InvalidUri),
    #[error("the manifest URL needs a host, and http or https as its scheme")]
    NotAbsolute,
    #[error("header {name:?} of the manifest URL can't be sent")]
    Header { name: String },
}

pub struct HttpFeed {
    endpoint: Endpoint,
    period: Duration,
    decoder: ManifestDecoder,
    fetcher: Fetcher,
}

/// The URL to request, and its form for messages.
pub struct Endpoint {
    pub url: Uri,
    pub headers: HeaderMap,
    /// The URL without its credentials.
    pub redacted_url: String,
}

impl HttpFeed {
    pub fn new(
        url: &str,
        headers: &BTreeMap<String, Vec<String>>,
        period: Duration,
        decoder: ManifestDecoder,
    ) -> Result<Self, HttpFeedError> {
        let endpoint = Endpoint::new(url, headers)?;
        Ok(Self { endpoint, period: period.max(Duration::from_millis(1)), decoder, fetcher: Fetcher::new() })
    }

    #[cfg(test)]
    pub(super) fn trusting(mut self, roots: rustls::RootCertStore) -> Self {
        self.fetcher = Fetcher::trusting(roots);
        self
    }
}

impl Endpoint {
    fn new(url: &str, headers: &BTreeMap<String, Vec<String>>) -> Result<Self, HttpFeedError> {
        let parsed: Uri = url.parse()?;
        let (Some("http" | "https"), Some(authority)) = (parsed.scheme_str(), parsed.authority()) else {
            return Err(HttpFeedError::NotAbsolute);
        };
        let mut sent = HeaderMap::new();
        for (name, values) in headers {
            for value in values {
                let bad = || HttpFeedError::Header { name: name.clone() };
                let name: HeaderName = name.parse().map_err(|_| bad())?;
                sent.append(name, HeaderValue::from_str(value).map_err(|_| bad())?);
            }
        }
        let Some((user, host)) = authority.as_str().rsplit_once('@') else {
            return Ok(Self { redacted_url: url.to_owned(), url: parsed, headers: sent });
        };
        if !sent.contains_key(AUTHORIZATION)
            && let Ok(mut value) = HeaderValue::from_str(&format!("Basic {}", base64(&percent_decode(user))))
        {
            value.set_sensitive(true);
            sent.insert(AUTHORIZATION, value);
        }
        let shown = without_secrets(url);
        let mut parts = parsed.clone().into_parts();
        parts.authority = Some(host.parse::<Authority>()?);
        let url = Uri::from_parts(parts).map_err(|_| HttpFeedError::NotAbsolute)?;
        Ok(Self { url, headers: sent, redacted_url: shown })
    }

    /// The target of a redirect. Credentials are only sent to the host of the configured URL.
    pub fn redirected(&self, location: &str) -> Option<Self> {
        let scheme = self.url.scheme_str()?;
        let authority = self.url.authority()?;
        let url = if location.starts_with("http://") || location.starts_with("https://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{scheme}://{rest}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else {
            let dir = self.url.path().rsplit_once('/').map_or("", |(dir, _)| dir);
            format!("{scheme}://{authority}{dir}/{location}")
        };
        let url: Uri = url.split('#').next()?.parse().ok()?;
        let mut headers = self.headers.clone();
        if url.host() != self.url.host() {
            headers.remove(AUTHORIZATION);
            headers.remove(COOKIE);
        }
        Some(Self { url, headers, redacted_url: self.redacted_url.clone() })
    }
}

/// A URL for messages, even an invalid one: without anything that may be a user or a password.
pub fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    match rest.rsplit_once('@') {
        Some((_, after)) => format!("{scheme}xxxxx@{after}"),
        None => url.to_owned(),
    }
}

impl PodFeed for HttpFeed {
    fn source(&self) -> Source {
        Source::Http
    }

    fn stream(self: Box<Self>) -> BoxStream<'static, FeedNotice> {
        let mut ticks = tokio::time::interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let running = Running {
            last: LastAnswer::default(),
            notices: NoticeQueue::new(Source::Http),
            feed: *self,
            ticks,
        };
        stream::unfold(running, |mut running| async move {
            let notice = running.next().await;
            Some((notice, running))
        })
        .boxed()
    }
}

struct Running {
    feed: HttpFeed,
    last: LastAnswer,
    notices: NoticeQueue,
    ticks: tokio::time::Interval,
}

/// The last content that was decoded, and the result.
#[derive(Default)]
struct LastAnswer {
    content: Option<bytes::Bytes>,
    reading: SourceSnapshot,
}

impl Running {
    async fn next(&mut self) -> FeedNotice {
        loop {
            if let Some(notice) = self.notices.next() {
                return notice;
            }
            self.ticks.tick().await;
            let asked = self.feed.fetcher.get(&self.feed.endpoint);
            let answer = match tokio::time::timeout(TIME_OUT, asked).await {
                Ok(answer) => answer,
                Err(_) => FetchResult::Failed(format!("no answer within {} seconds", TIME_OUT.as_secs())),
            };
            let reading = self.read(answer);
            self.notices.take(reading);
        }
    }

    fn read(&mut self, answer: FetchResult) -> SourceSnapshot {
        let origin = &self.feed.endpoint.redacted_url;
        let problem = |message: String| BTreeMap::from([(origin.clone(), message)]);
        let content = match answer {
            FetchResult::Failed(why) => {
                return SourceSnapshot {
                    problems: problem(format!("{origin}: {why}")),
                    ..SourceSnapshot::default()
                };
            }
            FetchResult::Content(content) if content.is_empty() => {
                self.last = LastAnswer::default();
                let problems = problem(format!("zero-length data received from {origin}"));
                return SourceSnapshot { pods: Some(Vec::new()), problems, ..SourceSnapshot::default() };
            }
            FetchResult::Content(content) => content,
        };
        if self.last.content.as_ref() != Some(&content) {
            let decoded = decode(&self.feed.decoder, origin, &content);
            let reading = if decoded.problems.is_empty() {
                let pods = decoded.pods.into_iter().map(Into::into).collect();
                SourceSnapshot { pods: Some(pods), ..SourceSnapshot::default() }
            } else {
                SourceSnapshot { problems: problem(decoded.problems.join("; ")), ..SourceSnapshot::default() }
            };
            self.last = LastAnswer { content: Some(content), reading };
        }
        self.last.reading.clone()
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let digit = (group >> (18 - 6 * position)) as usize & 63;
            out.push(if position <= chunk.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    out
}

fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_the_url_are_sent_and_not_shown() {
        let check = |url: &str, sent_to: &str, shown: &str, authorization: Option<&str>| {
            let endpoint = Endpoint::new(url, &BTreeMap::new()).unwrap();
            assert_eq!((endpoint.url.to_string().as_str(), endpoint.redacted_url.as_str()), (sent_to, shown));
            let sent = endpoint.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap());
            assert_eq!(sent, authorization, "{url}");
        };
        check("http://h:1/p?q", "http://h:1/p?q", "http://h:1/p?q", None);
        check("https://u:p@h/x", "https://h/x", "https://xxxxx@h/x", Some("Basic dTpw"));
        check(
            "http://user%40x:p%3Aw@h:80/",
            "http://h:80/",
            "http://xxxxx@h:80/",
            Some("Basic dXNlckB4OnA6dw=="),
        );
        let own = BTreeMap::from([("Authorization".to_owned(), vec!["Bearer t".to_owned()])]);
        let endpoint = Endpoint::new("http://u:p@h/", &own).unwrap();
        assert_eq!(endpoint.headers[AUTHORIZATION], "Bearer t");
    }

    #[test]
    fn secrets_in_what_is_no_url_are_not_shown_either() {
        for (url, shown) in [
            ("https://u:p@h/x", "https://xxxxx@h/x"),
            ("http://u:p w@h/", "http://xxxxx@h/"),
            ("http://u:p/w@h/", "http://xxxxx@h/"),
            ("u:p@h", "xxxxx@h"),
            ("http://h/x", "http://h/x"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), shown, "{url}");
        }
    }

    #[test]
    fn unusable_urls_and_headers_are_refused() {
        for bad in ["", "/p", "ftp://h/x", "h:80", "http://", "http://a b/"] {
            assert!(Endpoint::new(bad, &BTreeMap::new()).is_err(), "{bad}");
        }
        for (name, value) in [("a b", "x"), ("a", "x\ny"), ("", "x")] {
            let headers = BTreeMap::from([(name.to_owned(), vec![value.to_owned()])]);
            let error = Endpoint::new("http://h/", &headers).err().map(|error| error.to_string());
            assert_eq!(error, Some(format!("header {name:?} of the manifest URL can't be sent")));
        }
    }

    #[test]
    fn redirects_resolve_and_leave_secrets_at_home() {
        let from = Endpoint::new("http://u:p@h:1/a/b?q", &BTreeMap::new()).unwrap();
        let check = |location: &str, expect: &str, secret: bool| {
            let to = from.redirected(location).unwrap();
            assert_eq!(to.url.to_string(), expect);
            assert_eq!(to.headers.contains_key(AUTHORIZATION), secret, "{location}");
        };
        check("/c", "http://h:1/c", true);
        check("c?x", "http://h:1/a/c?x", true);
        check("//o/c", "http://o/c", false);
        check("https://o:2/c#f", "https://o:2/c", false);
        check("http://h:9/c", "http://h:9/c", true);
        assert!(from.redirected("http://a b").is_none());
    }

    #[test]
    fn base64_of_every_length() {
        for (plain, expect) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(plain.as_bytes()), expect);
        }
        assert_eq!(base64(&[0xff, 0xef, 0xbe]), "/+++");
    }
}
