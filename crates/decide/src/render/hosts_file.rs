//! The `/etc/hosts` that a pod's containers see.

use model::k8s;
use model::pod::PodView;

use super::RenderContext;
use super::hostname::PodNames;

/// The file's text: the pod's own, or that of the node when they share the network; then the pod's aliases.
pub(crate) fn hosts_file_text(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    names: &PodNames,
    pod_ips: &[String],
) -> String {
    let mut text = if pod.host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{}", ctx.facts.etc_hosts)
    } else {
        own_entries(names, pod_ips)
    };
    text.push_str(&aliases(pod.spec().host_aliases.as_deref().unwrap_or_default()));
    text
}

fn own_entries(names: &PodNames, pod_ips: &[String]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let PodNames { hostname, domain } = names;
    for ip in pod_ips {
        let line = if domain.is_empty() {
            format!("{ip}\t{hostname}\n")
        } else {
            format!("{ip}\t{hostname}.{domain}\t{hostname}\n")
        };
        text.push_str(&line);
    }
    text
}

fn aliases(aliases: &[k8s::HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let hostnames = alias.hostnames.as_deref().unwrap_or_default();
        text.push_str(&format!("{}\t{}\n", alias.ip, hostnames.join("\t")));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    const OWN: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
        fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";

    #[test]
    fn texts() {
        let check = |spec: Value, domain: &str, expect: &str| {
            let (config, facts) = (sample::config(), sample::facts());
            let names = PodNames { hostname: "h".into(), domain: domain.into() };
            let ips = ["10.1.0.5".to_owned(), "fd00::5".to_owned()];
            let ctx = RenderContext::new(&config, &facts);
            assert_eq!(hosts_file_text(&ctx, &sample::pod(spec), &names, &ips), expect);
        };
        check(json!({"containers": []}), "", &format!("{OWN}10.1.0.5\th\nfd00::5\th\n"));
        check(json!({"containers": []}), "d", &format!("{OWN}10.1.0.5\th.d\th\nfd00::5\th.d\th\n"));
        let aliases =
            json!([{"ip": "1.2.3.4", "hostnames": ["a", "b"]}, {"ip": "5.6.7.8", "hostnames": ["c"]}]);
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n5.6.7.8\tc\n";
        check(
            json!({"containers": [], "hostAliases": aliases}),
            "",
            &format!("{OWN}10.1.0.5\th\nfd00::5\th\n{added}"),
        );
        let host = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n";
        check(json!({"containers": [], "hostNetwork": true}), "", host);
        check(
            json!({"containers": [], "hostNetwork": true, "hostAliases": aliases}),
            "",
            &format!("{host}{added}"),
        );
    }
}
