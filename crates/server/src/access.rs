//! Authentication and authorization of requests to the secure port.
//!
//! ```text
//!   request ─> client certificate? ─> bearer token? (header or WebSocket) ─> anonymous, if allowed ─> else: 401
//!                    └──────────┬──────────┘
//!                       allowed? (AlwaysAllow, or as the API server says) ─> no: 403
//! ```
//!
//! A request with bad credentials is refused. It is not treated as anonymous.

mod authentication;
mod authorization;
mod cache;
mod peer;
mod websocket_token;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

pub use authentication::Authentication;
pub use authorization::Authorization;
pub(crate) use peer::Peer;

use crate::health::plain;

/// Why the secure port can't be opened as configured.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum AccessError {
    #[error("no client provided, cannot use webhook authentication")]
    NoTokenReviews,
    #[error("no client provided, cannot use webhook authorization")]
    NoAccessReviews,
    #[error("unknown authorization mode {0}")]
    UnknownMode(String),
}

/// What authenticates and authorizes each request.
pub struct Access {
    pub authentication: Authentication,
    pub authorization: Authorization,
}

/// Authenticates and authorizes every request of the secure port.
pub(crate) async fn authorize_request(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let websocket_token = websocket_token::take(request.headers_mut());
    let who = match access.authentication.identify(&peer, request.headers(), websocket_token).await {
        Ok(Some(who)) => who,
        Ok(None) => return plain(StatusCode::UNAUTHORIZED, "Unauthorized".into()),
        Err(reason) => {
            access.authentication.refused(&reason);
            return plain(StatusCode::UNAUTHORIZED, "Unauthorized".into());
        }
    };
    if let Err(refusal) = access.authorization.check(&who, request.method(), request.uri().path()).await {
        return refusal.into_response();
    }
    peer.mark_authorized();
    next.run(request).await
}

#[cfg(test)]
mod tests;
