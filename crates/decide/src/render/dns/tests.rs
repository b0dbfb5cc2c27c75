use model::node::{HostFacts, NodeConfig};
use model::text_limits::{TextLimit, truncate_text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::render::sample;

fn host_facts() -> HostFacts {
    HostFacts {
        resolv_conf: "nameserver 8.8.8.8\nsearch corp.example\noptions timeout:1\n".into(),
        ..sample::facts()
    }
}

fn rendered(config: &NodeConfig, facts: &HostFacts, spec: Value) -> Rendered<DnsConfig> {
    let mut spec = spec;
    spec["containers"] = json!([]);
    pod_dns(&RenderContext::new(config, facts), &sample::pod(spec)).unwrap()
}

fn lines(config: &DnsConfig) -> [String; 3] {
    [config.servers.join(" "), config.searches.join(" "), config.options.join(" ")]
}

#[test]
fn policies() {
    let check = |spec: Value, expect: [&str; 3]| {
        let rendered = rendered(&sample::config(), &host_facts(), spec.clone());
        assert_eq!(lines(&rendered.value), expect, "{spec}");
        assert_eq!((rendered.warnings, rendered.node_warnings), (vec![], vec![]), "{spec}");
    };
    let cluster =
        ["10.0.0.10", "ns.svc.cluster.local svc.cluster.local cluster.local corp.example", "ndots:5"];
    let host = ["8.8.8.8", "corp.example", "timeout:1"];
    check(json!({"dnsPolicy": "ClusterFirst"}), cluster);
    check(json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), host);
    check(json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster);
    check(json!({"dnsPolicy": "ClusterFirstWithHostNet"}), cluster);
    check(json!({"dnsPolicy": "Default"}), host);
    check(json!({"dnsPolicy": "None"}), ["", "", ""]);
    check(json!({"dnsPolicy": "Nonsense"}), cluster);
}

#[test]
fn a_pod_adds_its_own() {
    let check = |policy: &str, dns: Value, expect: [&str; 3]| {
        let spec = json!({"dnsPolicy": policy, "dnsConfig": dns});
        assert_eq!(lines(&rendered(&sample::config(), &host_facts(), spec).value), expect, "{policy} {dns}");
    };
    let own = || {
        json!({
            "nameservers": ["8.8.8.8", "9.9.9.9"],
            "searches": ["x", "corp.example"],
            "options": [{"name": "timeout", "value": "3"}, {"name": "edns0"}, {"name": "ndots", "value": "2"}],
        })
    };
    check("None", own(), ["8.8.8.8 9.9.9.9", "x corp.example", "timeout:3 edns0 ndots:2"]);
    check("Default", own(), ["8.8.8.8 9.9.9.9", "corp.example x", "timeout:3 edns0 ndots:2"]);
    check(
        "ClusterFirst",
        own(),
        [
            "10.0.0.10 8.8.8.8 9.9.9.9",
            "ns.svc.cluster.local svc.cluster.local cluster.local corp.example x",
            "ndots:2 timeout:3 edns0",
        ],
    );
    check("Default", json!({}), ["8.8.8.8", "corp.example", "timeout:1"]);
}

#[test]
fn a_cluster_domain_that_the_host_also_searches_counts_once() {
    let facts = HostFacts { resolv_conf: "search cluster.local. b".into(), ..sample::facts() };
    let config = sample::config();
    let rendered_cluster = rendered(&config, &facts, json!({"dnsPolicy": "ClusterFirst"}));
    assert_eq!(lines(&rendered_cluster.value)[1], "ns.svc.cluster.local svc.cluster.local cluster.local b");
    let config = NodeConfig { cluster_domain: String::new(), ..config };
    let without_domain = rendered(&config, &facts, json!({"dnsPolicy": "ClusterFirst"}));
    assert_eq!(lines(&without_domain.value), ["10.0.0.10", "cluster.local b", "ndots:5"]);
}

#[test]
fn without_cluster_dns_the_hosts_settings_are_used() {
    let config = NodeConfig { cluster_dns: Vec::new(), ..sample::config() };
    let rendered = rendered(&config, &host_facts(), json!({"dnsPolicy": "ClusterFirst"}));
    assert_eq!(lines(&rendered.value), ["8.8.8.8", "corp.example", "timeout:1"]);
    let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                Falling back to \"Default\" policy.";
    assert_eq!(rendered.node_warnings, [ApiEvent::warning("MissingClusterDNS", text)]);
    let text = format!("pod: \"p_ns(u-1)\". {text}");
    assert_eq!(rendered.warnings, [ApiEvent::warning("MissingClusterDNS", text)]);
}

#[test]
fn without_a_resolver_file_nobody_answers() {
    let check = |node_ips: &[&str], expect: &str| {
        let config = NodeConfig { resolv_conf: String::new(), ..sample::config() };
        let node_ips = node_ips.iter().map(|ip| ip.to_string()).collect();
        let facts = HostFacts { node_ips, ..host_facts() };
        let rendered = rendered(&config, &facts, json!({"dnsPolicy": "Default"}));
        assert_eq!(lines(&rendered.value), [expect, ".", ""]);
    };
    check(&[], "127.0.0.1");
    check(&["192.0.2.1"], "127.0.0.1");
    check(&["2001:db8::1"], "::1");
    check(&["2001:db8::1", "192.0.2.1"], "::1 127.0.0.1");
}

fn forming(dns: Value) -> (DnsConfig, Vec<String>) {
    let spec = json!({"dnsPolicy": "None", "dnsConfig": dns});
    let rendered = rendered(&sample::config(), &host_facts(), spec);
    assert!(rendered.warnings.iter().all(|event| event.reason == "DNSConfigForming"));
    (rendered.value, rendered.warnings.into_iter().map(|event| event.message).collect())
}

#[test]
fn too_many_servers_are_cut() {
    let (config, messages) = forming(json!({"nameservers": ["1", "2", "3", "4"]}));
    assert_eq!(config.servers, ["1", "2", "3"]);
    assert_eq!(
        messages,
        [
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1 2 3"
        ]
    );
    assert_eq!(forming(json!({"nameservers": ["1", "2", "3"]})).1, [""; 0]);
}

#[test]
fn too_many_or_too_long_searches_are_cut() {
    let prefix =
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: ";
    let check = |searches: Vec<String>, kept: usize| {
        let (config, messages) = forming(json!({ "searches": searches }));
        assert_eq!(config.searches.len(), kept);
        let expect = if kept == searches.len() {
            vec![]
        } else {
            vec![truncate_text(format!("{prefix}{}", config.searches.join(" ")), TextLimit::EventMessage)]
        };
        assert_eq!(messages, expect);
    };
    let numbered =
        |count: usize, length: usize| (0..count).map(|i| format!("{i:0length$}")).collect::<Vec<String>>();
    check(numbered(32, 3), 32);
    check(numbered(33, 3), 32);
    check(vec!["a".repeat(253), "b".into()], 2);
    check(vec!["a".repeat(254), "b".into()], 1);
    // 8 paths of 253 and 7 blanks are 2031 characters; 16 more and a blank make 2048
    let mut full = numbered(8, 253);
    full.push("x".repeat(16));
    check(full.clone(), 9);
    full[8].push('x');
    check(full, 8);
    check(numbered(32, 100), 20);
}

proptest! {
    #[test]
    fn limits_always_hold(
        servers in prop::collection::vec("[0-9]{1,3}", 0..6),
        lengths in prop::collection::vec(1usize..300, 0..50),
    ) {
        let searches: Vec<String> =
            lengths.iter().enumerate().map(|(index, length)| format!("{index:0length$}")).collect();
        let (config, messages) = forming(json!({"nameservers": servers, "searches": searches}));
        prop_assert!(config.servers.len() <= NAMESERVERS_MAX && config.searches.len() <= SEARCHES_MAX);
        prop_assert!(config.searches.iter().all(|search| search.len() <= SEARCH_LENGTH_MAX));
        prop_assert!(config.searches.join(" ").len() <= SEARCH_LINE_MAX);
        let distinct = |list: &[String]| without_repeats(list.iter().cloned()).len();
        let cut = (config.servers.len() < distinct(&servers)) as usize
            + (config.searches.len() < distinct(&searches)) as usize;
        prop_assert_eq!(messages.len(), cut, "one event for each list that was cut");
    }
}
