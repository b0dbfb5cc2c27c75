//! What a watch reports.

use std::fmt;

use serde::Deserialize;

/// The identity of an object, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectIdentity {
    /// Empty for objects without a namespace.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

impl fmt::Display for ObjectIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.namespace.as_str(), self.name.as_str()) {
            ("", "") => f.write_str("without a name"),
            ("", name) => f.write_str(name),
            (namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

/// An object that can't be decoded. All other objects of its list or watch are processed as usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    pub identity: ObjectIdentity,
    /// The field, and the error in it.
    pub problem: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<T> {
    Added(T),
    Modified(T),
    Deleted(ObjectIdentity),
    /// An object that was added or modified can't be decoded.
    Unreadable(UnreadableObject),
    /// Only the resource version has advanced. `initial_end`: the initial events are complete.
    Bookmark {
        resource_version: String,
        ends_initial_events: bool,
    },
}
