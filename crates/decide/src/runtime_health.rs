//! What the runtime's last status check told.

use std::collections::BTreeMap;

use model::Mono;
use model::cri::RuntimeHandler;

#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeHealth {
    pub name: String,
    pub ready: bool,
    /// The runtime was ready at least once, so its constant properties are known.
    pub ever_ready: bool,
    pub network_ready: bool,
    pub message: String,
    pub network_message: String,
    pub checking: bool,
    pub failures: u32,
    pub last_ok: Option<Mono>,
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
    /// Features of each runtime handler, by name. Older runtimes report none.
    pub handlers: BTreeMap<String, RuntimeHandler>,
}

impl RuntimeHealth {
    /// The runtime has not answered a status check yet. Observations may arrive before that.
    pub fn runtime_name_is_unknown(&self) -> bool {
        self.last_ok.is_none()
    }
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            name: String::new(),
            ready: false,
            ever_ready: false,
            network_ready: false,
            message: "container runtime status check may not have completed yet".into(),
            network_message: "network state unknown".into(),
            checking: false,
            failures: 0,
            last_ok: None,
            supplemental_groups_policy: false,
            user_namespaces_host_network: false,
            handlers: BTreeMap::new(),
        }
    }
}
