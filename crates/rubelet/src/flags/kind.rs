//! What the values of flags look like, and how repeated ones add up. The result is the JSON that the
//! configuration field of the same meaning takes, so one form serves flags and files.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::lists::{comma_separated, reserved_memory, taints};
use crate::config::{GoDuration, QuantityText};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Bool,
    Int32,
    Int64,
    /// A log level: a number of at least zero.
    Level,
    Duration,
    Quantity,
    Address,
    /// `a,b`, repeatable.
    List,
    /// `a=b,c=d`, repeatable.
    Pairs,
    /// `a=b`, one per flag, so that the value may hold commas.
    SinglePair,
    /// `a=true,b=false`, repeatable.
    BoolMap,
    /// `a<b,c<d`, repeatable.
    Thresholds,
    /// `a:b,c:d`, repeatable; a name may occur several times.
    Headers,
    /// `a=b,c`, repeatable; a value may be missing.
    Labels,
    /// `pattern=level,...`, repeatable.
    Vmodule,
    /// `key=value:effect,...`
    Taints,
    /// `node:type=quantity,...;node:...`, repeatable.
    ReservedMemory,
    /// `true`, `false`, `raw` or a version.
    Version,
}

impl ValueKind {
    /// The value that the bare flag stands for, for those that need none.
    pub fn bare_value(self) -> Option<&'static str> {
        matches!(self, Self::Bool | Self::Version).then_some("true")
    }

    /// How help names the value.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Text | Self::Version => "string",
            Self::Bool => "",
            Self::Int32 | Self::Int64 => "int",
            Self::Level => "level",
            Self::Duration => "duration",
            Self::Quantity => "quantity",
            Self::Address => "ip",
            Self::List => "a,b",
            Self::Pairs | Self::SinglePair | Self::Labels => "key=value",
            Self::BoolMap => "name=true|false",
            Self::Thresholds => "signal<amount",
            Self::Headers => "name:value",
            Self::Vmodule => "pattern=level",
            Self::Taints => "key=value:effect",
            Self::ReservedMemory => "node:type=quantity",
        }
    }

    /// Takes one more occurrence of the flag; `earlier` is what the ones before it came to.
    pub fn parse_occurrence(self, earlier: Option<Value>, text: &str) -> Result<Value, String> {
        match self {
            Self::Text | Self::Version => Ok(json!(text)),
            Self::Bool => switch(text).map(Value::from),
            Self::Int32 => integer(text, i32::MIN.into(), i32::MAX.into()).map(Value::from),
            Self::Int64 => integer(text, i64::MIN, i64::MAX).map(Value::from),
            Self::Level => level(text).map(Value::from),
            Self::Duration => {
                text.parse::<GoDuration>().map(|span| json!(span)).map_err(|error| error.to_string())
            }
            Self::Quantity => {
                QuantityText::parse(text).map(|amount| json!(amount)).ok_or("not a quantity".to_owned())
            }
            Self::Address => address(text),
            Self::List => comma_separated(text).map(|new| appended(earlier, new)),
            Self::Pairs | Self::Labels | Self::BoolMap | Self::Thresholds => {
                entries(self, earlier, text.split(',').filter(|pair| !pair.is_empty()))
            }
            Self::SinglePair => entries(self, earlier, [text].into_iter()),
            Self::Headers => headers(earlier, text),
            Self::Vmodule => modules(text).map(|new| appended(earlier, new)),
            Self::Taints => taints(text),
            Self::ReservedMemory => reserved_memory(text).map(|new| appended(earlier, new)),
        }
    }
}

fn appended(earlier: Option<Value>, new: Vec<Value>) -> Value {
    let mut all = match earlier {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    all.extend(new);
    Value::Array(all)
}

/// The spellings of Go's `strconv.ParseBool`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// A Go integer literal: decimal, or with the prefix 0x, 0o, 0b or 0.
fn integer(text: &str, least: i64, most: i64) -> Result<i64, String> {
    let malformed = || "expected a whole number".to_owned();
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = unsigned.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    let magnitude = i128::from_str_radix(digits, radix).map_err(|_| malformed())?;
    let number = if negative { -magnitude } else { magnitude };
    i64::try_from(number)
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("must be from {least} to {most}"))
}

fn level(text: &str) -> Result<u32, String> {
    let digits_only = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let level = digits_only.then(|| text.parse::<u32>().ok()).flatten();
    level
        .filter(|level| i32::try_from(*level).is_ok())
        .ok_or_else(|| "expected a whole number of at least 0".to_owned())
}

/// An empty one is accepted and sets nothing.
fn address(text: &str) -> Result<Value, String> {
    if text.is_empty() {
        return Ok(Value::Null);
    }
    text.parse::<IpAddr>().map(|_| json!(text)).map_err(|_| "not an IP address".to_owned())
}

fn entries<'a>(
    kind: ValueKind,
    earlier: Option<Value>,
    pairs: impl Iterator<Item = &'a str>,
) -> Result<Value, String> {
    let mut map = match earlier {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let separator = if kind == ValueKind::Thresholds { '<' } else { '=' };
    for pair in pairs {
        let (key, value) = match pair.split_once(separator) {
            Some((key, value)) => (key.trim(), value.trim()),
            None if kind == ValueKind::Labels => (pair.trim(), ""),
            None => return Err(format!("{pair:?} is not of the form key{separator}value")),
        };
        let value = match kind {
            ValueKind::BoolMap => switch(value).map_err(|reason| format!("{key}: {reason}"))?.into(),
            _ => Value::from(value),
        };
        map.insert(key.to_owned(), value);
    }
    Ok(Value::Object(map))
}

fn headers(earlier: Option<Value>, text: &str) -> Result<Value, String> {
    let mut map = match earlier {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) =
            pair.split_once(':').ok_or_else(|| format!("{pair:?} is not of the form name:value"))?;
        let values = map.remove(name.trim());
        map.insert(name.trim().to_owned(), appended(values, vec![json!(value.trim())]));
    }
    Ok(Value::Object(map))
}

fn modules(text: &str) -> Result<Vec<Value>, String> {
    let mut items = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let malformed = || format!("{item:?} is not of the form pattern=level");
        let (pattern, verbosity) =
            item.split_once('=').filter(|(pattern, _)| !pattern.is_empty()).ok_or_else(malformed)?;
        let verbosity = level(verbosity).map_err(|_| malformed())?;
        items.push(json!({"filePattern": pattern, "verbosity": verbosity}));
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(kind: ValueKind, texts: &[&str]) -> Result<Value, String> {
        texts
            .iter()
            .try_fold(None, |earlier, text| kind.parse_occurrence(earlier, text).map(Some))
            .map(Option::unwrap_or_default)
    }

    fn reads(kind: ValueKind, texts: &[&str], expect: Value) {
        assert_eq!(all(kind, texts), Ok(expect), "{kind:?} {texts:?}");
    }

    fn refuses(kind: ValueKind, text: &str) {
        assert!(kind.parse_occurrence(None, text).is_err(), "{kind:?} {text:?}");
    }

    #[test]
    fn scalars_take_gos_spellings_and_the_last_one_counts() {
        reads(ValueKind::Text, &["a", "b"], json!("b"));
        reads(ValueKind::Bool, &["T"], json!(true));
        reads(ValueKind::Bool, &["0"], json!(false));
        refuses(ValueKind::Bool, "yes");
        reads(ValueKind::Int32, &["-1"], json!(-1));
        reads(ValueKind::Int32, &["0x10"], json!(16));
        reads(ValueKind::Int32, &["010"], json!(8));
        reads(ValueKind::Int32, &["0"], json!(0));
        reads(ValueKind::Int64, &["-9223372036854775808"], json!(i64::MIN));
        for bad in ["", "-", "--1", "1.5", "a", "0x", "2147483648", "+-1"] {
            refuses(ValueKind::Int32, bad);
        }
        reads(ValueKind::Level, &["2"], json!(2));
        refuses(ValueKind::Level, "-1");
        refuses(ValueKind::Level, "+1");
        refuses(ValueKind::Level, "2147483648");
        reads(ValueKind::Duration, &["90s"], json!("1m30s"));
        refuses(ValueKind::Duration, "90");
        reads(ValueKind::Quantity, &["2Ki"], json!("2Ki"));
        refuses(ValueKind::Quantity, "2KB");
        reads(ValueKind::Address, &["::"], json!("::"));
        refuses(ValueKind::Address, "localhost");
        reads(ValueKind::Address, &[""], Value::Null);
    }

    #[test]
    fn maps_and_lists_accumulate() {
        reads(ValueKind::List, &["a,b", "c"], json!(["a", "b", "c"]));
        reads(ValueKind::Pairs, &["a=b,c=d", "a = e ,"], json!({"a": "e", "c": "d"}));
        refuses(ValueKind::Pairs, "a");
        reads(ValueKind::SinglePair, &["a=b,c", "d=e"], json!({"a": "b,c", "d": "e"}));
        reads(ValueKind::BoolMap, &["A=true,B=false", "A=0"], json!({"A": false, "B": false}));
        refuses(ValueKind::BoolMap, "A=maybe");
        refuses(ValueKind::BoolMap, "A");
        reads(
            ValueKind::Thresholds,
            &["memory.available<100Mi,nodefs.available<10%"],
            json!({"memory.available": "100Mi", "nodefs.available": "10%"}),
        );
        refuses(ValueKind::Thresholds, "memory.available=100Mi");
        reads(
            ValueKind::Headers,
            &["a:hello,b:again", "b:c:d"],
            json!({"a": ["hello"], "b": ["again", "c:d"]}),
        );
        refuses(ValueKind::Headers, "a");
        reads(ValueKind::Labels, &["a=b,c", ""], json!({"a": "b", "c": ""}));
        reads(
            ValueKind::Vmodule,
            &["sync=5,", "p*=1"],
            json!([{"filePattern": "sync", "verbosity": 5}, {"filePattern": "p*", "verbosity": 1}]),
        );
        for bad in ["sync", "=5", "sync=", "sync=x", "a=b=1"] {
            refuses(ValueKind::Vmodule, bad);
        }
    }
}
