//! The record of a pulled image, after one more pull.

use std::collections::{BTreeMap, BTreeSet};

use model::Wall;
use model::credentials::{PullCredentials, PullSecret, PulledRecord};

use super::matching::without_tag;

/// Names under which the beginning of a pull is noted: as it is pulled, and as specs may have written it.
pub fn intent_names(image: &str) -> Vec<String> {
    let shorter = image.strip_suffix(":latest").filter(|name| !name.contains('@'));
    std::iter::once(image).chain(shorter).map(str::to_owned).collect()
}

/// The record with what this pull adds to it, or `None` when it says all of that already. `with` is `None` for a pull
/// of which the agent does not know how it was done: the record then grants nobody anything.
pub fn merge_pull_record(
    record: Option<&PulledRecord>,
    image: &str,
    image_ref: &str,
    with: Option<&PullCredentials>,
    now: Wall,
) -> Option<PulledRecord> {
    let name = without_tag(image).to_owned();
    let Some(old) = record else {
        let credential_mapping = with.map(|with| (name, with.clone())).into_iter().collect();
        return Some(PulledRecord {
            last_updated_time: Some(now.api_time()),
            image_ref: image_ref.to_owned(),
            credential_mapping,
        });
    };
    let with = with.filter(|with| grants_anything(with))?;
    let entry = match old.credential_mapping.get(&name) {
        None => with.clone(),
        Some(known) => extended(known, with)?,
    };
    let mut new = old.clone();
    new.credential_mapping.insert(name, entry);
    new.last_updated_time = Some(now.api_time());
    Some(new)
}

fn grants_anything(with: &PullCredentials) -> bool {
    with.node_pods_accessible
        || !with.kubernetes_secrets.is_empty()
        || !with.kubernetes_service_accounts.is_empty()
}

/// `None`: nothing new.
fn extended(known: &PullCredentials, with: &PullCredentials) -> Option<PullCredentials> {
    if known.node_pods_accessible {
        return None;
    }
    if with.node_pods_accessible {
        return Some(PullCredentials { node_pods_accessible: true, ..PullCredentials::default() });
    }
    let mut new = known.clone();
    if !with.kubernetes_secrets.is_empty() {
        new.kubernetes_secrets = merged_secrets(&known.kubernetes_secrets, &with.kubernetes_secrets);
    } else {
        let all = known.kubernetes_service_accounts.iter().chain(&with.kubernetes_service_accounts);
        let mut all: Vec<_> = all.cloned().collect::<BTreeSet<_>>().into_iter().collect();
        all.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        new.kubernetes_service_accounts = all;
    }
    (new != *known).then_some(new)
}

/// One entry per Secret, with the newest hash of its content.
fn merged_secrets(known: &[PullSecret], with: &[PullSecret]) -> Vec<PullSecret> {
    let key = |s: &PullSecret| (s.namespace.clone(), s.name.clone(), s.uid.clone());
    let by_key: BTreeMap<_, _> = known.iter().chain(with).map(|s| (key(s), s.clone())).collect();
    by_key.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credentials::PullServiceAccount;

    const NOW: Wall = Wall(1_700_000_000_000_000_000);
    const LATER: Wall = Wall(1_700_000_060_000_000_000);

    fn node() -> PullCredentials {
        PullCredentials { node_pods_accessible: true, ..PullCredentials::default() }
    }
    fn secret(name: &str, hash: &str) -> PullCredentials {
        let secret = PullSecret {
            uid: format!("uid-{name}"),
            namespace: "ns".into(),
            name: name.into(),
            credential_hash: hash.into(),
        };
        PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() }
    }
    fn account(name: &str) -> PullCredentials {
        let account = PullServiceAccount { name: name.into(), ..PullServiceAccount::default() };
        PullCredentials { kubernetes_service_accounts: vec![account], ..PullCredentials::default() }
    }
    fn first(with: Option<&PullCredentials>) -> PulledRecord {
        merge_pull_record(None, "h.test/a:1", "sha256:1", with, NOW).unwrap()
    }
    fn again(record: &PulledRecord, with: &PullCredentials) -> Option<PullCredentials> {
        let new = merge_pull_record(Some(record), "h.test/a:2", "sha256:1", Some(with), LATER)?;
        assert_eq!(new.last_updated_time, Some(LATER.api_time()));
        Some(new.credential_mapping["h.test/a"].clone())
    }

    #[test]
    fn the_first_pull_makes_a_record() {
        let record = first(Some(&node()));
        assert_eq!(record.image_ref, "sha256:1");
        assert_eq!(record.credential_mapping, BTreeMap::from([("h.test/a".to_owned(), node())]));
        assert_eq!(record.last_updated_time, Some(NOW.api_time()));
    }

    #[test]
    fn a_pull_of_unknown_end_grants_nothing() {
        assert!(first(None).credential_mapping.is_empty());
        assert_eq!(
            merge_pull_record(Some(&first(Some(&node()))), "h.test/a:1", "sha256:1", None, LATER),
            None
        );
    }

    #[test]
    fn another_name_of_the_same_image_has_its_own_entry() {
        let record = first(Some(&node()));
        let new =
            merge_pull_record(Some(&record), "i.test/b", "sha256:1", Some(&secret("s", "h")), LATER).unwrap();
        assert_eq!(new.credential_mapping.len(), 2);
        assert!(new.credential_mapping["h.test/a"].node_pods_accessible);
    }

    #[test]
    fn what_is_known_is_not_written_again() {
        assert_eq!(again(&first(Some(&node())), &node()), None);
        assert_eq!(again(&first(Some(&secret("s", "h"))), &secret("s", "h")), None);
        assert_eq!(again(&first(Some(&account("a"))), &account("a")), None);
        assert_eq!(again(&first(Some(&node())), &secret("s", "h")), None);
        assert_eq!(again(&first(Some(&node())), &PullCredentials::default()), None);
    }

    #[test]
    fn the_nodes_access_stands_for_all() {
        assert_eq!(again(&first(Some(&secret("s", "h"))), &node()), Some(node()));
    }

    #[test]
    fn secrets_add_up_and_renew_their_hash() {
        let record = first(Some(&secret("s", "old")));
        assert_eq!(again(&record, &secret("s", "new")), Some(secret("s", "new")));
        let both = again(&record, &secret("a", "h")).unwrap().kubernetes_secrets;
        assert_eq!(both.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "s"]);
        let accounts = again(&first(Some(&account("b"))), &account("a")).unwrap();
        let accounts = accounts.kubernetes_service_accounts;
        assert_eq!(accounts.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_pull_is_noted_under_the_names_that_specs_use() {
        assert_eq!(intent_names("h.test/a:latest"), ["h.test/a:latest", "h.test/a"]);
        assert_eq!(intent_names("h.test/a:1"), ["h.test/a:1"]);
    }
}
