//! Kubernetes Events: what is sent of what happened.
//!
//! ```text
//!   record ──> object ──> similar ones combined ──> repeated ones counted ──> spam left out ──> create or patch
//! ```
//!
//! The rules are those of the client library that every kubelet uses, so that counts and texts are the ones that
//! people know. All memory is bounded.

mod bucket;
mod correlate;
mod lru;
mod object;

pub use bucket::TokenBucket;
pub use correlate::{EventCorrelator, EventWrite};
pub use object::{EventSource, event_object};
