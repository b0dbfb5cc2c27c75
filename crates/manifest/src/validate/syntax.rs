//! The spelling rules of Kubernetes names and values. Each function returns its objections, none for a good text.

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;

fn objections<const N: usize>(rules: [(bool, String); N]) -> Vec<String> {
    rules.into_iter().filter_map(|(broken, why)| broken.then_some(why)).collect()
}

fn longer_than(most: usize) -> String {
    format!("must be no more than {most} characters")
}

/// `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().next().is_some_and(alphanumeric)
        && text.bytes().next_back().is_some_and(alphanumeric)
        && text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
}

/// A name that fits in one part of a domain name.
pub(crate) fn dns_label(text: &str) -> Vec<String> {
    objections([
        (text.len() > MAX_LABEL, longer_than(MAX_LABEL)),
        (
            !is_dns_label(text),
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
             and end with an alphanumeric character"
                .to_owned(),
        ),
    ])
}

/// A name of one or more labels joined by dots.
pub(crate) fn dns_subdomain(text: &str) -> Vec<String> {
    objections([
        (text.len() > MAX_SUBDOMAIN, longer_than(MAX_SUBDOMAIN)),
        (
            !text.split('.').all(is_dns_label),
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
             must start and end with an alphanumeric character"
                .to_owned(),
        ),
    ])
}

/// Like a subdomain, but its labels may begin with and hold underscores.
pub(super) fn dns_search(text: &str) -> Vec<String> {
    let label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        is_dns_label(&label.replace('_', "-"))
    };
    objections([
        (text.len() > MAX_SUBDOMAIN, longer_than(MAX_SUBDOMAIN)),
        (
            !text.split('.').all(label),
            "a search domain must consist of lower case alphanumeric characters, '_', '-' or '.', and each part \
             must end with an alphanumeric character"
                .to_owned(),
        ),
    ])
}

fn is_qualified_part(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes().next().is_some_and(edge)
        && text.bytes().next_back().is_some_and(edge)
        && text.bytes().all(|byte| edge(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

/// What is wrong with a key such as `app` or `example.com/role`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return vec!["must be a name with at most one prefix before a '/'".to_owned()];
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let mut found: Vec<String> = Vec::new();
    match prefix {
        Some("") => found.push("the part before the '/' must not be empty".to_owned()),
        Some(prefix) => {
            found.extend(
                dns_subdomain(prefix).into_iter().map(|why| format!("the part before the '/': {why}")),
            );
        }
        None => {}
    }
    found.extend(objections([
        (name.len() > MAX_LABEL, format!("the name must be no more than {MAX_LABEL} characters")),
        (
            !is_qualified_part(name),
            "the name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character"
                .to_owned(),
        ),
    ]));
    found
}

pub(super) fn label_value(text: &str) -> Vec<String> {
    objections([
        (text.len() > MAX_LABEL, longer_than(MAX_LABEL)),
        (
            !text.is_empty() && !is_qualified_part(text),
            "a label value must be empty or consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character"
                .to_owned(),
        ),
    ])
}

/// The name of a container port.
pub(super) fn port_name(text: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    objections([
        (text.len() > 15, longer_than(15)),
        (
            text.is_empty() || !text.bytes().all(fits),
            "must consist of lower case alphanumeric characters and '-'".to_owned(),
        ),
        (!text.bytes().any(|byte| byte.is_ascii_lowercase()), "must have at least one letter".to_owned()),
        (text.contains("--"), "must not have two hyphens in a row".to_owned()),
        (text.starts_with('-') || text.ends_with('-'), "must not start or end with a hyphen".to_owned()),
    ])
}

/// The name of an environment variable, in the relaxed form: anything printable except `=`.
pub(super) fn variable_name(text: &str) -> Vec<String> {
    let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    objections([
        (text.is_empty(), "must not be empty".to_owned()),
        (!text.bytes().all(fits), "must consist of printable ASCII characters other than '='".to_owned()),
    ])
}

/// A key of a ConfigMap or Secret.
pub(super) fn data_key(text: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    objections([
        (text.len() > MAX_SUBDOMAIN, longer_than(MAX_SUBDOMAIN)),
        (
            text.is_empty() || !text.bytes().all(fits),
            "must consist of alphanumeric characters, '-', '_' or '.'".to_owned(),
        ),
        (text == ".", "must not be '.'".to_owned()),
        (text == "..", "must not be '..'".to_owned()),
        (text.starts_with("..") && text != "..", "must not start with '..'".to_owned()),
    ])
}

pub(super) fn http_header_name(text: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let why = "a header name must consist of alphanumeric characters or '-'".to_owned();
    objections([(text.is_empty() || !text.bytes().all(fits), why)])
}

/// Words of lower-case letters, digits, `-` and `_`, joined by dots or slashes.
pub(super) fn sysctl_name(text: &str) -> Vec<String> {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let word = |word: &str| {
        word.bytes().next().is_some_and(edge)
            && word.bytes().next_back().is_some_and(edge)
            && word.bytes().all(|byte| edge(byte) || matches!(byte, b'-' | b'_'))
    };
    objections([
        (text.len() > MAX_SUBDOMAIN, longer_than(MAX_SUBDOMAIN)),
        (
            !text.split(['.', '/']).all(word),
            "a sysctl name must be lower case words of letters, digits, '-' and '_', joined by '.' or '/'"
                .to_owned(),
        ),
    ])
}

/// An IPv4 or IPv6 address in one of its unambiguous spellings.
pub(super) fn ip_address(text: &str) -> Vec<String> {
    let good = match text.parse() {
        Ok(std::net::IpAddr::V4(_)) => true,
        Ok(std::net::IpAddr::V6(address)) => address.to_ipv4_mapped().is_none(),
        Err(_) => false,
    };
    objections([(!good, "must be a valid IP address, such as 10.9.8.7 or 2001:db8::ffff".to_owned())])
}

/// `..` as a whole path element.
pub(super) fn has_parent_element(path: &str) -> bool {
    path.split('/').any(|element| element == "..")
}

/// A path that stays below where it starts.
pub(super) fn relative_path(path: &str) -> Vec<String> {
    objections([
        (path.starts_with('/'), "must be a relative path".to_owned()),
        (has_parent_element(path), "must not contain '..'".to_owned()),
    ])
}

/// A descending path that also keeps clear of the names that atomic updates use (`..data`).
pub(super) fn unreserved_path(path: &str) -> Vec<String> {
    let mut found = relative_path(path);
    if path.starts_with("..") && !path.starts_with("../") {
        found.push("must not start with '..'".to_owned());
    }
    found
}
