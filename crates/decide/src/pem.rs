//! Certificates in PEM, as text. The bytes of equal certificates are equal, and so is how they are written here.

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// Characters in a line, as in all such files.
const LINE: usize = 64;

/// What stands between the marks, without line ends. Text around the blocks and headers in them are left out.
pub(crate) fn bodies(pem: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in pem.lines().map(str::trim) {
        match (line, &mut open) {
            (BEGIN, _) => open = Some(String::new()),
            (END, Some(body)) => {
                found.push(std::mem::take(body));
                open = None;
            }
            // A header. Base64 has no colon.
            (line, Some(_)) if line.contains(':') => {}
            (line, Some(body)) => body.push_str(line),
            _ => {}
        }
    }
    found
}

pub(crate) fn written(bodies: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    for body in bodies {
        text.push_str(BEGIN);
        for (at, letter) in body.chars().enumerate() {
            if at % LINE == 0 {
                text.push('\n');
            }
            text.push(letter);
        }
        text.push('\n');
        text.push_str(END);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_certificates_are_kept() {
        let pem = format!("words\n{BEGIN}\r\nName: value\n\nAA\nBB\n{END}\nmore words\n{BEGIN}\nCC\n{END}");
        assert_eq!(bodies(&pem), ["AABB", "CC"]);
        assert_eq!(written(bodies(&pem)), format!("{BEGIN}\nAABB\n{END}\n{BEGIN}\nCC\n{END}\n"));
        assert!(bodies(&format!("{BEGIN}\nAA")).is_empty(), "it has no end");
    }

    #[test]
    fn lines_are_as_long_as_others_write_them() {
        let expect = format!("{BEGIN}\n{}\n{}\n{END}\n", "A".repeat(64), "A".repeat(36));
        assert_eq!(written(["A".repeat(100)]), expect);
    }
}
