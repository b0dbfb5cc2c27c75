//! Which lines are written: the kubelet's `-v`, and `logging.vmodule` for single files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::subscriber::Interest;
use tracing::{Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::config::VmoduleItem;

/// The crates whose lines the verbosity is about; of others only warnings are written.
const OUR_CRATES: [&str; 11] = [
    "apiserver",
    "cri",
    "decide",
    "engine",
    "host",
    "model",
    "otlp",
    "plugins",
    "ports",
    "rubelet",
    "server",
];

/// Lines by verbosity. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Verbosity {
    level: Arc<AtomicU32>,
    files: Arc<[VmoduleItem]>,
}

impl Verbosity {
    pub(super) fn new(level: u32, files: &[VmoduleItem]) -> Self {
        Self { level: Arc::new(AtomicU32::new(level)), files: files.into() }
    }

    pub(super) fn set(&self, level: u32) {
        self.level.store(level, Ordering::Relaxed);
        // Places in the code remember whether anybody wants their lines.
        tracing::callsite::rebuild_interest_cache();
    }

    fn allows(&self, about: &Metadata<'_>) -> bool {
        let target = about.target().split("::").next().unwrap_or_default();
        if !OUR_CRATES.contains(&target) {
            return *about.level() <= Level::WARN;
        }
        let by_file = about.file().and_then(|file| self.of_file(file));
        *about.level() <= max_level(by_file.unwrap_or_else(|| self.level.load(Ordering::Relaxed)))
    }

    /// The first pattern that fits counts, as in klog.
    fn of_file(&self, file: &str) -> Option<u32> {
        let fits = |item: &&VmoduleItem| fits(&item.file_pattern, file);
        self.files.iter().find(fits).map(|item| item.verbosity)
    }
}

impl<S> Filter<S> for Verbosity {
    fn enabled(&self, about: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.allows(about)
    }

    fn callsite_enabled(&self, about: &'static Metadata<'static>) -> Interest {
        if self.allows(about) { Interest::always() } else { Interest::never() }
    }
}

fn max_level(verbosity: u32) -> Level {
    match verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

/// A pattern with a slash is about the path, another about the name of the file; `.rs` is left out, and a directory stands
/// for its `mod.rs`.
fn fits(pattern: &str, file: &str) -> bool {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    matches(pattern.as_bytes(), if pattern.contains('/') { path } else { name }.as_bytes())
}

/// `*` is any number of letters, `?` is one.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) if matches(rest, text) => true,
        (Some((b'*', _)), Some((_, tail))) => matches(pattern, tail),
        (Some((b'?', rest)), Some((_, tail))) => matches(rest, tail),
        (Some((letter, rest)), Some((other, tail))) if letter == other => matches(rest, tail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_about_files() {
        let check = |pattern: &str, file: &str, expect: bool| {
            assert_eq!(fits(pattern, file), expect, "{pattern} {file}");
        };
        check("executor", "crates/engine/src/executor.rs", true);
        check("exec*", "crates/engine/src/executor.rs", true);
        check("e?ecutor", "crates/engine/src/executor.rs", true);
        check("exec", "crates/engine/src/executor.rs", false);
        check("node", "crates/decide/src/node/mod.rs", true);
        check("crates/engine/*", "crates/engine/src/executor.rs", true);
        check("crates/cri/*", "crates/engine/src/executor.rs", false);
        check("*", "crates/engine/src/executor.rs", true);
        check("", "crates/engine/src/executor.rs", false);
    }
}
