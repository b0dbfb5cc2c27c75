//! URLs of probes and redirects.

use std::fmt;

use model::probe::HttpCheck;

use super::dial::address;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    pub https: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port, if given; otherwise the scheme's default is used.
    written_port: Option<u16>,
    /// Path and query.
    pub target: String,
}

impl Url {
    pub fn of(check: &HttpCheck) -> Self {
        Self {
            https: check.https,
            host: check.host.clone(),
            written_port: Some(check.port),
            target: check.target.clone(),
        }
    }

    pub fn port(&self) -> u16 {
        self.written_port.unwrap_or(if self.https { 443 } else { 80 })
    }

    /// The `Host` header: host and port as in the URL.
    pub fn authority(&self) -> String {
        match self.written_port {
            Some(port) => address(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    /// Resolves `location` against this URL. The error says what is wrong with it.
    pub fn join(&self, location: &str) -> Result<Self, String> {
        let location = location.split('#').next().unwrap_or_default();
        let (https, rest) = match scheme(location) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => return Err(format!("unsupported protocol scheme {scheme:?}")),
            None => (self.https, location),
        };
        if let Some(rest) = rest.strip_prefix("//") {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (host, written_port) = host_and_port(&rest[..end])?;
            let target = without_dots(&rooted(&rest[end..]));
            return Ok(Self { https, host, written_port, target });
        }
        let (here, _) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let target = match rest {
            "" => self.target.clone(),
            rest if rest.starts_with('/') => rest.to_owned(),
            rest if rest.starts_with('?') => format!("{here}{rest}"),
            rest => {
                let dir = here.rsplit_once('/').map_or("", |(dir, _)| dir);
                format!("{dir}/{rest}")
            }
        };
        Ok(Self { https, target: without_dots(&target), ..self.clone() })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority(), self.target)
    }
}

/// Whether a redirect stays on the host that sent it.
pub fn is_relative(location: &str) -> bool {
    scheme(location).is_none()
}

fn scheme(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once(':')?;
    let first = scheme.bytes().next()?.is_ascii_alphabetic();
    let all = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    (first && all).then_some((scheme, rest))
}

fn host_and_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => None,
        Some(port) => {
            Some(port.parse().map_err(|_| format!("invalid port {:?} after host", format!(":{port}")))?)
        }
    };
    Ok((host.to_owned(), port))
}

fn rooted(target: &str) -> String {
    if target.starts_with('/') { target.to_owned() } else { format!("/{target}") }
}

/// Resolves `.` and `..` in the path.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut parts: Vec<&str> = Vec::new();
    let mut segments = path.trim_start_matches('/').split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    parts.pop();
                }
                if last {
                    parts.push("");
                }
            }
            segment => parts.push(segment),
        }
    }
    let path = format!("/{}", parts.join("/"));
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, target: &str) -> Url {
        Url { https: false, host: host.into(), written_port: Some(8080), target: target.into() }
    }

    #[test]
    fn shown() {
        let check = |url: Url, expect: &str| assert_eq!(url.to_string(), expect);
        check(url("10.0.0.1", "/"), "http://10.0.0.1:8080/");
        check(url("fd00::1", "/a?b"), "http://[fd00::1]:8080/a?b");
        check(url("", "/"), "http://:8080/");
        check(Url { https: true, written_port: None, ..url("fd00::1", "/") }, "https://[fd00::1]/");
    }

    #[test]
    fn redirects() {
        let from = url("h", "/a/b?q");
        let check = |location: &str, expect: &str| {
            assert_eq!(from.join(location).map(|u| u.to_string()), Ok(expect.to_owned()), "{location}");
        };
        check("/c", "http://h:8080/c");
        check("c", "http://h:8080/a/c");
        check("../c/./d", "http://h:8080/c/d");
        check("../../../c", "http://h:8080/c");
        check("./", "http://h:8080/a/");
        check("..", "http://h:8080/");
        check("?x=1", "http://h:8080/a/b?x=1");
        check("", "http://h:8080/a/b?q");
        check("#f", "http://h:8080/a/b?q");
        check("/c?x#f", "http://h:8080/c?x");
        check("//o", "http://o/");
        check("//o:1/x", "http://o:1/x");
        check("http://o/x/../../y?../q", "http://o/y?../q");
        check("https://o/x", "https://o/x");
        check("HTTPS://u:p@o:9?x", "https://o:9/?x");
        check("http://[fd00::1]:1/x", "http://[fd00::1]:1/x");
        check("http://h", "http://h/");
        let wrong = |location: &str, expect: &str| {
            assert_eq!(from.join(location), Err(expect.to_owned()), "{location}");
        };
        wrong("ftp://o/x", "unsupported protocol scheme \"ftp\"");
        wrong("mailto:a", "unsupported protocol scheme \"mailto\"");
        wrong("http://o:99999/", "invalid port \":99999\" after host");
        assert_eq!(from.join("https://o/x").unwrap().port(), 443);
        assert_eq!(from.join("//o/x").unwrap().port(), 80);
    }

    #[test]
    fn relative_locations() {
        for (location, expect) in [("/x", true), ("x", true), ("//o/x", true), ("http://o/", false)] {
            assert_eq!(is_relative(location), expect, "{location}");
        }
    }
}
