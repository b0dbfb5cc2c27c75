//! Spans of time as Go writes them, for the fields of the plugins' API.

use std::time::Duration;

/// Reads `1h30m`, `1.5s`, `0`. Negative spans come out as zero: none of the fields can mean them.
pub fn parse(text: &str) -> Option<Duration> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0u128;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(number_end);
        let unit_end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, next) = behind.split_at(unit_end);
        nanos = nanos.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = next;
    }
    let nanos = u64::try_from(nanos).ok().filter(|nanos| *nanos <= i64::MAX as u64 && !text.is_empty())?;
    Some(if negative { Duration::ZERO } else { Duration::from_nanos(nanos) })
}

fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A decimal number of units, cut off below a nanosecond.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let fraction = &fraction[..fraction.len().min(18)];
    let part = digits(fraction)?.checked_mul(unit)? / 10u128.pow(fraction.len() as u32);
    digits(whole)?.checked_mul(unit)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(parse(text), expect.map(Duration::from_millis), "{text}");
        };
        check("0", Some(0));
        check("0s", Some(0));
        check("10s", Some(10_000));
        check("1h30m", Some(5_400_000));
        check("1m0s", Some(60_000));
        check("1.5s", Some(1_500));
        check(".5s", Some(500));
        check("+3ms", Some(3));
        check("-3h", Some(0));
        check("", None);
        check("s", None);
        check("10", None);
        check("10d", None);
        check("1.2.3s", None);
        check("10 s", None);
        check("9999999999h", None);
    }
}
