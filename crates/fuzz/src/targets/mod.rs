//! The fuzz targets, by what they parse.

pub mod credentials;
pub mod host;
pub mod pods;
pub mod settings;
pub mod wire;
