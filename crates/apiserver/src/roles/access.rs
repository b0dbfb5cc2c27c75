//! Authenticates and authorizes the clients of the agent's own API.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::TokenReviewSpec;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use ports::{AccessDecision, AccessReviews, ApiError, NodeAccess, UserInfo};

use crate::calls::Api;
use crate::{SubjectAccessReview, TokenReview};

#[async_trait]
impl AccessReviews for Api {
    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, ApiError> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = self.review_token(&TokenReview { spec, ..Default::default() }).await?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated.unwrap_or(false));
        Ok(user.map(|user| UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    async fn review_access(&self, wanted: &NodeAccess) -> Result<AccessDecision, ApiError> {
        let text = |value: &str| Some(value.to_owned());
        let who = wanted.who.clone();
        let spec = SubjectAccessReviewSpec {
            user: Some(who.name),
            uid: (!who.uid.is_empty()).then_some(who.uid),
            groups: (!who.groups.is_empty()).then_some(who.groups),
            extra: (!who.extra.is_empty()).then_some(who.extra),
            resource_attributes: Some(ResourceAttributes {
                verb: text(&wanted.verb),
                version: text("v1"),
                resource: text("nodes"),
                subresource: text(&wanted.subresource),
                name: text(&wanted.node),
                ..Default::default()
            }),
            ..Default::default()
        };
        let review = self.review_access(&SubjectAccessReview { spec, ..Default::default() }).await?;
        let status = review.status.unwrap_or_default();
        Ok(match status.allowed {
            true => AccessDecision::Allowed,
            false => AccessDecision::Denied(status.reason.unwrap_or_default()),
        })
    }
}
