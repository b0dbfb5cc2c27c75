//! Waiting for objects by watching them: the API server tells, nobody polls.

use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value};

use super::Cluster;

/// A watch that ended (its API server went, say) begins anew after this.
const PAUSE: Duration = Duration::from_millis(200);

/// `kubectl get --watch` on one object. Its first events tell what is there.
struct Watch {
    child: Child,
    events: Receiver<Value>,
}

impl Watch {
    fn start(cluster: &Cluster, kind: &str, namespace: &str, name: &str) -> Watch {
        let only = if name.is_empty() { String::new() } else { format!("metadata.name={name}") };
        let args = ["get", kind, "--namespace", namespace, "--field-selector", &only, "--watch"];
        let mut child = cluster
            .kubectl_command(&cluster.admin_kubeconfig(), &args)
            .args(["--output-watch-events", "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start kubectl");
        let output = child.stdout.take().expect("its output");
        let (sender, events) = channel();
        thread::spawn(move || {
            for event in Deserializer::from_reader(output).into_iter::<Value>().map_while(Result::ok) {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Watch { child, events }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that a watch told since it began: `ADDED`, `MODIFIED` and `DELETED` objects.
pub struct Record(Watch);

impl Record {
    /// What came since the last call.
    pub fn news(&self) -> Vec<Value> {
        self.0.events.try_iter().collect()
    }

    /// The next event, if it comes in time.
    pub fn next(&self, deadline: Duration) -> Option<Value> {
        self.0.events.recv_timeout(deadline).ok()
    }
}

impl Cluster {
    /// Begins to note what happens to an object, or with an empty name to all of a kind. What is there already
    /// comes first.
    pub fn record(&self, kind: &str, namespace: &str, name: &str) -> Record {
        Record(Watch::start(self, kind, namespace, name))
    }

    /// Waits until the object is there and as wanted, and gives it. Give an empty namespace for objects that
    /// have none.
    ///
    /// # Panics
    /// At the deadline, with the object as last seen.
    #[track_caller]
    pub fn wait_for(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        deadline: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let seen = self.watch_until(kind, namespace, name, deadline, |event| {
            event["type"] != "DELETED" && wanted(&event["object"])
        });
        match seen {
            Ok(event) => event["object"].clone(),
            Err(last) => panic!("waited {deadline:?} for {kind} {namespace}/{name}; last seen: {last}"),
        }
    }

    /// Waits until there is no such object.
    #[track_caller]
    pub fn wait_gone(&self, kind: &str, namespace: &str, name: &str, deadline: Duration) {
        // A watch can't tell of an object that was gone before it began.
        if self.get(kind, namespace, name).is_none() {
            return;
        }
        let args = ["wait", "--for=delete", kind, name, "--namespace", namespace];
        let timeout = format!("--timeout={}s", deadline.as_secs());
        if let Err(said) = self.try_kubectl(&[&args[..], &[&timeout]].concat()) {
            let object = self.get(kind, namespace, name);
            panic!("waited {deadline:?} for {kind} {namespace}/{name} to go: {said}; last seen: {object:?}");
        }
    }

    fn watch_until(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        deadline: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value, Value> {
        let end = Instant::now() + deadline;
        let mut last = Value::Null;
        loop {
            let watch = Watch::start(self, kind, namespace, name);
            loop {
                match watch.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(event) if wanted(&event) => return Ok(event),
                    Ok(event) => last = event,
                    Err(RecvTimeoutError::Timeout) => return Err(last),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
            if Instant::now() >= end {
                return Err(last);
            }
        }
    }
}
