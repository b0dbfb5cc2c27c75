//! One call, as a request.

use std::fmt::Write as _;

use bytes::Bytes;
use http::Method;

pub const JSON: &str = "application/json";
pub const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

pub struct Call {
    pub method: Method,
    /// From the root of the API, with its query.
    pub path: String,
    pub body: Option<(&'static str, Bytes)>,
    /// `get pod`
    what: &'static str,
    /// `default/web`; empty for collections.
    object: String,
    /// It does not wait for its turn.
    pub unlimited: bool,
}

impl Call {
    pub fn new(what: &'static str, method: Method, path: String, object: impl Into<String>) -> Call {
        Call { method, path, body: None, what, object: object.into(), unlimited: false }
    }

    pub fn get(what: &'static str, path: String, object: impl Into<String>) -> Call {
        Call::new(what, Method::GET, path, object)
    }

    /// Query parameters; those with an empty value are left out.
    pub fn query(mut self, parameters: &[(&str, &str)]) -> Call {
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            let sign = if self.path.contains('?') { '&' } else { '?' };
            let _ = write!(self.path, "{sign}{name}={}", escaped(value));
        }
        self
    }

    pub fn body(mut self, kind: &'static str, body: Vec<u8>) -> Call {
        self.body = Some((kind, body.into()));
        self
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.what, self.object).trim_end().to_owned()
    }
}

/// Escapes text for a query value or one segment of a path.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Call, escaped};

    #[test]
    fn values_are_escaped() {
        let check = |text, expect| assert_eq!(escaped(text), expect);
        check("web-1.example_~", "web-1.example_~");
        check("spec.nodeName=a b", "spec.nodeName%3Da%20b");
        check("../x?y#z&é", "..%2Fx%3Fy%23z%26%C3%A9");
    }

    #[test]
    fn queries_leave_out_what_is_empty() {
        let call = Call::get("list pods", "/api/v1/pods".into(), "").query(&[
            ("fieldSelector", "a=b"),
            ("resourceVersion", ""),
            ("watch", "1"),
        ]);
        assert_eq!(call.path, "/api/v1/pods?fieldSelector=a%3Db&watch=1");
        assert_eq!(call.name(), "list pods");
        assert_eq!(Call::get("get pod", String::new(), "default/web").name(), "get pod default/web");
    }
}
