//! Why a command line can't be used.

/// A mistake on the command line; each names the flag or the word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("unknown flag: --{name}{}", hint(suggestion))]
    Unknown { name: String, suggestion: Option<&'static str> },
    #[error("unknown shorthand flag: {letter:?} in -{text}{}", hint(suggestion))]
    UnknownShort { letter: char, text: String, suggestion: Option<&'static str> },
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag needs an argument: --{0}")]
    MissingValue(&'static str),
    #[error("invalid argument {value:?} for --{flag}: {reason}")]
    InvalidValue { flag: &'static str, value: String, reason: String },
    #[error("unknown command {0}")]
    UnknownCommand(String),
}

fn hint(suggestion: &Option<&'static str>) -> String {
    suggestion.map(|name| format!(" (did you mean --{name}?)")).unwrap_or_default()
}
