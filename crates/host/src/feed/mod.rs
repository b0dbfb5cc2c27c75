//! Sources of static pods: a directory, a file, or an HTTP endpoint.
//!
//! Both feeds deliver complete sets, only if they changed, and report problems once. A source that can't be read or
//! decoded never removes a running pod: the last good state of that origin stays until the origin can be read again or
//! is removed.

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

/// The decoded content of a manifest.
#[derive(Clone, Debug, Default)]
pub struct DecodedManifest {
    pub pods: Vec<Pod>,
    pub runtime_classes: RuntimeClasses,
    pub objects: LocalObjects,
    /// One line each, naming the origin.
    pub problems: Vec<String>,
}

/// Decodes the bytes from an origin (file path or URL) into pods. Injected, because the host does not know the format.
pub type ManifestDecoder = Arc<dyn Fn(&str, &[u8]) -> DecodedManifest + Send + Sync>;

/// Files and responses of this size or more are not read.
const MAX_BYTES: usize = 10 << 20;

/// A manifest that makes the decoder panic counts as a bad manifest, and the feed goes on.
fn decode(decoder: &ManifestDecoder, origin: &str, content: &[u8]) -> DecodedManifest {
    std::panic::catch_unwind(AssertUnwindSafe(|| decoder(origin, content))).unwrap_or_else(|_| {
        DecodedManifest {
            problems: vec![format!("{origin}: the manifest could not be decoded (internal error)")],
            ..DecodedManifest::default()
        }
    })
}

/// Namespace and name, which are unique in a feed.
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
