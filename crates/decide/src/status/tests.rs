//! Tables over the whole derivation; each file is one part of it.

mod accepting;
mod conditions;
mod containers;
mod ends;
mod phases;
mod properties;
mod readiness;
mod whole;
