//! The CRI adapter: gRPC to the container runtime over its unix socket.
//!
//! ```text
//!   ports::Runtime, ports::Images        ports::RuntimeEvents
//!              |                                  |
//!          CriClient ---- to_wire, from_wire   RuntimeHints
//!              |              (pure)              |
//!        lists, call (deadline, status to error) |
//!              +------------- endpoint -----------+
//!                                |
//!                           unix socket
//! ```
//!
//! Nothing here decides. A call carries its deadline, is cancelled by dropping its future, and fails with an error
//! that says what to do about it. What a runtime answers is not trusted: an answer that lacks what it must have is
//! an error of that call, an unknown number takes the meaning that does least.

mod call;
mod client;
mod endpoint;
mod from_wire;
#[doc(hidden)]
pub mod fuzzing;
mod hints;
mod images;
mod invalid_entries;
mod lists;
mod runtime;
mod stream_refusal;
mod to_wire;

pub use client::CriClient;
pub use endpoint::EndpointError;
pub use hints::RuntimeHints;

/// CRI v1, as far as we speak it.
pub(crate) mod pb {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/runtime.v1.rs"));
}

/// containerd's own events.
pub(crate) mod containerd {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/containerd.services.events.v1.rs"));
}
