//! The files of a volume that is made of objects: their keys, paths and modes.

use k8s_openapi::api::core::v1::KeyToPath;

use super::report::{Path, ValidationErrors};
use super::syntax;

pub(super) fn items(items: Option<&[KeyToPath]>, path: &Path, report: &mut ValidationErrors) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let path = path.index(index);
        report.require_text(&path.child("key"), &item.key);
        if report.require_text(&path.child("path"), &item.path) {
            report.invalid_for_each(&path.child("path"), &item.path, syntax::unreserved_path(&item.path));
        }
        file_mode(item.mode, &path.child("mode"), report);
    }
}

pub(super) fn file_mode(mode: Option<i32>, path: &Path, report: &mut ValidationErrors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        report.invalid(path, mode, "must be an octal mode from 0 to 0777");
    }
}
