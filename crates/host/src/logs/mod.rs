//! Reading container log files as the runtime writes them.
//!
//! A container with a hostPath on the logs directory could put a symlink to any file of the node where a log
//! is expected, so files are opened beneath the logs directory without following a single link, and only
//! regular files are read.

mod line;
mod open;
mod render;
mod stream;
mod tail;

pub use open::open_log;
pub use stream::{LogOptions, stream};

pub(crate) use open::open_regular;
pub(crate) use tail::read_tail;

#[cfg(test)]
mod stream_tests;
