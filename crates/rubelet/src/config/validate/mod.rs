//! Whether a configuration makes sense as a whole. Every rule is tried, so that one start shows all
//! mistakes; each names its field.

mod limits;
mod logging;
mod pods;
mod reservations;

pub(crate) use reservations::{TAINT_EFFECTS, is_memory as is_reservable_memory};

use std::fmt;

use super::{FeatureGates, KubeletConfiguration};

/// What the rules need to know about the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The unified hierarchy is not in use.
    pub cgroup_v1: bool,
}

/// One bad field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    pub field: String,
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid configuration: {}: {}", self.field, self.message)
    }
}

/// Checks everything; `gates` are those that [`super::load`] made of `config`.
pub fn validate(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    host: Host,
) -> Result<(), Vec<FieldError>> {
    let mut faults = FieldErrors::default();
    limits::check(config, gates, &mut faults);
    pods::check(config, gates, host, &mut faults);
    reservations::check(config, &mut faults);
    logging::check(config, gates, &mut faults);
    if faults.0.is_empty() { Ok(()) } else { Err(faults.0) }
}

/// The mistakes found so far.
#[derive(Default)]
struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    fn require(&mut self, fine: bool, field: &str, message: impl FnOnce() -> String) {
        if !fine {
            self.add(field, message());
        }
    }

    fn one_of(&mut self, field: &str, value: &str, allowed: &[&str]) {
        self.require(allowed.contains(&value), field, || {
            format!("{value:?} is not one of {}", quoted(allowed))
        });
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
