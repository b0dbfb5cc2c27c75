//! Converts the server's `Status` to an [`ApiError`].

use std::time::Duration;

use model::text_limits::{TextLimit, truncate_output, truncate_text};
use ports::ApiError;
use serde::Deserialize;

#[derive(Deserialize, Default)]
pub(crate) struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    code: u16,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: u64,
}

/// The longest Retry-After that is honoured, because nothing else would end the wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// `wait`: the Retry-After header; without one the body's value is used.
pub(crate) fn failure(call: String, code: u16, wait: Option<Duration>, body: &[u8]) -> ApiError {
    let wait = wait.map(|wait| wait.min(MAX_RETRY_AFTER));
    let status = serde_json::from_slice(body).ok().filter(|status: &Status| status.kind == "Status");
    match status {
        Some(status) => from_status(call, code, wait, status),
        None => from_plain_answer(call, code, wait, plain(body)),
    }
}

/// Converts an ERROR event of a watch.
pub(crate) fn from_watch_error(call: String, status: Status) -> ApiError {
    let code = status.code;
    from_status(call, code, None, status)
}

fn from_status(call: String, code: u16, wait: Option<Duration>, status: Status) -> ApiError {
    let asked = status.details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let asked = asked.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let retry_after = wait.or(asked);
    let message = if status.message.is_empty() { status.reason.clone() } else { status.message };
    let message = truncate_text(message, TextLimit::ServerMessage);
    match status.reason.as_str() {
        "NotFound" => ApiError::NotFound { call, message },
        "AlreadyExists" => ApiError::AlreadyExists { call, message },
        "Conflict" => ApiError::Conflict { call, message },
        "Gone" | "Expired" => ApiError::Gone { call, message },
        "TooManyRequests" => ApiError::TooManyRequests { call, message, retry_after },
        "Forbidden" => ApiError::Forbidden { call, message },
        "Unauthorized" => ApiError::Unauthorized { call, message },
        "Invalid" | "BadRequest" | "RequestEntityTooLarge" => ApiError::Invalid { call, message },
        "MethodNotAllowed" | "NotAcceptable" | "UnsupportedMediaType" => {
            ApiError::Unsupported { call, message }
        }
        "ServerTimeout" | "Timeout" => ApiError::ServerTimeout { call, message, retry_after },
        _ => by_code(call, code, retry_after, message),
    }
}

/// A response without a `Status`: from an unknown API group, or from a proxy.
fn from_plain_answer(call: String, code: u16, wait: Option<Duration>, message: String) -> ApiError {
    match code {
        404 => ApiError::Unsupported { call, message },
        _ => by_code(call, code, wait, message),
    }
}

fn by_code(call: String, code: u16, retry_after: Option<Duration>, message: String) -> ApiError {
    match code {
        400 | 413 | 422 => ApiError::Invalid { call, message },
        401 => ApiError::Unauthorized { call, message },
        403 => ApiError::Forbidden { call, message },
        404 => ApiError::NotFound { call, message },
        405 | 406 | 415 => ApiError::Unsupported { call, message },
        409 => ApiError::Conflict { call, message },
        410 => ApiError::Gone { call, message },
        429 => ApiError::TooManyRequests { call, message, retry_after },
        504 => ApiError::ServerTimeout { call, message, retry_after },
        _ => ApiError::ServerFault { call, code, message },
    }
}

fn plain(body: &[u8]) -> String {
    let text = truncate_output(body, TextLimit::ServerMessage);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: u16, wait: Option<u64>, body: &str, expect: ApiError) {
        let wait = wait.map(Duration::from_secs);
        assert_eq!(failure("get pod a/b".into(), code, wait, body.as_bytes()), expect, "for {body}");
    }

    fn call() -> String {
        "get pod a/b".into()
    }

    #[test]
    fn reasons_count_before_codes() {
        let status = |reason: &str, more: &str| {
            format!(r#"{{"kind":"Status","apiVersion":"v1","message":"m","reason":"{reason}"{more}}}"#)
        };
        let message = || "m".to_owned();
        check(404, None, &status("NotFound", ""), ApiError::NotFound { call: call(), message: message() });
        check(
            409,
            None,
            &status("AlreadyExists", ""),
            ApiError::AlreadyExists { call: call(), message: message() },
        );
        check(409, None, &status("Conflict", ""), ApiError::Conflict { call: call(), message: message() });
        check(410, None, &status("Expired", ""), ApiError::Gone { call: call(), message: message() });
        check(410, None, &status("Gone", ""), ApiError::Gone { call: call(), message: message() });
        check(422, None, &status("Invalid", ""), ApiError::Invalid { call: call(), message: message() });
        check(400, None, &status("BadRequest", ""), ApiError::Invalid { call: call(), message: message() });
        check(403, None, &status("Forbidden", ""), ApiError::Forbidden { call: call(), message: message() });
        check(500, None, &status("ServerTimeout", r#","details":{"retryAfterSeconds":3}"#), {
            let retry_after = Some(Duration::from_secs(3));
            ApiError::ServerTimeout { call: call(), message: message(), retry_after }
        });
        check(429, Some(7), &status("TooManyRequests", r#","details":{"retryAfterSeconds":3}"#), {
            let retry_after = Some(Duration::from_secs(7));
            ApiError::TooManyRequests { call: call(), message: message(), retry_after }
        });
        check(
            500,
            None,
            &status("InternalError", ""),
            ApiError::ServerFault { call: call(), code: 500, message: message() },
        );
        check(
            418,
            None,
            &status("", ""),
            ApiError::ServerFault { call: call(), code: 418, message: message() },
        );
    }

    #[test]
    fn no_server_is_left_alone_for_ever() {
        let check = |wait: Option<u64>, asked: &str, expect: u64| {
            let body = format!(
                r#"{{"kind":"Status","reason":"TooManyRequests","details":{{"retryAfterSeconds":{asked}}}}}"#
            );
            let wait = wait.map(Duration::from_secs);
            let error = failure(call(), 429, wait, body.as_bytes());
            assert_eq!(error.retry_after(), Some(Duration::from_secs(expect)), "{wait:?} {asked}");
        };
        check(None, "599", 599);
        check(None, "601", 600);
        check(None, "18446744073709551615", 600);
        check(Some(u64::MAX), "3", 600);
        check(Some(68_719_477), "3", 600);
        check(Some(2), "3", 2);
    }

    #[test]
    fn answers_of_others_are_understood_by_their_code() {
        let message = || "404 page not found".to_owned();
        check(404, None, "404 page not found\n", ApiError::Unsupported { call: call(), message: message() });
        check(
            502,
            None,
            "<html>\n Bad   Gateway</html>",
            ApiError::ServerFault { call: call(), code: 502, message: "<html> Bad Gateway</html>".into() },
        );
        check(
            429,
            None,
            "",
            ApiError::TooManyRequests { call: call(), message: String::new(), retry_after: None },
        );
        check(
            401,
            None,
            r#"{"kind":"Other"}"#,
            ApiError::Unauthorized { call: call(), message: r#"{"kind":"Other"}"#.into() },
        );
    }
}
