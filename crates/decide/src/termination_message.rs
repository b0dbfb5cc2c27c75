//! Where the last words of an ended container are to be found.

use model::cri::Mount;
use model::files::TerminationMessageRequest;

/// What is known of a container that has ended.
pub struct Ended<'a> {
    /// `terminationMessagePath`, from its annotation.
    pub path: Option<&'a str>,
    /// `terminationMessagePolicy`, from its annotation.
    pub policy: Option<&'a str>,
    pub mounts: &'a [Mount],
    pub exit_code: i32,
    pub reason: &'a str,
    pub log_path: &'a str,
}

/// The file mounted at the path, and the log if the policy allows it for a failure.
pub fn request(ended: &Ended) -> TerminationMessageRequest {
    let mounted = ended
        .path
        .filter(|path| !path.is_empty())
        .and_then(|path| ended.mounts.iter().find(|m| m.container_path == path))
        .map(|m| m.host_path.clone());
    let from_log = ended.policy == Some("FallbackToLogsOnError")
        && ended.exit_code != 0
        && ended.reason != "ContainerCannotRun"
        && !ended.log_path.is_empty();
    TerminationMessageRequest { file: mounted, log_fallback: from_log.then(|| ended.log_path.to_owned()) }
}

/// The runtime's own message first, then the container's.
pub fn joined(runtime: &str, container: &str) -> String {
    match (runtime.is_empty(), container.is_empty()) {
        (true, _) => container.to_owned(),
        (false, true) => runtime.to_owned(),
        (false, false) => format!("{runtime}: {container}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: &str, exit_code: i32, reason: &str, path: &str, expect: (Option<&str>, Option<&str>)) {
        let mounts = [Mount {
            container_path: "/dev/log".into(),
            host_path: "/host/log".into(),
            ..Default::default()
        }];
        let ended = Ended {
            path: Some(path),
            policy: Some(policy),
            mounts: &mounts,
            exit_code,
            reason,
            log_path: "/logs/0.log",
        };
        let got = request(&ended);
        assert_eq!(
            (got.file.as_deref(), got.log_fallback.as_deref()),
            expect,
            "{policy} {exit_code} {reason} {path}"
        );
    }

    #[test]
    fn the_log_speaks_only_for_failures_and_when_asked() {
        let (file, log) = (Some("/host/log"), Some("/logs/0.log"));
        check("File", 1, "Error", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 1, "Error", "/dev/log", (file, log));
        check("FallbackToLogsOnError", 0, "Completed", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 128, "ContainerCannotRun", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 1, "Error", "/elsewhere", (None, log));
        check("File", 1, "Error", "", (None, None));
    }

    #[test]
    fn messages_are_joined_by_a_colon() {
        assert_eq!(joined("", ""), "");
        assert_eq!(joined("a", ""), "a");
        assert_eq!(joined("", "b"), "b");
        assert_eq!(joined("a", "b"), "a: b");
    }
}
