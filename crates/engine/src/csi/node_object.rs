//! Maintains the CSINode object, and the driver data that it holds about this node.
//!
//! The object is created when the agent starts, and again when the Node was replaced; until then the node is not ready.
//! `wanted` holds the newest state per driver. Concurrent updates all write that state, so their order does not matter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::back_off::volume_delay;
use decide::csi::{
    add_driver_patch, migrated_plugins_patch, new_csi_node, node_patch, owned_by, remove_driver_patch,
};
use model::csi::DriverNodeInfo;
use model::k8s::{CSINode, Node};
use ports::{ApiError, ClusterPorts};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::node_reconciler::WatchedNode;
use crate::tasks::restart_after_panic;

const CSI_NODE_NOT_INITIALIZED: &str = "CSINode is not yet initialized";
/// If CSINode can't be updated this often, the registration fails: the plugin is notified and the registration is
/// retried.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct CsiNodeReconciler {
    cluster: ClusterPorts,
    name: String,
    /// Serializes updates, because each one reads the object and then writes it.
    write_lock: Mutex<()>,
    /// `None`: the driver was removed.
    wanted: Mutex<BTreeMap<String, Option<DriverNodeInfo>>>,
    /// Why the node can't take volumes yet.
    not_ready_reason: watch::Sender<Option<String>>,
}

impl CsiNodeReconciler {
    pub fn new(cluster: ClusterPorts, name: String) -> Arc<Self> {
        let not_ready_reason = watch::Sender::new(Some(CSI_NODE_NOT_INITIALIZED.to_owned()));
        Arc::new(Self {
            cluster,
            name,
            write_lock: Mutex::default(),
            wanted: Mutex::default(),
            not_ready_reason,
        })
    }

    pub fn not_ready_reason(&self) -> watch::Receiver<Option<String>> {
        self.not_ready_reason.subscribe()
    }

    /// Creates the object for this Node, and again whenever the Node is replaced.
    pub async fn run(self: Arc<Self>, mut node: watch::Receiver<WatchedNode>, stop: CancellationToken) {
        let mut of: Option<String> = None;
        let mut attempts = 0;
        stop.run_until_cancelled(async {
            loop {
                let uid = node.borrow_and_update().node.as_ref().and_then(|node| node.metadata.uid.clone());
                if uid.is_some() && uid != of {
                    match self.reconcile().await {
                        Ok(()) => {
                            self.not_ready_reason.send_replace(None);
                            (of, attempts) = (uid, 0);
                        }
                        Err(message) => {
                            attempts += 1;
                            tracing::warn!(attempts, "creating the CSINode object failed: {message}");
                            // Retry at once when the Node changes.
                            let _ = tokio::time::timeout(volume_delay(attempts), node.changed()).await;
                            continue;
                        }
                    }
                }
                if node.changed().await.is_err() {
                    return;
                }
            }
        })
        .await;
    }

    /// Writes all wanted drivers into the object.
    async fn reconcile(&self) -> Result<(), String> {
        {
            let _write_guard = self.write_lock.lock().await;
            let node = self.node().await?;
            self.own_csi_node(&node).await?;
        }
        let drivers: Vec<String> = self.wanted.lock().await.keys().cloned().collect();
        for driver in drivers {
            self.apply(&driver).await?;
        }
        Ok(())
    }

    pub async fn install_driver(&self, driver: &str, found: DriverNodeInfo) -> Result<(), String> {
        self.wanted.lock().await.insert(driver.to_owned(), Some(found));
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.apply(driver).await {
                Ok(()) => return Ok(()),
                Err(message) => tracing::debug!(
                    driver,
                    "Node and CSINode could not be updated with a CSI driver: {message}"
                ),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        let told = self.apply(driver).await;
        told.map_err(|cause| format!("error updating CSINode object with CSI driver node info: {cause}"))
    }

    /// Retried until the driver is removed from CSINode or registers again.
    pub async fn uninstall_driver(self: &Arc<Self>, driver: &str) {
        self.wanted.lock().await.insert(driver.to_owned(), None);
        let (this, driver) = (self.clone(), driver.to_owned());
        let remove = move || Self::remove_driver(this.clone(), driver.clone());
        tokio::spawn(async move { restart_after_panic("the removal of a CSI driver", remove).await });
    }

    async fn remove_driver(this: Arc<Self>, driver: String) {
        let mut attempts = 0;
        while let Err(message) = this.apply(&driver).await {
            attempts += 1;
            tracing::warn!(
                driver,
                attempts,
                "a CSI driver could not be removed from Node and CSINode: {message}"
            );
            tokio::time::sleep(volume_delay(attempts)).await;
        }
    }

    /// Writes the wanted state of the driver.
    async fn apply(&self, driver: &str) -> Result<(), String> {
        let _write_guard = self.write_lock.lock().await;
        let Some(wanted) = self.wanted.lock().await.get(driver).cloned() else { return Ok(()) };
        let node = self.node().await?;
        if let Some(patch) = node_patch(&node, driver, wanted.as_ref())? {
            self.cluster.node.patch(&self.name, &patch).await.map_err(error_text)?;
        }
        let object = self.own_csi_node(&node).await?;
        let patch = match &wanted {
            Some(found) => add_driver_patch(&object, driver, found),
            None => remove_driver_patch(&object, driver),
        };
        if let Some(patch) = patch {
            self.cluster.csi_node.patch(&self.name, &patch).await.map_err(error_text)?;
        }
        Ok(())
    }

    async fn node(&self) -> Result<Arc<Node>, String> {
        self.cluster.node.get(&self.name).await.map_err(error_text)
    }

    /// Returns the CSINode owned by this Node. One owned by an earlier Node is deleted.
    async fn own_csi_node(&self, node: &Node) -> Result<CSINode, String> {
        let api = &self.cluster.csi_node;
        let object = match api.get(&self.name).await {
            Ok(object) => object,
            Err(ApiError::NotFound { .. }) => {
                return api.create(&new_csi_node(node)).await.map_err(error_text);
            }
            Err(error) => return Err(error_text(error)),
        };
        if owned_by(&object, node) {
            // An agent of another version may have written another list of migrated plugins.
            return match migrated_plugins_patch(&object) {
                Some(patch) => api.patch(&self.name, &patch).await.map_err(error_text),
                None => Ok(object),
            };
        }
        api.delete(&self.name).await.map_err(error_text)?;
        Err(format!("CSINode {:?} was owned by a different node, deleted it", self.name))
    }
}

fn error_text(error: ApiError) -> String {
    error.to_string()
}
