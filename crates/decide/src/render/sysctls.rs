//! Kernel parameters that a pod may set for itself.

use model::pod::PodView;
use model::sysctl::{SysctlNamespace, normalized};

const FORBIDDEN: &str = "SysctlForbidden";

/// Parameters that can't hurt others, with the kernel that made each one private to a namespace.
const SAFE: [(&str, Option<(u32, u32)>); 12] = [
    ("kernel.shm_rmid_forced", None),
    ("net.ipv4.ip_local_port_range", None),
    ("net.ipv4.tcp_syncookies", None),
    ("net.ipv4.ping_group_range", None),
    ("net.ipv4.ip_unprivileged_port_start", None),
    ("net.ipv4.ip_local_reserved_ports", Some((3, 16))),
    ("net.ipv4.tcp_keepalive_time", Some((4, 5))),
    ("net.ipv4.tcp_keepalive_intvl", Some((4, 5))),
    ("net.ipv4.tcp_keepalive_probes", Some((4, 5))),
    ("net.ipv4.tcp_fin_timeout", Some((4, 6))),
    ("net.ipv4.tcp_rmem", Some((4, 15))),
    ("net.ipv4.tcp_wmem", Some((4, 15))),
];

/// Whether an entry of the node's `allowedUnsafeSysctls` can be allowed at all. The node must not start otherwise: a
/// parameter without a namespace would be set for everybody.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    let normal = normalized(pattern);
    let stem = normal.split('*').next().unwrap_or_default();
    match SysctlNamespace::of(stem) {
        Some(_) => Ok(()),
        None => Err(format!("the sysctls {stem:?} are not known to be namespaced")),
    }
}

/// Refuses a pod, with reason and message, that sets what it may not set here.
pub(crate) fn admission(
    pod: &PodView,
    allowed_unsafe: &[String],
    kernel_release: &str,
) -> Result<(), (&'static str, String)> {
    let spec = pod.spec();
    let context = spec.security_context.as_ref();
    for sysctl in context.and_then(|context| context.sysctls.as_deref()).unwrap_or_default() {
        let name = normalized(&sysctl.name);
        let refuse = |problem: String| (FORBIDDEN, format!("forbidden sysctl: {name:?} {problem}"));
        let namespace = allowed_namespace(&name, allowed_unsafe, kernel_release)
            .ok_or_else(|| refuse("not allowlisted".into()))?;
        let shared = match namespace {
            SysctlNamespace::Ipc => spec.host_ipc.unwrap_or(false),
            SysctlNamespace::Net => pod.host_network(),
        };
        if shared {
            return Err(refuse(format!("not allowed with host {} enabled", namespace.name())));
        }
    }
    Ok(())
}

/// The namespace of an allowed parameter; None when it is not allowed.
fn allowed_namespace(name: &str, allowed_unsafe: &[String], kernel_release: &str) -> Option<SysctlNamespace> {
    let kernel = kernel_version(kernel_release);
    let is_safe = SAFE.iter().any(|(safe, since)| {
        *safe == name && since.is_none_or(|since| kernel.is_some_and(|kernel| kernel >= since))
    });
    if is_safe {
        return SysctlNamespace::of(name);
    }
    let patterns: Vec<String> = allowed_unsafe.iter().map(|pattern| normalized(pattern)).collect();
    if patterns.iter().any(|pattern| pattern == name) {
        return SysctlNamespace::of(name);
    }
    let stems = patterns.iter().filter_map(|pattern| pattern.split_once('*').map(|(stem, _)| stem));
    stems.filter(|stem| name.starts_with(stem)).find_map(SysctlNamespace::of)
}

/// Major and minor number of `6.1.0-13-amd64`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::render::sample;

    fn refusal(name: &str, allowed: &[&str], kernel: &str, host: &[&str]) -> Option<String> {
        let pod = sample::pod(json!({
            "containers": [],
            "hostNetwork": host.contains(&"net"),
            "hostIPC": host.contains(&"ipc"),
            "securityContext": {"sysctls": [{"name": name, "value": "1"}]},
        }));
        let allowed: Vec<String> = allowed.iter().map(|pattern| pattern.to_string()).collect();
        admission(&pod, &allowed, kernel).err().map(|(reason, message)| {
            assert_eq!(reason, "SysctlForbidden");
            message
        })
    }

    #[test]
    fn safe_parameters_and_kernels() {
        let check = |name: &str, kernel: &str, allowed: bool| {
            let expect = (!allowed).then(|| format!("forbidden sysctl: {name:?} not allowlisted"));
            assert_eq!(refusal(name, &[], kernel, &[]), expect, "{kernel}");
        };
        check("kernel.shm_rmid_forced", "6.1.0-13-amd64", true);
        check("net.ipv4.ip_local_port_range", "", true);
        check("net.ipv4.ip_local_reserved_ports", "3.16.0", true);
        check("net.ipv4.ip_local_reserved_ports", "3.15.9", false);
        check("net.ipv4.tcp_keepalive_time", "4.4.0", false);
        check("net.ipv4.tcp_keepalive_intvl", "4.5.0", true);
        check("net.ipv4.tcp_keepalive_probes", "4.5-rc1", true);
        check("net.ipv4.tcp_fin_timeout", "4.5.0", false);
        check("net.ipv4.tcp_fin_timeout", "4.6.0", true);
        check("net.ipv4.tcp_rmem", "4.14.99", false);
        check("net.ipv4.tcp_wmem", "5.0", true);
        check("net.ipv4.tcp_wmem", "unknown", false);
        check("net.core.somaxconn", "6.1.0", false);
        check("kernel.msgmax", "6.1.0", false);
        check("vm.swappiness", "6.1.0", false);
    }

    #[test]
    fn allowed_by_the_node() {
        let check = |name: &str, patterns: &[&str], expect: Option<&str>| {
            assert_eq!(refusal(name, patterns, "6.1.0", &[]).as_deref(), expect, "{name} {patterns:?}");
        };
        check("net.core.somaxconn", &["net.core.somaxconn"], None);
        check("net/core/somaxconn", &["net.core.somaxconn"], None);
        check("net.core.somaxconn", &["net/core/somaxconn"], None);
        check("net.core.somaxconn", &["kernel.msg*", "net.core.*"], None);
        check("net.core.somaxconn", &["net.*"], None);
        check("kernel.msgmax", &["kernel.msg*"], None);
        check("kernel.shmmax", &["kernel.msg*"], Some("forbidden sysctl: \"kernel.shmmax\" not allowlisted"));
        check("vm.swappiness", &["vm.*"], Some("forbidden sysctl: \"vm.swappiness\" not allowlisted"));
        check("net/x", &[], Some("forbidden sysctl: \"net.x\" not allowlisted"));
    }

    #[test]
    fn not_in_a_shared_namespace() {
        let check = |name: &str, host: &[&str], expect: Option<&str>| {
            let allowed = ["net.core.*", "fs.mqueue.*", "kernel.sem"];
            assert_eq!(refusal(name, &allowed, "6.1.0", host).as_deref(), expect, "{name} {host:?}");
        };
        let text = "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled";
        check("net.ipv4.tcp_syncookies", &["net"], Some(text));
        check("net.ipv4.tcp_syncookies", &["ipc"], None);
        let text = "forbidden sysctl: \"net.core.x\" not allowed with host Net enabled";
        check("net.core.x", &["net"], Some(text));
        let text = "forbidden sysctl: \"kernel.sem\" not allowed with host IPC enabled";
        check("kernel.sem", &["ipc", "net"], Some(text));
        let text = "forbidden sysctl: \"fs.mqueue.msg_max\" not allowed with host IPC enabled";
        check("fs.mqueue.msg_max", &["ipc"], Some(text));
        check("fs.mqueue.msg_max", &["net"], None);
    }

    #[test]
    fn names() {
        let check = |name: &str, expect: &str| assert_eq!(normalized(name), expect);
        check("", "");
        check("kernel", "kernel");
        check("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter");
        check("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter");
    }

    #[test]
    fn patterns_of_the_node() {
        let check = |pattern: &str, expect: Result<(), &str>| {
            assert_eq!(check_pattern(pattern), expect.map_err(str::to_owned), "{pattern}");
        };
        check("net.*", Ok(()));
        check("kernel.msg*", Ok(()));
        check("kernel/shmmax", Ok(()));
        check("fs.mqueue.*", Ok(()));
        check("vm.*", Err("the sysctls \"vm.\" are not known to be namespaced"));
        check("*", Err("the sysctls \"\" are not known to be namespaced"));
    }
}
