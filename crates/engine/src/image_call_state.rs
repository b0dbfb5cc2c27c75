//! What calls about images and calls of credential plugins share.

use std::collections::BTreeMap;

use decide::credentials::{Keyring, PluginCache, PluginTokens};
use decide::image_pull::PullKey;
use tokio::sync::Mutex;

/// State that image calls share. Answers of plugins stay here: events carry no secrets.
#[derive(Default)]
pub(crate) struct ImageCallState {
    pub(crate) plugin_responses: Mutex<PluginCache>,
    /// Service account tokens that were requested for plugins.
    pub(crate) plugin_tokens: Mutex<PluginTokens>,
    /// Plugins' answers for images whose pulls are about to start.
    pub(crate) plugin_keyrings: Mutex<BTreeMap<PullKey, Keyring>>,
    /// Held while records are read and written back, so that no write overwrites another.
    pub(crate) records: Mutex<()>,
}
