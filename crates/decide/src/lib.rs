//! decide

pub mod manifest;
