//! [`CsiDrivers`] over the sockets of registered drivers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, NodeVolumeStats,
};
use ports::{CsiDrivers, CsiError};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::call::{MAX_ANSWER_BYTES, call, channel, socket_path};
use crate::csi::node_client::NodeClient;
use crate::{csi as pb, to_wire};

/// How long a driver may take for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The drivers that are registered, by name.
#[derive(Debug)]
pub struct DriverClients {
    drivers: watch::Sender<BTreeMap<String, Driver>>,
}

impl Default for DriverClients {
    fn default() -> Self {
        Self { drivers: watch::Sender::new(BTreeMap::new()) }
    }
}

#[derive(Clone, Debug)]
struct Driver {
    socket: PathBuf,
    client: NodeClient<Channel>,
}

impl DriverClients {
    fn driver(&self, name: &str) -> Result<Driver, CsiError> {
        let found = self.drivers.borrow().get(name).cloned();
        found.ok_or_else(|| CsiError::NotRegistered { driver: name.to_owned() })
    }
}

#[async_trait]
impl CsiDrivers for DriverClients {
    fn set_endpoint(&self, driver: &str, endpoint: Option<&str>) {
        let entry = endpoint.map(|endpoint| {
            let socket = socket_path(endpoint);
            let client = NodeClient::new(channel(socket)).max_decoding_message_size(MAX_ANSWER_BYTES);
            Driver { socket: socket.to_owned(), client }
        });
        self.drivers.send_modify(|drivers| {
            match entry {
                Some(entry) => drivers.insert(driver.to_owned(), entry),
                None => drivers.remove(driver),
            };
        });
    }

    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        let answer =
            call(&socket, CALL_TIMEOUT, pb::NodeGetInfoRequest {}, |r| client.node_get_info(r)).await?;
        Ok(to_wire::node_info(answer))
    }

    async fn node_get_capabilities(&self, driver: &str) -> Result<NodeServiceCapabilities, CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        let request = pb::NodeGetCapabilitiesRequest {};
        let answer = call(&socket, CALL_TIMEOUT, request, |r| client.node_get_capabilities(r)).await?;
        Ok(to_wire::node_capabilities(&answer))
    }

    async fn node_stage_volume(&self, driver: &str, wanted: &NodeStageCall) -> Result<(), CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        call(&socket, CALL_TIMEOUT, to_wire::stage_request(wanted), |r| client.node_stage_volume(r)).await?;
        Ok(())
    }

    async fn node_publish_volume(&self, driver: &str, wanted: &NodePublishCall) -> Result<(), CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        call(&socket, CALL_TIMEOUT, to_wire::publish_request(wanted), |r| client.node_publish_volume(r))
            .await?;
        Ok(())
    }

    async fn node_unpublish_volume(&self, driver: &str, handle: &str, target: &str) -> Result<(), CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        let request = pb::NodeUnpublishVolumeRequest { volume_id: handle.into(), target_path: target.into() };
        call(&socket, CALL_TIMEOUT, request, |r| client.node_unpublish_volume(r)).await?;
        Ok(())
    }

    async fn node_unstage_volume(&self, driver: &str, handle: &str, staging: &str) -> Result<(), CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        let request =
            pb::NodeUnstageVolumeRequest { volume_id: handle.into(), staging_target_path: staging.into() };
        call(&socket, CALL_TIMEOUT, request, |r| client.node_unstage_volume(r)).await?;
        Ok(())
    }

    async fn node_expand_volume(&self, driver: &str, wanted: &NodeExpandCall) -> Result<(), CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        call(&socket, CALL_TIMEOUT, to_wire::expand_request(wanted), |r| client.node_expand_volume(r))
            .await?;
        Ok(())
    }

    async fn node_get_volume_stats(
        &self,
        driver: &str,
        handle: &str,
        path: &str,
    ) -> Result<NodeVolumeStats, CsiError> {
        let Driver { socket, mut client } = self.driver(driver)?;
        let request = pb::NodeGetVolumeStatsRequest {
            volume_id: handle.into(),
            volume_path: path.into(),
            // Upstream does not say where it is staged.
            staging_target_path: String::new(),
        };
        let answer = call(&socket, CALL_TIMEOUT, request, |r| client.node_get_volume_stats(r)).await?;
        Ok(to_wire::volume_stats(answer))
    }
}
