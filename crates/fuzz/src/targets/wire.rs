//! Data from a socket: queries, headers, redirects, responses of a runtime and of an API server.

use http::Uri;
use model::probe::HttpCheck;
use ports::TraceContext;

use crate::target::{Target, text};

pub const TARGETS: [Target; 5] = [
    Target {
        name: "log_query",
        run: log_query,
        dictionary: &[
            "&",
            "=",
            "%",
            "%2F",
            "+",
            "tailLines=",
            "sinceTime=",
            "limitBytes=",
            "query=",
            "stream=Stdout",
        ],
    },
    Target {
        name: "redirection",
        run: redirection,
        dictionary: &["http://", "https://", "//", "..", "/", "?", "#", "[::1]", ":80", "@", "%"],
    },
    Target { name: "runtime_answer", run: runtime_answer, dictionary: &["\x0a", "\x12", "\x1a", "\x22"] },
    Target {
        name: "traceparent",
        run: traceparent,
        dictionary: &["-", "00", "01", "ff", "00-", "-01", "0000000000000000", "4bf92f3577b34da6"],
    },
    Target {
        name: "watch",
        run: watch,
        dictionary: &[
            "\n",
            "ADDED",
            "MODIFIED",
            "DELETED",
            "BOOKMARK",
            "ERROR",
            "{\"type\":",
            "\"object\":",
            "\"metadata\":",
            "\"resourceVersion\":",
            "k8s.io/initial-events-end",
            "\"code\":410",
        ],
    },
];

fn log_query(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(uri) = format!("/containerLogs/default/pod/main?{text}").parse::<Uri>() else { return };
    for split in [false, true] {
        if let Err(status) = server::fuzzing::container_log_query(&uri, split) {
            assert!((400..500).contains(&status), "a bad question is the asker's fault: {status}");
        }
    }
    if let Err(status) = server::fuzzing::node_log_query(&uri) {
        assert!((400..500).contains(&status), "a bad question is the asker's fault: {status}");
    }
}

fn redirection(data: &[u8]) {
    let Some(location) = text(data) else { return };
    let from = HttpCheck {
        https: false,
        host: "10.0.0.1".into(),
        port: 8080,
        target: "/a/b?c=d".into(),
        headers: Vec::new(),
    };
    if let Ok(url) = host::fuzzing::redirection(&from, location) {
        assert!(url.starts_with("http://") || url.starts_with("https://"), "leads to {url:?}");
        assert!(url.len() <= location.len() + 64, "{} bytes became {}", location.len(), url.len());
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        assert!(!path.split('/').any(|part| part == ".."), "leads to {url:?}");
    }
}

fn runtime_answer(data: &[u8]) {
    let _ = cri::fuzzing::answers(data);
}

fn traceparent(data: &[u8]) {
    let Some(header) = text(data) else { return };
    let Some(context) = TraceContext::parse(header) else { return };
    assert!(context.trace != 0 && context.span != 0, "the standard calls {header:?} invalid");
    let told = context.traceparent();
    assert_eq!(TraceContext::parse(&told), Some(context), "{header:?} was told on as {told:?}");
}

/// How the bytes are split must not change the events.
fn watch(data: &[u8]) {
    let whole = apiserver::fuzzing::pod_watch(data, data.len());
    let lines = data.iter().filter(|byte| **byte == b'\n').count();
    assert!(whole.0.len() <= lines, "{} events of {lines} lines", whole.0.len());
    for piece in [1, 7, 4096] {
        assert_eq!(apiserver::fuzzing::pod_watch(data, piece), whole, "in pieces of {piece}");
    }
}
