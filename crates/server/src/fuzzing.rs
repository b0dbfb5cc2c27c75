//! Entry points for the fuzzers (`crates/fuzz`): parsers of untrusted input that are otherwise private.

use http::Uri;
use model::Wall;

use crate::api::log_query::LogQuery;
use crate::api::node_query::NodeQuery;
use crate::api::query::Parameters;

/// Parses a query of `/containerLogs`. Gives the status of the refusal, if it is refused.
pub fn container_log_query(uri: &Uri, split_streams: bool) -> Result<ports::LogOptions, u16> {
    match LogQuery::parse(&Parameters::of(uri), Wall(1_700_000_000_000_000_000), split_streams) {
        Ok(query) => Ok(query.options),
        Err((status, _)) => Err(status.as_u16()),
    }
}

/// Parses a query of `/logs/`: whether there is one, or the status of its refusal.
pub fn node_log_query(uri: &Uri) -> Result<bool, u16> {
    match NodeQuery::parse(&Parameters::of(uri)) {
        Ok(query) => Ok(query.is_some()),
        Err((status, _)) => Err(status.as_u16()),
    }
}
