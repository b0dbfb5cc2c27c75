//! What a list call gives.

use crate::watch_event::UnreadableObject;

/// One page of objects, or all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectList<T> {
    pub items: Vec<T>,
    /// Objects that exist but can't be decoded.
    pub unreadable: Vec<UnreadableObject>,
    /// The version from which to watch.
    pub resource_version: String,
    /// Not empty if there are more pages. These calls ask for everything, so it is always empty.
    pub continue_token: String,
}
