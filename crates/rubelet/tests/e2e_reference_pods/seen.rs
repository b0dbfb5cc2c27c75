//! What the API server tells of the pods and of their Events, from a watch on each, as it happens.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Deserializer, Value};

use crate::cluster::Cluster;

/// By pod, in the order of the watch.
type Stories = BTreeMap<String, Vec<Value>>;

pub struct Seen {
    pods: Arc<Mutex<Stories>>,
    events: Arc<Mutex<Stories>>,
    watches: Vec<Child>,
}

impl Seen {
    pub fn begin(cluster: &Cluster, namespace: &str) -> Seen {
        let mut seen = Seen { pods: Arc::default(), events: Arc::default(), watches: Vec::new() };
        seen.watch(cluster, namespace, "pods", &["metadata", "name"], Arc::clone(&seen.pods));
        seen.watch(cluster, namespace, "events", &["involvedObject", "name"], Arc::clone(&seen.events));
        seen
    }

    fn watch(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        kind: &str,
        by: &'static [&'static str],
        into: Arc<Mutex<Stories>>,
    ) {
        let args = ["get", kind, "--namespace", namespace, "--watch", "--output-watch-events", "-o", "json"];
        let mut child = cluster
            .kubectl_command(&cluster.admin_kubeconfig(), &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start kubectl");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        self.watches.push(child);
        thread::spawn(move || {
            for event in Deserializer::from_reader(output).into_iter::<Value>().map_while(Result::ok) {
                let name = by.iter().fold(&event["object"], |value, key| &value[key]);
                let name = name.as_str().unwrap_or_default().to_owned();
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                into.entry(name).or_default().push(event);
            }
        });
    }

    /// Each state of the pod, with the watch's word for it: `ADDED`, `MODIFIED`, `DELETED`.
    pub fn pod(&self, name: &str) -> Vec<Value> {
        locked(&self.pods).get(name).cloned().unwrap_or_default()
    }

    /// The Events about the pod.
    pub fn events(&self, name: &str) -> Vec<Value> {
        let events = locked(&self.events);
        events.get(name).into_iter().flatten().map(|event| event["object"].clone()).collect()
    }
}

fn locked(stories: &Mutex<Stories>) -> MutexGuard<'_, Stories> {
    stories.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Seen {
    fn drop(&mut self) {
        for watch in &mut self.watches {
            let _ = watch.kill();
            let _ = watch.wait();
        }
    }
}
