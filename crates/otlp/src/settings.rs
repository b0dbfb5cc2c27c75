//! Where traces go, and how many of them.

use std::collections::BTreeMap;

/// What the configuration says about traces.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// `host:port`, `dns:...` or `unix:...`.
    pub endpoint: String,
    /// Of the traces that begin here; those that others began are sampled if those said so.
    pub sampled_per_million: u32,
    /// Who we are, such as `service.name`.
    pub resource: BTreeMap<&'static str, String>,
}
