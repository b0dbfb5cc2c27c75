//! Just enough of Rust's lexical grammar to tell code from comments and literals.

/// The text with comments and literals blanked out; lines keep their number.
pub fn code_only(text: &str) -> String {
    let mut scan = Scan { rest: text, out: String::with_capacity(text.len()) };
    while let Some(first) = scan.rest.chars().next() {
        let len = scan.literal_or_comment();
        match len {
            0 => scan.keep(first.len_utf8()),
            len => scan.blank(len),
        }
    }
    scan.out
}

struct Scan<'a> {
    rest: &'a str,
    out: String,
}

impl Scan<'_> {
    fn keep(&mut self, len: usize) {
        let (head, tail) = self.rest.split_at(len);
        self.out.push_str(head);
        self.rest = tail;
    }

    fn blank(&mut self, len: usize) {
        let (head, tail) = self.rest.split_at(len);
        self.out.extend(head.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = tail;
    }

    /// The length of the comment or literal that starts here; 0 when none does.
    fn literal_or_comment(&self) -> usize {
        let rest = self.rest;
        if rest.starts_with("//") {
            return rest.find('\n').unwrap_or(rest.len());
        }
        if rest.starts_with("/*") {
            return block_comment(rest);
        }
        if rest.starts_with('"') {
            return quoted(rest, '"');
        }
        if rest.starts_with('\'') {
            return char_literal(rest);
        }
        // The r of a raw string begins a word: `var"` is no raw string.
        let inside_word = self.out.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        if inside_word { 0 } else { raw_string(rest) }
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `'a'` and `'\n'` are literals, `'a` is a lifetime.
fn char_literal(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

fn raw_string(rest: &str) -> usize {
    let body = rest.strip_prefix('b').or_else(|| rest.strip_prefix('c')).unwrap_or(rest);
    let Some(body) = body.strip_prefix('r') else { return 0 };
    let hashes = body.len() - body.trim_start_matches('#').len();
    if !body[hashes..].starts_with('"') {
        return 0;
    }
    let prefix = rest.len() - body.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    rest[prefix..].find(&end).map_or(rest.len(), |at| prefix + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::code_only;

    fn check(text: &str, expect: &str) {
        assert_eq!(code_only(text).split_whitespace().collect::<Vec<_>>().join(" "), expect, "for {text:?}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // b\nc", "a c");
        check("a /* b /* c */ d */ e", "a e");
        check(r#"f("unsafe \" still") + g"#, "f( ) + g");
        check(r##"f(r#"unsafe " still"#) + g"##, "f( ) + g");
        check(r#"f(br"unsafe", b"x")"#, "f( , b )");
        check("let c = '\"'; d", "let c = ; d");
        check(r"let c = '\''; d", "let c = ; d");
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("let r#type = 1", "let r#type = 1");
        check("// only a comment", "");
        check("\"never closed", "");
    }

    #[test]
    fn lines_keep_their_number() {
        let code = code_only("one\n/* two\nthree */\n\"four\nfive\" six\n");
        assert_eq!(code.lines().count(), 5);
        assert_eq!(code.lines().nth(4).map(str::trim), Some("six"));
    }
}
