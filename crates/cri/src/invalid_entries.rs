//! Entries of the runtime's lists that can't be used. They are left out, so that one of them hides no other, and the log
//! gets one line per list, which is not repeated as long as it would say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::text_limits::{TextLimit, truncate_text};
use tokio::sync::watch;

use crate::from_wire::MissingField;

/// How many entries of a list are named.
const MOST_NAMED: usize = 3;

/// Which entries the log has named, by the call that listed them. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InvalidEntryLog(Arc<watch::Sender<BTreeMap<&'static str, InvalidEntries>>>);

/// The invalid entries of one list. The first by name are kept, because a runtime may list in any order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct InvalidEntries {
    count: usize,
    first: BTreeSet<String>,
}

impl InvalidEntries {
    fn add(&mut self, missing: &MissingField) {
        self.count += 1;
        self.first.insert(truncate_text(missing.to_string(), TextLimit::RuntimeMessage));
        if self.first.len() > MOST_NAMED {
            self.first.pop_last();
        }
    }

    fn text(&self) -> String {
        let first = self.first.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        truncate_text(first, TextLimit::RuntimeMessage)
    }
}

impl InvalidEntryLog {
    /// The valid entries of a list. A list of one pod only is not reported: the next list of all pods shows the same.
    pub fn valid_entries<A, B>(
        &self,
        call: &'static str,
        is_of_all: bool,
        entries: Vec<A>,
        convert: impl Fn(A) -> Result<B, MissingField>,
    ) -> Vec<B> {
        let mut invalid = InvalidEntries::default();
        let valid = entries.into_iter().filter_map(|entry| match convert(entry) {
            Ok(value) => Some(value),
            Err(missing) => {
                invalid.add(&missing);
                None
            }
        });
        let valid = valid.collect();
        if is_of_all && self.is_news(call, &invalid) {
            let (count, first) = (invalid.count, invalid.text());
            tracing::warn!(call, count, first, "left out entries of the runtime's list");
        }
        valid
    }

    /// Whether the log has to name these entries: not if the last list of that call had the same ones.
    fn is_news(&self, call: &'static str, invalid: &InvalidEntries) -> bool {
        let mut news = false;
        self.0.send_if_modified(|reported| {
            news = reported.get(call) != Some(invalid) && invalid.count > 0;
            match invalid.count {
                0 => drop(reported.remove(call)),
                _ => drop(reported.insert(call, invalid.clone())),
            }
            false
        });
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry is valid if it has a name that is no number.
    fn convert(entry: String) -> Result<String, MissingField> {
        match entry.parse::<u64>() {
            Ok(_) => Err(MissingField { what: "a letter", of: entry }),
            Err(_) => Ok(entry),
        }
    }

    fn entries(names: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
        names.into_iter().map(|name| name.to_string()).collect()
    }

    fn invalid(names: impl IntoIterator<Item = impl ToString>) -> InvalidEntries {
        let mut invalid = InvalidEntries::default();
        let missing = entries(names).into_iter().filter_map(|entry| convert(entry).err());
        missing.for_each(|missing| invalid.add(&missing));
        invalid
    }

    #[test]
    fn only_the_valid_entries_are_left() {
        let log = InvalidEntryLog::default();
        let valid = log.valid_entries("List", true, entries(["1", "a", "2", "b"]), convert);
        assert_eq!(valid, ["a", "b"]);
    }

    #[test]
    fn a_list_has_one_line_however_many_entries_are_invalid() {
        let of_many = invalid(0..10_000);
        assert_eq!(of_many.count, 10_000);
        assert_eq!(of_many.text(), "\"0\" lacks a letter; \"1\" lacks a letter; \"10\" lacks a letter");
        let long = invalid(["1".repeat(15), "2".repeat(19), "3".repeat(19)]);
        assert!(long.text().len() <= TextLimit::RuntimeMessage.bytes());
        let mut nameless = InvalidEntries::default();
        nameless.add(&MissingField { what: "the id of a container", of: "x".repeat(1 << 20) });
        nameless.add(&"the id of a container".into());
        assert!(
            nameless.text().starts_with("\"xxx")
                && nameless.text().len() <= TextLimit::RuntimeMessage.bytes()
        );
    }

    #[test]
    fn the_same_line_is_not_repeated() {
        let log = InvalidEntryLog::default();
        let check = |call, names: &[u64], expect| {
            assert_eq!(log.is_news(call, &invalid(names)), expect, "{call} {names:?}");
        };
        check("ListContainers", &[], false);
        check("ListContainers", &[1, 2], true);
        check("ListContainers", &[2, 1], false);
        check("ListPodSandbox", &[2, 1], true);
        check("ListContainers", &[1, 2, 3], true);
        check("ListContainers", &[1, 2, 3], false);
        // What is well again and then not is news.
        check("ListContainers", &[], false);
        check("ListContainers", &[1, 2, 3], true);
    }

    #[test]
    fn a_list_of_one_pod_does_not_hide_the_others() {
        let log = InvalidEntryLog::default();
        log.valid_entries("List", true, entries(["1", "2"]), convert);
        log.valid_entries("List", false, entries(["a"]), convert);
        assert!(!log.is_news("List", &invalid(["1", "2"])), "it was reported before");
    }
}
