//! The paths that a source file names: a scan of tokens that knows modules, `use` and test code, and nothing else of
//! the language.

use std::collections::BTreeMap;

/// A path as it is written: `crate::a::B` or `super::c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathUse {
    pub segments: Vec<String>,
    pub line: usize,
}

/// What one module of a file contains, without its tests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceItems {
    /// The modules with a body in this file (`mod a { ... }`) that lead to this one; empty for the file's own module.
    pub inline: Vec<String>,
    /// Modules that are in files of their own.
    pub children: Vec<String>,
    /// The names that `use` brings in, with their paths. A glob brings in no name.
    pub imports: BTreeMap<String, Vec<String>>,
    pub paths: Vec<PathUse>,
}

/// The modules of a file. `code` has no comments and literals any more.
pub fn read_items(code: &str) -> Vec<SourceItems> {
    let mut scan = Scan { tokens: tokens(code), at: 0, found: Vec::new() };
    scan.module(Vec::new());
    scan.found
}

struct Token<'a> {
    text: &'a str,
    line: usize,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (index, mut rest) in code.lines().enumerate() {
        while let Some(first) = rest.chars().next() {
            let len = match first {
                // A raw name is the name behind its mark.
                'r' if rest.starts_with("r#") => {
                    rest = &rest[2..];
                    continue;
                }
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            let (text, after) = rest.split_at(len);
            if !first.is_whitespace() {
                found.push(Token { text, line: index + 1 });
            }
            rest = after;
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words that begin an item which ends with a `;` or with its braces.
const ITEMS: [&str; 14] = [
    "pub",
    "fn",
    "struct",
    "enum",
    "union",
    "impl",
    "trait",
    "mod",
    "type",
    "unsafe",
    "async",
    "extern",
    "macro_rules",
    "auto",
];

/// Words that begin something which ends with a `;`, whatever braces come before.
const STATEMENTS: [&str; 4] = ["use", "let", "const", "static"];

struct Scan<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    found: Vec<SourceItems>,
}

impl<'a> Scan<'a> {
    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    fn is_name(&self, at: usize) -> bool {
        self.text(at).starts_with(|c: char| c.is_alphabetic() || c == '_')
    }

    /// Reads a module up to the brace that closes it, or to the end of the file.
    fn module(&mut self, inline: Vec<String>) {
        let mut items = SourceItems { inline, ..SourceItems::default() };
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(self.at) {
                "#" if self.text(self.at + 1) == "[" => self.attribute(),
                "mod" if self.is_name(self.at + 1) => self.child(&mut items),
                "use" if self.text(self.at + 1) != "<" => {
                    self.at += 1;
                    self.use_tree(&[], &mut items);
                }
                "{" => {
                    depth += 1;
                    self.at += 1;
                }
                "}" if depth == 0 => break,
                "}" => {
                    depth -= 1;
                    self.at += 1;
                }
                _ if self.begins_path() => {
                    let path = self.path();
                    items.paths.push(path);
                }
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.found.push(items);
    }

    fn child(&mut self, items: &mut SourceItems) {
        let name = self.text(self.at + 1).to_owned();
        let has_body = self.text(self.at + 2) == "{";
        self.at += 3;
        if has_body {
            self.module([&items.inline[..], &[name]].concat());
        } else {
            items.children.push(name);
        }
    }

    fn begins_path(&self) -> bool {
        let before = self.at.checked_sub(1).map_or("", |at| self.text(at));
        self.is_name(self.at)
            && self.text(self.at + 1) == "::"
            && self.is_name(self.at + 2)
            && !["::", "."].contains(&before)
    }

    /// Names with `::` between them.
    fn path(&mut self) -> PathUse {
        let line = self.tokens[self.at].line;
        let mut segments = vec![self.text(self.at).to_owned()];
        self.at += 1;
        while self.text(self.at) == "::" && self.is_name(self.at + 1) {
            segments.push(self.text(self.at + 1).to_owned());
            self.at += 2;
        }
        PathUse { segments, line }
    }

    /// Reads one tree of a `use` that begins with `prefix`.
    fn use_tree(&mut self, prefix: &[String], items: &mut SourceItems) {
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        let mut segments = prefix.to_vec();
        while self.at < self.tokens.len() {
            match self.text(self.at) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while self.at < self.tokens.len() && self.text(self.at) != "}" {
                        let begin = self.at;
                        self.use_tree(&segments, items);
                        if self.text(self.at) == "," || self.at == begin {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    items.paths.push(PathUse { segments, line });
                    return;
                }
                "self" if !segments.is_empty() => self.at += 1,
                "as" => {
                    let name = self.text(self.at + 1).to_owned();
                    self.at += 2;
                    return import(items, name, segments, line);
                }
                name if self.is_name(self.at) => {
                    segments.push(name.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        let name = segments.last().cloned().unwrap_or_default();
        import(items, name, segments, line);
    }

    /// Reads an attribute, and what it is on if that is only in tests.
    fn attribute(&mut self) {
        let begin = self.at;
        self.at += 2;
        self.skip_to_end(&["]"]);
        let words: Vec<&str> = (begin..self.at).map(|at| self.text(at)).collect();
        let of_tests = words[2] == "test" || (words[2] == "cfg" && words.contains(&"test"));
        if of_tests && !words.contains(&"not") {
            self.skip_item();
        }
    }

    fn skip_item(&mut self) {
        while self.text(self.at) == "#" {
            self.at += 2;
            self.skip_to_end(&["]"]);
        }
        let first = self.text(self.at);
        let public = first == "pub";
        let visibility = if public && self.text(self.at + 1) == "(" { 4 } else { usize::from(public) };
        if STATEMENTS.contains(&self.text(self.at + visibility)) {
            self.skip_to_end(&[";"]);
        } else if ITEMS.contains(&first) {
            self.skip_to_end(&[";", "{"]);
            if self.text(self.at - 1) == "{" {
                self.skip_to_end(&["}"]);
            }
        } else {
            // A field, a variant or an arm.
            self.skip_to_end(&[","]);
        }
    }

    /// Goes behind the first of `ends` that is not inside of brackets which open here. Stops before a bracket that
    /// closes what is around.
    fn skip_to_end(&mut self, ends: &[&str]) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            let text = self.text(self.at);
            if depth == 0 && ends.contains(&text) {
                self.at += 1;
                return;
            }
            match text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" if depth == 0 => return,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }
}

fn import(items: &mut SourceItems, name: String, segments: Vec<String>, line: usize) {
    items.imports.insert(name, segments.clone());
    items.paths.push(PathUse { segments, line });
}

#[cfg(test)]
mod tests {
    use super::read_items;

    /// Each module as `inline: children | imports | paths`, the file's own last.
    fn check(code: &str, expect: &[&str]) {
        let shown: Vec<String> = read_items(code)
            .iter()
            .map(|items| {
                let imports = items.imports.iter().map(|(name, path)| format!("{name}={}", path.join("::")));
                let paths =
                    items.paths.iter().map(|path| format!("{}:{}", path.line, path.segments.join("::")));
                let parts = [
                    items.children.join(" "),
                    Vec::from_iter(imports).join(" "),
                    Vec::from_iter(paths).join(" "),
                ];
                format!("{}: {}", items.inline.join("::"), parts.join(" | ")).trim_end().to_owned()
            })
            .collect();
        assert_eq!(shown, expect, "{code}");
    }

    #[test]
    fn modules() {
        check("pub mod a;\nmod b;", &[": a b |  |"]);
        check("mod a { mod b; mod c { mod d; } }\nmod e;", &["a::c: d |  |", "a: b |  |", ": e |  |"]);
    }

    #[test]
    fn uses() {
        check("use a;", &[":  | a=a | 1:a"]);
        check("use a::{b, c::{self, D as E}};", &[":  | E=a::c::D b=a::b c=a::c | 1:a::b 1:a::c 1:a::c::D"]);
        check("use self::a::B;", &[":  | B=self::a::B | 1:self::a::B"]);
        check("use r#a::{r#type};", &[":  | type=a::type | 1:a::type"]);
        check("use {a, crate::b::*};", &[":  | a=a | 1:a 1:crate::b"]);
        check("use a::{\n    b,\n    c,\n};\nuse d;", &[":  | b=a::b c=a::c d=d | 2:a::b 3:a::c 5:d"]);
    }

    #[test]
    fn paths() {
        check("fn f() { a::b::<C>(crate::D::E) }", &[":  |  | 1:a::b 1:crate::D::E"]);
        check("x.y::<Z>(); <A as b::C>::d();", &[":  |  | 1:b::C"]);
        check("impl $crate::a::B {}", &[":  |  | 1:crate::a::B"]);
        check("fn f() -> impl A + use<'a> { b::c }", &[":  |  | 1:b::c"]);
    }

    #[test]
    fn test_code_is_left_out() {
        check("#[cfg(test)]\nmod tests { a::b }\nc::d", &[":  |  | 3:c::d"]);
        check("#[cfg(test)]\n#[x(y)]\npub(crate) use a::{b, c};\nd::e", &[":  |  | 4:d::e"]);
        check("#[cfg(test)]\npub fn f<A, B>(x: [u8; 2]) -> C { a::b }\nd::e", &[":  |  | 3:d::e"]);
        check("struct A { #[cfg(test)] a: b::C, d: e::F }", &[":  |  | 1:e::F"]);
        check("struct A { #[cfg(test)] a: b::C }\nd::e", &[":  |  | 2:d::e"]);
        check("#[cfg(test)]\nconst A: B = C { d: e::F };\ng::h", &[":  |  | 3:g::h"]);
        check("#[cfg(not(test))] fn f() { a::b }", &[":  |  | 1:a::b"]);
        check("#[test]\nfn f() { a::b }\nc::d", &[":  |  | 3:c::d"]);
        check("#[derive(a::B)] struct C;", &[":  |  |"]);
    }
}
