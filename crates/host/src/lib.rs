//! The Linux side of the node: directories, volumes and logs of pods, and where pods come from.

pub mod feed;
pub mod files;
pub mod logs;
pub mod mountinfo;
