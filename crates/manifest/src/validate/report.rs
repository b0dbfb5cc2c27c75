//! Field paths and the errors found at them, worded as Kubernetes words them.

use std::fmt;

use model::text_limits::{TextLimit, truncate_text};

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Such as `spec.containers[0].image`.
    pub path: String,
    /// Such as `Required value` or `Invalid value: "x": why`.
    pub detail: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.detail)
    }
}

/// The place of a field.
#[derive(Clone, Debug)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn new(root: &str) -> Self {
        Path(root.to_owned())
    }

    pub(super) fn child(&self, field: &str) -> Self {
        Path(format!("{}.{field}", self.0))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Path(format!("{}[{index}]", self.0))
    }

    pub(super) fn key(&self, key: &str) -> Self {
        Path(format!("{}[{key}]", self.0))
    }
}

/// A refused value as it is shown: texts quoted, numbers bare.
pub(super) trait DisplayedValue {
    fn shown(&self) -> String;
}

impl DisplayedValue for &str {
    fn shown(&self) -> String {
        format!("{:?}", truncate_text(*self, TextLimit::QuotedValue))
    }
}

impl DisplayedValue for &String {
    fn shown(&self) -> String {
        self.as_str().shown()
    }
}

macro_rules! shown_bare {
    ($($type:ty)*) => {$(
        impl DisplayedValue for $type {
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

shown_bare!(i32 i64 usize bool);

/// Collects the broken rules in the order in which they are found.
#[derive(Debug, Default)]
pub(super) struct ValidationErrors {
    errors: Vec<FieldError>,
    /// A pod may have users of its own on the host's network.
    pub(super) user_namespace_with_host_network: bool,
}

impl ValidationErrors {
    pub(super) fn under(own_users_on_host_network: bool) -> Self {
        Self { errors: Vec::new(), user_namespace_with_host_network: own_users_on_host_network }
    }

    pub(super) fn into_result(self) -> Result<(), Vec<FieldError>> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.errors) }
    }

    /// How many rules were broken so far; a later count tells whether a part is sound.
    pub(super) fn count(&self) -> usize {
        self.errors.len()
    }

    fn push(&mut self, path: &Path, detail: String) {
        self.errors.push(FieldError { path: path.0.clone(), detail });
    }

    pub(super) fn required(&mut self, path: &Path) {
        self.push(path, "Required value".to_owned());
    }

    pub(super) fn required_because(&mut self, path: &Path, why: &str) {
        self.push(path, format!("Required value: {why}"));
    }

    pub(super) fn invalid(&mut self, path: &Path, value: impl DisplayedValue, why: &str) {
        self.push(path, format!("Invalid value: {}: {why}", value.shown()));
    }

    /// One error for each reason that a syntax rule gave.
    pub(super) fn invalid_for_each(&mut self, path: &Path, value: &str, reasons: Vec<String>) {
        for reason in reasons {
            self.invalid(path, value, &reason);
        }
    }

    pub(super) fn duplicate(&mut self, path: &Path, value: impl DisplayedValue) {
        self.push(path, format!("Duplicate value: {}", value.shown()));
    }

    pub(super) fn not_found(&mut self, path: &Path, value: &str) {
        self.push(path, format!("Not found: {value:?}"));
    }

    pub(super) fn forbidden(&mut self, path: &Path, why: &str) {
        self.push(path, format!("Forbidden: {why}"));
    }

    pub(super) fn unsupported(&mut self, path: &Path, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        self.push(path, format!("Unsupported value: {value:?}: supported values: {}", supported.join(", ")));
    }

    pub(super) fn too_long(&mut self, path: &Path, most: usize) {
        self.push(path, format!("Too long: at most {most} bytes are allowed"));
    }

    pub(super) fn too_many(&mut self, path: &Path, count: usize, most: usize) {
        self.push(path, format!("Too many: {count}: at most {most} are allowed"));
    }

    pub(super) fn one_of(&mut self, path: &Path, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.unsupported(path, value, supported);
        }
    }

    pub(super) fn one_of_required(&mut self, path: &Path, value: Option<&str>, supported: &[&str]) {
        match value.unwrap_or_default() {
            "" => self.required(path),
            value => self.one_of(path, value, supported),
        }
    }

    pub(super) fn in_range(&mut self, path: &Path, value: i64, least: i64, most: i64) {
        if !(least..=most).contains(&value) {
            self.invalid(path, value, &format!("must be between {least} and {most}, inclusive"));
        }
    }

    pub(super) fn not_negative(&mut self, path: &Path, value: Option<i32>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            self.invalid(path, value, super::syntax::NOT_NEGATIVE);
        }
    }

    /// A mandatory text. Says whether it is there.
    pub(super) fn require_text(&mut self, path: &Path, value: &str) -> bool {
        if value.is_empty() {
            self.required(path);
        }
        !value.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_values_are_cut() {
        let long = "x".repeat(10 << 20);
        for shown in [(&long).shown(), long.as_str().shown()] {
            assert!(shown.len() <= TextLimit::QuotedValue.bytes() + 2, "{}", shown.len());
            assert!(shown.starts_with("\"xxx") && shown.ends_with(" bytes left out)\""), "{shown}");
        }
        assert_eq!("a\nb".shown(), r#""a\nb""#);
    }
}
