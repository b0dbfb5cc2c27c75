//! `get pods` and `get node`.

use std::time::Duration;

use model::Wall;
use model::report::{NodeReport, PodReport, WatchReport};

use super::client::Client;
use super::options::{CommandArguments, CommandOption, UsageError};
use super::show::{age as age_of, age_at, one_line, table};
use super::{CommandError, OutputWriter, find, now, print, print_json};

pub const ABOUT: &str = "Shows the pods of the agent that runs on this node, or the node itself.";
pub const USAGE: &str = "  rubelet get pods [pod] [options]\n  rubelet get node [options]";
pub const OPTIONS: &[CommandOption] = &[CommandOption {
    name: "output",
    letter: Some('o'),
    value: Some("FORMAT"),
    about: "wide for more columns, json for programs",
}];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Table,
    Wide,
    Json,
}

pub async fn run(
    client: &Client,
    given: &CommandArguments,
    out: OutputWriter<'_>,
) -> Result<(), CommandError> {
    let format = format(given)?;
    let words: Vec<&str> = given.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pods" | "pod" | "po"] => pods(client, given, None, format, out).await,
        ["pods" | "pod" | "po", name] => pods(client, given, Some(name), format, out).await,
        ["node" | "nodes" | "no"] => {
            let node = client.node().await?;
            match format {
                Format::Json => print_json(out, &node),
                _ => print(
                    out,
                    &(node_table(&node) + &signal_table(&node) + &watch_table(&node, format == Format::Wide)),
                ),
            }
        }
        [] => Err(UsageError::Arguments("missing argument: pods or node".into()).into()),
        ["pods" | "pod" | "po" | "node" | "nodes" | "no", ..] => {
            Err(UsageError::Arguments("too many arguments".into()).into())
        }
        [other, ..] => {
            Err(UsageError::Arguments(format!("unknown argument {other}: expected pods or node")).into())
        }
    }
}

fn format(given: &CommandArguments) -> Result<Format, UsageError> {
    match given.value("output") {
        None => Ok(Format::Table),
        Some("wide") => Ok(Format::Wide),
        Some("json") => Ok(Format::Json),
        Some(other) => Err(UsageError::BadValue {
            name: "output",
            value: other.to_owned(),
            expected: "expected wide or json".to_owned(),
        }),
    }
}

async fn pods(
    client: &Client,
    given: &CommandArguments,
    name: Option<&str>,
    format: Format,
    out: OutputWriter<'_>,
) -> Result<(), CommandError> {
    let namespace = given.value("namespace");
    let all = client.pods().await?;
    let mut shown: Vec<&PodReport> = match name {
        Some(name) => find::find_pods(&all, &client.node().await?.name, name, namespace)?,
        None => {
            all.iter().filter(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace)).collect()
        }
    };
    shown.sort_by_key(|pod| (&pod.namespace, &pod.name, pod.since));
    match format {
        Format::Json => print_json(out, &shown),
        _ if shown.is_empty() => print(out, "No pods.\n"),
        _ => print(out, &pod_table(&shown, format == Format::Wide, now())),
    }
}

fn pod_table(pods: &[&PodReport], wide: bool, now: Wall) -> String {
    let heading = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "UID", "SOURCE"];
    let columns = if wide { heading.len() } else { heading.len() - 2 };
    let mut rows = vec![heading[..columns].iter().map(ToString::to_string).collect::<Vec<_>>()];
    for pod in pods {
        let mut row = vec![
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{}/{}", pod.ready, pod.containers.iter().filter(|c| !c.init).count()),
            one_line(&pod.status),
            pod.restarts.to_string(),
            pod.since.map_or("<unknown>".into(), |since| age_at(now, since)),
            if pod.ip.is_empty() { "<none>".into() } else { pod.ip.clone() },
            pod.uid.clone(),
            pod.source.clone(),
        ];
        row.truncate(columns);
        rows.push(row);
    }
    table(&rows)
}

fn node_table(node: &NodeReport) -> String {
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let containers: Vec<String> =
        node.containers.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let heading =
        ["NAME", "RUNTIME", "READY", "NETWORK", "SOURCES", "PODS", "RUNNING", "CONTAINERS", "MESSAGE"];
    let row = vec![
        node.name.clone(),
        one_line(&node.runtime),
        yes(node.runtime_ready),
        yes(node.network_ready),
        yes(node.sources_ready),
        node.pods.to_string(),
        node.running_pods.to_string(),
        if containers.is_empty() { "none".into() } else { containers.join(", ") },
        one_line(&node.message),
    ];
    table(&[heading.iter().map(ToString::to_string).collect(), row])
}

/// How far the node is from the thresholds of eviction.
fn signal_table(node: &NodeReport) -> String {
    let mut rows =
        vec![["SIGNAL", "AVAILABLE", "THRESHOLD", "GRACE", "SHORT", "READ"].map(str::to_owned).to_vec()];
    for signal in &node.signals {
        let read = Duration::try_from_secs_f64(signal.read_secs_ago).unwrap_or_default();
        let short = if signal.available < signal.threshold { "yes" } else { "no" };
        rows.push(vec![
            one_line(&signal.signal),
            signal.available.to_string(),
            signal.threshold.to_string(),
            age_of(Duration::from_secs(signal.grace_secs)),
            short.to_owned(),
            age_of(read) + " ago",
        ]);
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// Watches of the API server's objects: of a set always, of single objects where something is wrong or all are wanted.
fn watch_table(node: &NodeReport, all: bool) -> String {
    let is_shown = |watch: &&WatchReport| {
        all || watch.object.is_empty() || watch.is_held() || !watch.unreadable.is_empty()
    };
    let mut rows = vec![["WATCH", "LAST EVENT", "PROBLEM", "UNREADABLE"].map(str::to_owned).to_vec()];
    for watch in node.watches.iter().filter(is_shown) {
        let age = Duration::try_from_secs_f64(watch.last_word_secs).unwrap_or_default();
        let unreadable: Vec<String> = watch.unreadable.iter().map(|object| one_line(object)).collect();
        rows.push(vec![watch.name(), age_of(age) + " ago", one_line(&watch.problem), unreadable.join("; ")]);
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::find::tests::pod;
    use model::report::{ContainerView, SignalReport};

    const SECOND: i64 = 1_000_000_000;

    fn sample() -> Vec<PodReport> {
        let container = |name: &str, ready| ContainerView {
            name: name.into(),
            ready,
            restarts: 0,
            log_path: None,
            previous_log_path: None,
            running: ready,
            init: false,
        };
        let mut web = pod("default", "web-vm", "u1");
        web.containers = vec![container("app", true), container("log", false)];
        (web.ready, web.restarts, web.ip) = (1, 12, "10.88.0.5".into());
        web.status = "CrashLoopBackOff".into();
        web.since = Some(Wall(0));
        let mut etcd = pod("kube-system", "etcd-vm", "u2");
        etcd.status = "Pending".into();
        vec![web, etcd]
    }

    #[test]
    fn pods_make_a_table() {
        let pods = sample();
        let pods: Vec<&PodReport> = pods.iter().collect();
        let now = Wall(192 * SECOND);
        let expect = "\
NAMESPACE     NAME      READY   STATUS             RESTARTS   AGE         IP
default       web-vm    1/2     CrashLoopBackOff   12         3m12s       10.88.0.5
kube-system   etcd-vm   0/0     Pending            0          <unknown>   <none>
";
        assert_eq!(pod_table(&pods, false, now), expect);
        let wide = pod_table(&pods, true, now);
        let ends: Vec<_> =
            wide.lines().map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>()).collect();
        assert_eq!(ends, [["SOURCE", "UID"], ["file", "u1"], ["file", "u2"]]);
    }

    #[test]
    fn the_node_makes_a_table() {
        let node = NodeReport {
            name: "vm".into(),
            runtime: "containerd 1.6.20".into(),
            runtime_ready: true,
            network_ready: false,
            message: "cni plugin\nnot initialized".into(),
            sources_ready: true,
            pods: 3,
            running_pods: 2,
            containers: [("exited".to_owned(), 1), ("running".to_owned(), 4)].into(),
            mirror_pods: 0,
            orphans: 0,
            ephemeral_containers: 0,
            counts: Default::default(),
            volumes: Vec::new(),
            selinux_volumes: Vec::new(),
            pod_certificates: Vec::new(),
            protected_memory: None,
            signals: Vec::new(),
            watches: vec![
                WatchReport { resource: "pods".into(), last_word_secs: 61.2, ..WatchReport::default() },
                WatchReport {
                    resource: "secrets".into(),
                    object: "a/quiet".into(),
                    ..WatchReport::default()
                },
                WatchReport {
                    resource: "secrets".into(),
                    object: "a/b".into(),
                    last_word_secs: 700.0,
                    has_bookmarks: true,
                    problem: "list secrets:\nno".into(),
                    unreadable: vec!["a/b: data: wrong".into()],
                },
            ],
        };
        let expect = "\
NAME   RUNTIME             READY   NETWORK   SOURCES   PODS   RUNNING   CONTAINERS            MESSAGE
vm     containerd 1.6.20   yes     no        yes       3      2         1 exited, 4 running   cni plugin not initialized
";
        assert_eq!(node_table(&node), expect);
        assert_eq!(signal_table(&node), "");
        let short = SignalReport {
            signal: "memory.available".into(),
            available: 5,
            threshold: 10,
            grace_secs: 90,
            read_secs_ago: 2.5,
        };
        let node = NodeReport { signals: vec![short], ..node };
        let expect = "
SIGNAL             AVAILABLE   THRESHOLD   GRACE   SHORT   READ
memory.available   5           10          90s     yes     2s ago
";
        assert_eq!(signal_table(&node), expect);
        let expect = "
WATCH         LAST EVENT   PROBLEM            UNREADABLE
pods          61s ago
secrets a/b   11m ago      list secrets: no   a/b: data: wrong
";
        assert_eq!(watch_table(&node, false), expect);
        assert!(watch_table(&node, true).contains("a/quiet"));
        assert_eq!(watch_table(&NodeReport { watches: Vec::new(), ..node }, true), "");
    }

    #[test]
    fn only_known_formats_are_taken() {
        let given = |value: Option<&str>| {
            let words: Vec<String> = value.into_iter().map(|value| format!("-o={value}")).collect();
            super::super::options::parse(&words, OPTIONS).unwrap()
        };
        assert_eq!(format(&given(None)), Ok(Format::Table));
        assert_eq!(format(&given(Some("wide"))), Ok(Format::Wide));
        assert_eq!(format(&given(Some("json"))), Ok(Format::Json));
        let wrong = format(&given(Some("yaml"))).unwrap_err();
        assert_eq!(wrong.to_string(), r#"option --output cannot be "yaml": expected wide or json"#);
    }
}
