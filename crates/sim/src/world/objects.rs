//! Config maps of the simulated cluster. Each holds one text: its version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::cluster::{ObjectContent, ObjectKey, ObjectState};

/// The only key of each config map.
pub const VERSION: &str = "version";

#[derive(Clone, Debug, Default)]
pub struct SimulatedConfigMaps {
    now: BTreeMap<String, u64>,
    /// Every version that ever existed.
    ever: BTreeSet<(String, u64)>,
}

impl SimulatedConfigMaps {
    /// `None`: the object is deleted.
    pub fn set(&mut self, name: &str, version: Option<u64>) {
        match version {
            Some(version) => {
                self.now.insert(name.to_owned(), version);
                self.ever.insert((name.to_owned(), version));
            }
            None => drop(self.now.remove(name)),
        }
    }

    pub fn object_state(&self, key: &ObjectKey) -> ObjectState {
        match self.now.get(&key.name) {
            Some(version) => ObjectState::Present(Arc::new(ObjectContent {
                resource_version: version.to_string(),
                data: [(VERSION.to_owned(), version.to_string().into_bytes())].into(),
                ..ObjectContent::default()
            })),
            None => ObjectState::Absent { message: format!("configmaps {:?} not found", key.name) },
        }
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.now.get(name).map(ToString::to_string)
    }

    pub fn ever_was(&self, name: &str, text: &str) -> bool {
        text.parse().is_ok_and(|version| self.ever.contains(&(name.to_owned(), version)))
    }
}
