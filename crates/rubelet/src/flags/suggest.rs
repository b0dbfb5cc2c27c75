//! "Did you mean ...": the known name nearest to a mistyped one.

/// The closest candidate, if it is close enough to be meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong; of very short names, none.
    let limit = (name.len() / 3).min(4);
    let scored = candidates.map(|candidate| (distance(name, candidate), candidate));
    scored.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// How many letters must be added, dropped, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + changed);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (a, b, expect) in
            [("", "", 0), ("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), expect, "{a} {b}");
            assert_eq!(distance(b, a), expect, "{b} {a}");
        }
    }

    #[test]
    fn only_near_names_are_offered() {
        let names = ["root-dir", "cert-dir", "config-dir", "config"];
        let near = |name| nearest(name, names.into_iter());
        assert_eq!(near("rot-dir"), Some("root-dir"));
        assert_eq!(near("confgi"), Some("config"));
        assert_eq!(near("something-else"), None);
        assert_eq!(near("x"), None);
    }
}
