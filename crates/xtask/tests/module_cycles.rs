//! Holds the crates to layers: no module uses one that uses it, however indirectly.

use std::path::Path;

use xtask::module_graph::ModuleGraph;

/// The crates whose modules are in layers at every level.
const LAYERED: [&str; 13] = [
    "model",
    "manifest",
    "decide",
    "ports",
    "engine",
    "cri",
    "apiserver",
    "otlp",
    "plugins",
    "rubelet",
    "fakecri",
    "fuzz",
    "xtask",
];

#[test]
fn no_module_uses_one_that_uses_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for name in LAYERED {
        let graph = ModuleGraph::read(&crates.join(name).join("src")).expect("the modules of a crate");
        assert!(graph.module_count() > 1, "{name}: no modules were read");
        found.extend(graph.cycles().into_iter().map(|cycle| format!("{name}: {cycle}")));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}
