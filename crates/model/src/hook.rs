//! Lifecycle hooks, ready to be carried out: nothing is left to look up.

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Hook {
    Exec { command: Vec<String> },
    Http(HttpHook),
    Sleep { secs: i64 },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HttpHook {
    pub https: bool,
    pub host: String,
    pub port: u16,
    /// With its query, as the spec has it.
    pub path: String,
    pub headers: Vec<(String, String)>,
}

/// A hook of a container, or why it can't be carried out. `describe` stands in messages about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HookCall {
    pub hook: Result<Hook, String>,
    /// `Exec lifecycle hook ([sh -c x]) for Container "c" in Pod "p_ns(uid)"`
    pub describe: String,
}
