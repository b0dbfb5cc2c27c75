//! The names a pod has: its hostname, its domain, and the one that the kernel is given.

use model::pod::PodView;

use super::{RenderContext, RenderError};

const HOSTNAME_MAX: usize = 63;
/// The kernel's limit of a node name.
const FQDN_MAX: usize = 64;
const SUBDOMAIN_MAX: usize = 253;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodNames {
    pub hostname: String,
    /// Empty when the pod has none.
    pub domain: String,
}

/// The pod's hostname and domain.
pub fn pod_names(ctx: &RenderContext<'_>, pod: &PodView) -> Result<PodNames, RenderError> {
    let spec = pod.spec();
    if let Some(wanted) = &spec.hostname_override {
        require(is_dns_subdomain(wanted), "HostnameOverride", wanted, "subdomain")?;
        return Ok(PodNames { hostname: truncate(pod, wanted)?, domain: String::new() });
    }
    let wanted = spec.hostname.as_deref().filter(|name| !name.is_empty());
    if let Some(hostname) = wanted {
        require(is_dns_label(hostname), "Hostname", hostname, "label")?;
    }
    let hostname = truncate(pod, wanted.unwrap_or(pod.name()))?;
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(subdomain) => {
            require(is_dns_label(subdomain), "Subdomain", subdomain, "label")?;
            format!("{subdomain}.{}.svc.{}", pod.namespace(), ctx.config.cluster_domain)
        }
        None => String::new(),
    };
    Ok(PodNames { hostname, domain })
}

/// What `hostname` prints in the pod.
pub(crate) fn kernel_hostname(pod: &PodView, names: &PodNames) -> Result<String, RenderError> {
    if !pod.spec().set_hostname_as_fqdn.unwrap_or(false) || names.domain.is_empty() {
        return Ok(names.hostname.clone());
    }
    let fqdn = format!("{}.{}", names.hostname, names.domain);
    if fqdn.len() > FQDN_MAX { Err(RenderError::FqdnTooLong { fqdn }) } else { Ok(fqdn) }
}

fn require(valid: bool, field: &'static str, value: &str, expected: &'static str) -> Result<(), RenderError> {
    if valid { Ok(()) } else { Err(RenderError::Hostname { field, value: value.to_owned(), expected }) }
}

/// Cuts what the kernel would not take. Pod names may be longer than hostnames.
fn truncate(pod: &PodView, hostname: &str) -> Result<String, RenderError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_owned());
    }
    let cut: String = hostname.chars().take(HOSTNAME_MAX).collect();
    let cut = cut.trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(RenderError::HostnameEmpty { pod: pod.name().into(), hostname: hostname.into() });
    }
    Ok(cut.to_owned())
}

fn is_dns_label(text: &str) -> bool {
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= HOSTNAME_MAX
        && ends_well(text.chars().next())
        && ends_well(text.chars().last())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Labels joined by dots, where only the whole is bounded in length.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            let plain =
                |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            plain(bytes.first())
                && plain(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn named(name: &str, spec: Value) -> PodView {
        let mut pod = sample::api_pod(spec);
        pod.metadata.name = Some(name.into());
        sample::view(pod)
    }

    fn names(name: &str, spec: Value) -> Result<(String, String, String), String> {
        let (config, facts) = (sample::config(), sample::facts());
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod = named(name, spec);
        let names = pod_names(&RenderContext::new(&config, &facts), &pod).map_err(|e| e.to_string())?;
        let kernel = kernel_hostname(&pod, &names).map_err(|e| e.to_string())?;
        Ok((names.hostname, names.domain, kernel))
    }

    #[test]
    fn hostnames() {
        let check = |name: &str, spec: Value, expect: [&str; 3]| {
            let [hostname, domain, kernel] = expect.map(str::to_owned);
            assert_eq!(names(name, spec.clone()), Ok((hostname, domain, kernel)), "{name} {spec}");
        };
        check("web", json!({}), ["web", "", "web"]);
        check("web", json!({"hostname": ""}), ["web", "", "web"]);
        check("web", json!({"hostname": "short"}), ["short", "", "short"]);
        check("web", json!({"subdomain": "sub"}), ["web", "sub.ns.svc.cluster.local", "web"]);
        check(
            "web",
            json!({"subdomain": "sub", "setHostnameAsFQDN": true}),
            ["web", "sub.ns.svc.cluster.local", "web.sub.ns.svc.cluster.local"],
        );
        check("web", json!({"setHostnameAsFQDN": true}), ["web", "", "web"]);
        check(
            "web",
            json!({"hostnameOverride": "a.b.c", "subdomain": "sub", "hostname": "x"}),
            ["a.b.c", "", "a.b.c"],
        );
        let long = "a".repeat(70);
        check(&long, json!({}), [&"a".repeat(63), "", &"a".repeat(63)]);
        let dashes = format!("{}--.-{}", "a".repeat(59), "b".repeat(9));
        check(&dashes, json!({}), [&"a".repeat(59), "", &"a".repeat(59)]);
        let exact = "a".repeat(63);
        check(&exact, json!({}), [&exact, "", &exact]);
    }

    #[test]
    fn invalid_names() {
        let check = |name: &str, spec: Value, expect: &str| {
            assert_eq!(names(name, spec.clone()), Err(expect.to_owned()), "{spec}");
        };
        check("p", json!({"hostname": "A"}), "pod Hostname \"A\" is not a valid DNS label");
        check("p", json!({"hostname": "a.b"}), "pod Hostname \"a.b\" is not a valid DNS label");
        check("p", json!({"subdomain": "-a"}), "pod Subdomain \"-a\" is not a valid DNS label");
        check(
            "p",
            json!({"hostnameOverride": "a..b"}),
            "pod HostnameOverride \"a..b\" is not a valid DNS subdomain",
        );
        let label = "l".repeat(42);
        check(
            "p",
            json!({"subdomain": label, "setHostnameAsFQDN": true}),
            &format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN p.{label}.ns.svc.cluster.local \
                 is too long (64 characters is the max, 65 characters requested)"
            ),
        );
        assert!(names("p", json!({"subdomain": "l".repeat(41), "setHostnameAsFQDN": true})).is_ok());
        let nothing = "-".repeat(64);
        check(&nothing, json!({}), &format!("hostname for pod {nothing:?} was invalid: {nothing:?}"));
    }
}
