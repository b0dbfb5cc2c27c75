//! The targets, by what they read.

pub mod credentials;
pub mod host;
pub mod pods;
pub mod settings;
pub mod wire;
