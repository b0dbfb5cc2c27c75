//! Checks of the source text that the compiler and clippy don't make.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::lexer::code_only;

const MOST_LINES: usize = 700;
const MANY_LINES: usize = 600;

/// Names that do not say what is inside.
const MEANINGLESS_NAMES: [&str; 8] =
    ["manager", "managers", "helper", "helpers", "util", "utils", "common", "misc"];

/// Marks of unfinished work, looked for in code without comments and literals.
const UNFINISHED: [(&str, &str); 3] = [
    ("todo!", "unfinished: write it, or leave the feature out"),
    ("unimplemented!", "unfinished: write it, or leave the feature out"),
    ("#[ignore", "an ignored test proves nothing: make it run or delete it"),
];

/// Directories that only exist on somebody's machine.
const MACHINE_PATHS: [&str; 4] = ["/work/", "/farm/", "/root/.", "/Users/"];

/// The only crate that may contain `unsafe`, each time with its reason.
const UNSAFE_CRATE: &str = "crates/host/";

#[derive(Debug, Default)]
pub struct Report {
    pub files: usize,
    pub warnings: Vec<String>,
    pub failures: Vec<String>,
}

/// Checks every text file below `root`.
pub fn check_tree(root: &Path) -> Result<Report> {
    let mut paths = Vec::new();
    collect(root, root, &mut paths)?;
    paths.sort();
    let mut report = Report::default();
    for path in &paths {
        // Files that aren't text are not checked.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        report.files += 1;
        check_file(path, &text, &mut report);
    }
    for name in crate_names(root)? {
        if let Some(failure) = crate_doc(root, &name) {
            report.failures.push(failure);
        }
    }
    Ok(report)
}

/// Paths of files below `dir`, relative to `root`. Hidden directories of the project are included, those of tools are
/// not.
fn collect(root: &Path, dir: &Path, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let ours = !name.starts_with('.') || [".ci", ".cargo", ".config"].contains(&name.as_str());
            if ours && name != "target" {
                collect(root, &path, paths)?;
            }
        } else if entry.file_type()?.is_file() && name != "Cargo.lock" && name != ".git" {
            paths.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn crate_names(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("crates")).context("list crates")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn crate_doc(root: &Path, name: &str) -> Option<String> {
    let sources = ["lib.rs", "main.rs"].map(|file| format!("crates/{name}/src/{file}"));
    let path = sources.iter().find(|path| root.join(path).exists())?;
    let text = fs::read_to_string(root.join(path)).unwrap_or_default();
    let described =
        text.lines().next().is_some_and(|line| line.len() > "//! ".len() && line.starts_with("//! "));
    (!described).then(|| format!("{path}:1: the crate's first line must say what it holds (//! ...)"))
}

/// Checks one file; `path` is relative to the root of the repository.
pub fn check_file(path: &str, text: &str, report: &mut Report) {
    // This file names what it looks for.
    if path != "crates/xtask/src/tidy.rs" {
        machine_paths(path, text, report);
    }
    if path.ends_with(".rs") {
        length(path, text, report);
        file_name(path, report);
        code(path, text, report);
    }
}

fn length(path: &str, text: &str, report: &mut Report) {
    let lines = text.lines().count();
    if lines > MOST_LINES {
        report.failures.push(format!("{path}: {lines} lines, more than {MOST_LINES}: split it by subject"));
    } else if lines > MANY_LINES {
        report.warnings.push(format!("{path}: {lines} lines, more than {MANY_LINES}"));
    }
}

fn file_name(path: &str, report: &mut Report) {
    for part in path.split('/') {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        if MEANINGLESS_NAMES.contains(&stem) {
            report
                .failures
                .push(format!("{path}: a module called `{stem}` says nothing: name what it holds"));
        }
    }
}

fn machine_paths(path: &str, text: &str, report: &mut Report) {
    for (index, line) in text.lines().enumerate() {
        for found in MACHINE_PATHS {
            let starts_path = |at: usize| {
                !line[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_-./}".contains(c))
            };
            if line.match_indices(found).any(|(at, _)| starts_path(at)) {
                report.failures.push(format!("{path}:{}: a path of one machine: {found}", index + 1));
            }
        }
    }
}

fn code(path: &str, text: &str, report: &mut Report) {
    let code = code_only(text);
    let original: Vec<&str> = text.lines().collect();
    for (index, line) in code.lines().enumerate() {
        let place = format!("{path}:{}", index + 1);
        for (mark, why) in UNFINISHED {
            if line.contains(mark) {
                report.failures.push(format!("{place}: {mark} {why}"));
            }
        }
        if let Some(name) = inline_module(line).filter(|name| MEANINGLESS_NAMES.contains(name)) {
            report
                .failures
                .push(format!("{place}: a module called `{name}` says nothing: name what it holds"));
        }
        if words(line).any(|word| word == "unsafe") {
            if !path.starts_with(UNSAFE_CRATE) {
                report.failures.push(format!("{place}: unsafe code belongs into {UNSAFE_CRATE}"));
            } else if !has_safety_comment(&original, index) {
                report.failures.push(format!("{place}: unsafe without a SAFETY comment above it"));
            }
        }
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn inline_module(line: &str) -> Option<&str> {
    let mut words = words(line).filter(|word| !word.is_empty());
    words.find(|word| !["pub", "crate", "super"].contains(word)).filter(|word| *word == "mod")?;
    words.next()
}

/// The comment stands directly above; attributes may come between.
fn has_safety_comment(lines: &[&str], index: usize) -> bool {
    lines[..index]
        .iter()
        .rev()
        .map(|line| line.trim_start())
        .take_while(|line| line.starts_with("//") || line.starts_with("#["))
        .any(|line| line.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::{MANY_LINES, MOST_LINES, Report, check_file};

    fn failures(path: &str, text: &str) -> Vec<String> {
        let mut report = Report::default();
        check_file(path, text, &mut report);
        report.failures
    }

    fn check(path: &str, text: &str, expect: &[&str]) {
        let failures = failures(path, text);
        assert_eq!(failures.len(), expect.len(), "{path} gave {failures:?}");
        for (failure, expect) in failures.iter().zip(expect) {
            assert!(failure.contains(expect), "{failure:?} lacks {expect:?}");
        }
    }

    #[test]
    fn long_files_warn_and_then_fail() {
        let mut report = Report::default();
        check_file("crates/x/src/a.rs", &"\n".repeat(MANY_LINES), &mut report);
        assert!(report.warnings.is_empty() && report.failures.is_empty());
        check_file("crates/x/src/a.rs", &"\n".repeat(MOST_LINES), &mut report);
        assert_eq!((report.warnings.len(), report.failures.len()), (1, 0));
        check_file("crates/x/src/a.rs", &"\n".repeat(MOST_LINES + 1), &mut report);
        assert_eq!((report.warnings.len(), report.failures.len()), (1, 1));
    }

    #[test]
    fn names_must_say_something() {
        check("crates/x/src/util.rs", "", &["`util`"]);
        check("crates/x/src/helpers/mod.rs", "", &["`helpers`"]);
        check("crates/x/src/a.rs", "pub(crate) mod manager {}", &["a.rs:1: a module called `manager`"]);
        check("crates/x/src/a.rs", "mod probe_manager_facts;\nlet common = 1;", &[]);
        check("docs/common.md", "", &[]);
    }

    #[test]
    fn unfinished_work_is_found_in_code_only() {
        check("crates/x/src/a.rs", "fn f() {\n    todo!()\n}", &["a.rs:2: todo!"]);
        check("crates/x/src/a.rs", "    #[ignore = \"slow\"]", &["#[ignore"]);
        check("crates/x/src/a.rs", "unimplemented!(\"later\")", &["unimplemented!"]);
        check("crates/x/src/a.rs", "// no todo! here\nlet x = \"todo!\";", &[]);
    }

    #[test]
    fn machine_paths_are_found_everywhere() {
        check("docs/a.md", "see `/work/main`", &["docs/a.md:1: a path of one machine"]);
        check("crates/x/src/a.rs", "// in /root/.cache/x", &["/root/."]);
        check("docs/a.md", "https://example.org/work/x and $dir/work/x and a/root/.b", &[]);
    }

    #[test]
    fn unsafe_needs_its_crate_and_its_reason() {
        check("crates/decide/src/a.rs", "unsafe { f() }", &["belongs into"]);
        check("crates/host/src/a.rs", "unsafe { f() }", &["SAFETY"]);
        check(
            "crates/host/src/a.rs",
            "// SAFETY: f has no contract\n#[allow(unsafe_code)]\nunsafe { f() }",
            &[],
        );
        check("crates/host/src/a.rs", "// SAFETY: far away\nlet x = 1;\nunsafe { f() }", &["SAFETY"]);
        check("crates/decide/src/a.rs", "#![forbid(unsafe_code)] // unsafe", &[]);
    }
}
