//! `hack/build-cache.sh` gives two trees one build directory, and each still gets what is its own.

// These tests run real programs.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A workspace of one program that prints `word`.
fn write_tree(dir: &Path, word: &str) {
    fs::create_dir_all(dir.join("crates/toy/src")).unwrap();
    fs::write(dir.join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n").unwrap();
    let manifest = "[package]\nname = \"toy\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    fs::write(dir.join("crates/toy/Cargo.toml"), manifest).unwrap();
    fs::write(dir.join("crates/toy/src/main.rs"), format!("fn main() {{ println!(\"{word}\"); }}\n"))
        .unwrap();
}

/// Runs a script in a tree, after `hack/build-cache.sh`, and gives its output.
fn with_cache(tree: &Path, cache: &Path, script: &str) -> String {
    let hack = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../hack");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c"])
        .arg(format!(". \"$HACK/env.sh\"; . \"$HACK/build-cache.sh\"; use_build_cache 2>&1; {script}"))
        .env("HACK", &hack)
        .env("XDG_CACHE_HOME", cache)
        .env_remove("CARGO_BUILD_BUILD_DIR")
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(tree)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} ended with {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_tree_that_is_older_than_anothers_build_is_compiled() {
    let temp = TempDir::new().unwrap();
    let (older, newer, cache) =
        (temp.path().join("older"), temp.path().join("newer"), temp.path().join("cache"));
    write_tree(&older, "older");
    write_tree(&newer, "newer");
    const BUILD: &str = "cargo build --quiet --offline; target/debug/toy; ls target/debug";
    for (tree, word) in [(&newer, "newer"), (&older, "older"), (&older, "older"), (&newer, "newer")] {
        let said = with_cache(tree, &cache, BUILD);
        assert_eq!(said.lines().next(), Some(word), "{said}");
        assert!(!said.contains("deps"), "compiled in the tree: {said}");
    }
}

#[test]
fn a_second_run_at_the_same_time_compiles_in_its_tree() {
    let temp = TempDir::new().unwrap();
    let (tree, cache) = (temp.path().join("tree"), temp.path().join("cache"));
    write_tree(&tree, "word");
    let inner = "env -u CARGO_BUILD_BUILD_DIR bash -c '. \"$HACK/env.sh\"; . \"$HACK/build-cache.sh\"; \
                 use_build_cache; echo \"inner ${CARGO_BUILD_BUILD_DIR:-none}\"'; echo \"outer $CARGO_BUILD_BUILD_DIR\"";
    let said = with_cache(&tree, &cache, inner);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"inner none"), "{said}");
    assert!(lines[1].starts_with(&format!("outer {}", cache.display())), "{said}");
}
