//! What this node is to be in a cluster: names, labels, addresses, sizes and paces, as configured.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::k8s::{Quantity, Taint};

/// The configured part of the Node object, of its lease and of the Events about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeObjectConfig {
    pub name: String,
    /// `kubernetes.io/hostname`, and the address of type `Hostname`.
    pub hostname: String,
    /// `--register-node`: whether this agent makes the object when there is none.
    pub register: bool,
    /// The gate `KubeletRegistrationGetOnExistsOnly`: a refused creation is not followed by a look for an object of others.
    pub get_on_exists_only: bool,
    /// `--node-ip`: none, one, or one per family. An unspecified one only says which family is preferred.
    pub node_ips: Vec<IpAddr>,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `--cloud-provider=external`.
    pub external_cloud: bool,
    /// Empty: none.
    pub provider_id: String,
    /// `enableControllerAttachDetach`.
    pub attach_by_controller: bool,
    /// `v1.36.4`.
    pub kubelet_version: String,
    /// Port of the agent's HTTPS API.
    pub port: i32,
    /// Below zero: all of them.
    pub max_images: i32,
    pub capacity: CapacityRules,
    /// Sorted.
    pub declared_features: Vec<String>,
    /// How often the status is checked without a notification of a change.
    pub status_period: Duration,
    /// How often it is sent although nothing changed.
    pub report_period: Duration,
    pub lease_duration: Duration,
    /// How old the last complete reading of the runtime may be.
    pub relist_threshold: Duration,
    /// Passed to the runtime if no Node object specifies it.
    pub pod_cidr: String,
    /// Events per second, on average. Zero: no limit.
    pub event_qps: u32,
    pub event_burst: u32,
}

impl Default for NodeObjectConfig {
    fn default() -> Self {
        Self {
            name: "node".into(),
            hostname: "node".into(),
            register: true,
            get_on_exists_only: false,
            node_ips: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            external_cloud: false,
            provider_id: String::new(),
            attach_by_controller: true,
            kubelet_version: String::new(),
            port: 10250,
            max_images: 50,
            capacity: CapacityRules::default(),
            declared_features: Vec::new(),
            status_period: Duration::from_secs(10),
            report_period: Duration::from_secs(300),
            lease_duration: Duration::from_secs(40),
            relist_threshold: Duration::from_secs(180),
            pod_cidr: String::new(),
            event_qps: 50,
            event_burst: 100,
        }
    }
}

/// What is kept back from pods.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CapacityRules {
    pub max_pods: u32,
    /// Zero: no such limit.
    pub pods_per_core: u32,
    pub system_reserved: BTreeMap<String, Quantity>,
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// Hard eviction threshold of `memory.available`.
    pub eviction_memory: Option<ThresholdValue>,
    /// Hard eviction threshold of `nodefs.available`.
    pub eviction_storage: Option<ThresholdValue>,
    /// `localStorageCapacityIsolation`: whether local storage is a resource.
    pub local_storage: bool,
}

impl Default for CapacityRules {
    fn default() -> Self {
        Self {
            max_pods: 110,
            pods_per_core: 0,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            eviction_memory: None,
            eviction_storage: None,
            local_storage: true,
        }
    }
}

/// A part of a resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ThresholdValue {
    Amount(Quantity),
    /// Of the whole, from 0 to 1. Single precision, because its rounding shows in the numbers that users see.
    Fraction(f32),
}
