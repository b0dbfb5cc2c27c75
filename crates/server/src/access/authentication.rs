//! Who is asking?

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use ports::{AccessReviews, ApiError, Identity};
use tokio::sync::Semaphore;

use super::cache::Cache;
use super::{AccessError, Peer};
use crate::sparing::Sparing;
use crate::tls::ClientAuthority;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";
/// Questions to the API server at a time: a flood of tokens must not become a flood there.
const REVIEWS: usize = 32;

/// Why credentials were not taken.
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
    tokens: Option<Tokens>,
    anonymous: bool,
    /// Lines about those who were not let in.
    refusals: Sparing,
}

struct Tokens {
    reviews: Arc<dyn AccessReviews>,
    cache: Cache<Option<Identity>>,
    holds: Duration,
    places: Semaphore,
}

impl Authentication {
    /// Nobody at all is let in until one of the others is called.
    pub fn new(authority: Option<Arc<ClientAuthority>>) -> Self {
        Self { authority, tokens: None, anonymous: false, refusals: Sparing::default() }
    }

    /// Bearer tokens count, as far as the API server knows them; its answers hold for a while.
    pub fn with_tokens(
        self,
        reviews: Option<Arc<dyn AccessReviews>>,
        holds: Duration,
    ) -> Result<Self, AccessError> {
        let reviews = reviews.ok_or(AccessError::NoTokenReviews)?;
        let tokens = Tokens { reviews, cache: Cache::new(), holds, places: Semaphore::new(REVIEWS) };
        Ok(Self { tokens: Some(tokens), ..self })
    }

    /// Whoever shows no credentials is `system:anonymous`.
    pub fn with_anonymous(self) -> Self {
        Self { anonymous: true, ..self }
    }

    /// Says in our log that somebody was not let in, unless that was said very often just now.
    pub(crate) fn refused(&self, reason: &BadCredentials) {
        if let Some(left_out) = self.refusals.turn() {
            tracing::info!(%reason, left_out, "a request was not authenticated");
        }
    }

    /// `None`: nobody. The header `Authorization` goes before a token that a WebSocket offered as a protocol.
    pub(crate) async fn identify(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        websocket_token: Result<Option<String>, BadCredentials>,
    ) -> Result<Option<Identity>, BadCredentials> {
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
        Ok(self.anonymous.then(|| Identity {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Default::default()
        }))
    }
}

impl Tokens {
    async fn review(&self, token: &str) -> Result<Option<Identity>, BadCredentials> {
        let key = Cache::<Option<Identity>>::key(token.as_bytes());
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        // Closed by nobody.
        let _place = self.places.acquire().await;
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        let found = self.reviews.token(token).await.map_err(BadCredentials::Unreviewed)?;
        self.cache.put(key, found.clone(), self.holds).await;
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

fn as_authenticated(mut who: Identity) -> Identity {
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
