//! `/exec`, `/attach` and `/run`.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use ports::StreamFlags;

use super::proxy::{self, Translation};
use super::query::Parameters;
use super::target::{RequestParams, running, tty};
use super::{Api, SecureApi, plain_text};

const NO_STREAM: &str = "you must specify at least 1 of stdin, stdout, stderr";

/// Which streams are wanted: the kubelet's own words for them, or the API server's.
fn streams(parameters: &Parameters) -> Option<StreamFlags> {
    let on = |names: [&str; 2]| {
        names.iter().any(|name| parameters.first(name).is_some_and(|value| matches!(value, "1" | "true")))
    };
    let tty = on(["tty", "tty"]);
    let flags = StreamFlags {
        stdin: on(["input", "stdin"]),
        stdout: on(["output", "stdout"]),
        // A terminal has one output.
        stderr: on(["error", "stderr"]) && !tty,
        tty,
    };
    (flags.stdin || flags.stdout || flags.stderr).then_some(flags)
}

impl SecureApi {
    /// What has to be translated for the client of a command.
    fn translate_command(&self, kind: &str, request: &Request, streams: StreamFlags) -> Translation {
        let gate = self.settings.extended_websockets;
        let translation = Translation::of_command(gate, request.headers(), streams);
        if translation.is_needed() {
            self.endpoints.metrics.websocket_stream(kind);
        }
        translation
    }
}

pub(super) async fn exec(State(api): Api, Path(params): Path<RequestParams>, request: Request) -> Response {
    let parameters = Parameters::of(request.uri());
    let Some(streams) = streams(&parameters) else {
        return plain_text(StatusCode::BAD_REQUEST, NO_STREAM);
    };
    let pod = match api.pod(&params, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    let Some(id) = running(&pod, &params) else {
        let text = format!("container not found ({:?})", params.container);
        return plain_text(StatusCode::INTERNAL_SERVER_ERROR, text);
    };
    let command: Vec<String> = parameters.all("command").map(str::to_owned).collect();
    let translation = api.translate_command("exec", &request, streams);
    proxy::proxy_stream(&api, request, translation, async { api.runtime.exec(id, &command, streams).await })
        .await
}

pub(super) async fn attach(State(api): Api, Path(params): Path<RequestParams>, request: Request) -> Response {
    let Some(streams) = streams(&Parameters::of(request.uri())) else {
        return plain_text(StatusCode::BAD_REQUEST, NO_STREAM);
    };
    let pod = match api.pod(&params, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    let (Some(id), Some(tty)) = (running(&pod, &params), tty(&pod, &params.container)) else {
        let text = format!("container {} not found in pod {}", params.container, params.full_name());
        return plain_text(StatusCode::INTERNAL_SERVER_ERROR, text);
    };
    // Not the caller's choice: the container has a terminal or has none.
    let streams = StreamFlags { tty, stderr: streams.stderr && !tty, ..streams };
    let translation = api.translate_command("attach", &request, streams);
    proxy::proxy_stream(&api, request, translation, async { api.runtime.attach(id, streams).await }).await
}

pub(super) async fn run(State(api): Api, Path(params): Path<RequestParams>, request: Request) -> Response {
    let parameters = Parameters::of(request.uri());
    let pod = match api.pod(&params, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    let Some(id) = running(&pod, &params) else {
        let text = format!("container not found ({:?})", params.container);
        return plain_text(StatusCode::INTERNAL_SERVER_ERROR, text);
    };
    let words = parameters.first("cmd").unwrap_or_default();
    let command: Vec<String> = words.split(' ').map(str::to_owned).collect();
    match api.runtime.exec_sync(id, &command, Duration::ZERO).await {
        Ok(result) if result.exit_code == 0 => {
            let output = [result.stdout, result.stderr].concat();
            ([(header::CONTENT_TYPE, "application/json")], output).into_response()
        }
        Ok(result) => {
            let told = String::from_utf8_lossy(&result.stderr).into_owned();
            let text = format!("command '{words}' exited with {}: {told}", result.exit_code);
            plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, error.user_message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_by_either_name() {
        let check = |query: &str, expect: Option<&str>| {
            let uri = format!("/exec/a/b/c?{query}").parse().unwrap();
            let found = streams(&Parameters::of(&uri)).map(|s| {
                let flag = |set: bool, name: &'static str| if set { name } else { "" };
                [flag(s.stdin, "i"), flag(s.stdout, "o"), flag(s.stderr, "e"), flag(s.tty, "t")].concat()
            });
            assert_eq!(found.as_deref(), expect, "{query}");
        };
        check("input=1&output=1&error=1", Some("ioe"));
        check("input=1&output=1&error=1&tty=1", Some("iot"));
        check("output=1&command=error", Some("o"));
        check("stdin=true&stdout=true", Some("io"));
        check("error=1&tty=1", None);
        check("tty=1", None);
        check("output=0&error=yes", None);
        check("", None);
    }
}
