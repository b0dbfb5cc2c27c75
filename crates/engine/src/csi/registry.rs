//! Registers CSI drivers. For each registration socket: GetInfo, check name and version, NodeGetInfo, update CSINode,
//! NotifyRegistrationStatus.
//!
//! ```text
//!   socket added ──> GetInfo ──> check ──> endpoint set ──> NodeGetInfo ──> CSINode updated ──> plugin notified
//!                       └──────────┴────────────┴───────────────┴────────────────┴──> plugin notified of the error;
//!                                                                                     retried with back-off
//!   registered ──> NodeGetInfo, CSINode updated: at the period of the CSIDriver object
//!   socket removed ──> endpoint removed ──> driver removed from CSINode
//! ```
//! Each socket has its own task, so a plugin that hangs or gives wrong answers affects no other plugin.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use decide::back_off::volume_delay;
use decide::csi::{CSI_PLUGIN, Version, check_registration, registration_failed, unknown_kind};
use futures::StreamExt;
use model::text_limits::{TextLimit, truncate_text};
use ports::PluginSocketEvent;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::CsiPorts;
use super::node_object::CsiNodeReconciler;
use crate::outbox::Outbox;
use crate::tasks::restart_after_panic;

pub(crate) struct Registry {
    ports: CsiPorts,
    /// `None`: the node runs without a cluster.
    cluster: Option<Arc<CsiNodeReconciler>>,
    outbox: Outbox,
    known: Mutex<BTreeMap<String, Known>>,
    /// How often NodeGetInfo is repeated for each driver, in seconds.
    periods: watch::Receiver<BTreeMap<String, u64>>,
}

struct Known {
    socket: String,
    version: Version,
    registered: bool,
}

impl Registry {
    pub fn new(
        ports: CsiPorts,
        cluster: Option<Arc<CsiNodeReconciler>>,
        outbox: Outbox,
        periods: watch::Receiver<BTreeMap<String, u64>>,
    ) -> Arc<Self> {
        Arc::new(Self { ports, cluster, outbox, known: Mutex::default(), periods })
    }

    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut notices = self.ports.sockets.watch();
        let mut tasks: HashMap<String, CancellationToken> = HashMap::new();
        while let Some(Some(notice)) = stop.run_until_cancelled(notices.next()).await {
            match notice {
                PluginSocketEvent::Added { path } => {
                    let token = stop.child_token();
                    if let Some(old) = tasks.insert(path.clone(), token.clone()) {
                        old.cancel();
                    }
                    let this = self.clone();
                    tokio::spawn(async move {
                        let what = format!("the registration of the plugin at {path}");
                        let attend = restart_after_panic(&what, || this.attend(&path));
                        token.run_until_cancelled(attend).await
                    });
                }
                PluginSocketEvent::Gone { path } => {
                    if let Some(old) = tasks.remove(&path) {
                        old.cancel();
                    }
                    self.gone(&path).await;
                }
            }
        }
    }

    /// Registers the plugin behind the socket if it is a CSI driver, then repeats NodeGetInfo at the driver's period.
    async fn attend(&self, socket: &str) {
        let mut attempts = 0;
        loop {
            match self.try_register(socket).await {
                Ok(driver) => return self.ask_again_and_again(&driver).await,
                Err(Refusal::ForGood(message)) => {
                    tracing::warn!(socket, "plugin is not registered: {message}");
                    return;
                }
                Err(Refusal::ForNow(message)) => {
                    tracing::warn!(socket, attempts, "plugin is not registered: {message}");
                }
            }
            attempts += 1;
            tokio::time::sleep(volume_delay(attempts)).await;
        }
    }

    /// Repeats NodeGetInfo at the period that the driver's CSIDriver object asks for, until the socket is removed.
    async fn ask_again_and_again(&self, driver: &str) {
        let mut periods = self.periods.clone();
        let mut asked = Instant::now();
        loop {
            let period = periods.borrow_and_update().get(driver).map(|seconds| Duration::from_secs(*seconds));
            // A period too long for the clock counts as no period.
            let Some(due) = period.and_then(|period| asked.checked_add(period)) else {
                if periods.changed().await.is_err() {
                    return;
                }
                continue;
            };
            // When the period changes, the new one counts from the last call.
            if let Ok(changed) = tokio::time::timeout_at(due, periods.changed()).await {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            asked = Instant::now();
            self.ask(driver).await;
        }
    }

    /// Calls NodeGetInfo and updates CSINode at once, whatever the driver's period.
    pub async fn ask(&self, driver: &str) {
        if let Err(cause) = self.introduce(driver).await {
            tracing::warn!(driver, "updating CSINode with the driver's node info failed: {cause}");
        }
    }

    /// Returns the name of the driver.
    async fn try_register(&self, socket: &str) -> Result<String, Refusal> {
        let sockets = &self.ports.sockets;
        let info = sockets.get_info(socket).await.map_err(|error| {
            Refusal::ForNow(format!(
                "failed to get plugin info using RPC GetInfo at socket {socket}, err: {error}"
            ))
        })?;
        if info.kind != CSI_PLUGIN {
            let message = truncate_text(unknown_kind(&info.kind, socket), TextLimit::PluginMessage);
            self.refuse(socket, &message).await;
            return Err(Refusal::ForGood(message));
        }
        let endpoint = if info.endpoint.is_empty() { socket } else { info.endpoint.as_str() };
        if let Err(message) = self.enter(socket, &info, endpoint).await {
            let message = truncate_text(message, TextLimit::PluginMessage);
            self.refuse(socket, &message).await;
            return Err(Refusal::ForNow(message));
        }
        if let Err(cause) = self.introduce(&info.name).await {
            self.leave(&info.name, socket).await;
            let message = registration_failed(&cause);
            self.refuse(socket, &message).await;
            return Err(Refusal::ForNow(message));
        }
        if let Err(error) = sockets.notify_registration_status(socket, None).await {
            self.leave(&info.name, socket).await;
            return Err(Refusal::ForNow(format!("NotifyRegistrationStatus failed: {error}")));
        }
        let mut known = self.known.lock().await;
        if let Some(entry) = known.get_mut(&info.name).filter(|entry| entry.socket == socket) {
            entry.registered = true;
            tracing::info!(driver = info.name, endpoint, "storage driver is registered");
            self.tell(&known);
        }
        Ok(info.name)
    }

    /// Records the driver and its endpoint if its name and version pass the check.
    async fn enter(&self, socket: &str, info: &model::csi::PluginInfo, endpoint: &str) -> Result<(), String> {
        let mut known = self.known.lock().await;
        let other = known.get(&info.name).filter(|entry| entry.socket != socket).map(|entry| entry.version);
        let version = check_registration(info, endpoint, other)?;
        known.insert(info.name.clone(), Known { socket: socket.to_owned(), version, registered: false });
        self.ports.drivers.set_endpoint(&info.name, Some(endpoint));
        Ok(())
    }

    async fn introduce(&self, driver: &str) -> Result<(), String> {
        let found = self.ports.drivers.node_get_info(driver).await.map_err(|error| error.to_string())?;
        if found.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".into());
        }
        match &self.cluster {
            Some(cluster) => cluster.install_driver(driver, found).await,
            None => Ok(()),
        }
    }

    async fn refuse(&self, socket: &str, message: &str) {
        if let Err(error) = self.ports.sockets.notify_registration_status(socket, Some(message)).await {
            tracing::debug!(socket, "NotifyRegistrationStatus failed: {error}");
        }
    }

    async fn gone(&self, socket: &str) {
        let names: Vec<String> = {
            let known = self.known.lock().await;
            known.iter().filter(|(_, entry)| entry.socket == socket).map(|(name, _)| name.clone()).collect()
        };
        for name in names {
            tracing::info!(
                driver = name,
                socket,
                "CSI driver unregistered: its registration socket was removed"
            );
            self.leave(&name, socket).await;
        }
    }

    /// Removes the driver, unless another socket has registered the same name since.
    async fn leave(&self, driver: &str, socket: &str) {
        let mut known = self.known.lock().await;
        if known.get(driver).is_none_or(|entry| entry.socket != socket) {
            return;
        }
        known.remove(driver);
        self.ports.drivers.set_endpoint(driver, None);
        self.tell(&known);
        drop(known);
        if let Some(cluster) = &self.cluster {
            cluster.uninstall_driver(driver).await;
        }
    }

    fn tell(&self, known: &BTreeMap<String, Known>) {
        let registered = known.iter().filter(|(_, entry)| entry.registered).map(|(name, _)| name.clone());
        self.outbox.send(Event::CsiDriversRegistered(registered.collect::<BTreeSet<_>>()));
    }
}

enum Refusal {
    /// Not retried, unless the socket is created again.
    ForGood(String),
    ForNow(String),
}
