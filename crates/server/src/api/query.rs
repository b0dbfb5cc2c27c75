//! Query parameters, decoded by hand: names may repeat, and order counts.

use std::borrow::Cow;

use http::Uri;

/// Decoded pairs in their order. What can't be decoded is kept as it is, as browsers do.
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        };
        Self(pairs.map(pair).collect())
    }

    /// The first value of this name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub fn last(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

fn decode(text: &str) -> String {
    let text = text.replace('+', " ");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.filter(|_| *byte == b'%').and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let check = |uri: &str, name: &str, expect: &[&str]| {
            let parameters = Parameters::of(&uri.parse().unwrap());
            assert_eq!(parameters.all(name).collect::<Vec<_>>(), expect, "{uri}");
        };
        check("/?command=sh&command=-c&command=echo+a%20%26b", "command", &["sh", "-c", "echo a &b"]);
        check("/?a=%zz&a=%4", "a", &["%zz", "%4"]);
        check("/?a=%E4", "a", &["\u{fffd}"]);
        check("/?a&&b=1", "a", &[""]);
        check("/", "a", &[]);
        check("/?%61=1", "a", &["1"]);
    }
}
