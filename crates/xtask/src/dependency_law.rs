//! The dependency law: which crate of the workspace may use which, and what the pure ones may never
//! reach.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata};

/// What each crate may use of the workspace. A crate that isn't here is not allowed yet.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("manifest", &["model"]),
    ("decide", &["model", "manifest"]),
    ("ports", &["model"]),
    ("engine", &["model", "decide", "ports"]),
    ("cri", ADAPTER),
    ("host", ADAPTER),
    ("apiserver", ADAPTER),
    ("otlp", ADAPTER),
    ("plugins", ADAPTER),
    ("server", ADAPTER),
    ("sim", &["model", "decide", "ports", "engine"]),
    (
        "rubelet",
        &[
            "model",
            "manifest",
            "decide",
            "ports",
            "engine",
            "cri",
            "host",
            "apiserver",
            "otlp",
            "plugins",
            "server",
            "tls",
        ],
    ),
    // Calls the product's parsers, and is not part of it.
    ("fuzz", &["model", "manifest", "decide", "ports", "cri", "host", "apiserver", "server", "rubelet"]),
    // A simulated runtime behind a real socket. It speaks only the CRI protocol; only benchmarks and tests use it.
    ("fakecri", &["protos"]),
    // Build scripts compile their protos with it.
    ("protos", &[]),
    // TLS configurations that several adapters need.
    ("tls", &[]),
    ("xtask", &[]),
];

/// Adapters use the types and the traits that they implement, and never each other.
const ADAPTER: &[&str] = &["model", "ports", "protos", "tls"];

/// Crates that only compute: the same input gives the same output, on any machine.
const PURE: [&str; 3] = ["model", "manifest", "decide"];

/// What a pure crate may not reach, however indirectly: I/O, clocks, randomness.
const IMPURE: [&str; 12] = [
    "tokio",
    "tonic",
    "hyper",
    "kube",
    "nix",
    "rustix",
    "rand",
    "getrandom",
    "fastrand",
    "inotify",
    "mio",
    "reqwest",
];

/// Packages by name with the packages they are built from: normal and build dependencies, not those of
/// tests.
#[derive(Debug, Default)]
pub struct DependencyGraph {
    pub workspace: BTreeSet<String>,
    pub uses: BTreeMap<String, BTreeSet<String>>,
}

impl DependencyGraph {
    pub fn from_metadata(metadata: &Metadata) -> Result<DependencyGraph> {
        let names: BTreeMap<_, _> =
            metadata.packages.iter().map(|package| (&package.id, package.name.to_string())).collect();
        let mut graph = DependencyGraph::default();
        let members: BTreeSet<_> = metadata.workspace_members.iter().collect();
        for node in &metadata.resolve.as_ref().context("cargo metadata gave no dependency graph")?.nodes {
            let name = names.get(&node.id).context("cargo metadata names no package for a node")?;
            if members.contains(&node.id) {
                graph.workspace.insert(name.clone());
            }
            // Two versions of one package become one entry here: what either uses counts.
            let uses = graph.uses.entry(name.clone()).or_default();
            for dep in &node.deps {
                let built_in = |kind| dep.dep_kinds.iter().any(|info| info.kind == kind);
                // Build scripts of foreign packages run on the build machine only; ours are code of the workspace.
                let counts = built_in(DependencyKind::Normal)
                    || (members.contains(&node.id) && built_in(DependencyKind::Build));
                if counts && let Some(used) = names.get(&dep.pkg) {
                    uses.insert(used.clone());
                }
            }
        }
        Ok(graph)
    }

    /// A message for each violation of the law.
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for name in &self.workspace {
            let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| known == name) else {
                found.push(format!(
                    "{name} has no place in the dependency law (crates/xtask/src/dependency_law.rs)"
                ));
                continue;
            };
            for used in self.uses.get(name).into_iter().flatten() {
                if self.workspace.contains(used) && !allowed.contains(&used.as_str()) {
                    found.push(format!("{name} may not use {used}"));
                }
            }
            if PURE.contains(&name.as_str()) {
                found.extend(
                    IMPURE
                        .iter()
                        .filter_map(|impure| self.path(name, impure))
                        .map(|path| format!("{name} is pure and may not reach {}", path.join(" -> "))),
                );
            }
        }
        found
    }

    /// A shortest way from one package to another, both included.
    fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(name) = queue.pop_front() {
            if name == to {
                let mut path = vec![name.to_owned()];
                let mut at = name;
                while at != from {
                    at = came_from[at];
                    path.push(at.to_owned());
                }
                path.reverse();
                return Some(path);
            }
            for used in self.uses.get(name).into_iter().flatten() {
                if used != from && !came_from.contains_key(used.as_str()) {
                    came_from.insert(used, name);
                    queue.push_back(used);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::DependencyGraph;

    /// `workspace` names the members; each edge reads "user > used".
    fn violations(workspace: &[&str], edges: &[&str]) -> Vec<String> {
        let mut graph = DependencyGraph::default();
        graph.workspace.extend(workspace.iter().map(|name| name.to_string()));
        for edge in edges {
            let (user, used) = edge.split_once(" > ").expect("an edge");
            graph.uses.entry(user.to_owned()).or_default().insert(used.to_owned());
        }
        graph.violations()
    }

    fn check(workspace: &[&str], edges: &[&str], expect: &[&str]) {
        assert_eq!(violations(workspace, edges), expect, "for {edges:?}");
    }

    #[test]
    fn the_design_is_lawful() {
        check(
            &["model", "decide", "ports", "engine", "cri", "host", "server", "sim", "rubelet"],
            &[
                "decide > model",
                "ports > model",
                "engine > decide",
                "engine > ports",
                "engine > tokio",
                "cri > ports",
                "cri > tonic",
                "host > rustix",
                "server > ports",
                "sim > decide",
                "sim > engine",
                "rubelet > cri",
                "rubelet > server",
                "model > serde",
            ],
            &[],
        );
    }

    #[test]
    fn each_break_is_told() {
        check(&["cri", "host"], &["cri > host"], &["cri may not use host"]);
        check(&["server", "engine"], &["server > engine"], &["server may not use engine"]);
        check(&["rubelet", "sim"], &["rubelet > sim"], &["rubelet may not use sim"]);
        check(&["rubelet", "xtask"], &["rubelet > xtask"], &["rubelet may not use xtask"]);
        check(&["rubelet", "fuzz"], &["rubelet > fuzz"], &["rubelet may not use fuzz"]);
        check(&["model", "decide"], &["model > decide"], &["model may not use decide"]);
        check(&["engine", "cri"], &["engine > cri"], &["engine may not use cri"]);
        check(
            &["gadgets"],
            &[],
            &["gadgets has no place in the dependency law (crates/xtask/src/dependency_law.rs)"],
        );
    }

    #[test]
    fn pure_crates_reach_no_io_however_indirectly() {
        check(&["decide"], &["decide > tokio"], &["decide is pure and may not reach decide -> tokio"]);
        check(
            &["model", "decide"],
            &["decide > model", "model > handy", "handy > deeper", "deeper > rand", "deeper > handy"],
            &[
                "decide is pure and may not reach decide -> model -> handy -> deeper -> rand",
                "model is pure and may not reach model -> handy -> deeper -> rand",
            ],
        );
        check(&["engine"], &["engine > tokio"], &[]);
    }
}
