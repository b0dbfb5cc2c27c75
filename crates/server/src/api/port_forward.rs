//! `/portForward`.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};

use super::proxy::{self, Translation};
use super::query::Parameters;
use super::target::RequestParams;
use super::{Api, plain_text};
use crate::upgrade_request;

pub(super) async fn forward(
    State(api): Api,
    Path(params): Path<RequestParams>,
    request: Request,
) -> Response {
    let translation = Translation::of_ports(api.settings.extended_websockets, request.headers());
    let ports = match ports(&translation, request.headers(), &Parameters::of(request.uri())) {
        Ok(ports) => ports,
        Err(text) => return plain_text(StatusCode::BAD_REQUEST, text),
    };
    let pod = match api.pod(&params, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    if !params.matches_uid(&pod) {
        return plain_text(StatusCode::NOT_FOUND, "pod not found");
    }
    let sandbox = pod.observed.as_ref().and_then(|seen| seen.sandboxes.iter().find(|one| one.ready));
    let Some(sandbox) = sandbox.map(|one| one.id.clone()) else {
        let text = format!("pod not found ({:?})", params.full_name());
        return plain_text(StatusCode::INTERNAL_SERVER_ERROR, text);
    };
    if translation.is_needed() {
        api.endpoints.metrics.websocket_stream("portforward");
    }
    proxy::proxy_stream(&api, request, translation, async {
        api.runtime.port_forward(&sandbox, &ports).await
    })
    .await
}

/// Ports that must be known before: only those of a WebSocket that does not name them itself.
fn ports(
    translation: &Translation,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> Result<Vec<i32>, String> {
    if !upgrade_request::names_websocket(headers) || translation.is_needed() {
        return Ok(Vec::new());
    }
    let words: Vec<&str> = parameters.all("port").flat_map(|list| list.split(',')).collect();
    if words.is_empty() {
        return Err(r#"query parameter "port" is required"#.into());
    }
    let port = |word: &&str| match word.parse::<u16>() {
        Ok(0) => Err(format!("port {word:?} must be > 0")),
        Ok(port) => Ok(i32::from(port)),
        Err(error) => Err(format!("unable to parse {word:?} as a port: {error}")),
    };
    words.iter().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;

    #[test]
    fn ports_are_asked_for_only_by_old_websockets() {
        let check = |upgrade: &str, protocol: &str, query: &str, expect: Result<&[i32], &str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, upgrade.parse().unwrap());
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            let uri = format!("/portForward/a/b?{query}").parse().unwrap();
            let found = ports(&Translation::of_ports(true, &headers), &headers, &Parameters::of(&uri));
            assert_eq!(found.as_deref().map_err(String::as_str), expect, "{upgrade} {protocol} {query}");
        };
        check("SPDY/3.1", "", "", Ok(&[]));
        check("websocket", "v4.channel.k8s.io, SPDY/3.1+portforward.k8s.io", "", Ok(&[]));
        check("websocket", "SPDY/3.1+portforward.k8s.io", "", Ok(&[]));
        check("websocket", "v4.channel.k8s.io", "port=80,81&port=443", Ok(&[80, 81, 443]));
        check("WebSocket", "v4.channel.k8s.io", "", Err(r#"query parameter "port" is required"#));
        check("websocket", "", "port=0", Err(r#"port "0" must be > 0"#));
        check(
            "websocket",
            "",
            "port=70000",
            Err(r#"unable to parse "70000" as a port: number too large to fit in target type"#),
        );
    }
}
