//! How punctual probes are when there are many: every pod has a readiness probe per second, over HTTP, that goes to this
//! program, which notes when it was asked. `hack/bench probes` runs it; docs/performance.md holds what came out.
//!
//! It measures and asserts nothing but that all pods run.

// Real processes live in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::harness::{Node, wait};

const PERIOD: Duration = Duration::from_secs(1);
/// Pods that are made at a time: containerd is not what is measured.
const BATCH: usize = 10;
/// In a second, as the kernel tells them to programs on every machine that we run on.
const TICKS: f64 = 100.0;
const PATIENCE: Duration = Duration::from_secs(300);

struct Asked {
    pod: String,
    at: Instant,
}

fn main() {
    let pods = number("RUBELET_BENCH_PODS", 200);
    let seconds = number("RUBELET_BENCH_SECONDS", 60);
    let (port, asked) = answer();
    let node = Node::start_with(|config| config["maxPods"] = json!(pods + 10));
    let pid = node.agent.pid().expect("the agent's pid");
    let empty = memory_kib(pid);
    let begun = Instant::now();
    for first in (0..pods).step_by(BATCH) {
        let last = (first + BATCH).min(pods);
        for pod in first..last {
            let name = format!("probed-{pod}");
            node.agent.write_manifest(&name, &manifest(&name, port));
        }
        wait_ready(&node, last);
    }
    println!("{pods} pods were ready after {:.0?}", begun.elapsed());
    // What their start left to do is over then.
    thread::sleep(Duration::from_secs(5));
    while asked.try_recv().is_ok() {}

    let (begun, used) = (Instant::now(), cpu_seconds(pid));
    thread::sleep(Duration::from_secs(seconds as u64));
    let took = begun.elapsed();
    let cpu = (cpu_seconds(pid) - used) / took.as_secs_f64();
    let memory = memory_kib(pid);
    report(&asked.try_iter().collect::<Vec<_>>(), pods, begun, took);
    println!(
        "agent: {:.1} % of a core, {:.1} MiB resident ({:.1} MiB before the pods)",
        cpu * 100.0,
        mib(memory),
        mib(empty)
    );
    drop(node);
}

fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
        Err(_) => default,
    }
}

/// A pod that costs as little as a pod can: it sleeps in the host's network.
fn manifest(name: &str, port: u16) -> String {
    let probe = json!({
        "httpGet": { "host": "127.0.0.1", "port": port, "path": format!("/{name}") },
        "periodSeconds": PERIOD.as_secs(), "timeoutSeconds": 1, "failureThreshold": 3,
    });
    let container = json!({
        "name": "c", "image": "rubelet.test/busybox:1", "readinessProbe": probe,
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
    });
    let spec = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 5, "containers": [container] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

fn wait_ready(node: &Node, count: usize) {
    let is_ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    wait(&format!("{count} pods to be ready"), PATIENCE, || {
        match node.agent.pods()?.iter().filter(is_ready).count() {
            ready if ready == count => Ok(()),
            ready => Err(format!("{ready} of {count}")),
        }
    });
}

// ---- whom the probes ask ----------------------------------------------------------------------------------------

fn answer() -> (u16, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, asked) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let at = Instant::now();
            if let Some(pod) = say_yes(stream)
                && tell.send(Asked { pod, at }).is_err()
            {
                return;
            }
        }
    });
    (port, asked)
}

/// One request, one answer.
fn say_yes(mut stream: TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(PERIOD)).ok()?;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut part).ok()? {
            0 => return None,
            length => head.extend_from_slice(&part[..length]),
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()?;
    let head = String::from_utf8_lossy(&head);
    head.split_whitespace().nth(1).map(|path| path.trim_start_matches('/').to_owned())
}

// ---- what came out ----------------------------------------------------------------------------------------------

fn report(asked: &[Asked], pods: usize, begun: Instant, took: Duration) {
    let mut of_pod: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for Asked { pod, at } in asked.iter().filter(|asked| asked.at < begun + took) {
        of_pod.entry(pod).or_default().push(at.duration_since(begun).as_secs_f64());
    }
    let mut gaps: Vec<f64> =
        of_pod.values().flat_map(|times| times.windows(2).map(|two| two[1] - two[0])).collect();
    gaps.sort_by(f64::total_cmp);
    let (in_time, periods) = of_pod
        .values()
        .map(|times| served(times, took.as_secs_f64()))
        .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    println!(
        "{} of {pods} pods were asked {} times in {:.0} s",
        of_pod.len(),
        asked.len(),
        took.as_secs_f64()
    );
    println!(
        "probes within their period: {in_time} of {periods} ({:.2} %)",
        100.0 * in_time as f64 / periods as f64
    );
    println!(
        "gap between two probes of a pod: median {:.3} s, 99 % {:.3} s, longest {:.3} s",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let busiest = busiest_tenth(asked, begun);
    println!(
        "most probes within a tenth of a second: {busiest} ({:.1} if they were spread evenly)",
        pods as f64 / 10.0
    );
}

/// Of the periods from a pod's first probe to the end: how many had their probe no more than half a period off, and how
/// many there are.
fn served(times: &[f64], end: f64) -> (usize, usize) {
    let period = PERIOD.as_secs_f64();
    let turn = |at: f64| ((at - times[0]) / period).round() as usize;
    let turns = turn(end - period / 2.0) + 1;
    let mut served = vec![false; turns];
    for at in times {
        if let Some(slot) = served.get_mut(turn(*at)) {
            *slot = true;
        }
    }
    (served.iter().filter(|served| **served).count(), turns)
}

fn busiest_tenth(asked: &[Asked], begun: Instant) -> usize {
    let mut slots: BTreeMap<u128, usize> = BTreeMap::new();
    for Asked { at, .. } in asked {
        *slots.entry(at.saturating_duration_since(begun).as_millis() / 100).or_default() += 1;
    }
    slots.into_values().max().unwrap_or_default()
}

/// User and system time of a process and its threads.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the agent's figures");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("the name's end").1.split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / TICKS
}

fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent's figures");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
