//! Chores of the project itself: the tidy checks and the dependency law.
//!
//! `cargo xtask tidy` runs the first; the second is a test (`tests/dependency_law.rs`), so that it can't be
//! forgotten.

pub mod dependency_law;
pub mod lexer;
pub mod tidy;
