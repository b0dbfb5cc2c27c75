//! Labels and label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::report::{Path, ValidationErrors};
use super::syntax;

pub(super) fn labels(labels: Option<&BTreeMap<String, String>>, path: &Path, report: &mut ValidationErrors) {
    for (key, value) in labels.into_iter().flatten() {
        report.invalid_for_each(path, key, syntax::qualified_name(key));
        report.invalid_for_each(path, value, syntax::label_value(value));
    }
}

pub(super) fn label_selector(selector: Option<&LabelSelector>, path: &Path, report: &mut ValidationErrors) {
    let Some(selector) = selector else { return };
    labels(selector.match_labels.as_ref(), &path.child("matchLabels"), report);
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                report.required_because(&path.child("values"), "the operators 'In' and 'NotIn' need values");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                report.forbidden(
                    &path.child("values"),
                    "the operators 'Exists' and 'DoesNotExist' take no values",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => report.invalid(&path.child("operator"), other, "is not an operator of selectors"),
        }
        report.invalid_for_each(
            &path.child("key"),
            &requirement.key,
            syntax::qualified_name(&requirement.key),
        );
        for (index, value) in values.iter().enumerate() {
            report.invalid_for_each(&path.child("values").index(index), value, syntax::label_value(value));
        }
    }
}
