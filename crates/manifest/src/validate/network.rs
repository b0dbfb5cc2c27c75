//! Names and addresses: host names, aliases and DNS.

use k8s_openapi::api::core::v1::PodSpec;

use super::report::{Path, ValidationErrors};
use super::syntax;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
const MAX_HOST_NAME: usize = 64;

pub(super) fn check(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            report.invalid_for_each(&path.child(field), name, syntax::dns_label(name));
        }
    }
    hostname_override(spec, &path.child("hostnameOverride"), report);
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(index);
        report.invalid_for_each(&path.child("ip"), &alias.ip, syntax::ip_address(&alias.ip));
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            report.invalid_for_each(&path.child("hostnames").index(index), name, syntax::dns_subdomain(name));
        }
    }
    dns(spec, &path.child("dnsConfig"), report);
}

fn hostname_override(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let Some(name) = &spec.hostname_override else { return };
    if spec.set_hostname_as_fqdn == Some(true) {
        report.forbidden(path, "must not be given when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        report.forbidden(path, "must not be given when hostNetwork is true");
    }
    if name.len() > MAX_HOST_NAME {
        report.too_long(path, MAX_HOST_NAME);
    }
    report.invalid_for_each(path, name, syntax::dns_subdomain(name));
}

fn dns(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let no_policy = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if no_policy {
            report.required_because(path, "the dnsPolicy None needs it");
        }
        return;
    };
    let nameservers = config.nameservers.as_deref().unwrap_or_default();
    let path_to_nameservers = path.child("nameservers");
    if no_policy && nameservers.is_empty() {
        return report.required_because(&path_to_nameservers, "the dnsPolicy None needs at least one");
    }
    if nameservers.len() > MAX_NAMESERVERS {
        report.too_many(&path_to_nameservers, nameservers.len(), MAX_NAMESERVERS);
    }
    for (index, address) in nameservers.iter().enumerate() {
        report.invalid_for_each(&path_to_nameservers.index(index), address, syntax::ip_address(address));
    }
    searches(config.searches.as_deref().unwrap_or_default(), &path.child("searches"), report);
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_ref().is_none_or(String::is_empty) {
            report.required(&path.child("options").index(index).child("name"));
        }
    }
}

fn searches(searches: &[String], path: &Path, report: &mut ValidationErrors) {
    if searches.len() > MAX_SEARCHES {
        report.too_many(path, searches.len(), MAX_SEARCHES);
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        report.too_long(path, MAX_SEARCH_CHARACTERS);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let domain = search.strip_suffix('.').unwrap_or(search);
        report.invalid_for_each(&path.index(index), search, syntax::dns_search(domain));
    }
}
