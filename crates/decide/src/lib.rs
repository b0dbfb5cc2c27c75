//! decide

pub mod restart;
pub mod sandbox;
pub mod status;
