//! Objects that are polled instead of watched: for `configMapAndSecretChangeDetectionStrategy` other than `Watch`, on
//! clusters whose API servers can't carry the watches.
//!
//! Each object is read at once when a pod starts to use it, then every `every`. An unchanged state is not sent again.
//! If the API server does not answer, the object is read earlier, with growing delays.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState};
use ports::{ApiError, ObjectApi};

use super::objects::{absent, config_map, secret};
use crate::calls::Api;

/// After the first failure; doubles up to the usual time.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// [`ObjectApi`] without watches.
pub struct PolledObjects {
    api: Api,
    every: Duration,
}

impl PolledObjects {
    pub fn new(api: &Api, every: Duration) -> Self {
        Self { api: api.clone(), every: every.max(FIRST_RETRY) }
    }
}

struct ObjectPoller {
    api: Api,
    key: ObjectKey,
    every: Duration,
    told: Option<ObjectState>,
    failures: u32,
}

impl ObjectApi for PolledObjects {
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let (api, every) = (self.api.clone(), self.every);
        let asking = ObjectPoller { api, key: key.clone(), every, told: None, failures: 0 };
        stream::unfold(asking, |mut asking| async move {
            let state = asking.next().await;
            Some((state, asking))
        })
        .boxed()
    }
}

impl ObjectPoller {
    /// The next state that differs from the last one.
    async fn next(&mut self) -> ObjectState {
        loop {
            if self.told.is_some() {
                tokio::time::sleep(pause(self.every, self.failures)).await;
            }
            let state = self.ask().await;
            let failed = matches!(state, ObjectState::Unreachable { .. });
            self.failures = if failed { self.failures + 1 } else { 0 };
            // The error text may differ each time, so a repeated failure is not sent again.
            let again = failed && matches!(self.told, Some(ObjectState::Unreachable { .. }));
            if !again && self.told.as_ref() != Some(&state) {
                self.told = Some(state.clone());
                return state;
            }
        }
    }

    async fn ask(&self) -> ObjectState {
        let (namespace, name) = (&self.key.namespace, &self.key.name);
        let read: Result<ObjectContent, ApiError> = match self.key.kind {
            ObjectKind::ConfigMap => self.api.get_config_map(namespace, name).await.map(config_map),
            ObjectKind::Secret => self.api.get_secret(namespace, name).await.map(secret),
        };
        match read {
            Ok(content) => ObjectState::Present(Arc::new(content)),
            Err(ApiError::NotFound { .. }) => ObjectState::Absent { message: absent(&self.key) },
            Err(ApiError::Forbidden { message, .. }) => ObjectState::Denied { message },
            Err(error) => ObjectState::Unreachable { message: error.to_string() },
        }
    }
}

fn pause(every: Duration, failures: u32) -> Duration {
    match failures {
        0 => every,
        n => FIRST_RETRY.saturating_mul(1 << (n - 1).min(16)).min(every),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_tried_again_sooner() {
        let check = |failures: u32, millis: u64| {
            assert_eq!(pause(Duration::from_secs(60), failures), Duration::from_millis(millis), "{failures}");
        };
        check(0, 60_000);
        check(1, 500);
        check(2, 1_000);
        check(7, 32_000);
        check(8, 60_000);
        check(4_000, 60_000);
    }
}
