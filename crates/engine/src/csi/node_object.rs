//! Keeps the CSINode object, and what the Node says of drivers.
//!
//! The object is made when the agent comes up, and again when the Node is another one; the node is not ready before.
//! What is wanted of each driver is kept here: however calls overtake each other, the last word counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::back_off::volume_delay;
use decide::csi::{installed, migrated, new_csi_node, node_patch, owned_by, uninstalled};
use model::csi::DriverNode;
use model::k8s::{CSINode, Node};
use ports::{ApiError, ClusterPorts};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::node_keeper::NodeNow;

const NOT_YET: &str = "CSINode is not yet initialized";
/// A registration that the cluster does not take is told to the plugin, and begins anew.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct CsiNodeKeeper {
    cluster: ClusterPorts,
    name: String,
    /// One at a time: they read, and then write what they read.
    desk: Mutex<()>,
    /// `None`: it is gone.
    wanted: Mutex<BTreeMap<String, Option<DriverNode>>>,
    /// Why the node can't take volumes yet.
    trouble: watch::Sender<Option<String>>,
}

impl CsiNodeKeeper {
    pub fn new(cluster: ClusterPorts, name: String) -> Arc<Self> {
        let trouble = watch::Sender::new(Some(NOT_YET.to_owned()));
        Arc::new(Self { cluster, name, desk: Mutex::default(), wanted: Mutex::default(), trouble })
    }

    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Makes the object for every Node that comes to be ours.
    pub async fn run(self: Arc<Self>, mut node: watch::Receiver<NodeNow>, stop: CancellationToken) {
        let mut of: Option<String> = None;
        let mut attempts = 0;
        stop.run_until_cancelled(async {
            loop {
                let uid = node.borrow_and_update().node.as_ref().and_then(|node| node.metadata.uid.clone());
                if uid.is_some() && uid != of {
                    match self.settle().await {
                        Ok(()) => {
                            self.trouble.send_replace(None);
                            (of, attempts) = (uid, 0);
                        }
                        Err(message) => {
                            attempts += 1;
                            tracing::warn!(attempts, "the CSINode object can't be made: {message}");
                            // A newer Node need not wait.
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

    /// The object, with everything that is wanted in it.
    async fn settle(&self) -> Result<(), String> {
        {
            let _desk = self.desk.lock().await;
            let node = self.node().await?;
            self.object(&node).await?;
        }
        let drivers: Vec<String> = self.wanted.lock().await.keys().cloned().collect();
        for driver in drivers {
            self.apply(&driver).await?;
        }
        Ok(())
    }

    pub async fn install(&self, driver: &str, found: DriverNode) -> Result<(), String> {
        self.wanted.lock().await.insert(driver.to_owned(), Some(found));
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.apply(driver).await {
                Ok(()) => return Ok(()),
                Err(message) => tracing::debug!(driver, "the cluster can't be told of a driver: {message}"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        let told = self.apply(driver).await;
        told.map_err(|cause| format!("error updating CSINode object with CSI driver node info: {cause}"))
    }

    /// Tried until it is told, or the driver is back.
    pub async fn uninstall(self: &Arc<Self>, driver: &str) {
        self.wanted.lock().await.insert(driver.to_owned(), None);
        let (this, driver) = (self.clone(), driver.to_owned());
        tokio::spawn(async move {
            let mut attempts = 0;
            while let Err(message) = this.apply(&driver).await {
                attempts += 1;
                tracing::warn!(
                    driver,
                    attempts,
                    "the cluster can't be told that a driver is gone: {message}"
                );
                tokio::time::sleep(volume_delay(attempts)).await;
            }
        });
    }

    /// Says what is wanted of the driver now.
    async fn apply(&self, driver: &str) -> Result<(), String> {
        let _desk = self.desk.lock().await;
        let Some(wanted) = self.wanted.lock().await.get(driver).cloned() else { return Ok(()) };
        let node = self.node().await?;
        if let Some(patch) = node_patch(&node, driver, wanted.as_ref())? {
            self.cluster.node.patch(&self.name, &patch).await.map_err(said)?;
        }
        let object = self.object(&node).await?;
        let patch = match &wanted {
            Some(found) => installed(&object, driver, found),
            None => uninstalled(&object, driver),
        };
        if let Some(patch) = patch {
            self.cluster.csi_node.patch(&self.name, &patch).await.map_err(said)?;
        }
        Ok(())
    }

    async fn node(&self) -> Result<Arc<Node>, String> {
        self.cluster.node.get(&self.name).await.map_err(said)
    }

    /// Ours; one of an earlier node makes room.
    async fn object(&self, node: &Node) -> Result<CSINode, String> {
        let api = &self.cluster.csi_node;
        let object = match api.get(&self.name).await {
            Ok(object) => object,
            Err(ApiError::NotFound { .. }) => return api.create(&new_csi_node(node)).await.map_err(said),
            Err(error) => return Err(said(error)),
        };
        if owned_by(&object, node) {
            // An agent of another version may have said otherwise.
            return match migrated(&object) {
                Some(patch) => api.patch(&self.name, &patch).await.map_err(said),
                None => Ok(object),
            };
        }
        api.delete(&self.name).await.map_err(said)?;
        Err(format!("CSINode {:?} was owned by a different node, deleted it", self.name))
    }
}

fn said(error: ApiError) -> String {
    error.to_string()
}
