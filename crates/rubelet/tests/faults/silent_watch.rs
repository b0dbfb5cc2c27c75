//! A proxy between the agent and the real API server that passes nothing on of a watch after its first bookmark: it looks
//! like one without changes, so its age is told.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::support::api_proxy::{Between, Proxy};
use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Runtime, SLOW, wait};
use crate::support::metrics_text::value;
use crate::support::runtime_view::sleeper;

const NODE: &str = "node";

/// `kubectl proxy`, which speaks plain HTTP/1.1 to its clients and is the node to the API server.
struct KubectlProxy {
    child: Child,
    address: String,
}

impl KubectlProxy {
    fn start(cluster: &Cluster) -> KubectlProxy {
        let mut command = cluster.kubectl_command(&cluster.node_kubeconfig(NODE), &["proxy", "--port=0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("run kubectl proxy");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{line:?}");
        KubectlProxy { child, address }
    }
}

impl Drop for KubectlProxy {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// The age in the line of this watch, in seconds.
fn age(agent: &Agent, watch: &str) -> Result<u64, String> {
    let answer = agent.health("/healthz?verbose").map_err(|error| error.to_string())?;
    assert_eq!(answer.status, 200, "a silent watch does not make the agent unhealthy: {}", answer.text());
    let start = format!("[i]watch {watch} last event ");
    let text = answer.text();
    let rest = text.lines().find_map(|line| line.strip_prefix(&start)).ok_or(text.clone())?;
    rest.split('s').next().and_then(|age| age.parse().ok()).ok_or(text.clone())
}

fn metric(agent: &Agent, name: &str, resource: &str) -> Result<u64, String> {
    let text = agent.get("/metrics").map_err(|error| error.to_string())?.text();
    let start = format!("{name}{{resource=\"{resource}\"}}");
    value(&text, &start).map(|value| value as u64).ok_or_else(|| format!("no {start}"))
}

#[test]
fn a_watch_that_a_proxy_silences_tells_its_age() {
    let cluster = Cluster::shared_bare();
    let kubectl = KubectlProxy::start(cluster);
    let proxy = Proxy::start(&kubectl.address, Between::Silence("/api/v1/pods?"));
    let runtime = Runtime::start();
    let kubeconfig = runtime.dir.join("silent.kubeconfig");
    let server = proxy.server().replace("https://", "http://");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}],
            "users":[{{"name":"u","user":{{}}}}],"contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
    );
    fs::write(&kubeconfig, text).expect("write a kubeconfig");
    let agent = Agent::start_with_flags(&runtime, &["--kubeconfig", &kubeconfig.to_string_lossy()], |_| {});
    agent.write_manifest("alone", &sleeper("alone"));

    // A watch may also be held for a moment while the agent starts, because the API server refuses it.
    let silent = |age: u64| age >= 60;
    wait("the watch of pods to be noticed", 2 * SLOW, || {
        match (metric(&agent, "rubelet_watches_held", "pods"), age(&agent, "pods")) {
            (Ok(1), Ok(age)) if silent(age) => Ok(()),
            (held, age) => Err(format!("{held:?}, last event {age:?} s ago")),
        }
    });
    // The Node changes, and its watch goes through the same proxy.
    assert_eq!(metric(&agent, "rubelet_watches_held", "nodes"), Ok(0));
    let ages = |name: &str| metric(&agent, "rubelet_watch_last_word_age_seconds", name).expect("an age");
    let (pods, nodes) = (ages("pods"), ages("nodes"));
    assert!(pods > nodes, "{pods} and {nodes}");
    let shown = age(&agent, "pods").expect("an age");
    assert!(shown >= pods, "{shown} after {pods}");
    assert!(age(&agent, "nodes node").expect("an age") < shown);

    let why = agent.command(&["why", "alone"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    println!("{why}");
    let held = why.split_once("These watches of the API server make no progress:\n").map(|(_, held)| held);
    let held: Vec<&str> = held.unwrap_or_default().lines().map(str::trim).collect();
    assert!(held.len() == 1 && held[0].starts_with("pods (last event "), "{why}");
}
