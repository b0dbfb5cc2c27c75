//! Variables that are kept in a file of an emptyDir (`fileKeyRef`).
//!
//! One variable per entry: `NAME='value'`. A value may have several lines and is taken as it is. Blank lines and lines
//! that begin with `#` are skipped; so is a comment after the closing quote. An entry with blanks between `=` and its
//! value is empty, as in a shell.

use model::files::EnvFile;
use model::k8s::Container;
use model::pod::PodView;

pub const GATE: &str = "EnvFiles";

const BLANKS: [char; 2] = [' ', '\t'];
/// A longer line is refused.
const LINE_MAX: usize = 64 * 1024;

/// The files that a container's variables are read from, each once. Only an emptyDir may hold one.
pub(crate) fn env_files(pod: &PodView, container: &Container) -> Vec<EnvFile> {
    let is_empty_dir = |name: &str| {
        let volumes = pod.spec().volumes.iter().flatten();
        volumes.into_iter().any(|volume| volume.name == name && volume.empty_dir.is_some())
    };
    let references = container.env.iter().flatten().filter_map(|variable| {
        let reference = variable.value_from.as_ref()?.file_key_ref.as_ref()?;
        is_empty_dir(&reference.volume_name)
            .then(|| EnvFile { volume: reference.volume_name.clone(), path: reference.path.clone() })
    });
    let mut files: Vec<EnvFile> = references.collect();
    files.sort();
    files.dedup();
    files
}

/// The value of a variable. None when the file does not have it, or has it empty.
pub fn find(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let wrong = |what: &str| format!("invalid environment variable format at line {number}: {what}");
        if line.len() >= LINE_MAX {
            return Err(wrong("the line is too long"));
        }
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        if name.trim_end_matches(BLANKS).is_empty() {
            return Err(wrong("empty variable name"));
        }
        if name.ends_with(BLANKS) {
            return Err(wrong("whitespace before '=' is not allowed"));
        }
        if value.starts_with(BLANKS) {
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let first =
            value.strip_prefix('\'').ok_or_else(|| wrong("value must be enclosed in single quotes"))?;
        let value = quoted(first, number, &mut lines)?;
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

/// What stands before the closing quote, which may be some lines further down.
fn quoted<'a>(
    first: &'a str,
    begins: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<String, String> {
    let mut value = String::new();
    let (mut number, mut rest) = (begins, first);
    loop {
        if let Some((last, after)) = rest.split_once('\'') {
            value.push_str(last);
            let after = after.trim_start_matches(BLANKS);
            if after.is_empty() || after.starts_with('#') {
                return Ok(value);
            }
            return Err(format!(
                "invalid environment variable format at line {number}: unexpected content after closing quote"
            ));
        }
        value.push_str(rest);
        value.push('\n');
        (number, rest) = lines.next().ok_or_else(|| {
            format!("invalid environment variable format starting at line {begins}: unclosed single quote")
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        let check = |text: &str, key: &str, expect: Result<Option<&str>, &str>| {
            let found = find(text, key);
            match expect {
                Ok(expect) => assert_eq!(found.as_ref().map(Option::as_deref), Ok(expect), "{text}"),
                Err(part) => assert!(found.as_ref().is_err_and(|e| e.contains(part)), "{text}: {found:?}"),
            }
        };
        check("A='1'\n  B='2'\n\tC='3'", "B", Ok(Some("2")));
        check("# note\n\nA='x#y=z' # note\nB='  two  '", "A", Ok(Some("x#y=z")));
        check("A='$HOME ${X}'", "A", Ok(Some("$HOME ${X}")));
        check("A='one\n  two\n'\nB='b'", "A", Ok(Some("one\n  two\n")));
        check("A='one\n  two\n'\nB='b'", "B", Ok(Some("b")));
        check("A='1'", "B", Ok(None));
        check("A=''\n", "A", Ok(None));
        check("A= 'x'\nB='b'", "A", Ok(None));
        check("A= 'x'\nB='b'", "B", Ok(Some("b")));
        check("", "A", Ok(None));
        // the first one counts, and nothing behind it is read
        check("A='1'\nA='2'\n=", "A", Ok(Some("1")));
        check("A\n", "A", Err("at line 1: missing '='"));
        check("\n='x'", "A", Err("at line 2: empty variable name"));
        check("A ='x'", "A", Err("whitespace before '=' is not allowed"));
        check("A=x", "A", Err("value must be enclosed in single quotes"));
        check("A='x'y", "A", Err("at line 1: unexpected content after closing quote"));
        check("\nA='x\ny", "A", Err("starting at line 2: unclosed single quote"));
        check(&format!("A='{}'", "x".repeat(LINE_MAX)), "A", Err("at line 1: the line is too long"));
    }
}
