//! Where the termination message of an ended container is to be found.

use model::PodUid;
use model::cri::Mount;
use model::files::TerminationMessageRequest;

/// What is known of a container that has ended.
pub struct EndedContainer<'a> {
    pub pod: &'a PodUid,
    pub container: &'a str,
    /// `terminationMessagePath`, from its annotation.
    pub path: Option<&'a str>,
    /// `terminationMessagePolicy`, from its annotation.
    pub policy: Option<&'a str>,
    pub mounts: &'a [Mount],
    pub exit_code: i32,
    pub reason: &'a str,
    pub log_path: &'a str,
}

/// What was mounted at the path, and the log if the policy allows it for a failure.
pub fn request(ended: &EndedContainer) -> TerminationMessageRequest {
    let path = ended.path.filter(|path| !path.is_empty());
    let at_path = ended.mounts.iter().filter(|mount| Some(mount.container_path.as_str()) == path);
    let from_log = ended.policy == Some("FallbackToLogsOnError")
        && ended.exit_code != 0
        && ended.reason != "ContainerCannotRun"
        && !ended.log_path.is_empty();
    TerminationMessageRequest {
        pod: ended.pod.clone(),
        container: ended.container.to_owned(),
        mounted: at_path.map(|mount| mount.host_path.clone()).collect(),
        log_fallback: from_log.then(|| ended.log_path.to_owned()),
    }
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

    fn check(policy: &str, exit_code: i32, reason: &str, path: &str, expect: (&[&str], Option<&str>)) {
        let mount = |inside: &str, host: &str| Mount {
            container_path: inside.into(),
            host_path: host.into(),
            ..Default::default()
        };
        let mounts = [
            mount("/dev/log", "/a/volume"),
            mount("", "/of/an/image"),
            mount("/dev/log", "/pods/u/containers/c/1"),
        ];
        let ended = EndedContainer {
            pod: &"u".into(),
            container: "c",
            path: Some(path),
            policy: Some(policy),
            mounts: &mounts,
            exit_code,
            reason,
            log_path: "/logs/0.log",
        };
        let got = request(&ended);
        assert_eq!((got.pod.as_str(), got.container.as_str()), ("u", "c"));
        let mounted: Vec<&str> = got.mounted.iter().map(String::as_str).collect();
        assert_eq!(
            (mounted.as_slice(), got.log_fallback.as_deref()),
            expect,
            "{policy} {exit_code} {reason} {path}"
        );
    }

    #[test]
    fn the_log_speaks_only_for_failures_and_when_asked() {
        let (file, none): (&[&str], &[&str]) = (&["/a/volume", "/pods/u/containers/c/1"], &[]);
        let log = Some("/logs/0.log");
        check("File", 1, "Error", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 1, "Error", "/dev/log", (file, log));
        check("FallbackToLogsOnError", 0, "Completed", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 128, "ContainerCannotRun", "/dev/log", (file, None));
        check("FallbackToLogsOnError", 1, "Error", "/elsewhere", (none, log));
        check("File", 1, "Error", "", (none, None));
    }

    #[test]
    fn messages_are_joined_by_a_colon() {
        assert_eq!(joined("", ""), "");
        assert_eq!(joined("a", ""), "a");
        assert_eq!(joined("", "b"), "b");
        assert_eq!(joined("a", "b"), "a: b");
    }
}
