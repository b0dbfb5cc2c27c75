//! Paths as Go's `path/filepath` sees them: cleaned by their text alone, never by looking at the disk.

/// The shortest equal path: no `.`, no `..` that can be resolved, no doubled or trailing slash.
pub(super) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match kept.last() {
                Some(&last) if last != ".." => {
                    kept.pop();
                }
                _ if rooted => {}
                _ => kept.push(".."),
            },
            name => kept.push(name),
        }
    }
    match (rooted, kept.join("/")) {
        (true, rest) => format!("/{rest}"),
        (false, rest) if rest.is_empty() => ".".to_owned(),
        (false, rest) => rest,
    }
}

/// `path` seen from `directory`: absolute and empty paths stay as they are.
pub(super) fn resolve(directory: &str, path: &str) -> String {
    if path.is_empty() || path.starts_with('/') {
        return path.to_owned();
    }
    clean(&format!("{directory}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_is_gos() {
        for (path, expect) in [
            ("", "."),
            ("a", "a"),
            ("a//b/./c/", "a/b/c"),
            ("a/../b", "b"),
            ("../a", "../a"),
            ("a/../../b", "../b"),
            ("/../a", "/a"),
            ("/", "/"),
            ("/var/log/pods", "/var/log/pods"),
        ] {
            assert_eq!(clean(path), expect, "{path:?}");
        }
    }

    #[test]
    fn only_relative_paths_move() {
        assert_eq!(resolve("/etc/kubernetes", "manifests"), "/etc/kubernetes/manifests");
        assert_eq!(resolve("/etc/kubernetes", "../pki/ca.crt"), "/etc/pki/ca.crt");
        assert_eq!(resolve("/etc/kubernetes", "/abs//x"), "/abs//x");
        assert_eq!(resolve("/etc/kubernetes", ""), "");
    }
}
