//! Names, addresses, resolvers and ports.

use std::fs;

use serde_json::{Value, json};

use super::{clear, facts, looks, seen, spec};
use crate::support::harness::{Node, SLOW, get, wait};
use crate::support::pods::{self, is_running, manifest};

const NAMES: &str = "echo hostname=$(hostname); echo fqdn=$(cat /proc/sys/kernel/hostname)";
const HOSTS: &str = "cat /etc/hosts";
const RESOLVER: &str = "cat /etc/resolv.conf";

fn ip(pod: &Value) -> &str {
    pod["status"]["podIP"].as_str().expect("an address")
}

fn words<'a>(lines: &'a [String], keyword: &str) -> Vec<&'a str> {
    let lines = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|words| words.first() == Some(&keyword)).flat_map(|words| words[1..].to_vec()).collect()
}

#[test]
fn names_and_hosts_files() {
    let node = Node::start();
    let both = json!([looks("names", NAMES, json!({})), looks("hosts", HOSTS, json!({}))]);
    let put = |name: &str, more: Value| {
        node.agent.write_manifest(name, &manifest(name, spec(both.clone(), more)));
    };
    put("plain", json!({}));
    let aliases = json!([
        { "ip": "10.9.8.7", "hostnames": ["one.example", "two.example"] },
        { "ip": "fd00::1", "hostnames": ["six.example"] },
    ]);
    put("named", json!({ "hostname": "web", "subdomain": "sub", "hostAliases": aliases }));
    put("full", json!({ "hostname": "web", "subdomain": "sub", "setHostnameAsFQDN": true }));
    put("onhost", json!({ "hostNetwork": true, "hostAliases": aliases }));
    let standard = [
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::0\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ];
    let added =
        ["", "# Entries added by HostAliases.", "10.9.8.7\tone.example\ttwo.example", "fd00::1\tsix.example"];
    let check = |name: &str, hostname: &str, entry: &str, more: &[&str]| {
        let pod = node.wait_pod(name, SLOW, is_running);
        assert_eq!(facts(&node, &pod, "names")["hostname"], hostname);
        let entry = format!("{}\t{entry}", ip(&pod));
        let expected: Vec<&str> =
            standard.iter().copied().chain([entry.as_str()]).chain(more.iter().copied()).collect();
        assert_eq!(seen(&node, &pod, "hosts"), expected);
    };
    check("plain", "plain-node", "plain-node", &[]);
    check("named", "web", "web.sub.default.svc.cluster.local\tweb", &added);
    check("full", "web.sub.default.svc.cluster.local", "web.sub.default.svc.cluster.local\tweb", &[]);

    let pod = node.wait_pod("onhost", SLOW, is_running);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    assert_eq!(facts(&node, &pod, "names")["hostname"], own.trim());
    let hosts = seen(&node, &pod, "hosts");
    let of_host = fs::read_to_string("/etc/hosts").unwrap_or_default();
    let expected: Vec<&str> = ["# Kubernetes-managed hosts file (host network)."]
        .into_iter()
        .chain(of_host.lines())
        .chain(added)
        .collect();
    assert_eq!(hosts, expected);
    clear(&node, &["plain", "named", "full", "onhost"]);
}

#[test]
fn resolvers() {
    let node = Node::start();
    let put = |name: &str, more: Value| {
        let containers = json!([looks("c", RESOLVER, json!({}))]);
        node.agent.write_manifest(name, &manifest(name, spec(containers, more)));
    };
    let config = json!({ "nameservers": ["10.0.0.11"], "searches": ["example"], "options": [{ "name": "ndots", "value": "2" }, { "name": "debug" }] });
    put("cluster", json!({}));
    put("more", json!({ "dnsConfig": config }));
    put("none", json!({ "dnsPolicy": "None", "dnsConfig": config }));
    put("default", json!({ "dnsPolicy": "Default" }));
    put("host", json!({ "hostNetwork": true }));
    put("hostcluster", json!({ "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet" }));

    let host: Vec<String> =
        fs::read_to_string("/etc/resolv.conf").unwrap_or_default().lines().map(str::to_owned).collect();
    let host_searches: Vec<&str> = words(&host, "search");
    let cluster: Vec<&str> = ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"]
        .into_iter()
        .chain(host_searches.iter().copied())
        .collect();
    let with_example: Vec<&str> = cluster.iter().copied().chain(["example"]).collect();
    let check = |name: &str, servers: &[&str], searches: &[&str], options: &[&str]| {
        let pod = node.wait_pod(name, SLOW, is_running);
        let lines = seen(&node, &pod, "c");
        assert_eq!(words(&lines, "nameserver"), servers, "{name}: {lines:?}");
        assert_eq!(words(&lines, "search"), searches, "{name}: {lines:?}");
        let mut found = words(&lines, "options");
        found.sort_unstable();
        assert_eq!(found, options, "{name}: {lines:?}");
    };
    check("cluster", &["10.0.0.10"], &cluster, &["ndots:5"]);
    check("more", &["10.0.0.10", "10.0.0.11"], &with_example, &["debug", "ndots:2"]);
    check("none", &["10.0.0.11"], &["example"], &["debug", "ndots:2"]);
    let mut options = words(&host, "options");
    options.sort_unstable();
    for name in ["default", "host"] {
        check(name, &words(&host, "nameserver"), &host_searches, &options);
    }
    check("hostcluster", &["10.0.0.10"], &cluster, &["ndots:5"]);
    clear(&node, &["cluster", "more", "none", "default", "host", "hostcluster"]);
}

#[track_caller]
fn fetch(address: &str) -> String {
    wait(&format!("an answer from {address}"), SLOW, || match get(address, "/name") {
        Ok(response) if response.status == 200 => Ok(response.text().trim().to_owned()),
        Ok(response) => Err(format!("{}: {}", response.status, response.text())),
        Err(error) => Err(error.to_string()),
    })
}

#[test]
fn ports_and_addresses() {
    let node = Node::start();
    let (mapped, on_host) = (node.runtime.free_port(), node.runtime.free_port());
    let serve = |port: u16, ports: Value| {
        let script = format!("hostname >/www/name; exec httpd -f -p {port} -h /www");
        pods::shell_with("web", &script, json!({ "ports": ports }))
    };
    let neighbour =
        looks("neighbour", "until wget -qO- http://127.0.0.1:8080/name; do sleep 0.2; done", json!({}));
    let web = serve(8080, json!([{ "name": "http", "containerPort": 8080, "hostPort": mapped }]));
    node.agent
        .write_manifest("web", &manifest("web", spec(json!([web, neighbour]), json!({ "hostname": "pod" }))));
    let web = serve(on_host, json!([{ "containerPort": on_host }]));
    node.agent.write_manifest("host", &manifest("host", spec(json!([web]), json!({ "hostNetwork": true }))));

    let pod = node.wait_pod("web", SLOW, is_running);
    assert_eq!(fetch(&format!("{}:8080", ip(&pod))), "pod");
    assert_eq!(fetch(&format!("127.0.0.1:{mapped}")), "pod");
    assert_eq!(seen(&node, &pod, "neighbour"), ["pod"], "containers of a pod share loopback");
    assert_eq!(pod["status"]["podIPs"], json!([{ "ip": ip(&pod) }]));

    let host = node.wait_pod("host", SLOW, is_running);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    assert_eq!(fetch(&format!("127.0.0.1:{on_host}")), own.trim());
    // Without a cluster a pod on the host's network has no address of its own to tell.
    assert_ne!(host["status"]["podIP"], pod["status"]["podIP"]);
    clear(&node, &["web", "host"]);
}
