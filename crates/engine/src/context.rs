//! What the tasks of the engine share: its ports, its clock, and where their outcomes go.

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::node::{NodePressure, RuntimeSnapshot};
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::csi::VolumeRequests;
use crate::engine_ports::Ports;
use crate::image_call_state::ImageCallState;
use crate::outbox::Outbox;
use crate::tasks::EssentialTasks;

/// What tasks need of the engine.
#[derive(Clone)]
pub(crate) struct EngineContext {
    pub ports: Ports,
    pub clock: Clock,
    pub outbox: Outbox,
    pub image_call_state: Arc<ImageCallState>,
    /// The last observation of the runtime, for the task that updates the Node object.
    pub runtime_view: Arc<watch::Sender<RuntimeSnapshot>>,
    /// Notified when the images of the node may have changed, for the task that lists them for the Node object.
    pub images_changed: Arc<Notify>,
    /// `None`: no storage driver can register.
    pub csi: Option<VolumeRequests>,
    /// Attached volumes that are in use, for the Node object. `None`: not known yet.
    pub volumes_in_use: Arc<watch::Sender<Option<Vec<String>>>>,
    /// What the node is short of, for the Node object.
    pub node_pressure: Arc<watch::Sender<NodePressure>>,
    /// How often NodeGetInfo is repeated for each driver, in seconds.
    pub node_info_refresh_periods: Arc<watch::Sender<BTreeMap<String, u64>>>,
    /// Starts tasks the engine can't run without.
    pub essential_tasks: EssentialTasks,
}
