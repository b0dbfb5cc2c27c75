//! A bearer token among the protocols that a WebSocket offers: browsers can't set the header `Authorization`.
//!
//! ```text
//!   Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.<token, base64url without padding>, v5.channel.k8s.io
//! ```
//!
//! The token is removed from the list first: the chosen protocol is sent back in the response, and the others are sent
//! to the container runtime.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderValue};

use super::authentication::BadCredentials;

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Takes the token out of the headers of a request, if it is one for a WebSocket.
pub(super) fn take(headers: &mut HeaderMap) -> Result<Option<String>, BadCredentials> {
    if !crate::upgrade_request::is_websocket(headers) || !headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return Ok(None);
    }
    let (tokens, others): (Vec<String>, Vec<String>) = crate::upgrade_request::offered_protocols(headers)
        .map(str::to_owned)
        .partition(|name| name.starts_with(PREFIX));
    let Some(first) = tokens.first() else { return Ok(None) };
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(rest) = HeaderValue::from_str(&others.join(", "))
        && !others.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
    }
    if tokens.len() > 1 {
        return Err(BadCredentials::Subprotocol("multiple base64.bearer.authorization tokens specified"));
    }
    let decoded = URL_SAFE_NO_PAD.decode(&first[PREFIX.len()..]).ok();
    let token = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let token =
        token.ok_or(BadCredentials::Subprotocol("invalid base64.bearer.authorization token encoding"))?;
    match (token.is_empty(), others.is_empty()) {
        (true, _) => Ok(None),
        // One protocol has to be chosen, and the token is none.
        (_, true) => Err(BadCredentials::Subprotocol("missing additional subprotocol")),
        _ => Ok(Some(token)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;

    #[test]
    fn a_token_is_found_and_does_not_stay() {
        let check = |protocols: &str, expect: Result<Option<&str>, &str>, left: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, "websocket".parse().unwrap());
            headers.insert(header::CONNECTION, "keep-alive, Upgrade".parse().unwrap());
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
            let found = take(&mut headers).map_err(|error| error.to_string());
            assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expect, "{protocols}");
            let kept = headers.get(SEC_WEBSOCKET_PROTOCOL).map(|value| value.to_str().unwrap());
            assert_eq!(kept, left, "{protocols}");
        };
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.";
        // "secret", and bytes that need the other alphabet.
        check(&format!("{TOKEN}c2VjcmV0, v5.channel.k8s.io"), Ok(Some("secret")), Some("v5.channel.k8s.io"));
        check(&format!("a,{TOKEN}fn5-,b"), Ok(Some("~~~")), Some("a, b"));
        check("v5.channel.k8s.io", Ok(None), Some("v5.channel.k8s.io"));
        check(&format!("{TOKEN},v5"), Ok(None), Some("v5"));
        check(&format!("{TOKEN}c2VjcmV0"), Err("missing additional subprotocol"), None);
        let twice = format!("{TOKEN}YQ,{TOKEN}Yg,v5");
        check(&twice, Err("multiple base64.bearer.authorization tokens specified"), Some("v5"));
        for bad in ["!!", "c2VjcmV0=", "_w"] {
            let expect = Err("invalid base64.bearer.authorization token encoding");
            check(&format!("{TOKEN}{bad},v5"), expect, Some("v5"));
        }
    }

    #[test]
    fn other_requests_are_left_alone() {
        let mut headers = HeaderMap::new();
        let list = "base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io";
        headers.insert(SEC_WEBSOCKET_PROTOCOL, list.parse().unwrap());
        assert!(matches!(take(&mut headers), Ok(None)));
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], list);
    }
}
