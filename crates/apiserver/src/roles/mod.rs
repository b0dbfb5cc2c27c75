//! The roles that the API plays for a node, as ports.

mod access;
mod certificates;
mod feed;
mod node;
mod objects;
mod pods;
mod polled_objects;
mod reflect;
mod storage;

use std::sync::Arc;

use model::report::WatchReport;
use ports::{ClusterPorts, WatchReports};

use crate::Api;

pub use feed::ApiPodFeed;
pub use polled_objects::PolledObjects;

/// All roles over one connection.
pub fn cluster_ports(api: &Api) -> ClusterPorts {
    let api = Arc::new(api.clone());
    ClusterPorts {
        pods: api.clone(),
        node: api.clone(),
        csi_node: api.clone(),
        leases: api.clone(),
        events: api.clone(),
        objects: api.clone(),
        storage: api.clone(),
        shared: api.clone(),
        tokens: api.clone(),
        certificates: api.clone(),
        reviews: api.clone(),
        watches: api,
    }
}

impl WatchReports for Api {
    fn watches(&self) -> Vec<WatchReport> {
        self.watch_statuses().reports()
    }
}
