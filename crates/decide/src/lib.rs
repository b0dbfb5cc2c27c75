//! decide

pub mod cgroups;
pub mod render;
pub mod resources;
pub mod volumes;
