//! Text for people: tables, ages, and words that came from elsewhere.

use std::time::Duration;

use model::Wall;

/// Columns side by side, as wide as they must be. The first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// An age as kubectl writes it: the larger it is, the coarser.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let pair = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        _ if minutes < 2 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        _ if hours < 3 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, "d", hours % 24, "h"),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => pair(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}

pub fn age_at(now: Wall, then: Wall) -> String {
    age(now.since(then))
}

/// A text that may be from a container, a registry or a runtime: on one line, and without escape sequences that would
/// move the cursor.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .join(" ")
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// `a, b and c`.
pub fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_kubectl_does() {
        const M: u64 = 60;
        const H: u64 = 60 * M;
        const D: u64 = 24 * H;
        const Y: u64 = 365 * D;
        for (seconds, expect) in [
            (0, "0s"),
            (5, "5s"),
            (119, "119s"),
            (120, "2m"),
            (3 * M + 12, "3m12s"),
            (10 * M + 12, "10m"),
            (179 * M, "179m"),
            (3 * H, "3h"),
            (3 * H + 5 * M, "3h5m"),
            (8 * H + 5 * M, "8h"),
            (47 * H, "47h"),
            (2 * D, "2d"),
            (2 * D + 3 * H, "2d3h"),
            (8 * D + 3 * H, "8d"),
            (729 * D, "729d"),
            (2 * Y, "2y"),
            (2 * Y + 10 * D, "2y10d"),
            (9 * Y + 10 * D, "9y"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), expect, "{seconds}");
        }
        assert_eq!(age_at(Wall(5_000_000_000), Wall(2_000_000_000)), "3s");
        assert_eq!(age_at(Wall(5), Wall(9_000_000_000)), "0s", "a clock that was set back");
    }

    #[test]
    fn tables_are_aligned_and_have_no_blanks_at_the_end() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rows = [row(&["NAME", "AGE"]), row(&["web", "5s"]), row(&["größer", ""])];
        assert_eq!(table(&rows), "NAME     AGE\nweb      5s\ngrößer\n");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn foreign_words_stay_on_their_line() {
        assert_eq!(one_line("a\n  b\tc\r\n"), "a b c");
        assert_eq!(one_line("\u{1b}[2Jx"), "\\u{1b}[2Jx");
        assert_eq!(one_line("grün"), "grün");
    }

    #[test]
    fn lists_read_like_sentences() {
        let list = |words: &[&str]| listed(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(list(&[]), "");
        assert_eq!(list(&["a"]), "a");
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
    }
}
