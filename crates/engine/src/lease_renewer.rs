//! Renews the node's lease, in its own task and with its own deadline, so that no other work can make the node look
//! dead.
//!
//! ```text
//!   update what we wrote last ──ok──> wait ──> again
//!            │ failed
//!            └─> read it, or make it (with back-off) ──> update it (5 tries)
//! ```

use std::sync::Arc;

use decide::jitter::JitterSeed;
use decide::lease;
use model::k8s::Lease;
use model::node::NodeObjectConfig;
use ports::{ApiError, LeaseApi, NodeApi};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

pub(crate) struct LeaseRenewer {
    pub setup: Arc<NodeObjectConfig>,
    pub leases: Arc<dyn LeaseApi>,
    pub nodes: Arc<dyn NodeApi>,
    pub clock: Clock,
    pub seed: JitterSeed,
    /// The lease as the server last returned it.
    pub last: Option<Lease>,
}

impl LeaseRenewer {
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async move {
            loop {
                self.renew().await;
                tokio::time::sleep(lease::renew_wait(&self.setup, &mut self.seed)).await;
            }
        })
        .await;
    }

    async fn renew(&mut self) {
        if let Some(last) = self.last.clone() {
            match self.update(&last).await {
                Ok(()) => return,
                Err(error) => tracing::debug!("the Lease could not be updated, reading it again: {error}"),
            }
        }
        let Some(mut lease) = self.ensure().await else { return };
        for attempt in 1..=lease::UPDATE_TRIES {
            match self.update(&lease).await {
                Ok(()) => return,
                Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => match self.ensure().await {
                    Some(newer) => lease = newer,
                    None => return,
                },
                Err(error) => tracing::warn!(attempt, "lease can't be renewed: {error}"),
            }
        }
    }

    async fn update(&mut self, last: &Lease) -> Result<(), ApiError> {
        let owner = if lease::is_owned(last) { None } else { self.node_uid().await.ok() };
        let wanted = lease::renewed(&self.setup, Some(last), owner.as_deref(), self.clock.now().wall);
        self.last = Some(self.leases.update(&wanted, lease::renew_timeout(&self.setup)).await?);
        Ok(())
    }

    /// Reads or creates the lease. `None` when it was created just now.
    async fn ensure(&mut self) -> Option<Lease> {
        let mut failures = 0;
        loop {
            match self.get_or_create().await {
                Ok(found) => return found,
                Err(error) => {
                    failures += 1;
                    let wait = lease::back_off(failures);
                    tracing::warn!(?wait, "the Lease could not be read or created: {error}");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn get_or_create(&mut self) -> Result<Option<Lease>, ApiError> {
        let patience = lease::renew_timeout(&self.setup);
        match self.leases.get(&self.setup.name, patience).await {
            Ok(lease) => return Ok(Some(lease)),
            Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // Without an owner reference the lease would not be deleted with the node.
        let owner = self.node_uid().await?;
        let wanted = lease::renewed(&self.setup, None, Some(&owner), self.clock.now().wall);
        self.last = Some(self.leases.create(&wanted, patience).await?);
        Ok(None)
    }

    async fn node_uid(&self) -> Result<String, ApiError> {
        let after = lease::renew_timeout(&self.setup);
        let timed_out = || ApiError::TimedOut { call: "get node for its lease".into(), after };
        let node = tokio::time::timeout(after, self.nodes.get(&self.setup.name)).await;
        Ok(node.map_err(|_| timed_out())??.metadata.uid.clone().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
