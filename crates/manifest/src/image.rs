//! Just enough of the image reference grammar to choose a default pull policy.

/// The pull policy of an image that names none: an image that may change under its name is looked up each time.
///
/// A reference that does not parse gets `IfNotPresent`: pulling it fails later with a message of its own.
pub(super) fn default_pull_policy(reference: &str) -> &'static str {
    match effective_tag(reference) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag, where `latest` stands in for a reference with neither tag nor digest. None without a tag.
fn effective_tag(reference: &str) -> Option<&str> {
    let (name_and_tag, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    let (name, tag) = match name_and_tag.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name_and_tag, None),
    };
    if !is_name(name) || !digest.is_none_or(is_digest) || !tag.is_none_or(is_tag) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

fn is_name(name: &str) -> bool {
    let looks_like_id =
        name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let path = match name.split_once('/') {
        Some((first, rest)) if is_registry_host(first) => {
            if !is_domain(first) {
                return false;
            }
            rest
        }
        _ => name,
    };
    !looks_like_id && name.len() <= 255 && path.split('/').all(is_path_component)
}

fn is_registry_host(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let label = |label: &str| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        edge(label.bytes().next())
            && edge(label.bytes().next_back())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = match bracketed {
        Some(address) => address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':'),
        None => host.split('.').all(label),
    };
    host_fits && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Lower-case words joined by one dot, one or two underscores or any number of hyphens.
fn is_path_component(component: &str) -> bool {
    let word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    bytes.first().is_some_and(&word)
        && bytes.last().is_some_and(&word)
        && bytes.split(word).filter(|separator| !separator.is_empty()).all(|separator| {
            matches!(separator, b"." | b"_" | b"__") || separator.iter().all(|byte| *byte == b'-')
        })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let length = match digest.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    let hex = &digest[7..];
    hex.len() == length && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_decides() {
        let check =
            |reference: &str, expect: &str| assert_eq!(default_pull_policy(reference), expect, "{reference}");
        let digest = format!("sha256:{}", "a".repeat(64));
        check("busybox", "Always");
        check("busybox:latest", "Always");
        check("registry.example/library/busybox", "Always");
        check("localhost/x", "Always");
        check("host:5000/x", "Always");
        check("Host/x", "Always");
        check("[::1]:5000/x", "Always");
        check("a__b/c--d/e.f_g", "Always");
        check("busybox:1.36", "IfNotPresent");
        check("host:5000/x:v1", "IfNotPresent");
        check(&format!("busybox@{digest}"), "IfNotPresent");
        check(&format!("busybox:1@{digest}"), "IfNotPresent");
        check(&format!("busybox:latest@{digest}"), "Always");
        // not references at all
        check("", "IfNotPresent");
        check("Bad@@Image", "IfNotPresent");
        check("BusyBox", "IfNotPresent");
        check("a//b", "IfNotPresent");
        check("a..b", "IfNotPresent");
        check("a___b", "IfNotPresent");
        check(" busybox", "IfNotPresent");
        check("busybox@sha256:abc", "IfNotPresent");
        check("busybox@md5:abc", "IfNotPresent");
        check("-host.x/a", "IfNotPresent");
        check("host:port/x", "IfNotPresent");
        check("x:-tag", "IfNotPresent");
        check(&"a".repeat(64), "IfNotPresent");
    }
}
