//! The resolver configuration of a pod.

pub mod resolv_conf;

use model::ApiEvent;
use model::cri::DnsConfig;
use model::k8s;
use model::node::{HostFacts, NodeConfig};
use model::pod::PodView;

use super::{RenderContext, RenderError, Rendered};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_LENGTH_MAX: usize = 253;
const SEARCH_LINE_MAX: usize = 2048;

/// The base of a pod's resolver settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DnsBase {
    Cluster,
    Host,
    Nothing,
}

fn base_of(pod: &PodView) -> DnsBase {
    match pod.spec().dns_policy.as_deref().unwrap_or_default() {
        "None" => DnsBase::Nothing,
        "Default" => DnsBase::Host,
        "ClusterFirst" if pod.host_network() => DnsBase::Host,
        // ClusterFirst, ClusterFirstWithHostNet, and what the API does not let through
        _ => DnsBase::Cluster,
    }
}

/// The pod's servers, search paths and options, with what was cut off.
pub(crate) fn pod_dns(ctx: &RenderContext<'_>, pod: &PodView) -> Result<Rendered<DnsConfig>, RenderError> {
    let host = resolv_conf::parse(&ctx.config.resolv_conf, &ctx.facts.resolv_conf)?;
    let mut warnings = Vec::new();
    let mut node_warnings = Vec::new();
    let mut config = match base_of(pod) {
        DnsBase::Nothing => DnsConfig::default(),
        DnsBase::Host => host_config(ctx, host),
        DnsBase::Cluster if !ctx.config.cluster_dns.is_empty() => cluster_config(ctx, pod, host),
        DnsBase::Cluster => {
            let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                           \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
            let about_pod = format!("pod: {:?}. {message}", pod.display_name());
            node_warnings.push(ApiEvent::warning("MissingClusterDNS", message));
            warnings.push(ApiEvent::warning("MissingClusterDNS", about_pod));
            host_config(ctx, host)
        }
    };
    if let Some(wanted) = &pod.spec().dns_config {
        append(&mut config, wanted);
    }
    warnings.extend(limit_servers(&mut config.servers));
    warnings.extend(limit_searches(&mut config.searches));
    Ok(Rendered { value: config, warnings, node_warnings })
}

fn cluster_config(ctx: &RenderContext<'_>, pod: &PodView, host: DnsConfig) -> DnsConfig {
    let domain = &ctx.config.cluster_domain;
    let searches = if domain.is_empty() {
        host.searches
    } else {
        let own = [format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
        without_repeats(own.into_iter().chain(host.searches))
    };
    DnsConfig { servers: ctx.config.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
}

/// The node's own settings. Without a resolvConf the pod gets the loopback address as nameserver. An empty list would
/// make the runtime use the host's resolv.conf.
fn host_config(ctx: &RenderContext<'_>, host: DnsConfig) -> DnsConfig {
    if !ctx.config.resolv_conf.is_empty() {
        return host;
    }
    let loopback = |ip: &String| if ip.contains(':') { "::1".to_owned() } else { "127.0.0.1".to_owned() };
    let mut servers: Vec<String> = ctx.facts.node_ips.iter().map(loopback).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig { servers, searches: vec![".".into()], options: Vec::new() }
}

fn append(config: &mut DnsConfig, wanted: &k8s::PodDNSConfig) {
    let servers = std::mem::take(&mut config.servers);
    config.servers =
        without_repeats(servers.into_iter().chain(wanted.nameservers.clone().unwrap_or_default()));
    let searches = std::mem::take(&mut config.searches);
    config.searches =
        without_repeats(searches.into_iter().chain(wanted.searches.clone().unwrap_or_default()));
    for option in wanted.options.iter().flatten() {
        let name = option.name.clone().unwrap_or_default();
        let text = match option.value.as_deref().unwrap_or_default() {
            "" => name,
            value => format!("{name}:{value}"),
        };
        set_option(&mut config.options, text);
    }
}

/// Replaces the option of the same name, or appends it.
fn set_option(options: &mut Vec<String>, option: String) {
    let name_of = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|present| name_of(present) == name_of(&option)) {
        Some(present) => *present = option,
        None => options.push(option),
    }
}

fn without_repeats(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn limit_servers(servers: &mut Vec<String>) -> Option<ApiEvent> {
    if servers.len() <= NAMESERVERS_MAX {
        return None;
    }
    servers.truncate(NAMESERVERS_MAX);
    let message = format!(
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
        servers.join(" ")
    );
    Some(ApiEvent::warning("DNSConfigForming", message))
}

/// The problem of the host's resolver file, if it exceeds the limits of a pod's file. With a cluster domain, three
/// search domains are added before those of the host.
pub(crate) fn resolv_conf_problem(config: &NodeConfig, facts: &HostFacts) -> Option<String> {
    let path = &config.resolv_conf;
    if path.is_empty() {
        return None;
    }
    let searches = match resolv_conf::parse(path, &facts.resolv_conf) {
        Ok(host) => host.searches,
        Err(error) => return Some(error.to_string()),
    };
    let most = if config.cluster_domain.is_empty() { SEARCHES_MAX } else { SEARCHES_MAX - 3 };
    if searches.len() > most {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ));
    }
    if searches.iter().any(|search| search.len() > SEARCH_LENGTH_MAX) {
        return Some(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed {SEARCH_LENGTH_MAX} chars!"
        ));
    }
    let long = searches.join(" ").len() > SEARCH_LINE_MAX;
    long.then(|| {
        format!("Resolv.conf file '{path}' contains search line which length is more than allowed {SEARCH_LINE_MAX} chars!")
    })
}

/// Some resolvers crash on longer search lists, so they are cut here.
fn limit_searches(searches: &mut Vec<String>) -> Option<ApiEvent> {
    let before = searches.len();
    searches.truncate(SEARCHES_MAX);
    searches.retain(|search| search.len() <= SEARCH_LENGTH_MAX);
    while searches.join(" ").len() > SEARCH_LINE_MAX {
        searches.pop();
    }
    if searches.len() == before {
        return None;
    }
    let message = format!(
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
        searches.join(" ")
    );
    Some(ApiEvent::warning("DNSConfigForming", message))
}

#[cfg(test)]
mod tests;
