//! Authorization of requests to the secure port.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use ports::{AccessDecision, AccessReviews, NodeAccess, UserInfo};
use tokio::sync::Semaphore;

use super::AccessError;
use super::cache::Cache;
use crate::health::plain;
use crate::log_rate_limit::LogRateLimiter;

/// Access reviews in progress at a time.
const MAX_PARALLEL_REVIEWS: usize = 32;

pub enum Authorization {
    /// Every authenticated request is allowed.
    AlwaysAllow,
    /// As the API server says.
    Webhook(Box<WebhookAuthorizer>),
}

pub struct WebhookAuthorizer {
    reviews: Arc<dyn AccessReviews>,
    node: String,
    cache: Cache<bool>,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    review_slots: Semaphore,
    /// Limits log lines about refused requests and failed reviews.
    refusals: LogRateLimiter,
}

/// Why a request is refused, in the kubelet's words.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizationError {
    #[error("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")]
    ReviewFailed { user: String, verb: &'static str, subresource: &'static str },
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n", subresources.join(" "))]
    Forbidden { user: String, verb: &'static str, subresources: Vec<&'static str> },
}

impl IntoResponse for AuthorizationError {
    fn into_response(self) -> Response {
        let status = match self {
            AuthorizationError::ReviewFailed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            AuthorizationError::Forbidden { .. } => StatusCode::FORBIDDEN,
        };
        plain(status, self.to_string())
    }
}

impl Authorization {
    /// By the name of the mode in the configuration.
    pub fn for_mode(
        mode: &str,
        node: &str,
        reviews: Option<Arc<dyn AccessReviews>>,
        allowed_holds: Duration,
        denied_holds: Duration,
    ) -> Result<Self, AccessError> {
        match mode {
            "AlwaysAllow" => Ok(Authorization::AlwaysAllow),
            "Webhook" => Ok(Authorization::Webhook(Box::new(WebhookAuthorizer {
                reviews: reviews.ok_or(AccessError::NoAccessReviews)?,
                node: node.to_owned(),
                cache: Cache::new(),
                allowed_ttl: allowed_holds,
                denied_ttl: denied_holds,
                review_slots: Semaphore::new(MAX_PARALLEL_REVIEWS),
                refusals: LogRateLimiter::default(),
            }))),
            other => Err(AccessError::UnknownMode(other.to_owned())),
        }
    }

    pub(crate) async fn check(
        &self,
        who: &UserInfo,
        method: &Method,
        path: &str,
    ) -> Result<(), AuthorizationError> {
        let Authorization::Webhook(reviewed) = self else { return Ok(()) };
        let verb = verb(method, path);
        let subresources = subresources(path);
        for subresource in subresources {
            let user = || who.name.clone();
            match reviewed.allows(who, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    if let Some(suppressed) = reviewed.refusals.permit() {
                        let user = &who.name;
                        tracing::warn!(user, verb, subresource, %error, suppressed, "the API server could not review access");
                    }
                    return Err(AuthorizationError::ReviewFailed { user: user(), verb, subresource });
                }
            }
        }
        if let Some(suppressed) = reviewed.refusals.permit() {
            tracing::info!(user = who.name, verb, ?subresources, suppressed, "access was denied");
        }
        Err(AuthorizationError::Forbidden {
            user: who.name.clone(),
            verb,
            subresources: subresources.to_vec(),
        })
    }
}

impl WebhookAuthorizer {
    async fn allows(
        &self,
        who: &UserInfo,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, ports::ApiError> {
        let wanted = NodeAccess {
            who: who.clone(),
            verb: verb.to_owned(),
            node: self.node.clone(),
            subresource: subresource.to_owned(),
        };
        let key = Cache::<bool>::key(format!("{wanted:?}").as_bytes());
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        // The semaphore is never closed.
        let _place = self.review_slots.acquire().await;
        if let Some(known) = self.cache.get(&key).await {
            return Ok(known);
        }
        let allowed = self.reviews.review_access(&wanted).await? == AccessDecision::Allowed;
        let holds = if allowed { self.allowed_ttl } else { self.denied_ttl };
        self.cache.put(key, allowed, holds).await;
        Ok(allowed)
    }
}

/// The paths below which a request runs something in a pod or opens a stream into it.
const STREAMS: [&str; 4] = ["/exec", "/attach", "/run", "/portForward"];

/// The verb of Kubernetes that a request needs. A WebSocket begins with a GET, so the right to read would be enough to
/// run commands: streams into pods always need `create`, whatever method opens them.
fn verb(method: &Method, path: &str) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" if STREAMS.iter().any(|stream| is_below(path, stream)) => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Which sub-resources of the node allow a path; one is enough.
fn subresources(path: &str) -> &'static [&'static str] {
    const TABLE: [(&str, &[&str]); 11] = [
        ("/pods", &["pods", "proxy"]),
        ("/runningpods", &["pods", "proxy"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/configz", &["configz", "proxy"]),
        ("/stats", &["stats"]),
        ("/metrics", &["metrics"]),
        ("/logs", &["log"]),
        ("/checkpoint", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
        ("", &["proxy"]),
    ];
    TABLE.iter().find(|(prefix, _)| is_below(path, prefix)).map_or(&["proxy"], |(_, found)| found)
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_their_subresources() {
        for (path, expect) in [
            ("/pods", "pods proxy"),
            ("/pods/", "pods proxy"),
            ("/podsx", "proxy"),
            ("/runningpods/", "pods proxy"),
            ("/healthz", "healthz proxy"),
            ("/healthz/syncloop", "healthz proxy"),
            ("/configz", "configz proxy"),
            ("/stats/summary", "stats"),
            ("/stats", "stats"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics"),
            ("/logs/", "log"),
            ("/logs/syslog", "log"),
            ("/checkpoint/a/b/c", "checkpoint"),
            ("/statusz", "statusz"),
            ("/flagz", "configz"),
            ("/exec/a/b/c", "proxy"),
            ("/run/a/b/c", "proxy"),
            ("/attach/a/b/c", "proxy"),
            ("/portForward/a/b", "proxy"),
            ("/containerLogs/a/b/c", "proxy"),
            ("/debug/pprof/", "proxy"),
            ("/debug/why/a/b", "proxy"),
            ("//stats", "proxy"),
            ("/Stats", "proxy"),
            ("/%73tats", "proxy"),
            ("/", "proxy"),
            ("", "proxy"),
            ("*", "proxy"),
        ] {
            assert_eq!(subresources(path).join(" "), expect, "{path}");
        }
    }

    #[test]
    fn methods_and_their_verbs() {
        for (method, expect) in [
            ("GET", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("HEAD", ""),
            ("OPTIONS", ""),
            ("BREW", ""),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(verb(&method, "/pods"), expect, "{method}");
        }
    }

    #[test]
    fn a_stream_opened_by_get_needs_the_right_to_create() {
        for (path, expect) in [
            ("/exec/a/b/c", "create"),
            ("/exec/a/b/uid/c", "create"),
            ("/attach/a/b/c", "create"),
            ("/portForward/a/b", "create"),
            ("/run/a/b/c", "create"),
            ("/runningpods/", "get"),
            ("/containerLogs/a/b/c", "get"),
            ("/execx", "get"),
        ] {
            assert_eq!(verb(&Method::GET, path), expect, "{path}");
        }
    }
}
