//! Fuzz targets for everything that reads bytes which others wrote, with their kept inputs. No part of the product.
//!
//! ```text
//! corpus/<target>/*  ──> tests/corpus.rs   every input, and some thousand mutations of them; in the normal tests
//!                    ──> bin/guided.rs     libFuzzer, led by coverage; hack/fuzz
//! ```
//!
//! A target takes any bytes. It panics when a promise is broken: no panic of the reader itself, what was understood
//! survives a round trip, output is bounded by input, and time grows with the input's length.

pub mod mutate;
mod scratch;
mod target;
mod targets;

use std::path::PathBuf;

pub use target::Target;

/// All of them, by name.
pub fn targets() -> Vec<Target> {
    let mut all = Vec::new();
    all.extend(targets::pods::TARGETS);
    all.extend(targets::settings::TARGETS);
    all.extend(targets::credentials::TARGETS);
    all.extend(targets::host::TARGETS);
    all.extend(targets::wire::TARGETS);
    all.sort_by_key(|target| target.name);
    all
}

/// Where the kept inputs of a target are.
pub fn corpus_dir(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
