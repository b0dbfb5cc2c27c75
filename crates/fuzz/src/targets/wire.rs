//! What comes over a socket: queries, redirections, a runtime's answers.

use http::Uri;
use model::probe::HttpCheck;

use crate::{Target, text};

pub const TARGETS: [Target; 3] = [
    Target {
        name: "log_query",
        run: log_query,
        words: &[
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
        words: &["http://", "https://", "//", "..", "/", "?", "#", "[::1]", ":80", "@", "%"],
    },
    Target { name: "runtime_answer", run: runtime_answer, words: &["\x0a", "\x12", "\x1a", "\x22"] },
];

fn log_query(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(uri) = format!("/containerLogs/default/pod/main?{text}").parse::<Uri>() else { return };
    for split in [false, true] {
        if let Err(status) = server::untrusted::container_log_query(&uri, split) {
            assert!((400..500).contains(&status), "a bad question is the asker's fault: {status}");
        }
    }
    if let Err(status) = server::untrusted::node_log_query(&uri) {
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
    if let Ok(url) = host::untrusted::redirection(&from, location) {
        assert!(url.starts_with("http://") || url.starts_with("https://"), "leads to {url:?}");
        assert!(url.len() <= location.len() + 64, "{} bytes became {}", location.len(), url.len());
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        assert!(!path.split('/').any(|part| part == ".."), "leads to {url:?}");
    }
}

fn runtime_answer(data: &[u8]) {
    let _ = cri::untrusted::answers(data);
}
