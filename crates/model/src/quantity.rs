//! Kubernetes resource quantities (`1.5Gi`, `100m`, `1e3`) as exact fixed-point numbers.
//!
//! A quantity is a count of nano-units plus the notation family it was written in; the family only matters
//! for printing. Anything finer than a nano-unit is rounded away from zero, as the API server does: whoever
//! asks for a little of something must not end up with none of it.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// Binary quantities are capped at the largest signed 64-bit integer by the API.
const MAX_BINARY_NANOS: i128 = i64::MAX as i128 * NANOS_PER_UNIT;
/// Beyond this the exponent cannot be represented whatever the mantissa is (and shifting by it would only cost time).
const MAX_EXPONENT: i64 = 60;

/// The notation family a quantity is printed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `Ki`, `Mi`, ... `Ei`
    BinarySi,
    /// `n`, `u`, `m`, none, `k`, `M`, ... `E`
    #[default]
    DecimalSi,
    /// `e3`, `E6`
    DecimalExponent,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("a quantity must not be empty")]
    Empty,
    #[error("{0:?} is not a quantity: expected a decimal number with an optional suffix")]
    NotANumber(String),
    #[error("{text:?} is not a quantity: unknown suffix {suffix:?}")]
    UnknownSuffix { text: String, suffix: String },
    #[error("{0:?} is too large for a quantity")]
    TooLarge(String),
}

/// An exact amount of a resource.
///
/// Equality and order are those of the amounts: `1Ki == 1024`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    /// A whole number of units.
    pub fn from_units(units: i64, format: Format) -> Self {
        Quantity { nanos: i128::from(units) * NANOS_PER_UNIT, format }
    }

    /// A whole number of thousandths, such as millicores.
    pub fn from_millis(millis: i64) -> Self {
        Quantity { nanos: i128::from(millis) * NANOS_PER_MILLI, format: Format::DecimalSi }
    }

    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Whole units, rounded away from zero and clamped to 64 bits.
    pub fn value(&self) -> i64 {
        clamp_to_i64(divide_away_from_zero(self.nanos, NANOS_PER_UNIT))
    }

    /// Thousandths, rounded away from zero and clamped to 64 bits.
    pub fn milli_value(&self) -> i64 {
        clamp_to_i64(divide_away_from_zero(self.nanos, NANOS_PER_MILLI))
    }

    /// The same amount with nothing finer than a thousandth; the API stores resource lists that way.
    pub fn rounded_up_to_milli(&self) -> Self {
        let millis = divide_away_from_zero(self.nanos, NANOS_PER_MILLI);
        Quantity { nanos: millis.saturating_mul(NANOS_PER_MILLI), format: self.format }
    }

    /// The canonical text as the API type.
    pub fn to_api(&self) -> ApiQuantity {
        ApiQuantity(self.to_string())
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::NotANumber(text.to_owned()));
        }
        let scale = Scale::from_suffix(suffix).ok_or_else(|| QuantityError::UnknownSuffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
        })?;
        let magnitude =
            scale.nanos(whole, fraction).ok_or_else(|| QuantityError::TooLarge(text.to_owned()))?;
        Ok(Quantity { nanos: if negative { -magnitude } else { magnitude }, format: scale.format() })
    }
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = QuantityError;

    fn try_from(api: &ApiQuantity) -> Result<Self, Self::Error> {
        api.0.parse()
    }
}

impl From<Quantity> for ApiQuantity {
    fn from(quantity: Quantity) -> Self {
        quantity.to_api()
    }
}

/// What a suffix multiplies the number with.
enum Scale {
    Binary { shift: u32 },
    Decimal { exponent: i64, format: Format },
}

impl Scale {
    fn from_suffix(suffix: &str) -> Option<Scale> {
        let decimal = |exponent| Some(Scale::Decimal { exponent, format: Format::DecimalSi });
        let binary = |shift| Some(Scale::Binary { shift });
        match suffix {
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                Some(Scale::Decimal { exponent, format: Format::DecimalExponent })
            }
        }
    }

    fn format(&self) -> Format {
        match self {
            Scale::Binary { .. } => Format::BinarySi,
            Scale::Decimal { format, .. } => *format,
        }
    }

    /// `whole.fraction` scaled and counted in nano-units, rounded up. None when it does not fit.
    fn nanos(&self, whole: &str, fraction: &str) -> Option<i128> {
        match *self {
            Scale::Binary { shift } => {
                Some(binary_nanos(whole, fraction, shift).unwrap_or(MAX_BINARY_NANOS).min(MAX_BINARY_NANOS))
            }
            Scale::Decimal { exponent, .. } => decimal_nanos(whole, fraction, exponent),
        }
    }
}

/// Rounded up to a nano-unit. More than 18 digits after the point do not fit beside the powers of two in 128
/// bits; they only round the last kept digit up.
fn binary_nanos(whole: &str, fraction: &str, shift: u32) -> Option<i128> {
    const KEPT: usize = 18;
    let whole = parse_digits(whole)?.checked_mul(1 << shift)?.checked_mul(NANOS_PER_UNIT)?;
    let kept = &fraction[..fraction.len().min(KEPT)];
    let dropped = &fraction[kept.len()..];
    let mut numerator = parse_digits(kept)?.checked_mul(10i128.pow((KEPT - kept.len()) as u32))?;
    if dropped.bytes().any(|digit| digit != b'0') {
        numerator += 1;
    }
    // numerator / 10^18 * 2^shift * 10^9, with the powers of ten shortened
    let scaled = numerator.checked_mul(1 << shift)?;
    whole.checked_add(divide_away_from_zero(scaled, 10i128.pow(9)))
}

fn decimal_nanos(whole: &str, fraction: &str, exponent: i64) -> Option<i128> {
    let digits: String = [whole, fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    if exponent > MAX_EXPONENT {
        return None;
    }
    // the value is digits * 10^power nano-units
    let power = exponent.saturating_add(9).saturating_sub(fraction.len() as i64);
    if power >= 0 {
        return parse_digits(digits)?.checked_mul(10i128.checked_pow(u32::try_from(power).ok()?)?);
    }
    let cut = usize::try_from(power.unsigned_abs()).unwrap_or(usize::MAX);
    let (kept, dropped) = digits.split_at(digits.len().saturating_sub(cut));
    let lost = dropped.bytes().any(|digit| digit != b'0');
    parse_digits(kept)?.checked_add(i128::from(lost))
}

fn parse_digits(digits: &str) -> Option<i128> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

fn divide_away_from_zero(dividend: i128, divisor: i128) -> i128 {
    dividend / divisor + (dividend % divisor).signum()
}

fn clamp_to_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl fmt::Display for Quantity {
    /// The canonical form: no fractional digits, no precision lost, the largest suffix possible.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole_units = self.nanos % NANOS_PER_UNIT == 0;
        let small = self.nanos.abs() < 1024 * NANOS_PER_UNIT;
        match self.format {
            Format::BinarySi if whole_units && !small => write_binary(f, self.nanos / NANOS_PER_UNIT),
            Format::DecimalExponent => write_exponent(f, self.nanos),
            Format::BinarySi | Format::DecimalSi => write_decimal(f, self.nanos),
        }
    }
}

fn write_binary(f: &mut fmt::Formatter<'_>, mut units: i128) -> fmt::Result {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut step = 0;
    while step + 1 < SUFFIXES.len() && units % 1024 == 0 {
        units /= 1024;
        step += 1;
    }
    write!(f, "{units}{}", SUFFIXES[step])
}

fn write_decimal(f: &mut fmt::Formatter<'_>, mut amount: i128) -> fmt::Result {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let mut step = 0;
    while step + 1 < SUFFIXES.len() && amount % 1000 == 0 {
        amount /= 1000;
        step += 1;
    }
    write!(f, "{amount}{}", SUFFIXES[step])
}

fn write_exponent(f: &mut fmt::Formatter<'_>, mut amount: i128) -> fmt::Result {
    let mut exponent = -9;
    while amount % 1000 == 0 {
        amount /= 1000;
        exponent += 3;
    }
    if exponent == 0 { write!(f, "{amount}") } else { write!(f, "{amount}e{exponent}") }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Quantity;

    /// Saturates. A zero takes over the notation of what is added to it.
    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(amounts: I) -> Quantity {
        amounts.fold(Quantity::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn parses_every_notation() {
        let check = |text: &str, nanos: i128, canonical: &str| {
            let parsed = quantity(text);
            assert_eq!(parsed.nanos(), nanos, "{text}");
            assert_eq!(parsed.to_string(), canonical, "{text}");
        };
        const UNIT: i128 = NANOS_PER_UNIT;
        check("0", 0, "0");
        check("00", 0, "0");
        check("-0", 0, "0");
        check("1", UNIT, "1");
        check("+1", UNIT, "1");
        check("-1", -UNIT, "-1");
        check("007", 7 * UNIT, "7");
        check("1000", 1000 * UNIT, "1k");
        check("100m", UNIT / 10, "100m");
        check("0.5", UNIT / 2, "500m");
        check(".5", UNIT / 2, "500m");
        check("5.", 5 * UNIT, "5");
        check("1.5", UNIT * 3 / 2, "1500m");
        check("10n", 10, "10n");
        check("5u", 5_000, "5u");
        check("1e3", 1000 * UNIT, "1e3");
        check("1E6", 1_000_000 * UNIT, "1e6");
        check("12e-1", UNIT * 12 / 10, "1200e-3");
        check("1e2", 100 * UNIT, "100");
        check("1E", 1_000_000_000_000_000_000 * UNIT, "1E");
        check("1k", 1000 * UNIT, "1k");
        check("1M", 1_000_000 * UNIT, "1M");
        check("1G", 1_000_000_000 * UNIT, "1G");
        check("1T", 1_000_000_000_000 * UNIT, "1T");
        check("1P", 1_000_000_000_000_000 * UNIT, "1P");
        check("1Ki", 1024 * UNIT, "1Ki");
        check("1Mi", 1024 * 1024 * UNIT, "1Mi");
        check("1.5Gi", 1536 * 1024 * 1024 * UNIT, "1536Mi");
        check("0.1Gi", 107_374_182_400_000_000, "107374182400m");
        check("0.5Ki", 512 * UNIT, "512");
        check("1024Mi", 1024 * 1024 * 1024 * UNIT, "1Gi");
        check("1Ti", (1 << 40) * UNIT, "1Ti");
        check("1Pi", (1 << 50) * UNIT, "1Pi");
        check("1Ei", (1 << 60) * UNIT, "1Ei");
        check("100Ei", i128::from(i64::MAX) * UNIT, "9223372036854775807");
        check("-1Gi", -(1 << 30) * UNIT, "-1Gi");
        check("0.1n", 1, "1n");
        check("-0.1n", -1, "-1n");
        check("1e-40", 1, "1e-9");
        check("0e999", 0, "0");
        check(
            "123456789012345678901234567890e-12",
            123_456_789_012_345_678_901_234_568,
            "123456789012345678901234568e-9",
        );
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        let check =
            |text: &str, expect: QuantityError| assert_eq!(text.parse::<Quantity>(), Err(expect), "{text}");
        let not_a_number = |text: &str| QuantityError::NotANumber(text.to_owned());
        let suffix = |text: &str, suffix: &str| QuantityError::UnknownSuffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
        };
        check("", QuantityError::Empty);
        check("Mi", not_a_number("Mi"));
        check("-", not_a_number("-"));
        check(".", not_a_number("."));
        check("1.2.3", not_a_number("1.2.3"));
        check("--1", not_a_number("--1"));
        check(" 1", not_a_number(" 1"));
        check("1 ", suffix("1 ", " "));
        check("1K", suffix("1K", "K"));
        check("1mi", suffix("1mi", "mi"));
        check("1e", suffix("1e", "e"));
        check("1ee3", suffix("1ee3", "ee3"));
        check("1e1.5", suffix("1e1.5", "e1.5"));
        check("1Zi", suffix("1Zi", "Zi"));
        check("1e100", QuantityError::TooLarge("1e100".to_owned()));
        check("1e9999999999", QuantityError::TooLarge("1e9999999999".to_owned()));
    }

    #[test]
    fn rounds_away_from_zero() {
        let check = |text: &str, value: i64, milli: i64| {
            assert_eq!((quantity(text).value(), quantity(text).milli_value()), (value, milli), "{text}");
        };
        check("1", 1, 1000);
        check("1.1", 2, 1100);
        check("1n", 1, 1);
        check("1500u", 1, 2);
        check("-1.1", -2, -1100);
        check("1000E", i64::MAX, i64::MAX);
        assert_eq!(quantity("1500u").rounded_up_to_milli().to_string(), "2m");
    }

    #[test]
    fn adds_subtracts_and_compares() {
        assert_eq!(quantity("1Ki"), quantity("1024"));
        assert!(quantity("1001m") > quantity("1"));
        assert_eq!((quantity("1Gi") + quantity("512Mi")).to_string(), "1536Mi");
        assert_eq!((quantity("1Gi") - quantity("512Mi")).to_string(), "512Mi");
        assert_eq!((Quantity::ZERO + quantity("2Mi")).to_string(), "2Mi");
        let total: Quantity = ["100m", "1", "900m"].into_iter().map(quantity).sum();
        assert_eq!(total.to_string(), "2");
        assert_eq!(Quantity::try_from(&ApiQuantity("64Mi".into())), Ok(quantity("64Mi")));
        assert_eq!(ApiQuantity::from(quantity("0.5")), ApiQuantity("500m".into()));
    }

    fn any_quantity_text() -> impl Strategy<Value = String> {
        let suffix = prop::sample::select(vec![
            "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-6",
            "e0",
        ]);
        ("[+-]?", 0u64..10_000_000, prop::option::of("[0-9]{1,12}"), suffix).prop_map(
            |(sign, whole, fraction, suffix)| match fraction {
                Some(fraction) => format!("{sign}{whole}.{fraction}{suffix}"),
                None => format!("{sign}{whole}{suffix}"),
            },
        )
    }

    proptest! {
        #[test]
        fn printing_keeps_the_amount(text in any_quantity_text()) {
            let parsed = quantity(&text);
            let printed = parsed.to_string();
            let again = quantity(&printed);
            prop_assert_eq!(parsed, again);
            prop_assert_eq!(again.to_string(), printed, "the canonical form is a fixed point");
        }

        #[test]
        fn rounding_never_loses_and_gains_less_than_one(text in any_quantity_text()) {
            let parsed = quantity(&text);
            let whole = Quantity::from_units(parsed.value(), Format::DecimalSi);
            let gain = (whole.nanos().abs() - parsed.nanos().abs()).max(0);
            prop_assert!(parsed.value() == i64::MAX || parsed.value() == i64::MIN
                || (whole.nanos().abs() >= parsed.nanos().abs() && gain < NANOS_PER_UNIT));
        }

        #[test]
        fn subtraction_undoes_addition(a in any_quantity_text(), b in any_quantity_text()) {
            let (a, b) = (quantity(&a), quantity(&b));
            prop_assert_eq!(a + b - b, a);
            prop_assert_eq!(a + b, b + a);
            prop_assert_eq!(a.cmp(&b), (a - b).cmp(&Quantity::ZERO));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn number_like_text_never_panics(text in "[-+]?[0-9.]{0,50}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,25}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
