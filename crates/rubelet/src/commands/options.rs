//! Arguments of a command: options with and without a value, and positional words.

use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Copy, Debug)]
pub struct CommandOption {
    pub name: &'static str,
    pub letter: Option<char>,
    /// What its value is called; `None` when it has none.
    pub value: Option<&'static str>,
    pub about: &'static str,
}

#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum UsageError {
    #[error("unknown option {0}")]
    NoSuchOption(String),
    #[error("option {0} needs a value")]
    MissingValue(String),
    #[error("option --{0} takes no value")]
    UnwantedValue(&'static str),
    #[error("option --{name} cannot be {value:?}: {expected}")]
    BadValue { name: &'static str, value: String, expected: String },
    #[error("{0}")]
    Arguments(String),
}

/// What a command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandArguments {
    switches: BTreeMap<&'static str, String>,
    /// Words that are no options.
    pub words: Vec<String>,
}

impl CommandArguments {
    pub fn has(&self, name: &str) -> bool {
        self.switches.contains_key(name)
    }

    /// The last one counts.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.switches.get(name).map(String::as_str)
    }

    fn set(&mut self, switch: &CommandOption, value: &str) {
        self.switches.insert(switch.name, value.to_owned());
    }
}

/// `--name value`, `--name=value`, `-n value`, `-nvalue`, `-n=value`, letters without a value in a row, and `--`
/// before words that look like options.
pub fn parse(arguments: &[String], switches: &[CommandOption]) -> Result<CommandArguments, UsageError> {
    let mut given = CommandArguments::default();
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        if word == "--" {
            given.words.extend(rest.by_ref().map(str::to_owned));
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            let switch = switches.iter().find(|switch| switch.name == name);
            let switch = switch.ok_or_else(|| UsageError::NoSuchOption(format!("--{name}")))?;
            match (switch.value, value) {
                (None, Some(_)) => return Err(UsageError::UnwantedValue(switch.name)),
                (None, None) => given.set(switch, ""),
                (Some(_), value) => {
                    let value = value.or_else(|| rest.next());
                    given.set(switch, value.ok_or_else(|| UsageError::MissingValue(word.to_owned()))?);
                }
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            parse_letters(letters, switches, &mut rest, &mut given)?;
        } else {
            given.words.push(word.to_owned());
        }
    }
    Ok(given)
}

fn parse_letters<'a>(
    letters: &str,
    switches: &[CommandOption],
    rest: &mut impl Iterator<Item = &'a str>,
    given: &mut CommandArguments,
) -> Result<(), UsageError> {
    let mut letters = letters;
    while let Some(letter) = letters.chars().next() {
        let after = &letters[letter.len_utf8()..];
        let switch = switches.iter().find(|switch| switch.letter == Some(letter));
        let switch = switch.ok_or_else(|| UsageError::NoSuchOption(format!("-{letter}")))?;
        if switch.value.is_none() {
            given.set(switch, "");
            letters = after;
            continue;
        }
        let value = match after.strip_prefix('=').unwrap_or(after) {
            "" => rest.next().ok_or_else(|| UsageError::MissingValue(format!("-{letter}")))?,
            value => value,
        };
        given.set(switch, value);
        return Ok(());
    }
    Ok(())
}

pub fn help(usage: &str, about: &str, switches: &[CommandOption]) -> String {
    let mut text = format!("{about}\n\nUsage:\n{usage}\n\nOptions:\n");
    let heading = |switch: &CommandOption| {
        let letter = switch.letter.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
        let value = switch.value.map_or(String::new(), |value| format!(" {value}"));
        format!("{letter}--{}{value}", switch.name)
    };
    let width = switches.iter().map(|switch| heading(switch).len()).max().unwrap_or_default();
    for switch in switches {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<width$}  {}", heading(switch), switch.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[CommandOption] = &[
        CommandOption { name: "container", letter: Some('c'), value: Some("NAME"), about: "which container" },
        CommandOption { name: "follow", letter: Some('f'), value: None, about: "go on" },
        CommandOption { name: "previous", letter: Some('p'), value: None, about: "the one before" },
        CommandOption { name: "tail", letter: None, value: Some("LINES"), about: "only the end" },
    ];

    fn read(line: &str) -> Result<CommandArguments, UsageError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words, OPTIONS)
    }

    #[test]
    fn all_spellings_are_read() {
        let check = |line: &str, expect: &str, words: &[&str]| {
            let given = read(line).unwrap();
            let switches: Vec<_> =
                given.switches.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(switches.join(" "), expect, "{line}");
            assert_eq!(given.words, words, "{line}");
        };
        check("", "", &[]);
        check("web", "", &["web"]);
        check("web -c app", "container=app", &["web"]);
        check("-c=app web", "container=app", &["web"]);
        check("-capp web", "container=app", &["web"]);
        check("--container app web", "container=app", &["web"]);
        check("--container=a=b web", "container=a=b", &["web"]);
        check("--container= web", "container=", &["web"]);
        check("-c one -c two", "container=two", &[]);
        check("-fp web", "follow= previous=", &["web"]);
        check("-fc app web", "container=app follow=", &["web"]);
        check("--tail -1 web", "tail=-1", &["web"]);
        check("-f -- -c web", "follow=", &["-c", "web"]);
        check("- web", "", &["-", "web"]);
    }

    #[test]
    fn wrong_words_are_refused() {
        let check =
            |line: &str, expect: &str| assert_eq!(read(line).unwrap_err().to_string(), expect, "{line}");
        check("--nothing", "unknown option --nothing");
        check("-x", "unknown option -x");
        check("-fx", "unknown option -x");
        check("--tail", "option --tail needs a value");
        check("-fc", "option -c needs a value");
        check("--follow=yes", "option --follow takes no value");
    }

    #[test]
    fn help_is_aligned() {
        let expect = "\
About it.

Usage:
  rubelet x

Options:
  -c, --container NAME  which container
  -f, --follow          go on
  -p, --previous        the one before
      --tail LINES      only the end
";
        assert_eq!(help("  rubelet x", "About it.", OPTIONS), expect);
    }
}
