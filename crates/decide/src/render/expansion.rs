//! `$(NAME)` in commands, arguments, variables and sub-paths.

/// Replaces each `$(NAME)` by what `lookup` gives for it. A name it does not know stays as it is written, and so does
/// anything that is no complete reference; `$$` stands for one `$`. Results are not expanded again.
pub fn expand(input: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            output.push('$');
            rest = escaped;
        } else if let Some((name, remainder)) = after.strip_prefix('(').and_then(|body| body.split_once(')'))
        {
            match lookup(name) {
                Some(value) => output.push_str(&value),
                None => output.push_str(&format!("$({name})")),
            }
            rest = remainder;
        } else {
            output.push('$');
            rest = after;
        }
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(input: &str) -> String {
        expand(input, |name| match name {
            "A" => Some("1".into()),
            "REF" => Some("$(A)".into()),
            "EMPTY" => Some(String::new()),
            "" => Some("nameless".into()),
            _ => None,
        })
    }

    #[test]
    fn references() {
        let check = |input: &str, expect: &str| assert_eq!(expanded(input), expect, "{input}");
        check("", "");
        check("plain", "plain");
        check("$(A)", "1");
        check("a$(A)b$(A)c", "a1b1c");
        check("$(NONE)", "$(NONE)");
        check("$(EMPTY)", "");
        check("$()", "nameless");
        check("$(REF)", "$(A)");
        check("$$(A)", "$(A)");
        check("$$$(A)", "$1");
        check("$$$$(A)", "$$(A)");
        check("$", "$");
        check("$$", "$");
        check("$$$", "$$");
        check("x$", "x$");
        check("$A", "$A");
        check("$A$(A)", "$A1");
        check("$(A", "$(A");
        check("$(A$(A)", "$(A$(A)");
        check("$($(A)", "$($(A)");
        check("$((A)", "$((A)");
        check("$($(NONE))", "$($(NONE))");
        check("$(A))", "1)");
        check("$é$(A)", "$é1");
        check("1-$$(A)-$(NONE)", "1-$(A)-$(NONE)");
    }

    proptest! {
        #[test]
        fn text_without_the_sign_is_kept(text in "[^$]{0,40}") {
            prop_assert_eq!(expanded(&text), text);
        }

        #[test]
        fn doubling_every_sign_gives_the_text_back(text in "[a$()A]{0,40}") {
            prop_assert_eq!(expanded(&text.replace('$', "$$")), text);
        }
    }
}
