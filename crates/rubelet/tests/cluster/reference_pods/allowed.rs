//! The differences from the record that are wanted or can't be helped, each with its reason. The same are listed
//! for users in `docs/gaps.md`.

use std::sync::Arc;

use super::compare::Difference;

#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// `*` stands for any pod.
    pub pod: &'static str,
    /// The beginning of the difference's path; `*` stands for anything.
    pub path: &'static str,
    pub when: When,
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    /// Depends on the moment.
    Sometimes,
    /// With a containerd that is younger than the record's.
    Younger,
}

impl Allowed {
    pub fn covers(&self, difference: &Difference) -> bool {
        (self.pod == "*" || self.pod == difference.pod) && begins(&difference.path, self.path)
    }
}

/// Whether a text begins as the pattern says.
fn begins(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// What counts on this containerd.
pub fn table(containerd: &str) -> Arc<[Allowed]> {
    let younger = containerd != RECORDED_ON;
    TABLE.iter().filter(|entry| younger || entry.when != When::Younger).copied().collect()
}

const RECORDED_ON: &str = "1.6";

const TABLE: &[Allowed] = &[
    Allowed {
        pod: "*",
        path: "settled.hostIP",
        when: When::Always,
        reason: "the recorded node had no address, so its pods showed none; this one has",
    },
    Allowed {
        pod: "host-network",
        path: "settled.podIP",
        when: When::Always,
        reason: "the same: the node's address is the pod's",
    },
    Allowed {
        pod: "host-path-missing",
        path: "event Normal Pulled ",
        when: When::Always,
        reason: "images are looked for while volumes are mounted, not after",
    },
    Allowed {
        pod: "secret-missing-volume",
        path: "event Normal Pulled ",
        when: When::Always,
        reason: "images are looked for while volumes are mounted, not after",
    },
    Allowed {
        pod: "*",
        path: "event Warning Unhealthy *Readiness probe errored and resulted in unknown state",
        when: When::Sometimes,
        reason: "a probe that met the end of its container: chance, in the record (readiness-later) as here",
    },
    Allowed {
        pod: "*",
        path: "settled.*Statuses.*.user",
        when: When::Younger,
        reason: "younger runtimes tell which user a container runs as",
    },
    Allowed {
        pod: "bad-command",
        path: "event Warning Failed *OCI runtime create failed",
        when: When::Younger,
        reason: "the runtime's own words",
    },
    Allowed {
        pod: "bad-command",
        path: "settled.containerStatuses.0.*.message",
        when: When::Younger,
        reason: "the runtime's own words",
    },
    Allowed {
        pod: "bad-command",
        path: "end.containers.c.0.terminated.message",
        when: When::Younger,
        reason: "the runtime's own words",
    },
    Allowed {
        pod: "image-missing",
        path: "settled.containerStatuses.0.state.waiting.message",
        when: When::Younger,
        reason: "the runtime's own words",
    },
    Allowed {
        pod: "image-missing",
        path: "event Warning Failed spec.containers{c}: Failed to pull image",
        when: When::Younger,
        reason: "the runtime's own words",
    },
];

#[test]
fn patterns_match_beginnings() {
    let check =
        |text: &str, pattern: &str, expect: bool| assert_eq!(begins(text, pattern), expect, "{pattern}");
    check("settled.hostIPs", "settled.hostIP", true);
    check("settled.host", "settled.hostIP", false);
    check("settled.initContainerStatuses.0.user", "settled.*Statuses.*.user", true);
    check("settled.containerStatuses.0.ready", "settled.*Statuses.*.user", false);
    check("event a: OCI failed", "*OCI", true);
}
