//! Short hashes that other programs, or a later run of this one, must find again.

use model::PodUid;

const FNV32_OFFSET: u32 = 0x811c_9dc5;
const FNV32_PRIME: u32 = 0x0100_0193;

fn fnv1a32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(FNV32_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV32_PRIME))
}

/// Tells whether a running container still is what the spec wants: its name and image, and nothing else.
///
/// The value is upstream's, so that an agent of either kind may take over from the other without a restart: it
/// hashes a printed list of the bytes of a JSON text.
pub fn container_hash(name: &str, image: &str) -> u32 {
    let json = format!("{{\"image\":{},\"name\":{}}}", json_string(image), json_string(name));
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    fnv1a32(format!("([]uint8)[{}]", bytes.join(" ")).into_bytes())
}

/// A JSON text that may also stand in HTML, as the annotations and hashes of other agents have it.
pub(super) fn html_safe(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => safe.push(c),
        }
    }
    safe
}

fn json_string(text: &str) -> String {
    html_safe(serde_json::Value::from(text).to_string())
}

/// The name of the termination message file of one instance: stable, and another one for each restart.
pub fn termination_log_name(uid: &PodUid, container: &str, restart_count: u32) -> String {
    format!("{:08x}", fnv1a32(format!("{uid}/{container}/{restart_count}").into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_hashes_are_those_of_upstream() {
        let check = |name, image, expect| assert_eq!(container_hash(name, image), expect, "{name} {image}");
        check("test_container", "foo/image:v1", 0x8e45_cbd0);
        check("c", "docker.io/library/busybox:latest", 0x8468_e76c);
        check("a", "docker.io/library/busybox:latest", 0x0a71_d1be);
        check("dbg", "docker.io/library/busybox:latest", 0x015c_e5d0);
    }

    #[test]
    fn html_is_escaped_in_json() {
        assert_eq!(html_safe(r#"["a && b > c"]"#.into()), r#"["a \u0026\u0026 b \u003e c"]"#);
        assert_eq!(html_safe("\"\u{2028}\"".into()), r#""\u2028""#);
        assert_eq!(html_safe("[1]".into()), "[1]");
    }

    #[test]
    fn termination_logs_differ_by_pod_container_and_restart() {
        let name = |uid: &str, container, restarts| termination_log_name(&uid.into(), container, restarts);
        assert_eq!(name("u", "c", 0), name("u", "c", 0));
        assert_eq!(name("u", "c", 0).len(), 8);
        let names = [name("u", "c", 0), name("u", "c", 1), name("u", "d", 0), name("v", "c", 0)];
        assert!(names.iter().all(|one| names.iter().filter(|other| *other == one).count() == 1), "{names:?}");
    }
}
