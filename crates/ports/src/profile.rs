//! Where the agent itself spends its time.

use std::time::Duration;

use async_trait::async_trait;
use model::Wall;

/// A piece of a file that holds code, as it lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub path: String,
}

/// Where the processor was found each time that it was looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSamples {
    pub addresses: Vec<u64>,
    pub mappings: Vec<CodeMapping>,
    pub begun: Wall,
    pub lasted: Duration,
    /// One sample stands for so much time of a processor.
    pub period: Duration,
}

#[derive(thiserror::Error, Debug)]
pub enum ProfileError {
    #[error("Could not enable CPU profiling: cpu profiling already in use")]
    InUse,
    #[error("Could not enable CPU profiling: {0} is not supported on this architecture")]
    Unsupported(&'static str),
    #[error("Could not enable CPU profiling: {0}")]
    Failed(#[from] std::io::Error),
}

#[async_trait]
pub trait CpuProfiler: Send + Sync {
    /// Looks for so long. Costs nothing when nobody asks.
    async fn sample(&self, length: Duration) -> Result<CpuSamples, ProfileError>;
}
