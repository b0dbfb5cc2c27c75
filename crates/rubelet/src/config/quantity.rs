//! The syntax of Kubernetes quantities, as far as a configuration check needs it: is it one, and is it
//! negative, zero or positive. Amounts are computed elsewhere.

const SUFFIXES: &[&str] =
    &["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// -1, 0 or 1 for a well-formed quantity, `None` for anything else.
pub(super) fn sign(text: &str) -> Option<i8> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 || number.len() - digits > 1 {
        return None;
    }
    if !SUFFIXES.contains(&suffix) && !is_exponent(suffix) {
        return None;
    }
    let zero = number.bytes().all(|byte| byte == b'0' || byte == b'.');
    Some(match (zero, negative) {
        (true, _) => 0,
        (false, true) => -1,
        (false, false) => 1,
    })
}

fn is_exponent(suffix: &str) -> bool {
    let Some(exponent) = suffix.strip_prefix(['e', 'E']) else { return false };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_quantities_from_other_texts() {
        for (text, expect) in [
            ("0", Some(0)),
            ("0.0Gi", Some(0)),
            ("10Mi", Some(1)),
            ("1.5Gi", Some(1)),
            ("-1", Some(-1)),
            ("+5k", Some(1)),
            (".5", Some(1)),
            ("5.", Some(1)),
            ("200m", Some(1)),
            ("1e3", Some(1)),
            ("1E-3", Some(1)),
            ("1E", Some(1)),
            ("", None),
            ("-", None),
            ("10MB", None),
            ("10 Mi", None),
            ("1.2.3", None),
            ("ten", None),
            ("1e", None),
            ("1Kie3", None),
        ] {
            assert_eq!(sign(text), expect, "{text:?}");
        }
    }
}
