//! Typed answers to "why is this pod not running (yet)?". Each plan carries them; logs, events, `rubelet why`
//! and the tests read the same values.

use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::time::{Mono, Wall};

/// One thing a pod (or one of its containers) waits for, or that is being done for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Why {
    /// `None`: the whole pod.
    pub container: Option<String>,
    pub cause: Cause,
    /// When the next attempt is due, where there is one.
    pub next_attempt: Option<Mono>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "camelCase")]
pub enum Cause {
    /// The pod's object in the API can't be decoded. What is known of an older version goes on.
    Unreadable {
        problem: String,
    },
    /// The pod was refused by admission.
    Rejected {
        reason: String,
        message: String,
    },
    /// Only node affinity speaks against the pod; the Node object is read again before it is refused.
    WaitingForNode,
    /// A critical pod waits until other pods have released these resources. `pods`: those that end.
    WaitingForRoom {
        resources: Vec<String>,
        pods: Vec<String>,
    },
    /// Steps about the pod panicked: nothing is done for it, and what runs of it is left alone.
    SetAside {
        message: String,
    },
    /// The container runtime does not answer or is not ready.
    RuntimeNotReady {
        message: String,
    },
    /// The runtime's network is not ready, and the pod needs it.
    NetworkNotReady {
        message: String,
    },
    /// Waiting for a fresh observation of the runtime.
    Observing,
    /// The runtime lists a sandbox or a container of the pod, and does not give its status.
    StatusMissing {
        /// `sandbox <id>` or `container <name>`
        of: String,
        message: String,
    },
    /// The runtime said that it removed these sandboxes and containers, and lists them still.
    StillListed {
        ids: Vec<String>,
    },
    /// A static pod of the same name has not finished yet.
    NameTaken {
        holder: String,
    },
    PreparingDirectories,
    PreparingCgroup,
    PreparingVolumes {
        volumes: Vec<String>,
    },
    /// An object that the pod names was not read yet. `message`: why not, where that is known.
    WaitingForObject {
        kind: String,
        name: String,
        message: String,
    },
    /// No token for its service account was issued yet.
    WaitingForToken {
        service_account: String,
    },
    /// No certificate was asked for yet.
    WaitingForCertificate {
        signer_name: String,
    },
    /// The certificates that the cluster vouches for were not read yet.
    WaitingForTrustBundles,
    /// What stands behind a claim is not ready, or not known, yet.
    WaitingForVolume {
        volume: String,
        claim: String,
        message: String,
    },
    /// The cluster's services were not read yet: its variables are made of them.
    WaitingForServices,
    CreatingSandbox {
        attempt: u32,
    },
    /// The last attempt at a step failed; it will be tried again.
    StepFailed {
        step: String,
        message: String,
    },
    PullingImage {
        image: String,
    },
    /// In the queue for a pull slot.
    PullQueued {
        image: String,
    },
    ImageBackOff {
        reason: Reason,
        image: String,
        message: String,
        back_off_secs: u64,
    },
    ImageUnavailable {
        reason: Reason,
        message: String,
    },
    Starting,
    CrashBackOff {
        back_off_secs: u64,
        exit_code: i32,
        finished_at: Wall,
        restarts: u32,
    },
    StartFailed {
        reason: Reason,
        message: String,
    },
    /// The container ended and its restart policy says that it stays so.
    Completed {
        exit_code: i32,
    },
    /// Waits for an earlier init container.
    WaitingForInit {
        init: String,
    },
    /// A rule of one container asked for it: all are removed, and then started anew.
    RestartingAll,
    /// Being stopped, with this many seconds of grace in all.
    Stopping {
        message: String,
        grace_secs: i64,
    },
    /// Containers are gone; the pod's files, volumes and cgroup are being released.
    Releasing,
    /// Containers are gone; volumes that storage drivers may have a part in are being taken away.
    ReleasingVolumes {
        volumes: Vec<String>,
    },
    /// Everything that was wanted is running.
    Running,
    Finished {
        phase: String,
    },
}
