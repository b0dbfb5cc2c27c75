//! The differences from the record that are wanted or can't be helped, each with its reason. The same are listed
//! for users in `docs/gaps.md`.

use crate::compare::Difference;

pub struct Allowed {
    /// `*` stands for any pod.
    pub pod: &'static str,
    /// The beginning of the difference's path.
    pub path: &'static str,
    /// Depends on the moment: may be there or not.
    pub sometimes: bool,
    pub reason: &'static str,
}

impl Allowed {
    pub fn covers(&self, difference: &Difference) -> bool {
        (self.pod == "*" || self.pod == difference.pod) && difference.path.starts_with(self.path)
    }
}

pub const TABLE: &[Allowed] = &[
    Allowed {
        pod: "*",
        path: "settled.hostIP",
        sometimes: false,
        reason: "the recorded node had no address, so its pods showed none; this one has",
    },
    Allowed {
        pod: "host-network",
        path: "settled.podIP",
        sometimes: false,
        reason: "the same: the node's address is the pod's",
    },
    Allowed {
        pod: "host-path-missing",
        path: "event Normal Pulled ",
        sometimes: false,
        reason: "images are looked for while volumes are mounted, not after",
    },
    Allowed {
        pod: "secret-missing-volume",
        path: "event Normal Pulled ",
        sometimes: false,
        reason: "images are looked for while volumes are mounted, not after",
    },
    Allowed {
        pod: "*",
        path: "event Warning Unhealthy spec.containers{c}: Readiness probe errored and resulted in unknown state",
        sometimes: true,
        reason: "a probe that met the end of its container: chance, in the record (readiness-later) as here",
    },
];
