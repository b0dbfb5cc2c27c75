//! Authentication of requests to the secure port.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use ports::{AccessReviews, ApiError, UserInfo};
use tokio::sync::Semaphore;

use super::cache::Cache;
use super::{AccessError, Peer};
use crate::log_rate_limit::LogRateLimiter;
use crate::tls::ClientAuthority;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";
/// Token reviews in progress at a time. So a flood of tokens does not flood the API server.
const MAX_PARALLEL_REVIEWS: usize = 32;

/// Why credentials were refused.
#[derive(thiserror::Error, Debug)]
pub enum BadCredentials {
    #[error("{0}")]
    Certificate(String),
    #[error("invalid bearer token")]
    Token,
    #[error("{0}")]
    Subprotocol(&'static str),
    #[error("the token could not be reviewed")]
    Unreviewed(#[source] ApiError),
}

pub struct Authentication {
    authority: Option<Arc<ClientAuthority>>,
    tokens: Option<WebhookTokenAuthenticator>,
    anonymous: bool,
    /// Limits log lines about refused requests.
    refusals: LogRateLimiter,
}

struct WebhookTokenAuthenticator {
    reviews: Arc<dyn AccessReviews>,
    cache: Cache<Option<UserInfo>>,
    ttl: Duration,
    review_slots: Semaphore,
}

impl Authentication {
    /// Client certificates only, if there is an `authority`.
    pub fn new(authority: Option<Arc<ClientAuthority>>) -> Self {
        Self { authority, tokens: None, anonymous: false, refusals: LogRateLimiter::default() }
    }

    /// Accepts bearer tokens that the API server confirms. Its answers are cached for `holds`.
    pub fn with_tokens(
        self,
        reviews: Option<Arc<dyn AccessReviews>>,
        holds: Duration,
    ) -> Result<Self, AccessError> {
        let reviews = reviews.ok_or(AccessError::NoTokenReviews)?;
        let tokens = WebhookTokenAuthenticator {
            reviews,
            cache: Cache::new(),
            ttl: holds,
            review_slots: Semaphore::new(MAX_PARALLEL_REVIEWS),
        };
        Ok(Self { tokens: Some(tokens), ..self })
    }

    /// A request without credentials is `system:anonymous`.
    pub fn with_anonymous(self) -> Self {
        Self { anonymous: true, ..self }
    }

    /// Logs that a request was not authenticated, within the rate limit.
    pub(crate) fn refused(&self, reason: &BadCredentials) {
        if let Some(suppressed) = self.refusals.permit() {
            tracing::info!(%reason, suppressed, "a request was not authenticated");
        }
    }

    /// `None`: not authenticated. The header `Authorization` goes before a token among the protocols of a WebSocket.
    pub(crate) async fn identify(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        websocket_token: Result<Option<String>, BadCredentials>,
    ) -> Result<Option<UserInfo>, BadCredentials> {
        let by_certificate = match &self.authority {
            Some(authority) => authority.identify(&peer.certificates),
            None => Ok(None),
        };
        if let Ok(Some(who)) = by_certificate {
            return Ok(Some(as_authenticated(who)));
        }
        if let (Some(tokens), Some(token)) = (&self.tokens, bearer(headers)) {
            let who = tokens.review(token).await?.ok_or(BadCredentials::Token)?;
            return Ok(Some(as_authenticated(who)));
        }
        if let (Some(tokens), Some(token)) = (&self.tokens, websocket_token?) {
            let who = tokens.review(&token).await?.ok_or(BadCredentials::Token)?;
            return Ok(Some(as_authenticated(who)));
        }
        by_certificate.map_err(|error| BadCredentials::Certificate(error.to_string()))?;
        Ok(self.anonymous.then(|| UserInfo {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Default::default()
        }))
    }
}

impl WebhookTokenAuthenticator {
    async fn review(&self, token: &str) -> Result<Option<UserInfo>, BadCredentials> {
        let key = Cache::<Option<UserInfo>>::key(token.as_bytes());
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        // The semaphore is never closed.
        let _place = self.review_slots.acquire().await;
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        let found = self.reviews.review_token(token).await.map_err(BadCredentials::Unreviewed)?;
        self.cache.put(key, found.clone(), self.ttl).await;
        Ok(found)
    }
}

/// The token of `Authorization: Bearer <token>`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut words = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().splitn(3, ' ');
    let kind = words.next()?;
    let token = words.next()?;
    (kind.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn as_authenticated(mut who: UserInfo) -> UserInfo {
    let has = |group: &str| who.groups.iter().any(|other| other == group);
    if who.name != ANONYMOUS && !has(UNAUTHENTICATED) && !has(AUTHENTICATED) {
        who.groups.push(AUTHENTICATED.into());
    }
    who
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_headers() {
        let check = |value: &str, expect: Option<&str>| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(bearer(&headers), expect, "{value}");
        };
        check("Bearer abc", Some("abc"));
        check(" bearer abc def", Some("abc"));
        check("Bearer", None);
        check("Bearer ", None);
        check("Basic abc", None);
        check("", None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
