//! Parses the command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::table::{Flag, Target, ValueKind, find, flags};
use super::version::{VersionRequest, may_report};
use super::{FlagError, Flags, node, suggest};
use crate::commands::Command;
use crate::config::{Override, OverrideMode, Support};

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    Help,
    Version(VersionRequest),
    /// One of our own sub-commands with its arguments, unread.
    Command {
        command: Command,
        arguments: Vec<String>,
    },
    /// Run as the node's agent.
    Agent(Box<Flags>),
}

/// Reads the arguments after the program's name. A sub-command can only be the first of them.
pub fn parse(arguments: &[String]) -> Result<Invocation, FlagError> {
    if let Some((first, rest)) = arguments.split_first()
        && let Some(command) = Command::named(first)
    {
        return Ok(Invocation::Command { command, arguments: rest.to_vec() });
    }
    let given = GivenFlags::read(arguments)?;
    if given.value::<bool>("help") {
        return Ok(Invocation::Help);
    }
    let version: String = given.value("version");
    match version.as_str() {
        "raw" => return Ok(Invocation::Version(VersionRequest::Raw)),
        text if super::kind::switch(text) == Ok(true) => {
            return Ok(Invocation::Version(VersionRequest::Plain));
        }
        _ => {}
    }
    given.into_flags().map(|flags| Invocation::Agent(Box::new(flags)))
}

/// The flags that were given, each with what its occurrences came to, in the order of their first one.
struct GivenFlags {
    values: Vec<(&'static Flag, Value)>,
}

impl GivenFlags {
    fn read(arguments: &[String]) -> Result<Self, FlagError> {
        let mut given = Self { values: Vec::new() };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if word == "--" {
                match words.next() {
                    Some(stray) => return Err(FlagError::UnknownCommand(stray.to_owned())),
                    None => break,
                }
            }
            if let Some(long) = word.strip_prefix("--") {
                given.read_long(word, long, &mut words)?;
            } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
                given.read_short(short, &mut words)?;
            } else {
                return Err(FlagError::UnknownCommand(word.to_owned()));
            }
        }
        Ok(given)
    }

    fn read_long<'a>(
        &mut self,
        word: &str,
        long: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), FlagError> {
        if long.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(word.to_owned()));
        }
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let flag = find(name)
            .ok_or_else(|| FlagError::Unknown { name: name.to_owned(), suggestion: suggestion(name) })?;
        let value = value.or(flag.kind.bare_value()).or_else(|| words.next());
        self.add(flag, value.ok_or(FlagError::MissingValue(flag.name))?)
    }

    /// `-v2`, `-v=2`, `-v 2`, `-h`, and letters that need no value in a row.
    fn read_short<'a>(
        &mut self,
        text: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), FlagError> {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let after = &rest[letter.len_utf8()..];
            let flag =
                flags().find(|flag| flag.short() == Some(letter)).ok_or_else(|| FlagError::UnknownShort {
                    letter,
                    text: text.to_owned(),
                    // A long flag with one dash is the usual mistake.
                    suggestion: suggestion(text.split('=').next().unwrap_or(text)),
                })?;
            if let Some(value) = after.strip_prefix('=').filter(|value| !value.is_empty()) {
                return self.add(flag, value);
            }
            if let Some(value) = flag.kind.bare_value() {
                self.add(flag, value)?;
                rest = after;
                continue;
            }
            let value = if after.is_empty() { words.next() } else { Some(after) };
            return self.add(flag, value.ok_or(FlagError::MissingValue(flag.name))?);
        }
        Ok(())
    }

    fn add(&mut self, flag: &'static Flag, text: &str) -> Result<(), FlagError> {
        let invalid = |reason| FlagError::InvalidValue { flag: flag.name, value: text.to_owned(), reason };
        if flag.kind == ValueKind::Version && text != "raw" && !may_report(text) {
            super::kind::switch(text).map_err(|_| {
                invalid("expected true, false, raw or the version of this release".to_owned())
            })?;
        }
        let slot = self.values.iter().position(|(known, _)| known.name == flag.name);
        let earlier = slot.map(|index| self.values[index].1.take());
        let value = flag.kind.parse_occurrence(earlier, text).map_err(invalid)?;
        match slot {
            Some(index) => self.values[index].1 = value,
            None => self.values.push((flag, value)),
        }
        Ok(())
    }

    /// The value of a flag that is no configuration field; its default if it was not given.
    fn value<T: DeserializeOwned + Default>(&self, name: &str) -> T {
        let given = self.values.iter().find(|(flag, _)| flag.name == name).map(|(_, value)| value.clone());
        let default = || find(name).and_then(|flag| flag.kind.parse_occurrence(None, flag.default).ok());
        given.or_else(default).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
    }

    /// A text for which empty and absent are the same.
    fn text<T: From<String>>(&self, name: &str) -> Option<T> {
        Some(self.value::<String>(name)).filter(|text| !text.is_empty()).map(T::from)
    }

    fn into_flags(self) -> Result<Flags, FlagError> {
        let node_labels: BTreeMap<String, String> = self.value("node-labels");
        let invalid = |flag, value: String| move |reason| FlagError::InvalidValue { flag, value, reason };
        if let Some(fault) = node::labels_fault(&node_labels) {
            let keys = node_labels.into_keys().collect::<Vec<_>>().join(",");
            return Err(invalid("node-labels", keys)(fault));
        }
        let cloud_provider: String = self.value("cloud-provider");
        let node_ip: String = self.value("node-ip");
        let (node_ips, left_out) =
            node::addresses(&node_ip, &cloud_provider).map_err(invalid("node-ip", node_ip.clone()))?;
        let mut warnings = self.warnings();
        warnings.extend(
            left_out
                .iter()
                .map(|part| format!("flag --node-ip: {part:?} is not an IP address and is ignored")),
        );
        Ok(Flags {
            config: self.text("config"),
            config_dir: self.text("config-dir"),
            root_dir: PathBuf::from(self.value::<String>("root-dir")),
            cert_dir: PathBuf::from(self.value::<String>("cert-dir")),
            lock_file: self.text("lock-file"),
            exit_on_lock_contention: self.value("exit-on-lock-contention"),
            kubeconfig: self.text("kubeconfig"),
            bootstrap_kubeconfig: self.text("bootstrap-kubeconfig"),
            hostname_override: self.text("hostname-override"),
            node_ips,
            node_labels,
            cloud_provider,
            runtime_cgroups: self.text("runtime-cgroups"),
            image_credential_provider_config: self.text("image-credential-provider-config"),
            image_credential_provider_bin_dir: self.text("image-credential-provider-bin-dir"),
            seccomp_default: self.value("seccomp-default"),
            minimum_container_ttl_duration: self.value("minimum-container-ttl-duration"),
            maximum_dead_containers_per_container: self.value("maximum-dead-containers-per-container"),
            maximum_dead_containers: self.value("maximum-dead-containers"),
            experimental_mounter_path: self.text("experimental-mounter-path"),
            experimental_allocatable_ignore_eviction: self.value("experimental-allocatable-ignore-eviction"),
            housekeeping_interval: self.value("housekeeping-interval"),
            boot_id_files: paths(self.text("boot-id-file")),
            machine_id_files: paths(self.text("machine-id-file")),
            reported_version: self.text("version").filter(|text: &String| text.starts_with('v')),
            overrides: self.overrides(),
            warnings,
        })
    }

    fn overrides(&self) -> Vec<Override> {
        let mut overrides = Vec::new();
        for (flag, value) in &self.values {
            // An empty address is accepted and means nothing.
            if let Target::Field(field) = flag.target
                && !value.is_null()
            {
                let mode = match flag.kind {
                    ValueKind::BoolMap => OverrideMode::MergeEntries,
                    ValueKind::Vmodule => OverrideMode::Append,
                    _ => OverrideMode::Replace,
                };
                overrides.push(Override { field, value: value.clone(), mode });
            }
        }
        overrides
    }

    /// At most one line per flag.
    fn warnings(&self) -> Vec<String> {
        self.values.iter().filter_map(|(flag, _)| warning(flag)).collect()
    }
}

/// A list of files, comma-separated.
fn paths(list: Option<String>) -> Vec<String> {
    let list = list.unwrap_or_default();
    list.split(',').map(str::trim).filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

fn warning(flag: &Flag) -> Option<String> {
    let name = flag.name;
    match (flag.support(), flag.deprecated, flag.target) {
        (Support::NoEffectYet, _, _) => Some(format!("flag --{name} is accepted but has no effect yet")),
        (Support::Partly(what), _, _) => {
            Some(format!("flag --{name} does not do all that it does upstream: {what}"))
        }
        (Support::Honoured, true, Target::Field(field)) => {
            Some(format!("flag --{name} is deprecated: set {field} in the --config file instead"))
        }
        (Support::Honoured, true, Target::NotInConfig(_)) => Some(format!("flag --{name} is deprecated")),
        (Support::Honoured, false, _) => None,
    }
}

fn suggestion(name: &str) -> Option<&'static str> {
    suggest::nearest(&name.replace('_', "-"), flags().map(|flag| flag.name))
}
