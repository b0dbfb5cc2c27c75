//! Durations as Go writes them (`1m0s`, `100ms`, `1.5h`): the text form of every time span in
//! `KubeletConfiguration` and on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000 * NANOSECOND;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The largest magnitude Go holds: `i64::MIN` nanoseconds.
const LARGEST: u64 = i64::MIN.unsigned_abs();

/// A signed span of time in nanoseconds, with Go's text form and Go's range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a Go duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("invalid duration {0:?}: expected numbers with units such as 1m30s, 500ms or 1.5h")]
    Malformed(String),
    #[error("invalid duration {text:?}: unknown unit {unit:?} (use ns, us, ms, s, m or h)")]
    UnknownUnit { text: String, unit: String },
    #[error("invalid duration {0:?}: a number has no unit (use ns, us, ms, s, m or h)")]
    MissingUnit(String),
    #[error("invalid duration {0:?}: too long for 64 bits of nanoseconds")]
    TooLong(String),
}

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * MILLISECOND as i64)
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs * SECOND as i64)
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The same span for timers; a negative one, which no timer can wait for, becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(DurationError::Malformed(text.to_owned()));
        }
        let too_long = || DurationError::TooLong(text.to_owned());
        let mut total: u64 = 0;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (span, tail) = leading_span(text, rest)?;
            total = total.checked_add(span).filter(|sum| *sum <= LARGEST).ok_or_else(too_long)?;
            rest = tail;
        }
        match (negative, i64::try_from(total)) {
            (false, Ok(nanos)) => Ok(Self(nanos)),
            (false, Err(_)) => Err(too_long()),
            (true, Ok(nanos)) => Ok(Self(-nanos)),
            (true, Err(_)) => Ok(Self(i64::MIN)),
        }
    }
}

/// Splits one `<number><unit>` off the front of `rest`; `text` is the whole input, for the message.
fn leading_span<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let (whole_digits, after_whole) = split_digits(rest);
    let (fraction_digits, after_number) = match after_whole.strip_prefix('.') {
        Some(tail) => split_digits(tail),
        None => ("", after_whole),
    };
    if whole_digits.is_empty() && fraction_digits.is_empty() {
        return Err(DurationError::Malformed(text.to_owned()));
    }
    let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
    let (unit, tail) = after_number.split_at(unit_end);
    let nanos_per_unit = match unit {
        "ns" => NANOSECOND,
        // Both code points that look like the micro sign are in use.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "" => return Err(DurationError::MissingUnit(text.to_owned())),
        other => {
            return Err(DurationError::UnknownUnit { text: text.to_owned(), unit: other.to_owned() });
        }
    };
    let whole = if whole_digits.is_empty() { Some(0) } else { whole_digits.parse::<u64>().ok() };
    let span = whole
        .and_then(|count| count.checked_mul(nanos_per_unit))
        .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction_digits, nanos_per_unit)))
        .ok_or_else(|| DurationError::TooLong(text.to_owned()))?;
    Ok((span, tail))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// `0.<digits>` of a unit, cut (not rounded) to whole nanoseconds.
fn fraction_nanos(digits: &str, nanos_per_unit: u64) -> u64 {
    // 18 digits are more than an hour's nanoseconds can tell apart.
    let mut numerator: u128 = 0;
    let mut denominator: u128 = 1;
    for digit in digits.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    (numerator * u128::from(nanos_per_unit) / denominator) as u64
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        if magnitude == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if magnitude < MICROSECOND {
            return write!(f, "{magnitude}ns");
        }
        if magnitude < MILLISECOND {
            return write_decimal(f, magnitude, MICROSECOND, "\u{b5}s");
        }
        if magnitude < SECOND {
            return write_decimal(f, magnitude, MILLISECOND, "ms");
        }
        if magnitude >= HOUR {
            write!(f, "{}h", magnitude / HOUR)?;
        }
        if magnitude >= MINUTE {
            write!(f, "{}m", magnitude % HOUR / MINUTE)?;
        }
        write_decimal(f, magnitude % MINUTE, SECOND, "s")
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return write!(f, "{whole}{name}");
    }
    let width = unit.ilog10() as usize;
    let padded = format!("{fraction:0width$}");
    write!(f, "{whole}.{}{name}", padded.trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DurationText { numbers_are_nanoseconds: false })
    }
}

/// `logging.flushFrequency` alone may also be a plain number of nanoseconds.
pub fn text_or_nanoseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
    deserializer.deserialize_any(DurationText { numbers_are_nanoseconds: true })
}

struct DurationText {
    numbers_are_nanoseconds: bool,
}

impl Visitor<'_> for DurationText {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"1m30s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<GoDuration, E> {
        if !self.numbers_are_nanoseconds {
            return Err(E::invalid_type(de::Unexpected::Signed(number), &self));
        }
        Ok(GoDuration(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<GoDuration, E> {
        let unexpected = de::Unexpected::Unsigned(number);
        if !self.numbers_are_nanoseconds {
            return Err(E::invalid_type(unexpected, &self));
        }
        i64::try_from(number).map(GoDuration).map_err(|_| E::invalid_value(unexpected, &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, nanos: i64, printed: &str) {
        let parsed: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(parsed.as_nanos(), nanos, "{text}");
        assert_eq!(parsed.to_string(), printed, "{text}");
    }

    #[test]
    fn reads_and_prints_what_go_reads_and_prints() {
        let (s, m, h) = (SECOND as i64, MINUTE as i64, HOUR as i64);
        check("0", 0, "0s");
        check("0s", 0, "0s");
        check("-0", 0, "0s");
        check("1m0s", m, "1m0s");
        check("100ms", 100 * MILLISECOND as i64, "100ms");
        check("300ms", 300 * MILLISECOND as i64, "300ms");
        check("1.5h", 90 * m, "1h30m0s");
        check("4h", 4 * h, "4h0m0s");
        check("5m", 5 * m, "5m0s");
        check("2h45m", 2 * h + 45 * m, "2h45m0s");
        check("-1.5h", -90 * m, "-1h30m0s");
        check("+5s", 5 * s, "5s");
        check(".5s", s / 2, "500ms");
        check("1.s", s, "1s");
        check("1us", 1_000, "1\u{b5}s");
        check("1\u{b5}s", 1_000, "1\u{b5}s");
        check("1\u{3bc}s", 1_000, "1\u{b5}s");
        check("1100ns", 1_100, "1.1\u{b5}s");
        check("2.2ms", 2_200_000, "2.2ms");
        check("3.3s", 3_300_000_000, "3.3s");
        check("3m3.000000001s", 3 * m + 3 * s + 1, "3m3.000000001s");
        check("1h1m1s1ms1us1ns", h + m + s + 1_001_001, "1h1m1.001001001s");
        check("2562047h47m16.854775807s", i64::MAX, "2562047h47m16.854775807s");
        check("-2562047h47m16.854775808s", i64::MIN, "-2562047h47m16.854775808s");
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "1m 0s",
            " 1s",
            "3000000h",
            "9223372036854775808ns",
            "1.0",
        ] {
            assert!(text.parse::<GoDuration>().is_err(), "{text:?} was accepted");
        }
        let message = "1d".parse::<GoDuration>().unwrap_err().to_string();
        assert!(message.contains("\"1d\"") && message.contains("unit \"d\""), "{message}");
    }

    proptest! {
        #[test]
        fn every_duration_survives_its_text_form(nanos in any::<i64>()) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+]?[0-9.]{0,20}(ns|us|ms|s|m|h|d|µs)?[0-9.]{0,5}\\PC?") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
