//! What the header of a request says about an upgrade of its connection.

use http::{HeaderMap, header};

/// Does the client want a stream of some kind?
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let words = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut words = words.flat_map(|list| list.split(','));
    headers.contains_key(header::UPGRADE) && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Does the `Upgrade` field name a WebSocket?
pub(crate) fn names_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// Does a request want to become a WebSocket?
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    wants_upgrade(headers) && names_websocket(headers)
}

/// The protocols that a client offers, in its order.
pub(crate) fn offered_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lists = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|protocol| !protocol.is_empty())
}
