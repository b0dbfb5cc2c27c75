//! Where pods come from. A feed delivers complete sets, or, where it can tell, single changes to the last one.

use std::sync::Arc;

use futures::stream::BoxStream;
use model::PodUid;
use model::k8s::Pod;
use model::local::LocalObjects;
use model::pod::{Source, UnreadablePod};
use model::runtime_class::RuntimeClasses;

/// The whole set of pods that a source wants now.
#[derive(Clone, Debug)]
pub struct PodSet {
    pub source: Source,
    /// Defaulted, validated, with their identity. In a stable order (file name, then document).
    pub pods: Vec<Arc<Pod>>,
}

#[derive(Clone, Debug)]
pub enum FeedNotice {
    Set(PodSet),
    /// A pod came or changed; the others are as they were. Only after a first set.
    Changed {
        source: Source,
        pod: Arc<Pod>,
    },
    /// A pod is no longer wanted; the others are as they were. Only after a first set.
    Gone {
        source: Source,
        uid: PodUid,
    },
    /// Pods of the source whose objects can't be decoded: what is known of them stays as it is. `complete`: these are all of
    /// them, and the set that comes next is without them. Otherwise they are told one by one, between sets.
    Unreadable {
        source: Source,
        pods: Vec<UnreadablePod>,
        complete: bool,
    },
    /// All runtime classes that the source tells of. Comes before the set that may need them.
    RuntimeClasses {
        source: Source,
        classes: RuntimeClasses,
    },
    /// All objects that the source tells of, for pods of a node without a cluster. Comes before the set that may need them.
    Objects {
        source: Source,
        objects: LocalObjects,
    },
    /// Something could not be read. It has been logged by nobody yet; says file (or URL) and reason in one line.
    /// Repeated only when it changes.
    Problem {
        source: Source,
        origin: String,
        message: String,
    },
    /// An origin that had a problem is fine (or gone) now.
    Resolved {
        source: Source,
        origin: String,
    },
}

/// One source. The stream never ends by itself.
pub trait PodFeed: Send + Sync {
    fn source(&self) -> Source;
    fn stream(self: Box<Self>) -> BoxStream<'static, FeedNotice>;
}
