//! Reading one configuration file: bytes to a document whose fields are known to have the right types.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use serde_saphyr::DuplicateKeyPolicy;

use super::ConfigError;
use super::document::drop_nulls;
use super::fields;
use super::types::{API_VERSION, KIND, KubeletConfiguration};

/// One file, read and checked on its own, before any merging.
#[derive(Debug)]
pub(super) struct ConfigFile {
    pub document: Map<String, Value>,
    /// The known fields it sets.
    pub set: Vec<&'static str>,
    /// What is odd about it without being wrong.
    pub warnings: Vec<String>,
}

/// How a key that occurs twice is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Duplicates {
    /// The last one counts, and the user hears of it: the `--config` file.
    Warn,
    /// The file is refused: drop-in files.
    Refuse,
}

/// Reads `path`. `keep_nulls` is for patches, in which a null removes a field.
pub(super) fn read(path: &Path, duplicates: Duplicates, keep_nulls: bool) -> Result<ConfigFile, ConfigError> {
    let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    if bytes.is_empty() {
        return Err(ConfigError::Empty { path: path.to_owned() });
    }
    let mut remarks = Vec::new();
    let (value, duplicate) = parse(path, &bytes)?;
    match (duplicate, duplicates) {
        (None, _) => {}
        (Some(Duplicate { key, line }), Duplicates::Refuse) => {
            return Err(ConfigError::DuplicateKey { path: path.to_owned(), key, line });
        }
        (Some(Duplicate { key, line }), Duplicates::Warn) => {
            remarks
                .push(format!("{}: {key} occurs twice (line {line}), the last one counts", path.display()));
        }
    }
    let document = match value {
        Value::Object(document) => document,
        // Only blanks and comments.
        Value::Null => Map::new(),
        _ => return Err(ConfigError::NotAnObject { path: path.to_owned() }),
    };
    check_kind(path, &document)?;
    let mut without_nulls = document.clone();
    drop_nulls(&mut without_nulls);
    read_typed(path, without_nulls.clone())?;

    let found = fields::classify_fields(&document);
    remarks.extend(
        found.unknown.iter().map(|field| format!("{}: unknown field {field:?} is ignored", path.display())),
    );
    let document = if keep_nulls { document } else { without_nulls };
    Ok(ConfigFile { document, set: found.known, warnings: remarks })
}

/// A key that an object has twice; of several such keys, the first.
struct Duplicate {
    key: String,
    line: u64,
}

/// YAML (of which JSON is a part) to a value, and the duplicate key that a strict reader stops at.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Value, Option<Duplicate>), ConfigError> {
    let error = match parse_with(bytes, DuplicateKeyPolicy::Error) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet() else {
        return Err(ConfigError::Syntax { path: path.to_owned(), source: Box::new(error) });
    };
    let duplicate =
        Duplicate { key: key.clone().unwrap_or_else(|| "a key".to_owned()), line: location.line() };
    match parse_with(bytes, DuplicateKeyPolicy::LastWins) {
        Ok(value) => Ok((value, Some(duplicate))),
        Err(source) => Err(ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) }),
    }
}

fn parse_with(bytes: &[u8], duplicate_keys: DuplicateKeyPolicy) -> Result<Value, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        // Kubernetes reads YAML 1.1, in which 0644 is octal.
        legacy_octal_numbers: true,
    };
    // Of several documents in one file, Kubernetes reads the first.
    let mut reader = bytes;
    serde_saphyr::read_with_options(&mut reader, options).next().unwrap_or(Ok(Value::Null))
}

fn check_kind(path: &Path, document: &Map<String, Value>) -> Result<(), ConfigError> {
    let text = |key| document.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version.is_empty() || kind.is_empty() {
        let field = if kind.is_empty() { "kind" } else { "apiVersion" };
        return Err(ConfigError::MissingKind { path: path.to_owned(), field });
    }
    if api_version != API_VERSION || kind != KIND {
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        return Err(ConfigError::WrongKind { path: path.to_owned(), api_version, kind });
    }
    Ok(())
}

/// Gives a document its type; a field of a wrong type is named, with the file it came from.
pub(super) fn read_typed(
    path: &Path,
    document: Map<String, Value>,
) -> Result<KubeletConfiguration, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(document)).map_err(|error| ConfigError::Field {
        path: PathBuf::from(path),
        field: error.path().to_string(),
        source: error.into_inner(),
    })
}
