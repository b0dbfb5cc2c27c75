//! Which modules of a crate use which, read from the sources, and the cycles among them.
//!
//! Modules are compared level by level: the top-level modules of a crate with each other, then the modules below each
//! of them. What is anywhere below a module counts as the module. What `lib.rs` itself defines counts as one more
//! top-level module, so that the root can't be the place where a cycle hides. Test modules don't count.
//!
//! Re-exports are followed: who uses `crate::Effect` uses the module that defines it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::lexer::code_only;
use crate::paths::{PathUse, SourceItems, read_items};

/// The names of the modules from the root of the crate down to one; empty for the root.
type ModulePath = Vec<String>;

/// How many re-exports in a row are followed.
const MAX_REEXPORTS: usize = 16;

#[derive(Debug, Default)]
struct Module {
    /// Relative to the directory of the crate's sources.
    file: String,
    /// What each name means that a `use` brings into the module, as written there.
    imports: BTreeMap<String, Vec<String>>,
    paths: Vec<PathUse>,
}

#[derive(Debug, Default)]
pub struct ModuleGraph {
    modules: BTreeMap<ModulePath, Module>,
}

/// One place where a module uses another.
#[derive(Clone, Debug)]
struct Edge {
    file: String,
    line: usize,
    path: String,
    target_file: String,
}

/// The modules of one level, each with those that it uses.
type Level = BTreeMap<String, BTreeMap<String, Edge>>;

impl ModuleGraph {
    /// Reads the crate whose sources are in `src`.
    pub fn read(src: &Path) -> Result<ModuleGraph> {
        let read = |path: &str| fs::read_to_string(src.join(path)).ok();
        Self::from_sources(&read).with_context(|| format!("read the modules of {}", src.display()))
    }

    /// `read` gives the text of a source file; the root is `lib.rs`, or `main.rs` if there is none.
    fn from_sources(read: &dyn Fn(&str) -> Option<String>) -> Result<ModuleGraph> {
        let root = ["lib.rs", "main.rs"].into_iter().find(|file| read(file).is_some());
        let root = root.context("neither lib.rs nor main.rs")?;
        let mut graph = ModuleGraph::default();
        let mut unread = VecDeque::from([(ModulePath::new(), root.to_owned())]);
        while let Some((path, file)) = unread.pop_front() {
            let text = read(&file).with_context(|| format!("no file {file}"))?;
            let dir = directory_of_children(&file);
            for item in read_items(&code_only(&text)) {
                let mut module_path = path.clone();
                module_path.extend(item.inline.iter().cloned());
                for child in &item.children {
                    let stem = [&dir[..], &item.inline, std::slice::from_ref(child)].concat().join("/");
                    let files = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
                    let Some(file) = files.into_iter().find(|file| read(file).is_some()) else {
                        bail!("{file}: no file for its module {child}");
                    };
                    unread.push_back(([&module_path[..], std::slice::from_ref(child)].concat(), file));
                }
                let SourceItems { imports, paths, .. } = item;
                graph.modules.insert(module_path, Module { file: file.clone(), imports, paths });
            }
        }
        Ok(graph)
    }

    /// The number of modules, the root included.
    pub fn module_count(&self) -> usize {
        self.modules.len()
    }

    /// A shortest cycle of each level that has any, written out file by file.
    pub fn cycles(&self) -> Vec<String> {
        let parents: BTreeSet<&[String]> =
            self.modules.keys().filter_map(|path| path.split_last()).map(|(_, parent)| parent).collect();
        let cycle = |parent: &&[String]| {
            let edges = shortest_cycle(&self.level(parent))?;
            let place = ["crate"].into_iter().chain(parent.iter().map(String::as_str));
            let mut text = format!("modules below {} use each other:", Vec::from_iter(place).join("::"));
            for Edge { file, line, path, target_file } in edges {
                text.push_str(&format!("\n  {file}:{line} uses {path} of {target_file}"));
            }
            Some(text)
        };
        parents.iter().filter_map(cycle).collect()
    }

    fn level(&self, parent: &[String]) -> Level {
        let mut level = Level::new();
        for (path, module) in &self.modules {
            let Some(from) = node_of(parent, path) else { continue };
            for used in &module.paths {
                let Some(target) = self.resolve(path, &used.segments, 0) else { continue };
                let Some(to) = node_of(parent, target).filter(|to| *to != from) else { continue };
                level.entry(from.to_owned()).or_default().entry(to.to_owned()).or_insert_with(|| Edge {
                    file: module.file.clone(),
                    line: used.line,
                    path: used.segments.join("::"),
                    target_file: self.modules[target].file.clone(),
                });
            }
        }
        level
    }

    /// The module that defines what a path in the module `from` names. `None`: another crate.
    fn resolve(&self, from: &[String], segments: &[String], reexports: usize) -> Option<&ModulePath> {
        if reexports > MAX_REEXPORTS {
            return None;
        }
        let (first, rest) = segments.split_first()?;
        let below = [from, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => self.resolve_below(&[], rest, reexports),
            "self" => self.resolve_below(from, rest, reexports),
            "super" => {
                let (_, parent) = from.split_last()?;
                match rest.first().map(String::as_str) {
                    Some("super") => self.resolve(parent, rest, reexports),
                    _ => self.resolve_below(parent, rest, reexports),
                }
            }
            _ if self.modules.contains_key(&below) => self.resolve_below(&below, rest, reexports),
            name => {
                let import = self.modules.get(from)?.imports.get(name)?;
                self.resolve(from, &[import, rest].concat(), reexports + 1)
            }
        }
    }

    /// Goes down from the module `start` as far as `segments` name modules, and then follows a re-export.
    fn resolve_below(&self, start: &[String], segments: &[String], reexports: usize) -> Option<&ModulePath> {
        let mut path = start.to_vec();
        let mut rest = segments;
        while let Some((name, after)) = rest.split_first() {
            path.push(name.clone());
            if !self.modules.contains_key(&path) {
                path.pop();
                break;
            }
            rest = after;
        }
        let (known, module) = self.modules.get_key_value(&path)?;
        match rest.first().and_then(|name| module.imports.get(name)) {
            Some(import) => self.resolve(known, &[import, &rest[1..]].concat(), reexports + 1),
            None => Some(known),
        }
    }
}

fn directory_of_children(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

/// The node of a module in the level below `parent`.
fn node_of<'a>(parent: &[String], path: &'a [String]) -> Option<&'a str> {
    match path.strip_prefix(parent)? {
        [name, ..] => Some(name),
        [] if parent.is_empty() => Some("lib.rs"),
        [] => None,
    }
}

fn shortest_cycle(level: &Level) -> Option<Vec<Edge>> {
    level.keys().filter_map(|start| way_back(level, start)).min_by_key(Vec::len)
}

/// A shortest way from a module to itself.
fn way_back(level: &Level, start: &str) -> Option<Vec<Edge>> {
    let mut came_from: BTreeMap<&str, (&str, &Edge)> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(name) = queue.pop_front() {
        let Some((name, uses)) = level.get_key_value(name) else { continue };
        for (used, edge) in uses {
            if !came_from.contains_key(used.as_str()) {
                came_from.insert(used, (name, edge));
                queue.push_back(used);
            }
        }
    }
    let mut way = Vec::new();
    let mut at = start;
    while way.is_empty() || at != start {
        let (from, edge) = came_from.get(at)?;
        way.push((*edge).clone());
        at = from;
    }
    way.reverse();
    Some(way)
}

#[cfg(test)]
mod tests {
    use super::ModuleGraph;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        ModuleGraph::from_sources(&read).expect("modules").cycles()
    }

    /// Each expected cycle is its `file:line` places.
    fn check(files: &[(&str, &str)], expect: &[&str]) {
        let places = |text: String| {
            let lines = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
            Vec::from_iter(lines.map(str::to_owned)).join(" ")
        };
        let found: Vec<String> = cycles(files).into_iter().map(places).collect();
        assert_eq!(found, expect, "{files:#?}");
    }

    #[test]
    fn a_cycle_is_written_out_file_by_file() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a.rs", "//! Uses b.\nuse crate::b::B;"),
            ("b.rs", "fn f() { crate::c::g() }"),
            ("c/mod.rs", "mod d;"),
            ("c/d.rs", "use super::super::a;"),
        ];
        let expect = "modules below crate use each other:\
                      \n  a.rs:2 uses crate::b::B of b.rs\
                      \n  b.rs:1 uses crate::c::g of c/mod.rs\
                      \n  c/d.rs:1 uses super::super::a of a.rs";
        assert_eq!(cycles(&files), [expect]);
        check(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "struct B;")], &[]);
    }

    #[test]
    fn the_shortest_cycle_is_shown() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;\nuse crate::b;"),
        ];
        check(&files, &["b.rs:1 c.rs:2"]);
    }

    #[test]
    fn each_level_is_checked() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x;\nmod y;\nuse x::X;"),
            ("a/x.rs", "use super::y::Y;"),
            ("a/y.rs", "fn f() { super::x::g() }"),
        ];
        check(&files, &["a/x.rs:1 a/y.rs:1"]);
    }

    #[test]
    fn every_way_to_name_a_module_counts() {
        let check = |a: &str, cycle: bool| {
            let files = [
                ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;\npub use c::C;"),
                ("a.rs", a),
                ("b.rs", "use crate::a::A;\npub use model::M;"),
                ("c.rs", ""),
            ];
            assert_eq!(!cycles(&files).is_empty(), cycle, "{a}");
        };
        check("use crate::b::B;", true);
        check("use crate::{c, b::{self, B as X}};", true);
        check("use crate::{\n    c::{C, D},\n    b,\n};", true);
        check("pub(crate) use super::b::*;", true);
        check("fn f() -> super::b::B { }", true);
        check("fn f() { matches!(x, crate::b::B::X) }", true);
        check("fn f(b: &'static crate::b::B) {}", true);
        check("use crate::B;", true);
        check("use crate::C;", false);
        check("fn f() { crate::B::new() }", true);
        check("use crate::b::M;", false);
        check("mod inline { fn f() { super::super::b::g() } }", true);
        check("mod inline { use super::b; }", false);
        check("// crate::b\nconst X: &str = \"crate::b\";", false);
        check("fn f() { other::crate_b::b::B }", false);
        check("pub(in crate::a) fn f() {}", false);
    }

    #[test]
    fn tests_do_not_count() {
        let check = |a: &str, cycle: bool| {
            let files = [
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", a),
                ("b.rs", "use crate::a;"),
                ("a/t.rs", "use crate::b;"),
            ];
            assert_eq!(!cycles(&files).is_empty(), cycle, "{a}");
        };
        check("mod t;", true);
        check("#[cfg(test)]\nmod t;", false);
        check("#[cfg(test)]\n#[expect(x)]\npub mod t {\n use crate::b; fn f() { if x { } }\n}", false);
        check("#[cfg(test)]\nmod t { use crate::b; }\nuse crate::b;", true);
        check("#[cfg(test)]\nuse crate::{b};", false);
        check("#[cfg(test)]\nuse crate::{c};\nuse crate::b;", true);
        check("#[cfg(test)] const X: u8 = { crate::b::X };", false);
        check("#[cfg(all(test, unix))] fn f(x: crate::b::B) -> X { crate::b::f() }", false);
        check("#[cfg(not(test))] fn f() { crate::b::f() }", true);
        check("#[test] fn f() { crate::b::f() }", false);
    }

    #[test]
    fn the_root_is_a_module_too() {
        let files = [("lib.rs", "mod a;\nuse a::A;\npub struct Root(A);"), ("a.rs", "use crate::Root;")];
        check(&files, &["a.rs:1 lib.rs:2"]);
        let files = [("lib.rs", "mod a;\npub use a::A;\npub struct Root;"), ("a.rs", "fn f() {}")];
        check(&files, &[]);
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let read = |path: &str| (path == "lib.rs").then(|| "mod gone;".to_owned());
        let error = ModuleGraph::from_sources(&read).expect_err("no file").to_string();
        assert_eq!(error, "lib.rs: no file for its module gone");
    }
}
