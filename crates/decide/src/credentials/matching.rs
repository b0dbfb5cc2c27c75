//! Patterns of registries against images: `host[:port][/path]`, with `*` in parts of the host.

/// Where an image's name would lead a client without a scheme: host, port, path. Tag and digest are left out, and
/// names without a registry get the default one.
pub fn repository(image: &str) -> String {
    let name = without_tag(image);
    let is_host =
        |part: &str| part.contains(['.', ':']) || part == "localhost" || part != part.to_lowercase();
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if is_host(first) => (first, rest),
        _ => ("docker.io", name),
    };
    match host {
        "docker.io" | "index.docker.io" if !path.contains('/') => format!("docker.io/library/{path}"),
        "index.docker.io" => format!("docker.io/{path}"),
        host => format!("{host}/{path}"),
    }
}

/// An image's name without its tag and its digest.
pub fn without_tag(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    }
}

/// The registry of an image: its name up to the first slash.
pub fn registry(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(registry, _)| registry)
}

/// A place that credentials are for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistryLocation {
    /// With the port, if one is given.
    pub host: String,
    /// From the slash on, or empty.
    pub path: String,
}

/// Reads a schemeless URL. `None`: it is none.
pub fn parse_location(text: &str) -> Option<RegistryLocation> {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = match text.find('/') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.chars().any(|c| c.is_whitespace() || c.is_control() || "\\^`{}|%".contains(c)) {
        return None;
    }
    let after_address = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1,
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    let port_is_number = after_address
        .strip_prefix(':')
        .map_or(after_address.is_empty(), |port| port.chars().all(|c| c.is_ascii_digit()));
    port_is_number.then(|| RegistryLocation { host: host.to_owned(), path: path.to_owned() })
}

/// Whether an image lies at the place of a pattern: the same port, as many parts of the host and each matching, and a
/// path that begins with the pattern's.
pub fn matches(pattern: &str, repository: &str) -> bool {
    let (Some(pattern), Some(target)) = (parse_location(pattern), parse_location(repository)) else {
        return false;
    };
    let (pattern_host, pattern_port) = host_and_port(&pattern.host);
    let (target_host, target_port) = host_and_port(&target.host);
    let parts: Vec<&str> = pattern_host.split('.').collect();
    let target_parts: Vec<&str> = target_host.split('.').collect();
    pattern_port == target_port
        && parts.len() == target_parts.len()
        && target.path.starts_with(&pattern.path)
        && parts.iter().zip(&target_parts).all(|(glob, part)| glob_matches(glob, part))
}

fn host_and_port(host: &str) -> (&str, &str) {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, rest.strip_prefix(':').unwrap_or_default());
    }
    host.split_once(':').unwrap_or((host, ""))
}

/// `*` stands for any text of one part. Nothing else is special that can stand in a host's name.
fn glob_matches(glob: &str, part: &str) -> bool {
    let Some((head, rest)) = glob.split_once('*') else { return glob == part };
    let Some(mut left) = part.strip_prefix(head) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

/// Whether an image without a registry in its name would be looked for at the default one.
pub(crate) fn is_at_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some(("", _)) => false,
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_repositories() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, expect) in [
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1", "docker.io/library/busybox"),
            ("team/app:1", "docker.io/team/app"),
            ("docker.io/app", "docker.io/library/app"),
            ("index.docker.io/app", "docker.io/library/app"),
            ("index.docker.io/team/app", "docker.io/team/app"),
            ("localhost/app", "localhost/app"),
            ("host:5000/a/b:v1", "host:5000/a/b"),
            ("host.test/a", "host.test/a"),
            (&format!("host.test/a:1@{digest}"), "host.test/a"),
        ] {
            assert_eq!(repository(image), expect, "{image}");
        }
    }

    #[test]
    fn tags_and_digests_are_left_out_of_names() {
        for (image, expect) in [
            ("busybox", "busybox"),
            ("busybox:1", "busybox"),
            ("h:5000/a", "h:5000/a"),
            ("h:5000/a:1", "h:5000/a"),
            ("a@sha256:0", "a"),
            ("a:1@sha256:0", "a"),
        ] {
            assert_eq!(without_tag(image), expect, "{image}");
        }
    }

    #[test]
    fn patterns() {
        let check = |pattern: &str, image: &str, expect: bool| {
            assert_eq!(matches(pattern, image), expect, "{pattern} {image}");
        };
        // the host, part by part
        check("host.test", "host.test/a", true);
        check("host.test", "host.test", true);
        check("host.test", "other.test/a", false);
        check("*.test", "host.test/a", true);
        check("*.test", "a.host.test/a", false);
        check("*.*.test", "a.host.test/a", true);
        check("host.*", "host.test/a", true);
        check("pre*.test", "prefix.test/a", true);
        check("pre*.test", "suffix.test/a", false);
        check("*fix.test", "prefix.test/a", true);
        check("a*b*c.test", "aXbYc.test", true);
        check("a*b*c.test", "acb.test", false);
        check("a*a.test", "a.test", false);
        check("*", "host/a", true);
        check("*", "host.test/a", false);
        // the port
        check("host.test:5000", "host.test:5000/a", true);
        check("host.test:5000", "host.test/a", false);
        check("host.test", "host.test:5000/a", false);
        check("*.test:5000", "host.test:5000/a", true);
        check("host.test:*", "host.test:5000/a", false);
        check("[::1]:5000", "[::1]:5000/a", true);
        check("[::1]:5000", "[::1]/a", false);
        // the path is a prefix, not a number of parts
        check("host.test/a", "host.test/a/b", true);
        check("host.test/a", "host.test/ab", true);
        check("host.test/a/b", "host.test/a", false);
        check("host.test/*", "host.test/a", false);
        // what is no place matches nothing
        check("host test", "host test/a", false);
        check("host:port/a", "host:port/a", false);
        check("host.test/a?b", "host.test/a/c", true);
        check("", "host.test/a", false);
    }

    #[test]
    fn the_default_registry() {
        for (repository, expect) in [
            ("app", true),
            ("team/app", true),
            ("docker.io/library/app", true),
            ("index.docker.io/app", true),
            ("host.test/app", false),
            ("host:5000/app", false),
            ("/app", false),
            ("", false),
        ] {
            assert_eq!(is_at_default_registry(repository), expect, "{repository}");
        }
    }
}
