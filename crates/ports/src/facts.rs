//! Facts of the host.

use async_trait::async_trait;
use model::node::HostFacts;

#[derive(thiserror::Error, Debug)]
#[error("can't read {path}")]
pub struct FactsError {
    pub path: String,
    #[source]
    pub source: std::io::Error,
}

#[async_trait]
pub trait HostFactsSource: Send + Sync {
    async fn read(&self) -> Result<HostFacts, FactsError>;
}
