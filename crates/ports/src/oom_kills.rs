//! What the kernel tells of processes that it killed because memory ran out.

use std::io;

use futures::stream::BoxStream;
use model::oom_kill::OomKill;

pub type OomKillStream = BoxStream<'static, io::Result<OomKill>>;

pub trait OomKills: Send + Sync {
    /// The kills from now on; earlier ones are not told again. The stream ends with its first error.
    fn kills(&self) -> OomKillStream;
}
