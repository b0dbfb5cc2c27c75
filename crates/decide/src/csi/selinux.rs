//! Decides whether a volume has to be staged again because a pod wants it with another SELinux label.
//!
//! ```text
//!   staged with this label, or not staged ──> Usable
//!   staged with another label ──> another pod uses it ──> UsedByOtherPod, until that pod has released it
//!                             ├─> this pod uses it ─────> Usable: its containers may be running
//!                             └─> no pod uses it ───────> UnstageFirst
//! ```

use model::PodUid;

/// A record of the volume on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LabelRecord<'a> {
    /// `None`: the record of the staged (node-wide) mount.
    pub pod: Option<&'a PodUid>,
    pub label: &'a str,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabelCheck {
    Usable,
    /// The volume has to be unstaged first.
    UnstageFirst,
    UsedByOtherPod {
        message: String,
    },
}

/// Quick check without reading the records from disk. `staged`: the label that this agent has staged the volume with. A
/// mount made by an earlier agent is good enough for a pod that wants no label.
pub fn labels_may_differ(staged: Option<&str>, wanted: &str) -> bool {
    staged.map_or(!wanted.is_empty(), |label| label != wanted)
}

/// Checks the label of the staged mount for the pod `own`. `records`: all records of the volume.
pub fn check_staged_label<'a>(
    own: &PodUid,
    wanted: &str,
    records: impl Iterator<Item = LabelRecord<'a>> + Clone,
) -> LabelCheck {
    if !records.clone().any(|record| record.pod.is_none() && record.label != wanted) {
        return LabelCheck::Usable;
    }
    let mut users = records.filter_map(|record| record.pod);
    match (users.clone().find(|user| *user != own), users.next()) {
        (Some(user), _) => LabelCheck::UsedByOtherPod {
            message: format!("pod {user} has the volume with another SELinux label"),
        },
        (None, Some(_)) => LabelCheck::Usable,
        (None, None) => LabelCheck::UnstageFirst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_looked_at_when_they_may_tell_something() {
        let check = |staged: Option<&str>, wanted: &str, expect: bool| {
            assert_eq!(labels_may_differ(staged, wanted), expect, "{staged:?} {wanted:?}");
        };
        check(None, "", false);
        check(None, "one", true);
        check(Some(""), "", false);
        check(Some(""), "one", true);
        check(Some("one"), "one", false);
        check(Some("one"), "", true);
        check(Some("one"), "two", true);
    }

    #[test]
    fn a_mount_is_made_anew_when_nobody_has_it() {
        let (a, b, own) = (PodUid::new("a"), PodUid::new("b"), PodUid::new("own"));
        let check = |wanted: &str, records: &[(Option<&PodUid>, &str)], expect: LabelCheck| {
            let all = records.iter().map(|(pod, label)| LabelRecord { pod: *pod, label });
            assert_eq!(
                check_staged_label(&PodUid::new("own"), wanted, all),
                expect,
                "{wanted:?} {records:?}"
            );
        };
        let waits_for = |pod: &str| {
            let message = format!("pod {pod} has the volume with another SELinux label");
            LabelCheck::UsedByOtherPod { message }
        };
        check("one", &[], LabelCheck::Usable);
        check("one", &[(None, "one")], LabelCheck::Usable);
        check("one", &[(None, "one"), (Some(&a), "one")], LabelCheck::Usable);
        check("one", &[(Some(&a), "two")], LabelCheck::Usable);
        check("one", &[(None, "two")], LabelCheck::UnstageFirst);
        check("", &[(None, "two")], LabelCheck::UnstageFirst);
        check("one", &[(None, ""), (Some(&a), "")], waits_for("a"));
        check("one", &[(None, "two"), (Some(&b), "two"), (Some(&a), "two")], waits_for("b"));
        check("one", &[(None, ""), (Some(&own), "")], LabelCheck::Usable);
        check("one", &[(None, ""), (Some(&own), ""), (Some(&a), "")], waits_for("a"));
    }
}
