//! Chores of the project itself: the tidy checks, the dependency law and the layers of modules.
//!
//! `cargo xtask tidy` runs the first; the others are tests (`tests/dependency_law.rs`, `tests/module_cycles.rs`), so
//! that they can't be forgotten.

pub mod dependency_law;
mod lexer;
pub mod module_graph;
mod paths;
pub mod tidy;
