//! Programs beside the agent: storage drivers, credential plugins, and the sockets where plugins register.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};
use sha2::{Digest, Sha256};

use super::{AgentMetrics, Registrar};

const DRIVER_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

pub(crate) struct PluginMetrics {
    csi_operations: HistogramVec,
    credential_duration: HistogramVec,
    credential_errors: IntCounterVec,
    credential_config: IntGaugeVec,
    sockets: IntGaugeVec,
}

/// Upstream's words: a socket that was seen is wanted, one whose plugin is registered is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketState {
    Seen,
    Registered,
}

impl SocketState {
    const ALL: [SocketState; 2] = [SocketState::Seen, SocketState::Registered];

    fn label(self) -> &'static str {
        match self {
            SocketState::Seen => "desired_state_of_world",
            SocketState::Registered => "actual_state_of_world",
        }
    }
}

impl PluginMetrics {
    pub(super) fn new(add: &Registrar<'_>) -> Self {
        Self {
            csi_operations: add.histograms(
                "csi_operations_seconds",
                "How long calls to CSI drivers took, by gRPC status.",
                &["driver_name", "method_name", "grpc_status_code", "migrated"],
                DRIVER_BUCKETS.to_vec(),
            ),
            credential_duration: add.histograms(
                "kubelet_credential_provider_plugin_duration",
                "How long image credential provider plugins took to respond, in seconds.",
                &["plugin_name"],
                prometheus::DEFAULT_BUCKETS.to_vec(),
            ),
            credential_errors: add.counters(
                "kubelet_credential_provider_plugin_errors_total",
                "Calls of image credential provider plugins that failed.",
                &["plugin_name"],
            ),
            credential_config: add.gauges(
                "kubelet_credential_provider_config_info",
                "Hash of the image credential provider configuration in use; the value is always 1.",
                &["hash"],
            ),
            sockets: add.gauges(
                "plugin_manager_total_plugins",
                "Plugin sockets that exist (desired) and whose plugins are registered (actual).",
                &["socket_path", "state"],
            ),
        }
    }

    pub(crate) fn observe_driver_call(&self, driver: &str, method: &str, code: &str, took: Duration) {
        let labels = [driver, method, code, "false"];
        self.csi_operations.with_label_values(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn observe_credential_plugin(&self, plugin: &str, ok: bool, took: Duration) {
        self.credential_duration.with_label_values(&[plugin]).observe(took.as_secs_f64());
        if !ok {
            self.credential_errors.with_label_values(&[plugin]).inc();
        }
    }

    /// The plugins are configured by files with this content.
    fn set_credential_config<'a>(&self, files: impl Iterator<Item = &'a [u8]>) {
        let mut hash = Sha256::new();
        files.for_each(|file| hash.update(file));
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.credential_config.with_label_values(&[&format!("sha256:{hash}")]).set(1);
    }

    pub(crate) fn set_socket_state(&self, path: &str, state: SocketState) {
        self.sockets.with_label_values(&[path, state.label()]).set(1);
    }

    pub(crate) fn remove_socket(&self, path: &str) {
        for state in SocketState::ALL {
            // Fails only for one that was never told of.
            let _ = self.sockets.remove_label_values(&[path, state.label()]);
        }
    }
}

impl AgentMetrics {
    /// Credential plugins are configured by files with this content, in their order.
    pub fn set_credential_config<'a>(&self, files: impl Iterator<Item = &'a [u8]>) {
        self.plugins.set_credential_config(files);
    }
}
