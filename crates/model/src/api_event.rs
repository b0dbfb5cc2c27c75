//! Kubernetes Events as records, before anything is sent anywhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::csi::ClaimObject;
use crate::pod::ContainerKind;
use crate::text_limits::{TextLimit, truncate_text};
use crate::{FullName, PodUid};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EventType {
    Normal,
    Warning,
}

/// What an Event is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum EventSubject {
    Pod {
        uid: PodUid,
        name: FullName,
        /// Of the object as it was seen last; empty when the API never had it.
        resource_version: String,
    },
    Node {
        name: String,
    },
    Claim(ClaimObject),
}

/// One Event about a pod, or about one of its containers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ApiEvent {
    pub kind: EventType,
    pub reason: String,
    pub message: String,
    /// The container that it is about; gives the `fieldPath`.
    pub container: Option<(ContainerKind, String)>,
    /// Of the Event's object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl ApiEvent {
    pub fn normal(reason: &str, message: impl Into<String>) -> Self {
        Self::new(EventType::Normal, reason, message)
    }
    pub fn warning(reason: &str, message: impl Into<String>) -> Self {
        Self::new(EventType::Warning, reason, message)
    }
    /// Messages hold what runtimes, plugins and containers said: they are cut here, and nowhere else.
    fn new(kind: EventType, reason: &str, message: impl Into<String>) -> Self {
        let message = truncate_text(message, TextLimit::EventMessage);
        Self { kind, reason: reason.into(), message, container: None, annotations: BTreeMap::new() }
    }
    pub fn for_container(mut self, kind: ContainerKind, name: &str) -> Self {
        self.container = Some((kind, name.into()));
        self
    }
    pub fn with_annotations(mut self, annotations: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.annotations.extend(annotations.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }
    pub fn field_path(&self) -> Option<String> {
        self.container.as_ref().map(|(kind, name)| format!("{}{{{name}}}", kind.spec_list()))
    }
}
