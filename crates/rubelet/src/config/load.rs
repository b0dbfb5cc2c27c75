//! Putting the configuration together from its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::document::{drop_nulls, entry_at, get, merge_patch};
use super::fields::{Support, support};
use super::source::{ConfigFile, Duplicates, read, read_typed};
use super::{ConfigError, FeatureGates, KubeletConfiguration, defaults, path};

/// A configuration field that a flag sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    pub field: &'static str,
    pub value: Value,
    pub mode: OverrideMode,
}

/// How a flag's value is combined with the field's value from the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideMode {
    Replace,
    /// Entry by entry, the flag's winning: feature gates.
    MergeEntries,
    /// After the entries that are there.
    Append,
}

/// Where the configuration comes from, apart from the defaults.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    pub file: Option<&'a Path>,
    pub drop_ins: Option<&'a Path>,
    pub overrides: &'a [Override],
}

/// A configuration that could be read. [`super::validate`] checks its values.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: KubeletConfiguration,
    pub gates: FeatureGates,
    /// Every field that a file or a flag sets, whatever to.
    pub set: BTreeSet<&'static str>,
    pub warnings: Vec<String>,
}

/// Reads all sources, later ones over earlier ones.
pub fn load(sources: &Sources<'_>) -> Result<LoadedConfig, ConfigError> {
    let gates_of_flags = gates_of_flags(sources.overrides);
    let mut reading = ConfigLoader { gates_of_flags, set: Vec::new(), warnings: Vec::new() };
    let mut config = match sources.file {
        Some(file) => reading.file(file)?,
        None => KubeletConfiguration::without_file(),
    };
    if let Some(directory) = sources.drop_ins {
        config = reading.drop_ins(config, directory)?;
    }
    if !sources.overrides.is_empty() {
        config = apply(config, sources.overrides)?;
    }
    let gates = FeatureGates::resolve(&config.feature_gates).map_err(ConfigError::Gates)?;
    let mut warnings = reading.warnings;
    warnings.extend(gates.warnings(&config.feature_gates));
    warnings.extend(unsupported_fields_warnings(&reading.set, &config));
    let set = reading.set.into_iter().chain(sources.overrides.iter().map(|change| change.field)).collect();
    Ok(LoadedConfig { config, gates, set, warnings })
}

/// What accumulates while files are read.
struct ConfigLoader {
    gates_of_flags: BTreeMap<String, bool>,
    /// Every field that some file sets.
    set: Vec<&'static str>,
    warnings: Vec<String>,
}

impl ConfigLoader {
    fn file(&mut self, file: &Path) -> Result<KubeletConfiguration, ConfigError> {
        let file = absolute(file)?;
        let ConfigFile { mut document, set, warnings: remarks } = read(&file, Duplicates::Warn, false)?;
        self.set.extend(set);
        self.warnings.extend(remarks);
        let thresholds_absent = !document.contains_key("evictionHard");
        let gates = self.gates(&document)?;
        defaults::fill(&mut document, &gates);
        let mut config = read_typed(&file, document)?;
        make_paths_absolute(&mut config, &file);
        if thresholds_absent {
            config.eviction_hard = defaults::eviction_hard();
        } else if config.merge_default_eviction_settings {
            for (signal, limit) in defaults::eviction_hard() {
                config.eviction_hard.entry(signal).or_insert(limit);
            }
        }
        Ok(config)
    }

    /// Drop-in files change a configuration that already has its defaults, as upstream does it: what they
    /// remove with a null gets its default again, and relative paths in them are not resolved.
    fn drop_ins(
        &mut self,
        base: KubeletConfiguration,
        directory: &Path,
    ) -> Result<KubeletConfiguration, ConfigError> {
        let mut document = to_document(&base);
        for file in drop_in_files(directory)? {
            let patch = read(&file, Duplicates::Refuse, true)?;
            self.set.extend(patch.set);
            self.warnings.extend(patch.warnings);
            merge_patch(&mut document, patch.document);
        }
        drop_nulls(&mut document);
        let gates = self.gates(&document)?;
        defaults::fill(&mut document, &gates);
        to_config(document)
    }

    /// The gates that decide over defaults: those of the flags and, over them, those of the file.
    fn gates(&self, document: &Map<String, Value>) -> Result<FeatureGates, ConfigError> {
        let mut given = self.gates_of_flags.clone();
        for (name, on) in document.get("featureGates").and_then(Value::as_object).into_iter().flatten() {
            given.extend(on.as_bool().map(|on| (name.clone(), on)));
        }
        FeatureGates::resolve(&given).map_err(ConfigError::Gates)
    }
}

fn gates_of_flags(overrides: &[Override]) -> BTreeMap<String, bool> {
    let entries = overrides.iter().filter(|change| change.field == "featureGates");
    let entries = entries.filter_map(|change| change.value.as_object()).flatten();
    entries.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).collect()
}

fn apply(config: KubeletConfiguration, overrides: &[Override]) -> Result<KubeletConfiguration, ConfigError> {
    let mut document = to_document(&config);
    for change in overrides {
        let Some(place) = entry_at(&mut document, change.field) else { continue };
        match (change.mode, &change.value, &mut *place) {
            (OverrideMode::MergeEntries, Value::Object(new), Value::Object(old)) => old.extend(new.clone()),
            (OverrideMode::Append, Value::Array(new), Value::Array(old)) => old.extend(new.clone()),
            (_, value, _) => *place = value.clone(),
        }
    }
    to_config(document)
}

fn to_document(config: &KubeletConfiguration) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(document)) => document,
        other => unreachable!("a configuration is a JSON object, not {other:?}"),
    }
}

fn to_config(document: Map<String, Value>) -> Result<KubeletConfiguration, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(document))
        .map_err(|error| ConfigError::Merged { field: error.path().to_string(), source: error.into_inner() })
}

fn absolute(file: &Path) -> Result<PathBuf, ConfigError> {
    let absolute =
        std::path::absolute(file).map_err(|source| ConfigError::Read { path: file.to_owned(), source })?;
    // Like Go, `..` is resolved in the text. A path that is not UTF-8 is used as it is.
    Ok(absolute.to_str().map_or_else(|| absolute.clone(), |text| PathBuf::from(path::clean(text))))
}

fn make_paths_absolute(config: &mut KubeletConfiguration, file: &Path) {
    let directory = file.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    for value in [
        &mut config.static_pod_path,
        &mut config.authentication.x509.client_ca_file,
        &mut config.tls_cert_file,
        &mut config.tls_private_key_file,
        &mut config.resolv_conf,
        &mut config.volume_plugin_dir,
        &mut config.pod_logs_dir,
    ] {
        *value = path::resolve(&directory, value);
    }
}

/// The `*.conf` files under `directory` in the order in which they apply: by name, a subdirectory's files
/// at the place of its name.
fn drop_in_files(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Directory { path: directory.to_owned(), source };
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        entries.push((entry.file_name(), entry.file_type().map_err(failed)?, entry.path()));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let mut files = Vec::new();
    for (name, file_type, path) in entries {
        if file_type.is_dir() {
            files.extend(drop_in_files(&path)?);
        } else if name.as_encoded_bytes().ends_with(b".conf") {
            files.push(path);
        }
    }
    Ok(files)
}

/// One warning for all fields that some file sets and that have no effect, and one for each that has a part of it. A field
/// that is set to its default is not warned about, because tools write files with all fields.
fn unsupported_fields_warnings(set: &[&'static str], config: &KubeletConfiguration) -> Vec<String> {
    let expected =
        KubeletConfiguration { eviction_hard: defaults::eviction_hard(), ..KubeletConfiguration::default() };
    let (expected, actual) = (to_document(&expected), to_document(config));
    let (mut idle, mut partly) = (Vec::new(), BTreeMap::new());
    for &field in set.iter().filter(|field| get(&expected, field) != get(&actual, field)) {
        match support(field) {
            Some(Support::NoEffectYet) if !idle.contains(&field) => idle.push(field),
            Some(Support::Partly(what)) => drop(partly.insert(field, what)),
            _ => {}
        }
    }
    let idle = (!idle.is_empty())
        .then(|| format!("configuration fields are accepted but have no effect yet: {}", idle.join(", ")));
    let partly = partly.into_iter().map(|(field, what)| {
        format!("configuration field {field} does not do all that it does upstream: {what}")
    });
    idle.into_iter().chain(partly).collect()
}
