//! What the node has left of memory, disk and processes, and notices of the kernel when memory runs short.

use std::io;

use async_trait::async_trait;
use model::eviction::{DiskFigures, MemoryFigures, MemoryNoticeLevels};

/// Each call reads a few files of the kernel, so it may be made often. `pods_cgroup` is as a cgroup driver spells it.
#[async_trait]
pub trait NodeSignals: Send + Sync {
    /// Of the node, and of the cgroup of all pods if it is there and limited.
    async fn memory(&self, pods_cgroup: Option<&str>) -> io::Result<(MemoryFigures, Option<MemoryFigures>)>;

    /// Of the filesystem that holds this path. Waits as long as that filesystem lets it wait.
    async fn disk(&self, path: &str) -> io::Result<DiskFigures>;

    /// How many processes and threads there may be, and how many there are.
    async fn processes(&self) -> io::Result<(u64, u64)>;

    /// Returns when the kernel says that memory runs short: a usage has crossed a level, or processes wait for memory.
    async fn memory_runs_short(
        &self,
        pods_cgroup: Option<&str>,
        levels: &MemoryNoticeLevels,
    ) -> io::Result<()>;
}
