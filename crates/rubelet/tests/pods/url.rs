//! Pods from an HTTP endpoint: a list behind a header, kept through the endpoint's failures.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::harness::{Node, SLOW, wait};
use crate::support::runtime_view::{RuntimeView, sleeper};
use serde_json::{Value, json};

const HEADER: &str = "X-Manifest-Key";
const KEY: &str = "sesame";

/// Serves one of its answers, whichever is chosen, to those who bring the key.
struct Endpoint {
    url: String,
    chosen: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

type Answer = (u16, String);

impl Endpoint {
    fn start(answers: Vec<Answer>) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/manifests", listener.local_addr().expect("its address"));
        let (chosen, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let endpoint = Endpoint { url, chosen: chosen.clone(), answered: answered.clone() };
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (status, body) = &answers[chosen.load(Ordering::SeqCst)];
                // The client may have hung up: that is no failure here.
                let _ = respond(stream, *status, body);
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
        endpoint
    }

    /// From now on gives that answer; returns when it was given twice.
    #[track_caller]
    fn choose(&self, answer: usize) {
        self.chosen.store(answer, Ordering::SeqCst);
        let before = self.answered.load(Ordering::SeqCst);
        wait("the agent to ask again", SLOW, || match self.answered.load(Ordering::SeqCst) {
            now if now >= before + 2 => Ok(()),
            now => Err(format!("{} answers", now - before)),
        });
    }
}

fn respond(stream: TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let mut has_key = false;
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        let header = line.split_once(": ");
        has_key |= header.is_some_and(|(name, value)| name.eq_ignore_ascii_case(HEADER) && value == KEY);
    }
    let (status, body) = if has_key { (status, body) } else { (403, "you may not") };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&stream).write_all(format!("{head}{body}").as_bytes())
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{ "name": "main", "image": "rubelet.test/busybox:1", "command": ["sleep", "1000000"] }],
        },
    })
}

fn list(names: &[&str]) -> Answer {
    let items: Vec<Value> = names.iter().map(|name| pod(name)).collect();
    (200, json!({ "apiVersion": "v1", "kind": "PodList", "items": items }).to_string())
}

#[test]
fn a_list_behind_a_header_is_kept_running_through_failures_of_its_endpoint() {
    let endpoint = Endpoint::start(vec![
        list(&["one", "two"]),
        (500, "broken".to_owned()),
        (200, "nonsense".to_owned()),
        list(&["two"]),
        list(&[]),
    ]);
    let node = Node::start_with(|config| {
        config["staticPodURL"] = json!(endpoint.url);
        config["staticPodURLHeader"] = json!({ HEADER: [KEY] });
        config["httpCheckFrequency"] = json!("500ms");
    });
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("file", &sleeper("file"));
    let all = ["file", "one", "two"].map(str::to_owned);
    let before = seen.wait_running(&all, 1, SLOW);
    let pod = node.wait_pod("one", SLOW, |pod| pod["status"]["phase"] == "Running");
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.source"], "http");

    for (answer, words) in [(1, "500"), (2, "couldn't parse as pod")] {
        endpoint.choose(answer);
        wait("a complaint that names the endpoint", SLOW, || {
            let log = node.agent.log();
            let found =
                |line: &str| line.starts_with('E') && line.contains(&endpoint.url) && line.contains(words);
            if log.lines().any(found) { Ok(()) } else { Err(node.agent.log_tail()) }
        });
        assert_eq!(seen.wait_running(&all, 1, SLOW), before);
    }

    endpoint.choose(3);
    let after = seen.wait_running(&["file", "two"].map(str::to_owned), 1, SLOW);
    assert_eq!((&after["file"], &after["two"]), (&before["file"], &before["two"]));
    endpoint.choose(4);
    seen.wait_running(&["file".to_owned()], 1, SLOW);
    node.agent.remove_manifest("file");
    node.wait_clean(SLOW);
}
