//! Certificates that the cluster vouches for (ClusterTrustBundle). They are few and every node may read all of them, which
//! it does from the first pod on that needs one.

use model::volume_source::ProjectedSource;
use std::collections::BTreeMap;
use std::sync::Arc;

use model::k8s::ClusterTrustBundle;
use model::pod::PodView;

#[derive(Clone, Debug, Default)]
pub struct TrustBundleCache {
    watched: bool,
    bundles: Option<BTreeMap<String, Arc<ClusterTrustBundle>>>,
}

impl TrustBundleCache {
    /// Somebody needs them. True if nobody did before.
    pub fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.watched, true)
    }

    /// The complete set. True if it is another one.
    pub fn set(&mut self, bundles: Vec<Arc<ClusterTrustBundle>>) -> bool {
        let name = |bundle: &ClusterTrustBundle| bundle.metadata.name.clone().unwrap_or_default();
        let bundles = Some(bundles.into_iter().map(|bundle| (name(&bundle), bundle)).collect());
        std::mem::replace(&mut self.bundles, bundles.clone()) != bundles
    }

    /// By name. `None`: they were not read yet.
    pub fn bundles(&self) -> Option<&BTreeMap<String, Arc<ClusterTrustBundle>>> {
        self.bundles.as_ref()
    }
}

/// Whether files of the pod are made of them.
pub fn uses_trust_bundles(pod: &PodView) -> bool {
    let mut sources = pod.spec().volumes.iter().flatten().flat_map(ProjectedSource::of_volume);
    sources.any(|source| matches!(source, ProjectedSource::ClusterTrustBundle(_)))
}
