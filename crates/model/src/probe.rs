//! Probes, ready to be carried out: nothing is left to look up. And what is remembered of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    /// In the order in which a container's probes begin.
    pub const ALL: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

    /// As messages and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }
}

/// One attempt at a probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeCall {
    pub timeout: Duration,
    pub check: ProbeCheck,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProbeCheck {
    /// Inside the container.
    Exec {
        command: Vec<String>,
    },
    Network(NetworkCheck),
}

/// An empty host means this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NetworkCheck {
    Http(HttpCheck),
    Tcp { host: String, port: u16 },
    Grpc { host: String, port: u16, service: String },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HttpCheck {
    pub https: bool,
    pub host: String,
    pub port: u16,
    /// Path and query, escaped as they go over the wire. Begins with a slash.
    pub target: String,
    pub headers: Vec<(String, String)>,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProbeOutcome {
    Success,
    /// Good, with something to be said about it.
    Warning {
        output: String,
    },
    Failure {
        output: String,
    },
    /// It could not be carried out to its end, which says nothing about the container.
    Errored {
        state: ProbeErrorState,
        message: String,
    },
}

/// What an attempt amounted to when its error came up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProbeErrorState {
    Unknown,
    Failure,
}

impl ProbeErrorState {
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeErrorState::Unknown => "unknown",
            ProbeErrorState::Failure => "failure",
        }
    }
}

impl ProbeOutcome {
    pub fn failure(output: impl Into<String>) -> Self {
        ProbeOutcome::Failure { output: output.into() }
    }
    pub fn unknown(message: impl Into<String>) -> Self {
        ProbeOutcome::Errored { state: ProbeErrorState::Unknown, message: message.into() }
    }
}

/// What has to outlive the agent of one pod's probes, by container.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProbeRecord {
    pub containers: BTreeMap<String, ContainerProbeRecord>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerProbeRecord {
    /// The instance that the results are of.
    pub id: ContainerId,
    /// Whether each probe that has come to a result said yes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<ProbeKind, bool>,
    /// It was killed in order to be started again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_restart: bool,
}

impl ContainerProbeRecord {
    pub fn new(id: ContainerId) -> Self {
        Self { id, results: BTreeMap::new(), must_restart: false }
    }
}

impl ProbeRecord {
    /// What is known of this very instance.
    pub fn of(&self, container: &str, id: &ContainerId) -> Option<&ContainerProbeRecord> {
        self.containers.get(container).filter(|record| record.id == *id)
    }
}
