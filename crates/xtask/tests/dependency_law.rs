//! Holds the workspace to the dependency law, from what cargo itself says about it.

use std::path::Path;

use cargo_metadata::MetadataCommand;
use xtask::dependency_law::DependencyGraph;

#[test]
fn the_workspace_keeps_the_law() {
    let metadata = MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"))
        // Packages of other platforms need not be fetched for this.
        .other_options(["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(String::from))
        .exec()
        .expect("cargo metadata");
    let graph = DependencyGraph::from_metadata(&metadata).expect("a dependency graph");
    assert!(graph.workspace.contains("decide"), "no workspace in {:?}", graph.workspace);
    let uses_model = graph.uses.get("decide").is_some_and(|uses| uses.contains("model"));
    assert!(uses_model, "decide uses model: the graph's edges were not read");
    let violations = graph.violations();
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}
