//! `/configz`, `/flagz` and `/statusz`: configuration, flags and version of this process.

use std::fmt::Write;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::{Api, SecureApi, json_bytes, plain_text};
use crate::process;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
/// The paths that `/statusz` points to.
const PATHS: [&str; 5] = ["/configz", "/debug", "/flagz", "/healthz", "/metrics"];

pub(super) async fn configz(State(api): Api) -> Response {
    json_bytes(json!({ "kubeletconfig": api.settings.configz }).to_string().into_bytes())
}

pub(super) async fn flagz(State(api): Api, headers: HeaderMap) -> Response {
    match negotiate_format(&headers, "Flagz") {
        ResponseFormat::Text => {
            let mut text = format!("\nkubelet flagz\n{WARNING}\n");
            for (name, value) in &api.settings.flags {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{name}={value}");
            }
            plain_text(StatusCode::OK, text)
        }
        ResponseFormat::Object(form) => object("Flagz", form, json!({ "flags": api.settings.flags })),
        ResponseFormat::Unknown => not_acceptable(),
    }
}

pub(super) async fn statusz(State(api): Api, headers: HeaderMap) -> Response {
    let form = negotiate_format(&headers, "Statusz");
    let facts = StatuszFields::of(&api);
    match form {
        ResponseFormat::Text => {
            let (hours, minutes, seconds) = (facts.up / 3600, facts.up / 60 % 60, facts.up % 60);
            let text = format!(
                "\nkubelet statusz\n{WARNING}\n\nStarted: {}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Go version: \nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
                facts.started,
                facts.version,
                facts.minor,
                PATHS.join(" "),
            );
            plain_text(StatusCode::OK, text)
        }
        ResponseFormat::Object(form) => {
            let body = json!({
                "startTime": facts.started,
                "uptimeSeconds": facts.up,
                "goVersion": "",
                "binaryVersion": facts.version,
                "emulationVersion": facts.minor,
                "paths": PATHS,
            });
            object("Statusz", form, body)
        }
        ResponseFormat::Unknown => not_acceptable(),
    }
}

struct StatuszFields {
    started: String,
    up: i64,
    version: String,
    minor: String,
}

impl StatuszFields {
    fn of(api: &SecureApi) -> Self {
        let now = api.wall.wall().0 / 1_000_000_000;
        let started = process::figures().map_or(now, |figures| figures.start_seconds as i64);
        let version = api.endpoints.metrics.kubernetes_version().trim_start_matches('v').to_owned();
        let minor = version.rsplit_once('.').map_or(version.clone(), |(minor, _)| minor.to_owned());
        let stamp = model::Wall(started * 1_000_000_000).timestamp();
        Self { started: stamp.to_string(), up: (now - started).max(0), version, minor }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ResponseFormat {
    Text,
    Object(ObjectForm),
    Unknown,
}

/// How an object is written, and of which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectForm {
    media: &'static str,
    version: &'static str,
}

const MEDIA: [&str; 2] = ["application/json", "application/yaml"];
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// What the caller takes, the first that we have.
fn negotiate_format(headers: &HeaderMap, kind: &str) -> ResponseFormat {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    if accept.iter().all(|text| text.trim().is_empty()) {
        return ResponseFormat::Text;
    }
    for media in accept.iter().flat_map(|list| list.split(',')) {
        let mut parts = media.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let parts: Vec<&str> = parts.collect();
        let says = |key: &str| parts.iter().find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
        match name {
            "*/*" | "text/plain" | "text/*" => return ResponseFormat::Text,
            _ if says("as") == Some(kind) && says("g") == Some("config.k8s.io") => {
                let media = MEDIA.into_iter().find(|media| *media == name);
                let version = VERSIONS.into_iter().find(|version| says("v") == Some(version));
                if let (Some(media), Some(version)) = (media, version) {
                    return ResponseFormat::Object(ObjectForm { media, version });
                }
            }
            _ => {}
        }
    }
    ResponseFormat::Unknown
}

fn object(kind: &str, ObjectForm { media, version }: ObjectForm, fields: Value) -> Response {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("config.k8s.io/{version}"),
        "metadata": { "name": "kubelet" },
    });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    let text = match media {
        "application/yaml" => match serde_saphyr::to_string(&object) {
            Ok(text) => text,
            Err(error) => return plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        _ => object.to_string(),
    };
    let of_kind = format!("{media};g=config.k8s.io;v={version};as={kind}");
    ([(header::CONTENT_TYPE, of_kind)], text).into_response()
}

fn not_acceptable() -> Response {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "only the following media types are accepted: application/json, application/yaml (with as, g and v), text/plain",
        "reason": "NotAcceptable",
        "code": 406,
    });
    (StatusCode::NOT_ACCEPTABLE, json_bytes(status.to_string().into_bytes())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_by_what_is_accepted() {
        let check = |accept: &str, expect: ResponseFormat| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(negotiate_format(&headers, "Flagz"), expect, "{accept}");
        };
        check("", ResponseFormat::Text);
        check("*/*", ResponseFormat::Text);
        check("text/html, text/plain;q=0.5", ResponseFormat::Text);
        let object = |media, version| ResponseFormat::Object(ObjectForm { media, version });
        check("application/json;as=Flagz;g=config.k8s.io;v=v1beta1", object(MEDIA[0], "v1beta1"));
        check(
            "application/json; as=Flagz; g=config.k8s.io; v=v1alpha1, text/plain",
            object(MEDIA[0], "v1alpha1"),
        );
        check("application/yaml;as=Flagz;g=config.k8s.io;v=v1beta1", object(MEDIA[1], "v1beta1"));
        check("application/cbor;as=Flagz;g=config.k8s.io;v=v1beta1", ResponseFormat::Unknown);
        check("application/json;as=Statusz;g=config.k8s.io;v=v1beta1", ResponseFormat::Unknown);
        check("application/json", ResponseFormat::Unknown);
        assert_eq!(negotiate_format(&HeaderMap::new(), "Flagz"), ResponseFormat::Text);
    }

    #[tokio::test]
    async fn objects_in_both_forms() {
        for media in MEDIA {
            let fields = json!({ "flags": { "config": "/a: b", "v": "2" } });
            let answer = object("Flagz", ObjectForm { media, version: "v1beta1" }, fields.clone());
            let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
            assert_eq!(kind, format!("{media};g=config.k8s.io;v=v1beta1;as=Flagz"));
            let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
            let text = std::str::from_utf8(&body).unwrap();
            assert_eq!(text.starts_with('{'), media == "application/json", "{text}");
            // JSON is YAML.
            let read: Value = serde_saphyr::from_str(text).unwrap();
            assert_eq!((&read["flags"], &read["kind"]), (&fields["flags"], &"Flagz".into()), "{text}");
        }
    }
}
