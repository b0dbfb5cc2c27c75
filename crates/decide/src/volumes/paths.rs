//! Paths inside volumes.

use model::pod::PodView;

const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

/// The path of a file in a volume, cleaned, or why it is none.
pub(super) fn checked_path(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("invalid path: must not be empty: \"\"".into());
    }
    if path.starts_with('/') {
        return Err(format!("invalid path: must be relative path: {path}"));
    }
    if path.len() > LONGEST_PATH {
        return Err(format!("invalid path: must be less than or equal to {LONGEST_PATH} characters"));
    }
    for name in path.split('/') {
        if name == ".." {
            return Err(format!("invalid path: must not contain '..': {path}"));
        }
        if name.len() > LONGEST_NAME {
            return Err(format!(
                "invalid path: filenames must be less than or equal to {LONGEST_NAME} characters"
            ));
        }
    }
    if path.starts_with("..") {
        return Err(format!("invalid path: must not start with '..': {path}"));
    }
    let clean = clean(path);
    if clean.is_empty() {
        return Err(format!("invalid path: must not be empty: {path:?}"));
    }
    // Behind a `./` it would still be one of the writer's own.
    if clean.starts_with("..") {
        return Err(format!("invalid path: must not start with '..': {path}"));
    }
    Ok(clean)
}

fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    parts.join("/")
}

/// Where other mounts of the pod's containers lie in this volume: relative, outermost only.
pub(super) fn mount_points(pod: &PodView, volume: &str) -> Result<Vec<String>, String> {
    let spec = pod.spec();
    let own = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| &c.volume_mounts);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.volume_mounts);
    let mut found = Vec::new();
    for mounts in own.chain(ephemeral) {
        let place = |path: &str| {
            let absolute = if path.starts_with('/') { "/" } else { "" };
            format!("{absolute}{}", clean(path))
        };
        let all: Vec<_> = mounts.iter().flatten().map(|m| (place(&m.mount_path), m.name == volume)).collect();
        let mut sorted: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
        sorted.sort_unstable();
        for (mine, _) in all.iter().filter(|(_, of_volume)| *of_volume) {
            if mine.split('/').any(|part| part == "..") {
                return Err(format!("invalid container mount point {mine}"));
            }
            below(mine, &sorted, &mut found);
        }
    }
    Ok(found)
}

fn below(mine: &str, sorted: &[&str], found: &mut Vec<String>) {
    let prefix = if mine.ends_with('/') { mine.to_owned() } else { format!("{mine}/") };
    let mut outer: Option<String> = None;
    for other in sorted {
        let Some(inner) = other.strip_prefix(&prefix).filter(|inner| !inner.is_empty()) else { continue };
        if outer.as_ref().is_some_and(|outer| other.starts_with(outer)) {
            continue;
        }
        outer = Some(format!("{other}/"));
        if !found.iter().any(|known| known == inner) && !inner.split('/').any(|part| part == "..") {
            found.push(inner.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use serde_json::json;

    #[test]
    fn paths_stay_in_the_volume() {
        let check = |path: &str, expect: Result<&str, &str>| {
            let expect = expect.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(checked_path(path), expect);
        };
        check("a", Ok("a"));
        check("a/b.c", Ok("a/b.c"));
        check("./a//b/.", Ok("a/b"));
        check("a/..b", Ok("a/..b"));
        check("", Err("invalid path: must not be empty: \"\""));
        check(".", Err("invalid path: must not be empty: \".\""));
        check("/a", Err("invalid path: must be relative path: /a"));
        check("..", Err("invalid path: must not contain '..': .."));
        check("a/../../b", Err("invalid path: must not contain '..': a/../../b"));
        check("..data", Err("invalid path: must not start with '..': ..data"));
        check("./..data", Err("invalid path: must not start with '..': ./..data"));
        check(&"a/".repeat(2050), Err("invalid path: must be less than or equal to 4096 characters"));
        let long = "a".repeat(256);
        check(&long, Err("invalid path: filenames must be less than or equal to 255 characters"));
    }

    #[test]
    fn mounts_below_the_volume_get_directories() {
        let check = |mounts: &[(&str, &str)], expect: Result<&[&str], &str>| {
            let mounts: Vec<_> =
                mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect();
            let pod = sample::pod(json!({"containers": [{"name": "c", "volumeMounts": mounts}]}));
            let expect = expect.map(|list| list.iter().map(|s| s.to_string()).collect());
            assert_eq!(mount_points(&pod, "v"), expect.map_err(str::to_owned));
        };
        check(&[("v", "/etc")], Ok(&[]));
        check(&[("v", "/etc"), ("w", "/etcetera"), ("x", "/")], Ok(&[]));
        check(&[("w", "/etc/a/b"), ("v", "/etc/"), ("x", "/etc/a"), ("y", "/etc/c")], Ok(&["a", "c"]));
        check(&[("v", "/"), ("w", "/w")], Ok(&["w"]));
        check(&[("v", "/a"), ("v", "/b"), ("w", "/b/x"), ("w", "/a/x")], Ok(&["x"]));
        check(&[("v", "../a"), ("w", "../a/b")], Err("invalid container mount point ../a"));
    }
}
