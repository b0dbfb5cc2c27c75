//! placeholder
pub struct RuntimeHints;
