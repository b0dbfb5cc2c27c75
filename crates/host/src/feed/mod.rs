//! Where static pods come from: a directory, a file, or an HTTP endpoint.
//!
//! Both feeds deliver complete sets, only when they changed, and tell of problems once. What can't be read or
//! understood never takes a running pod away: the last good state of that origin stays until the origin is
//! fine again or gone.

mod fetch;
mod file;
mod http;
mod manifests;
mod notices;
mod objects;
mod watch;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use model::k8s::Pod;
use model::local::LocalObjects;
use model::runtime_class::RuntimeClasses;

pub use self::http::{HttpFeed, HttpFeedError, without_secrets};
pub use file::FileFeed;

/// What a manifest says.
#[derive(Clone, Debug, Default)]
pub struct DecodedManifest {
    pub pods: Vec<Pod>,
    pub runtime_classes: RuntimeClasses,
    pub objects: LocalObjects,
    /// One line each, naming the origin.
    pub problems: Vec<String>,
}

/// Turns the bytes from an origin (file path or URL) into pods. Injected: how pods are written is not the host's matter.
pub type ManifestDecoder = Arc<dyn Fn(&str, &[u8]) -> DecodedManifest + Send + Sync>;

/// No file or response that reaches this is read.
const MAX_BYTES: usize = 10 << 20;

/// A manifest that makes the decoder panic is a bad manifest, not the end of the feed.
fn decode(decoder: &ManifestDecoder, origin: &str, content: &[u8]) -> DecodedManifest {
    std::panic::catch_unwind(AssertUnwindSafe(|| decoder(origin, content))).unwrap_or_else(|_| {
        DecodedManifest {
            problems: vec![format!("{origin}: the manifest could not be decoded (internal error)")],
            ..DecodedManifest::default()
        }
    })
}

/// Namespace and name: what two pods of one feed may not share.
fn key(pod: &Pod) -> (&str, &str) {
    let meta = &pod.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod file_tests;

#[cfg(test)]
mod http_tests;
