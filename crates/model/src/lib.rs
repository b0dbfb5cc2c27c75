//! model

pub mod codec;
pub mod quantity;
