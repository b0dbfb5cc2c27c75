//! The plugin adapter: gRPC to the sockets that plugins of this node open.
//!
//! ```text
//!   ports::PluginSockets            ports::CsiDrivers
//!          |                               |
//!   PluginRegistry (inotify)          DriverClients ---- to_wire (pure)
//!          |                               |
//!          +-------------- call -----------+
//!                            |
//!                       unix sockets
//! ```
//!
//! Nothing here decides. Every call has a deadline and is cancelled by dropping its future. What a plugin answers is
//! not trusted: it is bounded in size, and an unknown number takes the meaning that does least.

mod call;
mod drivers;
mod registry;
mod to_wire;

pub use drivers::DriverClients;
pub use registry::PluginRegistry;

/// The registration service, as far as we speak it.
pub(crate) mod registration {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/pluginregistration.rs"));
}

/// CSI v1, as far as we speak it.
pub(crate) mod csi {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/csi.v1.rs"));
}

/// The plugins' side, for drivers of tests.
#[cfg(any(test, feature = "server"))]
pub mod test_server {
    pub mod registration {
        #![allow(clippy::all)]
        include!(concat!(env!("OUT_DIR"), "/server/pluginregistration.rs"));
    }
    pub mod csi {
        #![allow(clippy::all)]
        include!(concat!(env!("OUT_DIR"), "/server/csi.v1.rs"));
    }
}
