//! What every end-to-end test uses: a private containerd, the agent as a process on it, and views of what
//! both leave on the machine.
//!
//! ```text
//! let node = Node::start();                      // containerd + agent, standalone
//! node.agent.write_manifest("web", WEB_YAML);    // atomic, as a careful user would
//! let pod = node.wait_pod("web", SLOW, |pod| pod["status"]["phase"] == "Running");
//! node.agent.remove_manifest("web");
//! node.wait_clean(SLOW);                         // nothing of the pod is left anywhere
//! ```
//!
//! A test that fails prints the end of the agent's log; `RUBELET_E2E_KEEP=1` keeps the directory.
//! `RUBELET_E2E_BINARY` runs another agent (say, the upstream kubelet) through the same tests.

mod agent;
mod http;
mod machine;
mod node;
mod registry;
mod runtime;
mod waiting;

pub use agent::Agent;
pub use http::{Response, get};
pub use machine::{cgroups_below, live_processes, loop_devices_below, mounts_below, port_maps_of};
pub use node::Node;
pub use registry::{PASSWORD, Registry, USER};
pub use runtime::{Runtime, Task, hack, run};
pub use waiting::{SLOW, wait, wait_until};
