//! HTTP requests of lifecycle hooks.

use async_trait::async_trait;
use model::hook::HttpHook;

#[async_trait]
pub trait HttpHooks: Send + Sync {
    /// One GET; any answer at all is success. The error says what went wrong on the way.
    /// Has no deadline of its own; dropping the future ends it.
    async fn get(&self, hook: &HttpHook) -> Result<HookAnswer, String>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookAnswer {
    Answered,
    /// The server spoke plain HTTP although the hook asked for HTTPS.
    AnsweredWithoutTls,
}
